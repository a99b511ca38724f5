"""Calibration class by class, worst first: how far each lies beyond what chance explains, all classes considered.

If every confidence holds, the number of right predictions among n samples with confidences p_1, ..., p_n has a
Poisson-binomial distribution: exact also for a class with three predictions, where a normal distribution would call
each mistake a finding.
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

MOST_ROWS = 2500  # of all tables of classes on a page together
ALARMS = 0.05  # of calibrated models, the share that may have a class beyond chance
GROUPS = 64  # of neighbours in confidence, which count as equal: fewer samples are all by themselves
WIDE, MORE = 9.0, 40.0  # standard deviations, and samples, around a group's mean: beyond lies less than 1e-15
TIE = 1e-9  # distances this close are the same but for rounding

Vector = NDArray[np.float64]


def class_table(subject: ReportInput, most: int) -> dict[str, Table | str]:
    """Calibration by predicted class, worst first; and how to read it."""
    num_classes, predicted, seen = subject.rows.num_classes, subject.predicted, subject.seen
    assert seen.classes is not None
    confidence = seen.uncertainty.reciprocal()
    count, right, sums = (
        torch.bincount(predicted, weights.double(), num_classes)
        for weights in (torch.ones_like(confidence), seen.right, confidence)
    )
    bound, p_value = class_chances(predicted, confidence, right)
    excess = (sums - right).abs() - bound
    beyond = torch.where(excess > TIE, excess, 0.0) / count  # NaN: never predicted
    true = torch.bincount(subject.rows.target, minlength=num_classes)
    one_against_rest = seen.classes.ece()
    order = sorted(range(num_classes), key=lambda c: (-float(beyond[c].nan_to_num(-1.0)), float(p_value[c]), c))
    means = (right / count, sums / count, (sums - right) / count, bound / count, beyond)
    rows = [
        [
            [subject.class_names[c], c],
            number(float(true[c]), 0),
            number(float(count[c]), 0),
            *(number(100 * float(of[c]), 1, sign=i == 2) for i, of in enumerate(means)),
            number(100 * float(one_against_rest[c]), 2),
        ]
        for c in order[:most]
    ]
    columns = [
        column("class", numeric=False),
        column("true", "samples of this class"),
        column("predicted", "samples predicted as this class"),
        column("accuracy %", "among those predicted as this class"),
        column("confidence %", "mean, among those predicted as this class"),
        column(f"conf {MINUS} acc", "in points: above 0 is over-confident"),
        column("± chance", "what chance explains, in points, with so many classes"),
        column("beyond", "how far the gap exceeds what chance explains, in points"),
        column("one-vs-rest ECE %", "its mean over the classes is the classwise ECE"),
    ]
    caption = "Calibration by predicted class, worst first"
    table = {"caption": caption, "columns": columns, "rows": rows, "sort": [7, True], "sortable": True}
    return {"classes": table, "classesNote": _note(subject.rows, int((count > 0).sum()), len(rows))}


def class_chances(predicted: Tensor, confidence: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """For each class what chance explains of |confidence - right|, summed over its predictions, and the p-value.

    The level is that of all predicted classes together: a perfectly calibrated model has one that lies beyond its
    bound in at most 5 % of cases. A class that is never predicted has NaN and 1.
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
    """The Poisson-binomial distribution: the least number that is right, and the probability of each from there on.

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
    """What chance explains: of |number right - sum of confidences|, the bound that it keeps with ``level``.

    Args:
        confidence: of each sample, at least one.
        right: how many are right.
        level: probability of staying within the bound, at least.

    Returns:
        The bound, and the p-value of the number seen.
    """
    least, masses = distribution(confidence)
    distance = np.abs(least + np.arange(len(masses)) - confidence.sum())
    order = np.argsort(-distance)
    beyond = np.cumsum(masses[order])  # probability of lying as far as this, or further
    seen = float(masses[distance >= abs(right - confidence.sum()) - TIE].sum())
    # The largest distances are left out while together they are as rare as they should be.
    left_out = int(np.searchsorted(beyond, 1 - level, side="right"))
    bound = float(distance[order[min(left_out, len(order) - 1)]])
    return bound, min(seen, 1.0)


def _note(rows: Rows, predicted: int, shown: int) -> str:
    part = f"The {shown:,} worst of {rows.num_classes:,} classes are shown. " if shown < rows.num_classes else ""
    top = "This table is of the predicted class and its confidence, not of the confidence of class 1. "
    among = f" ({predicted:,} classes are predicted, 5 % is for all of them together)" if predicted > 1 else ""
    return (
        f"{part}{top if rows.positive else ''}Chance: the exact distribution of how many are right if every confidence "
        f"holds (Poisson-binomial), cut at {100 * ALARMS / predicted:.2g} %{among}: of calibrated models at most 5 % "
        "have a class beyond it. Classes within chance follow by p-value."
    )
