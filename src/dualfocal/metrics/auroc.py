"""Area under the ROC curve (AUROC) of a score, with DeLong's confidence interval, and paired differences of two scores.

AUROC is the probability that a positive sample has a higher score than a negative one; ties count 1/2. Its variance
(DeLong et al., 1988) comes from the placements of the samples: the share of the other class that each of them is on the
right side of. They are counted by ranks, in O(N log N), and exactly: twice a placement is an integer divided by the
size of the other class (compare Sun and Xu, 2014). Of samples in clusters, the placements are summed by cluster
(Obuchowski, 1997).

The interval is symmetric on the scale of log(A / (1 - A)), so that it stays within [0, 1], with quantiles of Student's
t distribution (degrees of freedom of Brunner and Munzel, 2000). If the classes are nearly separated, a few samples
decide, and their variance says little. The interval then also contains the Clopper-Pearson interval of as many
independent pairs as can be formed, min(positives, negatives), of which a share A is in order: it is wide, but covers.
This is also the answer if AUROC is 0 or 1, or if a class has one sample.

``benchmarks/shift_coverage.py`` checks the coverage by simulation.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.checks import check_level
from dualfocal.metrics.arrays import Array, as_tensor
from dualfocal.metrics.inputs import cluster_codes

FEW = 5.0  # pairs out of order among the independent ones: with fewer, the variance of the placements says little

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Auroc:
    """Area under the ROC curve, with a confidence interval.

    Args:
        value: the area: 0.5 for no separation, 1 for perfect.
        low: lower end of the interval.
        high: upper end of the interval.
        level: nominal coverage of the interval.
        num_positive: number of positive samples.
        num_negative: number of negative samples.
        num_clusters: number of clusters of the samples (None: the samples are independent).

    >>> print(Auroc(0.9, 0.85, 0.94, 0.9, num_positive=100, num_negative=200))
    AUROC 90.0 % (90 % interval 85.0 to 94.0; 100 positive, 200 negative)
    """

    value: float
    low: float
    high: float
    level: float
    num_positive: int
    num_negative: int
    num_clusters: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, as fractions."""
        return asdict(self)

    def __str__(self) -> str:
        value, low, high = (f"{100 * number:.1f}" for number in (self.value, self.low, self.high))
        samples = f"{self.num_positive:,} positive, {self.num_negative:,} negative"
        return f"AUROC {value} % ({100 * self.level:.4g} % interval {low} to {high}; {samples})"


@dataclass(frozen=True)
class AurocDifference:
    """AUROC of scores a and b on the same samples, with the confidence interval of b - a. Above 0, b is better."""

    a: Auroc
    b: Auroc
    low: float
    high: float

    @property
    def difference(self) -> float:
        """AUROC of b minus that of a."""
        return self.b.value - self.a.value

    @property
    def significant(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def auroc(score: Array, positive: Array, *, level: float = 0.9, clusters: Array | None = None) -> Auroc:
    r"""Area under the ROC curve of a score, with DeLong's confidence interval on the logit scale.

    $$A = \frac{1}{mn} \sum_{i=1}^m \sum_{j=1}^n \left([x_i > y_j] + \tfrac12 [x_i = y_j]\right)$$

    Args:
        score: ``(N,)``, higher for positive samples. Infinite values are allowed.
        positive: ``(N,)``, whether each sample is positive: booleans, or 0 and 1.
        level: nominal coverage of the interval.
        clusters: the cluster of each sample, see :meth:`~dualfocal.metrics.Samples.from_arrays`. A cluster may hold
            samples of both classes, such as an image and its distorted copy.

    Returns:
        The area and its interval, see :mod:`dualfocal.metrics.auroc`.

    Raises:
        TypeError: an argument is not an array.
        ValueError: shapes differ, a score is NaN, or a class has no samples.

    >>> print(auroc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]))
    AUROC 75.0 % (90 % interval 1.2 to 99.9; 2 positive, 2 negative)
    """
    check_level(level)
    return _checked_placements("score", score, positive, clusters).auroc(level)


def compare_auroc(
    a: Array, b: Array, positive: Array, *, level: float = 0.9, clusters: Array | None = None
) -> AurocDifference:
    """Compare the AUROC of two scores on the same samples, by DeLong's test of paired scores.

    Args:
        a: one score, ``(N,)``.
        b: the other score of the same samples.
        positive: see :func:`auroc`.
        level: nominal coverage of the interval of b - a.
        clusters: see :func:`auroc`.

    Raises:
        ValueError: see :func:`auroc`.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> positive = torch.arange(400) % 2
    >>> noise = torch.randn(2, 400, generator=generator)
    >>> result = compare_auroc(positive + noise[0], positive + 0.3 * noise[1], positive)
    >>> result.significant, round(result.difference, 2)
    (True, 0.23)
    """
    check_level(level)
    first = _checked_placements("a", a, positive, clusters)
    second = _checked_placements("b", b, positive, clusters)
    ends = first.difference(second, level)
    return AurocDifference(first.auroc(level), second.auroc(level), *ends)


class Placements(NamedTuple):
    """The placement of each sample: the share of the other class that it is on the right side of."""

    positive: Floats  # (m,)
    negative: Floats  # (n,)
    value: float  # AUROC: the mean of both
    cluster: tuple[NDArray[np.int64], NDArray[np.int64]] | None  # of the positive and of the negative samples

    def auroc(self, level: float) -> Auroc:
        """Return AUROC with its interval."""
        variance, freedom = _variance(self.positive - self.value, self.negative - self.value, self.cluster)
        low, high = _interval(self.value, variance, freedom, self.num_pairs, level)
        number = None if self.cluster is None else len(np.unique(np.concatenate(self.cluster)))
        return Auroc(self.value, low, high, level, len(self.positive), len(self.negative), number)

    def difference(self, other: Self, level: float) -> tuple[float, float]:
        """Return the interval of the difference of AUROC, other - self."""
        changes = other.positive - self.positive, other.negative - self.negative
        if not any(change.any() for change in changes):
            return 0.0, 0.0  # the scores rank all pairs alike
        centre = other.value - self.value
        variance, freedom = _variance(changes[0] - centre, changes[1] - centre, self.cluster)
        if variance == 0 or freedom < 1:  # the placements do not show how much the difference varies
            a, b = self.auroc(level), other.auroc(level)
            return b.low - a.high, b.high - a.low
        half = _quantile(freedom, level) * math.sqrt(variance)
        return max(centre - half, -1.0), min(centre + half, 1.0)

    @property
    def num_pairs(self) -> int:
        """Number of independent pairs of a positive and a negative sample that can be formed, without replacement."""
        if self.cluster is None:
            return min(len(self.positive), len(self.negative))
        sides = [set(side.tolist()) for side in self.cluster]
        return max(1, min(*map(len, sides), len(sides[0] | sides[1]) // 2))


def placements(rank: Tensor, positive: Tensor, cluster: Tensor | None = None) -> Placements:
    """Count the placements of samples by their ranks.

    Args:
        rank: ``(N,)`` integers that order the samples; equal for ties.
        positive: ``(N,)`` bool.
        cluster: ``(N,)`` int64, the cluster of each sample.
    """
    above, below = rank[positive], rank[~positive]
    m, n = len(above), len(below)
    doubled = [
        sum((torch.searchsorted(others, ranks, right=right) for right in (False, True)), torch.zeros_like(ranks))
        for ranks, others in ((above, below.sort().values), (below, above.sort().values))
    ]  # twice the number of samples of the other class below each sample; ties count once
    value = float(doubled[0].sum()) / (2 * m * n)
    by_positive, by_negative = doubled[0].double() / (2 * n), 1 - doubled[1].double() / (2 * m)
    codes = None if cluster is None else (cluster[positive].cpu().numpy(), cluster[~positive].cpu().numpy())
    return Placements(by_positive.cpu().numpy(), by_negative.cpu().numpy(), value, codes)


def _variance(
    positive: Floats, negative: Floats, cluster: tuple[NDArray[np.int64], NDArray[np.int64]] | None
) -> tuple[float, float]:
    """Return variance and degrees of freedom of the mean of placements less their mean; NaN with one cluster."""
    sides = [positive / len(positive), negative / len(negative)]
    if cluster is not None:
        number = 1 + max(int(codes.max()) for codes in cluster)
        sides = [
            np.bincount(codes, side, number).astype(np.float64) for codes, side in zip(cluster, sides, strict=True)
        ]
        sizes = [len(np.unique(codes)) for codes in cluster]
        common = 2 * float(sides[0] @ sides[1])
    else:
        sizes, common = [len(positive), len(negative)], 0.0
    if min(sizes) < 2:
        return math.nan, 0.0
    parts = [float(side @ side) * size / (size - 1) for side, size in zip(sides, sizes, strict=True)]
    variance = max(sum(parts) + common, 0.0)
    spread = sum(part**2 / (size - 1) for part, size in zip(parts, sizes, strict=True))
    least = min(sizes) - 1
    return variance, max(variance**2 / spread, least) if spread > 0 else least


def _interval(value: float, variance: float, freedom: float, num_pairs: int, level: float) -> tuple[float, float]:
    """Return the interval on the logit scale; near 0 and 1 together with that of independent pairs."""
    low, high = 1.0, 0.0  # empty
    scale = value * (1 - value)
    certain = freedom >= 1 and variance > 0 and scale > 0
    if certain:
        half = _quantile(freedom, level) * math.sqrt(variance) / scale
        centre = math.log(value / (1 - value))
        low, high = _expit(centre - half), _expit(centre + half)
    if not certain or num_pairs * min(value, 1 - value) < FEW:
        from scipy.special import betaincinv  # takes a while to import

        won, lost, tail = num_pairs * value, num_pairs * (1 - value), (1 - level) / 2
        low = min(low, float(betaincinv(won, lost + 1, tail)) if won > 0 else 0.0)
        high = max(high, float(betaincinv(won + 1, lost, 1 - tail)) if lost > 0 else 1.0)
    return low, high


def _quantile(freedom: float, level: float) -> float:
    from scipy.special import stdtrit  # takes a while to import

    return float(stdtrit(freedom, (1 + level) / 2))


def _expit(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _checked_placements(name: str, score: Array, positive: Array, clusters: Array | None) -> Placements:
    """Check scores and labels, and count the placements; scores are tied if they are equal."""
    values, labels = as_tensor(name, score).detach(), as_tensor("positive", positive)
    if values.ndim != 1 or labels.shape != values.shape:
        raise ValueError(
            f"{name} and positive must have one entry per sample, shape (N,), got {tuple(values.shape)} and "
            f"{tuple(labels.shape)}"
        )
    if values.is_complex() or (values.is_floating_point() and bool(values.isnan().any())):
        raise ValueError(f"{name} must hold real numbers and no NaN: leave out samples without a score")
    if labels.dtype != torch.bool:
        other = labels[(labels != 0) & (labels != 1)]
        if len(other):
            raise ValueError(f"positive must hold booleans, or 0 and 1, got {other[0].item()}")
        labels = labels == 1
    if not bool(labels.any()) or bool(labels.all()):
        missing = "positive" if not bool(labels.any()) else "negative"
        raise ValueError(f"AUROC needs positive and negative samples, but none of the {len(labels)} is {missing}")
    ranks: Tensor = torch.unique(values, return_inverse=True)[1]
    codes = None if clusters is None else cluster_codes(clusters, labels.shape)[1]
    return placements(ranks, labels.to(values.device), codes)
