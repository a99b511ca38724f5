"""Sums of (p - y) over units: clusters of samples that may depend on each other, or single weighted samples."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dualfocal.metrics.cells import BinStats, Floats, bin_index, tally
from dualfocal.metrics.inference_result import ClusterSummary
from dualfocal.metrics.samples import Samples
from dualfocal.metrics.scan import Scan

MOST_UNITS = 4096  # with more clusters, random groups of them are one unit: their sums have the same variance
MOST_CELLS = 1 << 24  # sums by unit, class and bin in memory
COLUMNS = 1024  # bins of classes that are summed at a time

ClassGaps = Callable[[slice], Floats]


@dataclass(frozen=True, eq=False)
class UnitSums:
    """Sums of the residuals w (p - y) over the samples of each unit. Units are independent, their samples need not be.

    Args:
        gap: sums of the residuals by bin of the confidence, ``(K, B)``.
        size: sums of w by bin, ``(K, B)``.
        number: number of clusters; several can be one unit.
        moments: sums over all samples of w^2, w^2 (p - y) and w^2 (p - y)^2.
        class_gaps: returns the sums of the residuals of some classes by bin of their probability, and last of the
            samples predicted as the class, ``(K, classes, B + 1)``; None if only the predicted class is known.
        totals: sums and sizes of all clusters, ``(number,)``; None: those of the units.
        adaptive: ``gap`` and ``size`` by bins of equal mass; None if they are not known.
    """

    gap: Floats
    size: Floats
    number: int
    moments: Floats
    class_gaps: ClassGaps | None = None
    totals: tuple[Floats, Floats] | None = None
    adaptive: tuple[Floats, Floats] | None = None

    def summary(self) -> ClusterSummary:
        """Return number, effective number and design effect of the clusters."""
        sums, sizes = (self.gap.sum(1), self.size.sum(1)) if self.totals is None else self.totals
        n, number = float(sizes.sum()), len(sums)
        mean = float(sums.sum()) / n
        sums = sums - mean * sizes
        squares = float((sums**2).sum())
        weight, first, second = self.moments.tolist()
        variance = (second - 2 * mean * first + mean**2 * weight) * n / max(n - 1, 1)
        design_effect = squares * number / max(number - 1, 1) / variance if variance > 0 else 1.0
        # Of normal numbers with equal variances, 3 (sum of squares)^2 / (sum of fourth powers) is their number.
        by_noise = 3 * squares**2 / float((sums**4).sum()) if squares > 0 else np.inf
        effective = min(by_noise, n**2 / float((sizes**2).sum()), self.number)
        return ClusterSummary(self.number, float(effective), design_effect)

    def squared_error(self) -> float:
        """Return the squared calibration error over the bins, less the noise of the units; it can be negative.

        A bin with samples of one unit only counts as 0: its noise cannot be estimated.
        """
        full = self.size.any(0)
        sums, sizes = self.gap[:, full], self.size[:, full]
        count, gap = sizes.sum(0), sums.sum(0)
        variance = ((sums - sizes * (gap / count)) ** 2).sum(0) * unit_factor(sizes)
        known = np.count_nonzero(sizes, axis=0) > 1
        return float((known * (gap**2 - variance) / count).sum() / count.sum())

    def parts(self, num_classes: int, num_bins: int) -> Iterator[tuple[slice, Floats]]:
        """Yield some classes at a time, with their sums, ``(K, classes, B + 1)``."""
        assert self.class_gaps is not None
        step = max(1, min(COLUMNS // (num_bins + 1), MOST_CELLS // (len(self.gap) * (num_bins + 1))))
        for start in range(0, num_classes, step):
            part = slice(start, min(start + step, num_classes))
            yield part, self.class_gaps(part)


def unit_sums(
    stats: Scan, bins: BinStats, *, samples: Samples | None = None, adaptive: BinStats | None = None, seed: int = 0
) -> UnitSums:
    """Sum samples by their clusters; without clusters, each sample is one.

    Args:
        stats: scan of the samples.
        bins: bins of the confidence.
        samples: the samples, if sums by class are needed.
        adaptive: bins of equal mass.
        seed: seed of the random groups of very many clusters.
    """
    n = len(stats.confidence)
    cluster = np.arange(n) if stats.cluster is None else stats.cluster
    number = int(cluster.max()) + 1
    unit = cluster
    if number > MOST_UNITS:
        unit = (np.random.default_rng(seed).permutation(number) % MOST_UNITS)[cluster]
    units = min(number, MOST_UNITS)
    weight = np.ones(n) if stats.weight is None else stats.weight
    residual = stats.confidence - stats.correct

    def sums(index: NDArray[np.int64], size: int) -> tuple[Floats, Floats]:
        gap, count = (
            tally(unit * size + index, values, units * size).reshape(units, size)
            for values in (weight * residual, weight)
        )
        return gap, count

    gap, size = sums(bin_index(stats.confidence, bins.edges), bins.num_bins)
    equal_mass = None
    if adaptive is not None:
        equal_mass = sums(np.searchsorted(adaptive.edges[1:-1], stats.confidence), adaptive.num_bins)
    return UnitSums(
        gap=gap,
        size=size,
        number=number,
        moments=np.array([float((weight**2 * x).sum()) for x in (np.ones(n), residual, residual**2)]),
        class_gaps=None if samples is None else _class_gaps_of_rows(samples, stats, unit, bins.edges),
        totals=(tally(cluster, weight * residual, number), tally(cluster, weight, number)),
        adaptive=equal_mass,
    )


def _class_gaps_of_rows(samples: Samples, stats: Scan, unit: NDArray[np.int64], edges: Floats) -> ClassGaps:
    """Return a function that sums the residuals of some classes by unit, which reads the samples again."""
    values, number, width = samples.values, int(unit.max()) + 1, len(edges)
    normaliser = torch.cat([part.double().logsumexp(1) for part in torch.split(values, 1 << 14)])[:, None]
    if samples.input == "probs":
        normaliser = torch.zeros_like(normaliser)

    def class_gaps(part: slice) -> Floats:
        p = values[:, part].double()
        p = (p - normaliser).exp_() if samples.input == "logits" else p
        p_of = p.cpu().numpy()
        classes = np.arange(samples.num_classes)[part]
        first = int(classes[0])
        residual = p_of - (samples.target.cpu().numpy()[:, None] == classes)
        if stats.weight is not None:
            residual *= stats.weight[:, None]
        index = bin_index(p_of.ravel(), edges).reshape(p_of.shape) + width * (classes - first)
        index += (unit * (len(classes) * width))[:, None]
        sums = tally(index.ravel(), residual.ravel(), number * len(classes) * width)
        sums = sums.reshape(number, len(classes), width)
        here = np.flatnonzero((stats.predicted >= first) & (stats.predicted <= classes[-1]))
        column = stats.predicted[here] - first
        predicted = tally(unit[here] * len(classes) + column, residual[here, column], number * len(classes))
        sums[..., -1] = predicted.reshape(number, len(classes))
        return sums

    return class_gaps


def wild_signs(number: int, draws: int, seed: int) -> Floats:
    """Return random numbers of mean 0 and variance 1 for each draw and unit, ``(draws, number)``.

    Signs, or with fewer than 50 units one of six values (Webb 2014), so that there are enough different draws.
    """
    rng = np.random.default_rng(seed)
    if number >= 50:
        signs: Floats = 2 * rng.integers(2, size=(draws, number), dtype=np.int8).astype(np.float64) - 1
        return signs
    return rng.choice([sign * np.sqrt(square) for square in (0.5, 1.0, 1.5) for sign in (-1.0, 1.0)], (draws, number))


def centred_sums(sums: Floats, sizes: Floats) -> Floats:
    """Return the sums of units less the mean gap of their bin: the noise alone, also if the model is miscalibrated."""
    centred: Floats = (sums - sizes * (sums.sum(0) / sizes.sum(0))) * np.sqrt(unit_factor(sizes))
    return centred


def unit_factor(sums: Floats) -> Floats:
    """Return K / (K - 1), where K is the number of units with samples; 0 if there is only one.

    A sum of squares over units, after the mean was subtracted, is multiplied by it.
    """
    number = np.count_nonzero(sums, axis=0)
    return np.where(number > 1, number / np.maximum(number - 1, 1), 0.0)
