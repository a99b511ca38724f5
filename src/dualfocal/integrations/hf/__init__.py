"""Losses and calibration metrics for the ``Trainer`` of Hugging Face (``pip install "dualfocal[hf]"``).

``Trainer(compute_loss_func=loss_func(DualFocalLoss()), compute_metrics=compute_metrics)`` trains and evaluates a
classifier; see ``docs/frameworks.md`` for complete scripts. Nothing here imports transformers.
"""

from dualfocal.integrations.hf._loss import loss_func
from dualfocal.integrations.hf.causal_lm import count_tokens, evaluate_causal_lm, scan_causal_lm
from dualfocal.integrations.hf.metrics import EvalPrediction, compute_lm_metrics, compute_metrics, lm_statistics

__all__ = [
    "EvalPrediction",
    "compute_lm_metrics",
    "compute_metrics",
    "count_tokens",
    "evaluate_causal_lm",
    "lm_statistics",
    "loss_func",
    "scan_causal_lm",
]
