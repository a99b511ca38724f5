"""Accuracy, likelihood and calibration metrics of classifiers: functions, and torchmetrics classes for streams."""

from typing import TYPE_CHECKING, Any

from dualfocal._extras import import_extra
from dualfocal.metrics.auroc import Auroc, auroc, compare_auroc
from dualfocal.metrics.calibration import adaptive_ece, classwise_ece, debiased_ece, ece, kde_ece, mce
from dualfocal.metrics.cells import BinStats
from dualfocal.metrics.choices import ChoiceEvaluation, Choices, evaluate_choices, evaluate_tasks
from dualfocal.metrics.comparison import Comparison, Difference, compare
from dualfocal.metrics.corp import Corp, corp
from dualfocal.metrics.evaluation import evaluate
from dualfocal.metrics.groups import GroupEvaluation, evaluate_groups, evaluate_many
from dualfocal.metrics.inference_result import Floor, Inference, holm
from dualfocal.metrics.monitor.calibration_monitor import CalibrationMonitor
from dualfocal.metrics.multilabel.result import MultilabelEvaluation
from dualfocal.metrics.ranking import RiskCoverage
from dualfocal.metrics.registry import METRICS, Metric
from dualfocal.metrics.result import Evaluation
from dualfocal.metrics.samples import Samples
from dualfocal.metrics.scores import (
    BrierDecomposition,
    aurc,
    brier_decomposition,
    brier_score,
    error_rate,
    nll,
    ood_auroc,
)
from dualfocal.metrics.shift.evaluation import evaluate_shift
from dualfocal.metrics.shift.scores import ShiftEvaluation, ShiftScores
from dualfocal.metrics.sums import CalibrationSums
from dualfocal.metrics.tokens import TokenConfidences, TokenEvaluation

if TYPE_CHECKING:
    from dualfocal.metrics.torchmetrics import (
        BrierScore,
        ClasswiseCalibrationError,
        ExpectedCalibrationError,
        MaximumCalibrationError,
    )

__all__ = [
    "METRICS",
    "Auroc",
    "BinStats",
    "BrierDecomposition",
    "BrierScore",
    "CalibrationMonitor",
    "CalibrationSums",
    "ChoiceEvaluation",
    "Choices",
    "ClasswiseCalibrationError",
    "Comparison",
    "Corp",
    "Difference",
    "Evaluation",
    "ExpectedCalibrationError",
    "Floor",
    "GroupEvaluation",
    "Inference",
    "MaximumCalibrationError",
    "Metric",
    "MultilabelEvaluation",
    "RiskCoverage",
    "Samples",
    "ShiftEvaluation",
    "ShiftScores",
    "TokenConfidences",
    "TokenEvaluation",
    "adaptive_ece",
    "aurc",
    "auroc",
    "brier_decomposition",
    "brier_score",
    "classwise_ece",
    "compare",
    "compare_auroc",
    "corp",
    "debiased_ece",
    "ece",
    "error_rate",
    "evaluate",
    "evaluate_choices",
    "evaluate_groups",
    "evaluate_many",
    "evaluate_shift",
    "evaluate_tasks",
    "holm",
    "kde_ece",
    "mce",
    "nll",
    "ood_auroc",
]


def __getattr__(name: str) -> Any:
    if name in __all__:  # a streaming class: torchmetrics is imported only when one is used
        import_extra("torchmetrics")
        from dualfocal.metrics import torchmetrics

        return getattr(torchmetrics, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
