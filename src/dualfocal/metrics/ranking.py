"""Samples in the order of their confidence: bins of equal mass, and the error among the most confident samples."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma

from dualfocal.metrics.cells import BinStats, Floats, equal_edges, tally

TIE = 2.0**-47  # confidences that differ by rounding only are equal, so that the order of the classes does not matter
QUANTILE_ROUNDING = 1e-9  # of sums of weights, relative to their total
# Fine bins of the confidence, of equal width in its log-odds z: 96 per unit up to |z| = 8, and wider ones up to 37.
FINE, FINE_LIMIT, WIDE, WIDE_LIMIT = 96, 8.0, 9, 37.0
NUM_FINE = 2 * int(FINE * FINE_LIMIT + WIDE * (WIDE_LIMIT - FINE_LIMIT))


def adaptive_bins(
    confidence: Floats,
    correct: NDArray[np.bool_],
    num_bins: int,
    *,
    weight: Floats | None = None,
    noise: Floats | None = None,
    drop_lowest: bool = False,
) -> BinStats:
    """Return bins of equal mass, ``(lo, hi]`` between interpolated quantiles of the confidence.

    Equal confidences share a bin, so bins can differ in size, or be empty. With weights, a bin ends with the last
    confidence that begins before its quantile of the sum: with whole weights, these are the bins of as many copies of
    each sample.

    Args:
        confidence: ``(N,)``.
        correct: ``(N,)``.
        num_bins: number of bins.
        weight: weight of each sample (None: 1).
        noise: see :meth:`BinStats.collect <dualfocal.metrics.cells.BinStats.collect>`.
        drop_lowest: leave out the samples with the lowest confidence, as the published code does.
    """
    if weight is None:
        ordered, n = np.sort(confidence), len(confidence)
        position = np.minimum(np.linspace(0, n, num_bins + 1), n - 1)
        below = position.astype(np.int64)
        low, high = ordered[below], ordered[np.minimum(below + 1, n - 1)]
        edges = low + (position - below) * (high - low)
    else:
        order = np.argsort(confidence, kind="stable")
        ordered, mass = confidence[order], np.append(0.0, np.cumsum(weight[order]))
        start = mass[np.searchsorted(ordered, ordered)]  # before the first sample with the same confidence
        share = np.arange(num_bins + 1) / num_bins
        at = np.searchsorted(start, mass[-1] * (share + QUANTILE_ROUNDING), side="right") - 1
        edges = ordered[at]
    index = np.searchsorted(edges[1:-1], confidence)
    if drop_lowest:
        kept = confidence > edges[0]
        confidence, correct, index = confidence[kept], correct[kept], index[kept]
        weight, noise = (None if column is None else column[kept] for column in (weight, noise))
    return BinStats.collect(confidence, correct, edges, weight=weight, noise=noise, index=index)


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """The risk-coverage curve: the error among the most confident samples, by their share.

    With N samples and coverage c, the c N most confident samples are answered, and the others are left to somebody
    else. Samples of equal confidence count as in random order: the expected number of errors is linear within a group
    of them.

    Attributes:
        mass: number of samples (sum of weights) up to each distinct confidence, highest confidence first; from 0.
        wrong: number of wrong samples (sum of weights) among them; from 0.
        confidence: the distinct confidences; one fewer than ``mass``.
        samples: number of samples with each distinct confidence, whatever their weights.

    >>> curve = RiskCoverage.from_confidence(np.array([1.0, 0.25, 0.5, 0.4]), np.array([1, 0, 1, 0]) == 1)
    >>> curve.risk(0.5), curve.risk(1.0), curve.threshold(0.5), round(curve.area(), 4)
    (0.0, 0.5, 0.5, 0.2083)
    """

    mass: Floats
    wrong: Floats
    confidence: Floats
    samples: Floats

    @classmethod
    def from_confidence(cls, confidence: Floats, right: NDArray[np.bool_], weight: Floats | None = None) -> Self:
        """Sort samples by their confidence.

        Args:
            confidence: ``(N,)``, confidence of the predicted class, or any number that rises with it.
            right: ``(N,)`` bool, whether the prediction is right.
            weight: ``(N,)`` weights of the samples (None: all count once).
        """
        order = np.argsort(-confidence)
        ordered, mass = confidence[order], np.ones(len(order)) if weight is None else weight[order]
        last = np.append(ordered[:-1] - ordered[1:] > TIE * np.abs(ordered[:-1]), True)
        return cls.from_groups(
            np.diff(np.cumsum(mass)[last], prepend=0.0),
            np.diff(np.cumsum(mass * ~right[order])[last], prepend=0.0),
            ordered[last],
            np.diff(np.flatnonzero(last), prepend=-1).astype(np.float64),
        )

    @classmethod
    def from_groups(cls, mass: Floats, wrong: Floats, confidence: Floats, samples: Floats) -> Self:
        """Make the curve from groups of samples of equal confidence, highest confidence first."""
        reached, failed = (np.append(0.0, np.cumsum(values)) for values in (mass, wrong))
        return cls(reached, failed, confidence, samples)

    def risk(self, coverage: float) -> float:
        """Return the error rate among the most confident samples; ``coverage`` is their share, above 0, up to 1."""
        return float(self.risks(np.array([coverage]))[0])

    def risks(self, coverage: Floats) -> Floats:
        """Return the error rates for several coverages.

        Raises:
            ValueError: a coverage is not above 0 and at most 1.
        """
        if not bool(((coverage > 0) & (coverage <= 1)).all()):
            raise ValueError(f"coverage must be above 0 and at most 1, got {coverage.tolist()}")
        samples = coverage * self.mass[-1]
        risks: Floats = np.interp(samples, self.mass, self.wrong) / samples
        return risks

    def threshold(self, coverage: float) -> float:
        """Return the confidence of the last sample that is answered."""
        index = np.searchsorted(self.mass[1:], coverage * self.mass[-1] * (1 - 1e-12))
        return float(self.confidence[min(int(index), len(self.confidence) - 1)])

    def area(self) -> float:
        """Return the area under the curve: the mean over all samples of the error among those up to each of them.

        With weights, both means are weighted.
        """
        mass = np.diff(self.mass)
        if np.array_equal(self.samples, np.ones(len(mass))):
            return float((mass * self.wrong[1:] / self.mass[1:]).sum() / self.mass[-1])
        # Within a group of n samples of mass m, the i-th of them is reached at a mass of before + i m / n.
        before, wrong, share = self.mass[:-1], self.wrong[:-1], mass / self.samples
        rate = np.diff(self.wrong) / mass
        reciprocals = (digamma(before / share + self.samples + 1) - digamma(before / share + 1)) / share
        means = (rate * self.samples + (wrong - rate * before) * reciprocals) * share
        return float(means.sum() / self.mass[-1])


def fine_sums(confidence: Floats, correct: NDArray[np.bool_]) -> Floats:
    """Return number of samples, sum of confidences and number of right ones in fine bins, ``(3, F)``."""
    with np.errstate(divide="ignore"):
        z = np.log(confidence) - np.log1p(-np.minimum(confidence, 1.0))
    size = np.minimum(np.abs(z), WIDE_LIMIT)
    step = np.minimum(size, FINE_LIMIT) * FINE + np.maximum(size - FINE_LIMIT, 0.0) * WIDE
    step = np.minimum(step.astype(np.int64), NUM_FINE // 2 - 1)
    index = NUM_FINE // 2 + np.where(z > 0, step, -1 - step)  # of two classes, 0.5 means class 0
    return np.stack([tally(index, values, NUM_FINE) for values in (None, confidence, correct)])


def adaptive_bins_of(fine: Floats, num_bins: int) -> BinStats:
    """Return bins of equal mass, in which the samples of a fine bin stay together."""
    count, confidence, correct = fine
    start = np.append(0.0, np.cumsum(count))[:-1]
    at = np.searchsorted(start, count.sum() * (np.arange(num_bins + 1) / num_bins), side="right") - 1
    index = np.searchsorted(at[1:-1], np.arange(NUM_FINE))
    variance = confidence - confidence**2 / np.maximum(count, 1.0)
    sums = (tally(index, values, num_bins) for values in (count, confidence, correct, variance, count, correct))
    return BinStats.of(sums, equal_edges(num_bins))
