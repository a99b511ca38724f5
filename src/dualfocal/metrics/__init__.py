"""Accuracy, likelihood and calibration metrics of classifiers: functions, and torchmetrics classes for streams."""

from typing import TYPE_CHECKING, Any

from dualfocal.metrics.binned import BinnedPredictions
from dualfocal.metrics.bins import BinStats
from dualfocal.metrics.calibration import adaptive_ece, classwise_ece, debiased_ece, ece, kde_ece, mce
from dualfocal.metrics.choices import ChoiceEvaluation, Choices, evaluate_choices, evaluate_tasks
from dualfocal.metrics.comparison import Comparison, compare
from dualfocal.metrics.evaluation import Evaluation, evaluate
from dualfocal.metrics.inference import Floor, Inference
from dualfocal.metrics.linear import LinearCalibration, linear_calibration
from dualfocal.metrics.monitor import CalibrationMonitor
from dualfocal.metrics.monitor_batch import MonitorBatch
from dualfocal.metrics.scores import (
    BrierDecomposition,
    aurc,
    brier_decomposition,
    brier_score,
    error_rate,
    nll,
    ood_auroc,
)

if TYPE_CHECKING:
    from dualfocal.metrics.streaming import (
        AdaptiveCalibrationError,
        BrierScore,
        ClasswiseCalibrationError,
        ExpectedCalibrationError,
        MaximumCalibrationError,
    )

__all__ = [
    "AdaptiveCalibrationError",
    "BinStats",
    "BinnedPredictions",
    "BrierDecomposition",
    "BrierScore",
    "CalibrationMonitor",
    "ChoiceEvaluation",
    "Choices",
    "ClasswiseCalibrationError",
    "Comparison",
    "Evaluation",
    "ExpectedCalibrationError",
    "Floor",
    "Inference",
    "LinearCalibration",
    "MaximumCalibrationError",
    "MonitorBatch",
    "adaptive_ece",
    "aurc",
    "brier_decomposition",
    "brier_score",
    "classwise_ece",
    "compare",
    "debiased_ece",
    "ece",
    "error_rate",
    "evaluate",
    "evaluate_choices",
    "evaluate_tasks",
    "kde_ece",
    "linear_calibration",
    "mce",
    "nll",
    "ood_auroc",
]


def __getattr__(name: str) -> Any:
    if name in __all__:  # a streaming class: torchmetrics is imported only when one is used
        from dualfocal.metrics import streaming

        return getattr(streaming, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
