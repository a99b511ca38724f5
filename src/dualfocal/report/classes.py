"""Calibration by predicted class, with the gap that chance explains, adjusted for the number of classes.

For a calibrated model, the number of right predictions among n samples with confidences p_1, ..., p_n has a
Poisson-binomial distribution. It is exact even for a class with three predictions, where a normal approximation would
call every mistake significant.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln, xlog1py, xlogy
from torch import Tensor

from dualfocal.metrics.rows import Rows
from dualfocal.report.inputs import ReportInput
from dualfocal.report.tables import MINUS, Table, column, number

MOST_ROWS = 2500  # in all class tables of a page together
ALARMS = 0.05  # share of calibrated models that have a class beyond the chance limit
GROUPS = 64  # of similar confidences, which are treated as equal; up to this many samples the distribution is exact
WIDE, MORE = 9.0, 40.0  # standard deviations and samples around the mean of a group; less than 1e-15 lies beyond
TIE = 1e-9  # distances this close are equal up to rounding

Vector = NDArray[np.float64]


def class_table(source: ReportInput, most: int) -> dict[str, Table | str]:
    """Return the table of classes, worst first, and a note on how to read it."""
    num_classes, predicted, scanned = source.rows.num_classes, source.predicted, source.scanned
    assert scanned.classes is not None
    confidence = scanned.uncertainty.reciprocal()
    count, right, sums = (
        torch.bincount(predicted, weights.double(), num_classes)
        for weights in (torch.ones_like(confidence), scanned.right, confidence)
    )
    bound, p_value = class_chances(predicted, confidence, right)
    distance = (sums - right).abs() - bound
    excess = torch.where(distance > TIE, distance, 0.0) / count  # NaN: never predicted
    true = torch.bincount(source.rows.target, minlength=num_classes)
    one_against_rest = scanned.classes.ece()
    order = sorted(range(num_classes), key=lambda c: (-float(excess[c].nan_to_num(-1.0)), float(p_value[c]), c))
    means = (right / count, sums / count, (sums - right) / count, bound / count, excess)
    rows = [
        [
            [source.class_names[c], c],
            number(float(true[c]), 0),
            number(float(count[c]), 0),
            *(number(100 * float(values[c]), 1, sign=i == 2) for i, values in enumerate(means)),
            number(100 * float(one_against_rest[c]), 2),
        ]
        for c in order[:most]
    ]
    columns = [
        column("class", numeric=False),
        column("true", "samples of this class"),
        column("predicted", "samples predicted as this class"),
        column("accuracy %", "of the samples predicted as this class"),
        column("confidence %", "mean over the samples predicted as this class"),
        column(f"conf {MINUS} acc", "confidence minus accuracy in points; above 0: over-confident"),
        column("chance limit", "largest gap that chance explains, in points, adjusted for the number of classes"),
        column("excess", "gap beyond the chance limit, in points"),
        column("one-vs-rest ECE %", "ECE of the probability of this class; the mean over classes is the classwise ECE"),
    ]
    caption = "Calibration by predicted class, worst first"
    table = {"caption": caption, "columns": columns, "rows": rows, "sort": [7, True], "sortable": True}
    return {"classes": table, "classesNote": _note(source.rows, int((count > 0).sum()), len(rows))}


def class_chances(predicted: Tensor, confidence: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each class the chance limit of |sum of confidences - number right|, and the p-value.

    The limits hold for all predicted classes together: at most 5 % of perfectly calibrated models have a class beyond
    its limit. A class that is never predicted has NaN and 1.
    """
    num_classes, order = len(right), predicted.argsort(stable=True)
    parts = np.split(confidence[order].numpy(), torch.bincount(predicted, minlength=num_classes).cumsum(0)[:-1].numpy())
    level = 1 - ALARMS / sum(len(part) > 0 for part in parts)
    bounds = [
        chance_bound(part, float(right[c]), level) if len(part) else (math.nan, 1.0) for c, part in enumerate(parts)
    ]
    bound, p_value = torch.tensor(bounds, dtype=torch.float64).T
    return bound, p_value


def distribution(confidence: Vector) -> tuple[int, Vector]:
    """Return the Poisson-binomial distribution: the least number right, and the probability of each number from there.

    >>> distribution(np.array([0.5, 0.5]))
    (0, array([0.25, 0.5 , 0.25]))
    """
    least, masses = 0, np.ones(1)
    for group in np.array_split(np.sort(confidence), min(len(confidence), GROUPS)):
        n, p = len(group), float(group.mean())
        half = WIDE * np.sqrt(n * p * (1 - p)) + MORE
        k = np.arange(max(0, int(n * p - half)), min(n, int(n * p + half) + 1) + 1)
        ways = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
        least += int(k[0])
        masses = np.convolve(masses, np.exp(ways + xlogy(k, p) + xlog1py(n - k, -p)))
    return least, masses


def chance_bound(confidence: Vector, right: float, level: float) -> tuple[float, float]:
    """Return the bound of |number right - sum of confidences| for a calibrated model, and the p-value.

    Args:
        confidence: confidences of one or more samples.
        right: observed number of right predictions.
        level: least probability of staying within the bound.

    Returns:
        The bound, and the p-value of the observed number.
    """
    least, masses = distribution(confidence)
    distance = np.abs(least + np.arange(len(masses)) - confidence.sum())
    order = np.argsort(-distance)
    tail = np.cumsum(masses[order])  # probability of this distance or a larger one
    p_value = float(masses[distance >= abs(right - confidence.sum()) - TIE].sum())
    # Leave out the largest distances as long as their total probability is at most 1 - level.
    left_out = int(np.searchsorted(tail, 1 - level, side="right"))
    bound = float(distance[order[min(left_out, len(order) - 1)]])
    return bound, min(p_value, 1.0)


def _note(rows: Rows, predicted: int, shown: int) -> str:
    part = f"The {shown:,} worst of {rows.num_classes:,} classes are shown. " if shown < rows.num_classes else ""
    top = "This table uses the confidence of the predicted class, not the probability of class 1. "
    among = f", which is 5 % adjusted for {predicted:,} predicted classes" if predicted > 1 else ""
    return (
        f"{part}{top if rows.positive else ''}Chance limit: the gap that a calibrated model exceeds with a probability "
        f"of at most {100 * ALARMS / predicted:.2g} % (exact Poisson-binomial distribution){among}. "
        "Classes within their limit are sorted by p-value."
    )
