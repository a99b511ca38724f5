"""Reliability of the probability of each class, worst first, for the small diagrams of a page."""

import math
from typing import Any

import numpy as np

from dualfocal.metrics.cells import BinStats, Floats
from dualfocal.report.curves import rounded
from dualfocal.report.inputs import ReportInput

MOST_PANELS = 300  # classes in the small diagrams of a page, of all models together
CHANCE = 1.645  # standard errors of a 90 % range, the level of the diagrams in dualfocal.plots


def class_reliability_figure(source: ReportInput, models: int) -> dict[str, Any]:
    """Return the bins of the probability of each class, the class with the largest excess of the ECE first.

    The excess is the one-vs-rest ECE of a class minus its noise floor. With two classes only class 1 is returned: class
    0 is its complement.

    Args:
        source: the predictions.
        models: number of models on the page, which share its size.

    Returns:
        ``classes``: for each class its ``name``, ``ece``, ``floor``, number of ``samples``, and its ``bins`` that are
        not empty, as columns ``low``, ``high``, ``count``, ``confidence`` (mean probability), ``accuracy`` (share of
        the class) and ``chance`` (half of the 90 % range of a calibrated model); ``numClasses``: number of all classes.
    """
    classes = source.scanned.classes
    assert classes is not None
    bins = classes.sum(1)
    variance, total = bins.variance * source.design_effect, bins.count.sum(-1)
    ece, floor = bins.ece(), noise_floors(variance, total)
    order = np.argsort(floor - ece, kind="stable")
    if source.samples.num_classes == 2:
        order = np.array([1])
    shown = order[: max(1, MOST_PANELS // models)].tolist()
    samples = bins.correct.sum(-1)
    return {
        "numClasses": source.samples.num_classes,
        "classes": [
            {
                "name": source.class_names[c],
                "ece": float(ece[c]),
                "floor": float(floor[c]),
                "samples": rounded([float(samples[c])])[0],
                "bins": bin_columns(bins[c], variance[c]),
            }
            for c in shown
        ],
    }


def bin_columns(bins: BinStats, variance: Floats) -> dict[str, list[float]]:
    """Return the bins that are not empty as columns, with the 90 % range of a calibrated model.

    Args:
        bins: ``(B,)`` bins.
        variance: variance of the number of correct samples in each bin, if the model is calibrated.
    """
    kept = bins.count > 0
    # A continuity correction of half a sample, as in calibration.js: the number of correct samples is an integer.
    chance = (CHANCE * np.sqrt(variance) + 0.5) / np.maximum(bins.count, 1e-300)
    columns = {
        "low": bins.edges[:-1],
        "high": bins.edges[1:],
        "count": bins.count,
        "confidence": bins.mean_confidence,
        "accuracy": bins.accuracy,
        "chance": chance,
    }
    return {name: rounded(values[kept].tolist()) for name, values in columns.items()}


def noise_floors(variance: Floats, total: Floats) -> Floats:
    """Return the mean ECE of a calibrated model, by the normal approximation, as in calibration.js."""
    floors: Floats = np.minimum(np.sqrt(2 / math.pi * variance), 2 * variance).sum(-1) / total
    return floors
