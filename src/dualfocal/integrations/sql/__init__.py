"""Evaluate predictions where they are stored: one SQL query reduces a table to sums, without moving a row.

The query is plain SQL for DuckDB and PostgreSQL. Its result has a few thousand rows, whatever the size of the table.

Stored probabilities give the same sums as :meth:`BinnedPredictions.from_predictions
<dualfocal.metrics.BinnedPredictions.from_predictions>`, to the bit. Two sums can differ by 2^-32 per row: the negative
log-likelihood, because logarithms of different libraries can differ in the last bit, and, with 64 or more classes, the
Brier score, because Python adds in another order. Logits give the same sums up to the last bits of ``EXP``: a sample
can count in the next cell or bin if its probability lies within 2^-32 of an edge.
"""

from dualfocal.integrations.sql.evaluation import PredictionTable, bin_table, evaluate_table, reduction_query

__all__ = ["PredictionTable", "bin_table", "evaluate_table", "reduction_query"]
