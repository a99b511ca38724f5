"""Reliability of the probability of each class, worst first, for the small diagrams of a page."""

import math
from typing import Any

import torch
from torch import Tensor

from dualfocal.metrics.bins import BinStats
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
    bins = source.scanned.classes
    variance, factor = bound_of_variance(bins), noise_factor(bins, source.rows.weight, source.design_effect)
    total = bins.count.sum(-1)
    ece, floor = bins.ece(), noise_floors(variance, factor, total)
    order = torch.argsort(ece - floor, descending=True, stable=True)
    if source.rows.num_classes == 2:
        order = torch.tensor([1])
    shown = order[: max(1, MOST_PANELS // models)].tolist()
    samples = bins.correct.sum(-1)
    return {
        "numClasses": source.rows.num_classes,
        "classes": [
            {
                "name": source.class_names[c],
                "ece": float(ece[c]),
                "floor": float(floor[c]),
                "samples": rounded([float(samples[c])])[0],
                "bins": bin_columns(_row(bins, c), (factor * variance)[c]),
            }
            for c in shown
        ],
    }


def bin_columns(bins: BinStats, variance: Tensor) -> dict[str, list[float]]:
    """Return the bins that are not empty as columns, with the 90 % range of a calibrated model.

    Args:
        bins: ``(B,)`` bins.
        variance: variance of the number of correct samples in each bin, if the model is calibrated.
    """
    kept = bins.count > 0
    # A continuity correction of half a sample, as in calibration.js: the number of correct samples is an integer.
    chance = (CHANCE * variance.sqrt() + 0.5) / bins.count
    columns = {
        "low": bins.edges[:-1],
        "high": bins.edges[1:],
        "count": bins.count,
        "confidence": bins.mean_confidence,
        "accuracy": bins.accuracy,
        "chance": chance,
    }
    return {name: rounded(values[kept].tolist()) for name, values in columns.items()}


def bound_of_variance(bins: BinStats) -> Tensor:
    """Return an upper bound of the variance of the number of correct samples in each bin of a calibrated model.

    The variance is the sum of p (1 - p), at most n m (1 - m) with the mean m of p in the bin. With B bins of equal
    width, it is at least 1 - 1 / B of the bound: with 15 bins, ranges are at most 4 % too wide. For samples with
    weights, or in clusters, multiply it by :func:`noise_factor`.
    """
    mean = bins.mean_confidence.clamp(0, 1)
    return torch.where(bins.count > 0, bins.count * mean * (1 - mean), 0.0)


def noise_factor(bins: BinStats, weight: Tensor | None, effect: float) -> Tensor:
    """Return by how much weights and clusters increase the variance of the sum of correct samples in each bin.

    Weights increase it by the sum of their squares, divided by their sum: that of the bin, where it is known, else
    that of all samples. Clusters increase it by the design effect of all samples.
    """
    if bins.squares is not None:
        return effect * torch.where(bins.count > 0, bins.squares.sum(0) / bins.count, 1.0)
    spread = 1.0 if weight is None else float(weight.square().sum() / weight.sum())
    return torch.full_like(bins.mean_confidence, effect * spread)


def noise_floors(variance: Tensor, factor: Tensor, total: Tensor) -> Tensor:
    """Return the mean ECE of a calibrated model, by the normal approximation, as in calibration.js."""
    return torch.minimum((2 / math.pi * factor * variance).sqrt(), 2 * variance).sum(-1) / total


def _row(bins: BinStats, index: int) -> BinStats:
    """Return the bins of one class."""
    return BinStats(bins.count[index], bins.whole[index], bins.units[index], bins.correct[index], bins.edges)
