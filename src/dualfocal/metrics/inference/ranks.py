"""Tests, their power and confidence intervals from random draws, whatever the draws are made of."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

GRID = 25  # sizes of miscalibration on the grid for intervals and power
SHAPES = 100  # shapes of miscalibration for the interval, which share the draws
POWER = 0.8  # of the smallest detectable error
SAME = 1e-7  # relative tolerance of equal statistics
TIE = 1e-12  # debiased errors that differ by less are equal up to rounding

Array = NDArray[np.float64]


def rarity(statistics: Sequence[Array], among: Sequence[Array]) -> NDArray[np.int64]:
    """Count the draws ``among``, (R,), that are at least as large, up to rounding; the minimum over all statistics."""
    as_large = [
        len(drawn) - np.searchsorted(np.sort(drawn), values * (1 - SAME))
        for values, drawn in zip(statistics, among, strict=True)
    ]
    smallest: NDArray[np.int64] = np.min(as_large, axis=0)
    return smallest


def last_rank(statistics: Sequence[Array]) -> float:
    """Return the p-value of the last entry of several statistics among all entries: the most extreme one counts."""
    rare = rarity(statistics, statistics)  # draws and data are exchangeable if the model is calibrated
    return float((rare <= rare[-1]).mean())


def power(statistics: Sequence[Array], null: Sequence[Array], significance: float) -> Array:
    """Return the share of the draws of the statistics, (..., R), that a test detects.

    Args:
        statistics: the statistics of miscalibrated models.
        null: the statistics of calibrated models, ``(N,)`` each.
        significance: significance of the test.
    """
    null_rarity = np.sort(rarity(null, null))
    rank = np.searchsorted(null_rarity, rarity(statistics, null), side="right")
    share: Array = (rank <= significance * len(null_rarity)).mean(-1)
    return share


def detectable_size(sizes: Array, detected: Array) -> float:
    """Return the smallest size of miscalibration that is detected with 80 % power; infinite if there is none."""
    return crossing(sizes, detected - POWER) if detected.max() >= POWER else math.inf


def size_grid(observed: float, spread: float, linear: float, gap_square: float, n: float) -> Array:
    """Return sizes of miscalibration for the search of an interval: 0, and a range around the observed size.

    Args:
        observed: the debiased square of the size.
        spread: standard deviation of the debiased square of a calibrated model.
        linear: variance of the debiased square that is due to the observed gaps.
        gap_square: sum of the squares of the observed gaps, over all samples.
        n: number of samples.
    """
    noise = 6 * math.sqrt(spread**2 + linear)
    low, high = math.sqrt(max(observed - noise, 0.0)) - 10 / n, math.sqrt(max(observed, 0.0) + noise) + 10 / n
    high = max(high, 1.5 * math.sqrt(gap_square / n))
    return np.concatenate([[0.0], np.linspace(max(low, 0.0), high, GRID - 1)])


def unified_interval(
    theta: Array, statistic: Tensor, observed: float, spread: float, p_value: float, alpha: float
) -> tuple[float, float]:
    """Return the smallest and the largest theta, (G,), at which the draws of the statistic, (G, R), allow the observed.

    ``spread`` is the standard deviation of the statistic at theta = 0, ``p_value`` that of a test of theta = 0.
    """
    as_high = (statistic >= observed - TIE).double().mean(1).numpy()
    as_low = (statistic <= observed + TIE).double().mean(1).numpy()
    as_high[theta == 0] = p_value  # so that the interval excludes 0 if the test rejects it
    below = alpha / 2 * (1 - np.exp(-(theta**2) / max(spread, 1e-300)))  # significance of the lower tail
    low = crossing(theta, as_high - (alpha - below))
    high = crossing(theta[::-1], (as_low - below)[::-1])
    return low, max(low, high)


def crossing(theta: Array, excess: Array) -> float:
    """Return the first theta with a positive excess, interpolated, or the last theta if there is none."""
    if not (excess > 0).any():
        return float(theta[-1])
    i = max(1, int(np.argmax(excess > 0)))
    if excess[i - 1] > 0:
        return float(theta[0])
    return float(np.interp(0.0, excess[i - 1 : i + 1], theta[i - 1 : i + 1]))
