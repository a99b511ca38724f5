"""Intervals over seeds: of one more run, of a difference of means, and by a bootstrap over seeds and test samples."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from dualfocal.metrics import holm

Floats = NDArray[np.float64]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """A mean, its squared standard error, and the degrees of freedom of that error (infinite: the error is known).

    ``a - b`` has the degrees of freedom of Welch and Satterthwaite.

    >>> difference = Estimate.of([1.0, 2.0, 3.0]) - Estimate.of([5.0, 5.5, 6.0])
    >>> difference.mean, [round(end, 2) for end in difference.interval(0.9)]
    (-3.5, [-5.03, -1.97])
    """

    mean: float
    variance: float
    df: float = math.inf

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """The mean of two values or more."""
        return cls(statistics.mean(values), statistics.variance(values) / len(values), len(values) - 1)

    def __sub__(self, other: "Estimate") -> "Estimate":
        variance = self.variance + other.variance
        spread = self.variance**2 / self.df + other.variance**2 / other.df
        return Estimate(self.mean - other.mean, variance, variance**2 / spread if spread else math.inf)

    def interval(self, level: float) -> Interval:
        """The two-sided t-interval."""
        half = float(stdtrit(self.df, (1 + level) / 2)) * math.sqrt(self.variance)
        return self.mean - half, self.mean + half

    def p_value(self, bound: float, direction: int) -> float:
        """One-sided p-value for a mean above the bound (direction 1) or below it (direction -1)."""
        distance = direction * (self.mean - bound)
        if self.variance == 0:
            return float(distance <= 0)
        return float(stdtr(self.df, -distance / math.sqrt(self.variance)))


def prediction_interval(values: Sequence[float], level: float) -> Interval:
    """Where one more value would fall: mean ± t_{n-1} s sqrt(1 + 1/n).

    >>> [round(end, 2) for end in prediction_interval([1.0, 2.0, 3.0], 0.9)]
    [-1.37, 5.37]
    """
    n, mean = len(values), statistics.mean(values)
    half = float(stdtrit(n - 1, (1 + level) / 2)) * statistics.stdev(values) * math.sqrt(1 + 1 / n)
    return mean - half, mean + half


def holm_levels(p_values: Sequence[float], level: float) -> list[float]:
    """Levels of two-sided intervals that agree with Holm's procedure at the one-sided level ``(1 - level) / 2``.

    The k-th smallest of m p-values has the error rate of its step, divided by m - k + 1. From the first step that
    rejects nothing on, all have the error rate of that step.

    >>> [round(level, 3) for level in holm_levels([0.001, 0.3, 0.03], 0.9)]
    [0.967, 0.95, 0.95]
    """
    alpha, m = (1 - level) / 2, len(p_values)
    rejected = sum(p < alpha for p in holm(p_values))
    levels = [0.0] * m
    for rank, i in enumerate(sorted(range(m), key=p_values.__getitem__)):
        levels[i] = 1 - 2 * alpha / (m - min(rank, rejected))
    return levels


def sample_weights(num_samples: int, draws: int, seed: int) -> Floats:
    """How often each sample is in each draw with replacement, (draws, num_samples)."""
    rng = np.random.default_rng(seed)
    picks = (rng.integers(num_samples, size=num_samples) for _ in range(draws))
    return np.stack([np.bincount(pick, minlength=num_samples) for pick in picks]).astype(np.float64)


def crossed_bootstrap(first: Floats, second: Floats, level: float, seed: int) -> Interval:
    """Percentile interval of a difference of means, over samples and seeds.

    Args:
        first: a metric on each draw of the test samples, for each seed of a loss: (draws, seeds).
        second: the same of another loss, on the same draws; seeds are drawn here, separately for each loss.
        level: coverage of the interval.
        seed: seed of the draws of seeds.
    """
    rng, draws = np.random.default_rng(seed), np.arange(len(first))[:, None]
    means = [values[draws, rng.integers(values.shape[1], size=values.shape)].mean(1) for values in (first, second)]
    low, high = np.quantile(means[0] - means[1], [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
