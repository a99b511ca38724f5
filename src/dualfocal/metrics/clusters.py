"""Inference for samples that are not independent: pixels of an image, questions of a passage, images of a patient.

Samples of one cluster may depend on each other in any way; clusters are independent. The sums of (p - y) over each
cluster and bin then have mean 0 if the model is calibrated, whatever their variance is. A wild bootstrap multiplies
the sums of each cluster by a random number of mean 0 and variance 1 (a sign; with fewer than 50 clusters one of six
values, Webb 2014), which keeps the dependence within clusters and imposes calibration. These draws take the place of
drawn outcomes in :mod:`dualfocal.metrics.inference` and :mod:`dualfocal.metrics.classwise`.

A wild bootstrap learns the noise from the data alone, and sees too little of it where errors are rare. The tests for
independent samples know the noise from the probabilities, but not the dependence. Of the two, the more cautious result
counts: the larger p-value, noise floor and detectable gap, and the wider interval.

``benchmarks/cluster_coverage.py`` checks level and coverage by simulation.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import t as student
from torch import Tensor

from dualfocal.metrics.bins import Binner, BinStats, equal_edges, from_units, scatter_sum, to_units
from dualfocal.metrics.classwise import MOST_GAPS, SIGNIFICANCE, ClassGap, ClasswiseTest
from dualfocal.metrics.holm import holm
from dualfocal.metrics.inference import (
    GRID,
    POWER,
    SHAPES,
    ClusterSummary,
    Floor,
    Inference,
    crossing,
    unified_interval,
)
from dualfocal.metrics.rows import Rows, first_maximum
from dualfocal.metrics.scan import Scan

MOST_CLUSTERS = 4096  # with more, random groups of clusters are drawn together, whose sums have the same variance
FEW_CLUSTERS = 50  # with fewer, signs alone would give too few different draws
SAME = 1e-7  # relative tolerance of equal statistics
LEAST = 1e-300

Array = NDArray[np.float64]


class ClusterNoise:
    """Wild bootstrap of sums over clusters.

    Args:
        codes: cluster of each sample, ``(N,)``, 0, 1, ...
        draws: number of draws.
        seed: seed of the draws.
    """

    def __init__(self, codes: Tensor, draws: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.number = int(codes.max()) + 1
        self.groups = min(self.number, MOST_CLUSTERS)
        if self.number > MOST_CLUSTERS:
            codes = torch.from_numpy(rng.permutation(self.number) % MOST_CLUSTERS).to(codes.device)[codes]
        self.codes = codes
        values = [-1.0, 1.0]
        if self.number < FEW_CLUSTERS:
            values = [sign * math.sqrt(square) for square in (0.5, 1.0, 1.5) for sign in (-1.0, 1.0)]
        self.weights: Array = rng.choice(np.array(values), size=(draws, self.groups))

    def sums(self, values: Tensor, index: Tensor | int = 0, width: int = 1) -> Array:
        """Sum values by cluster and by index: (clusters, width)."""
        sums = scatter_sum(self.codes * width + index, values.double(), self.groups * width)
        return sums.view(self.groups, width).cpu().numpy()

    def draw(self, sums: Array) -> Array:
        """Return the sums of each draw, (draws, width)."""
        drawn: Array = self.weights @ sums
        return drawn


def cluster_inference(inference: Inference, rows: Rows, stats: Scan, bins: BinStats, adaptive: BinStats) -> Inference:
    """Widen the inference for independent samples by what the clusters of the rows show.

    Args:
        inference: result for independent samples.
        rows: the rows; ``rows.cluster`` is their cluster.
        stats: their scan.
        bins: bins of the ECE.
        adaptive: bins of the adaptive ECE.
    """
    assert rows.cluster is not None
    noise = ClusterNoise(rows.cluster, inference.draws, inference.seed)
    residual = from_units(stats.confidence) - stats.correct.double()
    top = _TopLabel(noise, stats, residual, bins)
    p_value = max(inference.p_value, top.p_value)
    interval = top.interval(p_value, 1 - inference.level)
    floors = dict(inference.floors)
    for name, errors in top.errors(residual, stats, adaptive).items():
        floors[name] = _larger(floors[name], errors)
    significance = SIGNIFICANCE if inference.classwise is None else SIGNIFICANCE / 2
    classwise, errors = _classwise(noise, rows, bins.num_bins)
    if "classwise_ece" in floors:
        floors["classwise_ece"] = _larger(floors["classwise_ece"], errors)
    return replace(
        inference,
        floors=floors,
        p_value=p_value,
        debiased_ece=(min(inference.debiased_ece[0], interval[0]), max(inference.debiased_ece[1], interval[1])),
        detectable=max(inference.detectable, top.detectable(significance)),
        classwise=None if inference.classwise is None else _more_cautious(inference.classwise, classwise),
        clusters=top.summary(residual),
    )


def cluster_squared_error(rows: Rows, stats: Scan, bins: BinStats) -> float:
    """Return the squared calibration error over the bins, less the noise of clustered samples; it can be negative."""
    assert rows.cluster is not None
    noise = ClusterNoise(rows.cluster, draws=1, seed=0)
    return _TopLabel(noise, stats, from_units(stats.confidence) - stats.correct.double(), bins).observed


class _TopLabel:
    """The sums of (confidence - correctness) by cluster and bin of the ECE, and what their draws show."""

    def __init__(self, noise: ClusterNoise, stats: Scan, residual: Tensor, bins: BinStats) -> None:
        self.noise = noise
        index = Binner(bins.edges)(stats.confidence)
        full = (bins.count > 0).cpu().numpy()
        sums, sizes = (noise.sums(x, index, bins.num_bins)[:, full] for x in (residual, torch.ones_like(residual)))
        self.count, self.gap = sizes.sum(0), sums.sum(0)
        self.total = float(self.count.sum())
        centred = sums - sizes * (self.gap / self.count)
        self.variance = (centred**2).sum(0) * noise.groups / max(noise.groups - 1, 1)  # of the summed gap of a bin
        self.null, self.centred = noise.draw(sums), noise.draw(centred)

    @property
    def observed(self) -> float:
        """Squared error over the bins, less its noise."""
        return float(self._debiased(self.gap))

    @property
    def p_value(self) -> float:
        """Share of draws as extreme as the data, by the squares of all bins or of a single bin."""
        pool = [np.append(drawn, data) for drawn, data in zip(self._squares(self.null), self._squares(self.gap[None]))]
        return _last_rank(pool)

    def _squares(self, gaps: Array) -> tuple[Array, Array]:
        return (gaps**2 / self.count).sum(-1), gaps.sum(-1) ** 2

    def _debiased(self, gaps: Array) -> Array:
        squares: Array = ((gaps**2 - self.variance) / self.count).sum(-1) / self.total
        return squares

    def errors(self, residual: Tensor, stats: Scan, adaptive: BinStats) -> dict[str, Array]:
        """Return the calibration errors of the draws, of a model whose gaps are noise only."""
        index = Binner(adaptive.edges)(stats.confidence)
        drawn = self.noise.draw(self.noise.sums(residual, index, adaptive.num_bins))
        return {
            "ece": np.abs(self.centred).sum(1) / self.total,
            "mce": (np.abs(self.centred) / self.count).max(1),
            "adaptive_ece": np.abs(drawn).sum(1) / self.total,
        }

    def interval(self, p_value: float, alpha: float) -> tuple[float, float]:
        """Return the interval of the root of the squared error, see :mod:`dualfocal.metrics.inference`."""
        gap, n = self.gap / self.count, self.total
        spread = float(self._debiased(self.centred).std())
        scatter = 6 * math.sqrt(spread**2 + 4 * float((gap**2 * self.variance).sum()) / n**2)
        low, high = math.sqrt(max(self.observed - scatter, 0.0)), math.sqrt(max(self.observed, 0.0) + scatter)
        high = max(high + 10 / n, 1.5 * math.sqrt(float((self.count * gap**2).sum()) / n))
        sizes = np.concatenate([[0.0], np.linspace(max(low - 10 / n, 0.0), high, GRID - 1)])
        shape = (self.gap + self.centred[:SHAPES]) / self.count
        shape /= np.sqrt((self.count * shape**2).sum(1, keepdims=True) / n + LEAST)
        shape = np.resize(shape, self.centred.shape) * self.count
        statistic = np.stack([self._debiased(theta * shape + self.centred) for theta in sizes])
        return unified_interval(sizes, torch.from_numpy(statistic), self.observed, spread, p_value, alpha)

    def detectable(self, significance: float) -> float:
        """Return the gap, the same in every bin, that the test detects in 80 % of the draws."""
        null = self._squares(self.centred)
        limits = [np.quantile(square, 1 - significance) for square in null]
        widest = 3 * math.sqrt(max(limits[0] / self.total, limits[1] / self.total**2))
        sizes = min(1.0, widest) * np.linspace(0, 1, GRID) ** 2
        power = []
        for size in sizes:
            squares = self._squares(self.centred + size * self.count)
            power.append(float((_ranks(squares, null) <= significance).mean()))
        return crossing(sizes, np.array(power) - POWER) if max(power) >= POWER else math.inf

    def summary(self, residual: Tensor) -> ClusterSummary:
        """Return number, effective number and design effect of the clusters."""
        noise = self.noise
        centred = residual - residual.mean()
        sums, sizes = noise.sums(centred)[:, 0], noise.sums(torch.ones_like(residual))[:, 0]
        independent = float((centred**2).sum())
        design_effect = float((sums**2).sum()) * noise.groups / max(noise.groups - 1, 1) / max(independent, LEAST)
        # (sum of squares)^2 / sum of fourth powers is a third of the number of normal variables.
        by_noise = 3 * (sums**2).sum() ** 2 / max((sums**4).sum(), LEAST)
        effective = min(by_noise, sizes.sum() ** 2 / (sizes**2).sum(), noise.groups) * noise.number / noise.groups
        return ClusterSummary(noise.number, float(effective), design_effect)


def _classwise(noise: ClusterNoise, rows: Rows, num_bins: int) -> tuple[ClasswiseTest, Array]:
    """Test the probabilities of all classes by the statistics of the independent test, relative to cluster variances.

    Also return the classwise ECE of each draw.
    """
    draws, num_classes = len(noise.weights), rows.num_classes
    smallest = 1 if num_classes == 2 else 0  # of two classes, one mirrors the other
    extreme, bins, total, errors = np.zeros((4, draws + 1))
    gaps = []
    for c, sums, sizes, independent in _class_sums(noise, rows, num_bins):
        drawn = np.concatenate([noise.draw(sums), sums.sum(0)[None]])
        errors += np.abs(drawn[:, :-1]).sum(1)
        squares = (sums**2).sum(0)
        marginal = sums[:, :-1].sum(1)
        for among, values, count, floor, z in (
            (False, drawn[:, :-1].sum(1), sizes[:-1], independent[:-1].sum(), float((marginal**2).sum())),
            (True, drawn[:, -1], sizes[-1:], independent[-1], squares[-1]),
        ):
            if c < smallest and not among or not count.sum():
                continue
            ratio = values**2 / max(z, floor, LEAST)
            extreme = np.maximum(extreme, ratio)
            gaps.append((c, among, count.sum(), values[-1], float(ratio[-1])))
        if c >= smallest:
            x = (drawn[:, :-1] ** 2 / np.maximum(np.maximum(squares, independent)[:-1], LEAST)).sum(1)
            bins, total = np.maximum(bins, x), total + x
    return _test(gaps, [extreme, bins, total], rows, noise.groups), errors[:-1] / (len(rows) * num_classes)


def _test(
    gaps: list[tuple[int, bool, float, float, float]], statistics: list[Array], rows: Rows, groups: int
) -> ClasswiseTest:
    p_values = [2 * float(student.sf(math.sqrt(ratio), max(groups - 1, 1))) for *_, ratio in gaps]
    labels = torch.bincount(rows.target, minlength=rows.num_classes).cpu().numpy()
    guess = first_maximum(rows.values)
    right = torch.bincount(guess[guess == rows.target], minlength=rows.num_classes).cpu().numpy()
    result = []
    for (c, among, count, gap, _), p in zip(gaps, holm(p_values), strict=True):
        share = float((right if among else labels)[c]) / count
        result.append(ClassGap(c, among, share + gap / count, share, p))
    result.sort(key=lambda gap: (gap.p_value, -abs(gap.probability - gap.share)))
    significant = tuple(gap for gap in result[:MOST_GAPS] if gap.p_value <= SIGNIFICANCE)
    return ClasswiseTest(_last_rank(statistics), significant, len(statistics[0]) - 1)


def _class_sums(noise: ClusterNoise, rows: Rows, num_bins: int) -> Iterator[tuple[int, Array, Array, Array]]:
    """Yield for each class the sums of (p - y) by cluster and bin, the last one over samples predicted as the class.

    Also yield the number of samples in each of these cells, and the variance of the sum for independent samples.
    """
    device = rows.values.device
    binner = Binner(equal_edges(num_bins, rows.dtype, device))
    guess = first_maximum(rows.values)
    log_total = rows.values.double().logsumexp(1) if rows.input == "logits" else rows.values.double().sum(1).log()
    for c in range(rows.num_classes):
        p = rows.values[:, c].double()
        p = (p - log_total).exp_() if rows.input == "logits" else p / log_total.exp()
        residual, index = p - (rows.target == c).double(), binner(to_units(p))
        predicted = (guess == c).double()
        sums = np.concatenate(
            [noise.sums(residual, index, num_bins), noise.sums(residual * predicted)], axis=1
        )
        spread = p * (1 - p)
        cells = []
        for values in (torch.ones_like(p), spread):
            by_bin = scatter_sum(index, values, num_bins)
            cells.append(torch.cat([by_bin, (values * predicted).sum()[None]]).cpu().numpy())
        yield c, sums, cells[0], cells[1]


def _ranks(squares: tuple[Array, Array], among: tuple[Array, Array]) -> Array:
    """Return the rank of the smaller share of draws ``among`` that are as large, as a share of the draws."""
    shares = [_as_large(square, drawn) for square, drawn in zip(squares, among, strict=True)]
    null = np.minimum(*(_as_large(drawn, drawn) for drawn in among))
    smaller = np.minimum(*shares)
    rank: Array = np.searchsorted(np.sort(null), smaller, side="right") / len(null)
    return rank


def _as_large(values: Array, among: Array) -> NDArray[np.int64]:
    return len(among) - np.searchsorted(np.sort(among), values * (1 - SAME))


def _last_rank(statistics: list[Array]) -> float:
    """Return the p-value of the last entry of each statistic, among all entries: the most extreme statistic counts."""
    smallest = np.min([_as_large(values, values) for values in statistics], axis=0)
    return float((smallest <= smallest[-1]).mean())


def _larger(floor: Floor, errors: Array) -> Floor:
    return Floor(max(floor.mean, float(errors.mean())), max(floor.q95, float(np.quantile(errors, 0.95))))


def _more_cautious(independent: ClasswiseTest, clustered: ClasswiseTest) -> ClasswiseTest:
    """Return the larger p-value, and the gaps that are significant with clusters."""
    return replace(clustered, p_value=max(independent.p_value, clustered.p_value))
