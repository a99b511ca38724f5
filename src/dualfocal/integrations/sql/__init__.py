"""Evaluate predictions in DuckDB or PostgreSQL (``pip install "dualfocal[sql]"``).

The rows are read in batches and summed up as :class:`~dualfocal.metrics.CalibrationSums`, so that memory does not grow
with the table.
"""

from dualfocal.integrations.sql.table import PredictionTable, evaluate_table

__all__ = ["PredictionTable", "evaluate_table"]
