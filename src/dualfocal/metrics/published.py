"""Calibration errors as other code computes them: that of Mukhoti et al. and Tao et al., and torchmetrics."""

import numpy as np
import torch

from dualfocal.metrics.cells import BinStats
from dualfocal.metrics.draws import Settings
from dualfocal.metrics.ranking import adaptive_bins
from dualfocal.metrics.samples import Samples
from dualfocal.metrics.scan import Scan, scan

RESAMPLES = 1000


def conventional_bins(samples: Samples, num_bins: int, convention: str) -> BinStats:
    """Return the bins of the confidence by another convention.

    Both round confidences to the dtype of the input, and take edges from ``linspace``, some of which are off by one
    ulp. torchmetrics has bins ``[lo, hi)``, and one more bin for confidence 1.
    """
    stats = scan(samples, as_given=True)
    edges = torch.linspace(0, 1, num_bins + 1, dtype=samples.values.dtype).double().numpy()
    if convention == "published":
        index = np.searchsorted(edges[1:-1], stats.confidence)
    else:
        index = np.searchsorted(edges, stats.confidence, side="right") - 1
        edges = np.append(edges, edges[-1])
    return BinStats.collect(stats.confidence, stats.correct, edges, weight=stats.weight, index=index)


def by_convention(samples: Samples, num_bins: int, convention: str) -> dict[str, float]:
    """Return ECE and MCE, and for ``"published"`` the adaptive ECE, by another convention."""
    bins = conventional_bins(samples, num_bins, convention)
    errors = {"ece": float(bins.ece()), "mce": float(bins.mce())}
    if convention == "published":
        stats = scan(samples, as_given=True)
        adaptive = adaptive_bins(stats.confidence, stats.correct, num_bins, weight=stats.weight, drop_lowest=True)
        errors["adaptive_ece"] = float(np.abs(adaptive.gap).sum()) / len(samples)
    return errors


def published_intervals(
    samples: Samples, stats: Scan, num_bins: int, settings: Settings
) -> dict[str, tuple[float, float]]:
    """Return the published intervals: pivotal bootstrap intervals of four errors, whose coverage is poor near zero."""
    rng, level = np.random.default_rng(settings.seed), settings.level
    drawn = []
    for _ in range(RESAMPLES):
        picked = torch.from_numpy(rng.integers(len(samples), size=len(samples))).to(samples.values.device)
        drawn.append(list(_errors(scan(samples.at(picked), num_bins=num_bins, classwise=True), num_bins).values()))
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return {
        name: (2 * value - float(high[i]), 2 * value - float(low[i]))
        for i, (name, value) in enumerate(_errors(stats, num_bins).items())
    }


def _errors(stats: Scan, num_bins: int) -> dict[str, float]:
    bins, classes = stats.bins(num_bins), stats.classes
    assert classes is not None
    adaptive = adaptive_bins(stats.confidence, stats.correct, num_bins, weight=stats.weight)
    return {
        "ece": float(bins.ece()),
        "adaptive_ece": float(np.abs(adaptive.gap).sum() / adaptive.count.sum()),
        "classwise_ece": float(classes.sum(1).ece().mean()),
        "mce": float(bins.mce()),
    }
