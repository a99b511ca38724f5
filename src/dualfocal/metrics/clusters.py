"""Inference for samples that are not independent: pixels of an image, questions of a passage, images of a patient.

Samples of one cluster may depend on each other in any way; clusters are independent. The sums of (p - y) over each
cluster and bin then have mean 0 if the model is calibrated, whatever their variance is. A wild bootstrap multiplies
the sums of each cluster by a random number of mean 0 and variance 1 (a sign; with fewer than 50 clusters one of six
values, Webb 2014), which keeps the dependence within clusters and imposes calibration. These draws take the place of
drawn outcomes in :mod:`dualfocal.metrics.inference` and :mod:`dualfocal.metrics.classwise`. Noise floors and the
interval use the sums of (p - y) less the mean gap of their bin: the noise alone, also if the model is miscalibrated.

A wild bootstrap learns the noise from the data alone, and sees too little of it where errors are rare. The inference
for independent samples knows the noise from the probabilities, but not the dependence. Of the two, the more cautious
result counts: the larger p-value, noise floor and detectable gap, and the interval that contains both intervals.

``benchmarks/cluster_coverage.py`` checks level and coverage by simulation.
"""

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dualfocal.metrics._cluster_classes import cluster_classwise
from dualfocal.metrics._cluster_noise import LEAST, Array, ClusterNoise, as_large, cluster_factor, last_rank
from dualfocal.metrics.bins import Binner, BinStats, from_units, scatter_sum
from dualfocal.metrics.classwise import SIGNIFICANCE
from dualfocal.metrics.cluster_summary import ClusterSummary
from dualfocal.metrics.inference import GRID, POWER, SHAPES, Floor, Inference, crossing, unified_interval
from dualfocal.metrics.label_counts import RowLabels
from dualfocal.metrics.scan import Scan


def cluster_inference(
    inference: Inference, labels: RowLabels, stats: Scan, bins: BinStats, adaptive: BinStats
) -> Inference:
    """Widen the inference for independent samples by what the clusters of the samples show.

    Args:
        inference: result for independent samples.
        labels: labels of the rows; ``labels.rows.cluster`` is the cluster of each row.
        stats: scan of the rows.
        bins: bins of the ECE.
        adaptive: bins of the adaptive ECE.
    """
    assert labels.rows.cluster is not None
    noise = ClusterNoise(labels.rows.cluster, inference.draws, inference.seed)
    top = _BinSums(noise, stats, bins)
    p_value = max(inference.p_value, top.p_value)
    low, high = top.interval(p_value, 1 - inference.level)
    summary = summarize_clusters(noise.clusters, stats)
    classwise, classwise_errors = cluster_classwise(noise, labels, summary.design_effect)
    errors = {
        "ece": np.abs(top.centred).sum(1) / top.total,
        "mce": (np.abs(top.centred) / top.count).max(1),
        "adaptive_ece": np.abs(_BinSums(noise, stats, adaptive).centred).sum(1) / top.total,
        "classwise_ece": classwise_errors,
    }
    independent, significance = inference.classwise, SIGNIFICANCE
    if independent is not None:  # gaps of single classes are those that are significant with clusters
        classwise = replace(classwise, p_value=max(independent.p_value, classwise.p_value))
        significance = SIGNIFICANCE / 2  # by Holm's method, for the first of two tests
    return replace(
        inference,
        floors={name: _larger(floor, errors[name]) for name, floor in inference.floors.items()},
        p_value=p_value,
        debiased_ece=(min(inference.debiased_ece[0], low), max(inference.debiased_ece[1], high)),
        detectable=max(inference.detectable, top.detectable(significance)),
        classwise=None if independent is None else classwise,
        clusters=summary,
    )


def cluster_squared_error(clusters: Tensor, stats: Scan, bins: BinStats) -> float:
    """Return the squared calibration error over the bins, less the noise of clustered samples; it can be negative.

    A bin with samples of one cluster only counts as 0: its noise cannot be estimated.
    """
    return _BinSums(ClusterNoise(clusters, draws=1, seed=0), stats, bins).observed


def summarize_clusters(clusters: Tensor, stats: Scan) -> ClusterSummary:
    """Return number, effective number and design effect of the clusters."""
    residual = _residual(stats)
    residual -= residual.mean()
    number = int(clusters.max()) + 1
    sums, sizes = (scatter_sum(clusters, x, number).cpu().numpy() for x in (residual, torch.ones_like(residual)))
    n, squares = float(sizes.sum()), float((sums**2).sum())
    variance = float((residual**2).sum()) * n / max(n - 1, 1)
    design_effect = squares * number / max(number - 1, 1) / variance if variance > 0 else 1.0
    # Of normal numbers with equal variances, 3 (sum of squares)^2 / (sum of fourth powers) is their number.
    by_noise = 3 * squares**2 / float((sums**4).sum()) if squares > 0 else math.inf
    effective = min(by_noise, n**2 / float((sizes**2).sum()), number)
    return ClusterSummary(number, float(effective), design_effect)


def _residual(stats: Scan) -> Tensor:
    return from_units(stats.confidence) - stats.correct.double()


class _BinSums:
    """The sums of (confidence - correctness) by cluster and bin, and what their draws show.

    Attributes:
        count: number of samples of each bin that is not empty.
        gap: sum of (confidence - correctness) of each bin.
        variance: variance of these sums, from the differences between clusters.
    """

    def __init__(self, noise: ClusterNoise, stats: Scan, bins: BinStats) -> None:
        index, residual = Binner(bins.edges)(stats.confidence), _residual(stats)
        self.noise = noise
        sums, sizes = (noise.sums(x, index, bins.num_bins) for x in (residual, torch.ones_like(residual)))
        full = sizes.any(0)  # not bins.count > 0: adaptive bins of equal confidences can have equal edges
        self.sums, sizes = sums[:, full], sizes[:, full]
        self.count, self.gap = sizes.sum(0), self.sums.sum(0)
        self.total = float(self.count.sum())
        self.sizes = sizes
        centred = (self.sums - sizes * (self.gap / self.count)) * np.sqrt(cluster_factor(sizes))
        self.known = np.count_nonzero(sizes, axis=0) > 1  # bins whose noise can be estimated
        self.variance = (centred**2).sum(0)
        self.centred = noise.draw(centred)

    @property
    def observed(self) -> float:
        """Squared error over the bins, less its noise."""
        return float(self._debiased(self.gap))

    @property
    def p_value(self) -> float:
        """Share of draws as extreme as the data, by the squares of all bins or of a single bin."""
        return last_rank(self._squares(np.concatenate([self.noise.draw(self.sums), self.gap[None]])))

    def _squares(self, gaps: Array) -> tuple[Array, Array]:
        return (gaps**2 / self.count).sum(-1), gaps.sum(-1) ** 2

    def _debiased(self, gaps: Array) -> Array:
        squares: Array = (self.known * (gaps**2 - self.variance) / self.count).sum(-1) / self.total
        return squares

    def interval(self, p_value: float, alpha: float) -> tuple[float, float]:
        """Return the interval of the root of the squared error, see :mod:`dualfocal.metrics.inference`."""
        if not self.known.any():
            return 0.0, 1.0  # every bin holds samples of one cluster only: there is no information
        gap, n = self.gap / self.count, self.total
        spread = float(self._debiased(self.centred).std())
        scatter = 6 * math.sqrt(spread**2 + 4 * float((gap**2 * self.variance).sum()) / n**2)
        low, high = math.sqrt(max(self.observed - scatter, 0.0)), math.sqrt(max(self.observed, 0.0) + scatter)
        high = max(high + 10 / n, 1.5 * math.sqrt(float((self.count * gap**2).sum()) / n))
        sizes = np.concatenate([[0.0], np.linspace(max(low - 10 / n, 0.0), high, GRID - 1)])
        shape = (self.gap + self.centred[::-1][:SHAPES]) / self.count  # reversed: no shape with the noise of its draw
        shape /= np.sqrt((self.count * shape**2).sum(1, keepdims=True) / n + LEAST)
        shift = np.resize(shape, self.centred.shape) * self.count
        statistic = np.stack([self._debiased(theta * shift + self.centred) for theta in sizes])
        low, high = unified_interval(sizes, torch.from_numpy(statistic), self.observed, spread, p_value, alpha)
        return low, min(high, 1.0)

    def detectable(self, significance: float) -> float:
        """Return the gap, the same in every bin, that the test detects in 80 % of the draws."""
        limits = [float(np.quantile(square, 1 - significance)) for square in self._squares(self.centred)]
        widest = 4 * math.sqrt(max(limits[0] / self.total, limits[1] / self.total**2))
        sizes = min(1.0, widest) * np.linspace(0, 1, GRID) ** 2
        drawn_sizes = self.noise.draw(self.sizes)
        power = []
        for size in sizes:
            null = self._squares(self.centred + size * drawn_sizes)  # the test draws the gap, too
            shifted = self._squares(self.centred + size * self.count)
            rarity = np.sort(np.minimum(*(as_large(square, square) for square in null)))
            rare = np.minimum(*(as_large(*pair) for pair in zip(shifted, null, strict=True)))
            rank = np.searchsorted(rarity, rare, side="right")
            power.append(float((rank <= significance * len(rarity)).mean()))
        return crossing(sizes, np.array(power) - POWER) if max(power) >= POWER else math.inf


def _larger(floor: Floor, errors: Array) -> Floor:
    return Floor(max(floor.mean, float(errors.mean())), max(floor.q95, float(np.quantile(errors, 0.95))))
