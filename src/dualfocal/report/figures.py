"""The numbers of the figures of a page, computed from all samples."""

from typing import Any

from dualfocal.calibrators.comparison import UNCALIBRATED
from dualfocal.metrics import Evaluation
from dualfocal.metrics.result import finite
from dualfocal.report.calibrated import Calibration
from dualfocal.report.class_reliability import bin_columns, class_reliability_figure
from dualfocal.report.confusion import confusion_figure
from dualfocal.report.curves import coverage_figure, histogram_figure, roc_figure
from dualfocal.report.inputs import ReportInput, design_effect


def model_figures(source: ReportInput, calibration: Calibration, models: int, level: float) -> dict[str, Any]:
    """Return the numbers of all figures about one of ``models`` models, with intervals of the given level."""
    return {
        "confusion": confusion_figure(source, models),
        "coverage": coverage_figure(source),
        "histogram": histogram_figure(source),
        "classReliability": class_reliability_figure(source, models),
        "roc": roc_figure(source.samples, level),
        "overlay": overlay_figure(calibration),
        "designEffect": None if source.samples.cluster is None else source.design_effect,
    }


def overlay_figure(calibration: Calibration) -> dict[str, Any] | None:
    """Return the bins before and after the recommended calibrator (None: none is recommended)."""
    comparison, recommended = calibration.comparison, calibration.recommended
    if comparison is None or recommended is None:
        return None
    return {
        "method": recommended.name,
        "repeats": comparison.repeats,
        "heldOut": comparison.held_out,
        "before": _reliability(comparison[UNCALIBRATED].evaluation),
        "after": _reliability(recommended.evaluation),
    }


def _reliability(evaluation: Evaluation) -> dict[str, Any]:
    bins = evaluation.bins
    columns = bin_columns(bins, design_effect(evaluation) * bins.variance)
    return {"ece": evaluation.ece, "nll": finite(evaluation.nll), "bins": columns}
