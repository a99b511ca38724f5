"""Random draws of calibrated models, and what tests make of them: ranks, floors and approximate p-values."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincc, ndtr

from dualfocal.metrics.cells import BinStats, Floats
from dualfocal.metrics.inference_result import Floor

SAME = 1e-7  # relative tolerance of equal statistics
LEAST = 1e-300
MOST_TRIALS, TRIAL_ROUNDING = 1e15, 1e-6  # of binomial numbers
LEAST_TOTAL = 1e-12  # variance of a sum; below it, any other sum than the mean is impossible
DRAWS_PER_TEST, MOST_DRAWS = 50, 20_000  # of small p-values, if they are one of many


@dataclass(frozen=True)
class Settings:
    """How an inference is made.

    Args:
        level: nominal coverage of the interval.
        draws: number of draws for floors and p-value.
        seed: seed of the draws.
        tests: number of tests that this is one of. The adjustment for many tests multiplies p-values, so that small
            ones are computed from more draws.
    """

    level: float = 0.9
    draws: int = 1000
    seed: int = 0
    tests: int = 1

    @property
    def fine_draws(self) -> int:
        """Number of draws of a small p-value."""
        return min(DRAWS_PER_TEST * self.tests, MOST_DRAWS)


def draw_cells(cells: BinStats, draws: int, rng: np.random.Generator) -> Floats:
    """Draw the gaps of a calibrated model: binomial numbers with the mean and variance of each cell, ``(R, ...)``."""
    full = cells.count > 0
    part = cells[full]
    scale = part.squares / part.count  # the weight of a sample, as the noise sees it
    flip = 2 * part.confidence > part.count  # the rarer outcome is drawn
    rare = np.maximum(np.where(flip, part.count - part.confidence, part.confidence), 0.0) / scale
    # Binomial numbers of m trials with mean r have the variance r (1 - r / m).
    share = np.clip(1 - part.variance / np.maximum(scale**2 * rare, LEAST), 0.0, 1.0)
    exact = np.minimum(rare / np.maximum(share, rare / MOST_TRIALS + LEAST), MOST_TRIALS)
    low = np.maximum(np.floor(exact + TRIAL_ROUNDING), np.maximum(np.ceil(rare - TRIAL_ROUNDING), 1.0))
    trials = np.where(2 * low * (low + 1) < (2 * low + 1 - TRIAL_ROUNDING) * exact, low + 1, low)  # of closer variance
    p = rounded(np.minimum(rare / trials, 1.0))
    hits = rng.binomial(trials.astype(np.int64)[:, None], p[:, None], size=(len(p), draws))
    gaps = np.zeros((draws, *cells.count.shape))
    gaps[:, full] = (np.where(flip, 1.0, -1.0) * scale)[None] * (hits.T - rare)
    return gaps


def rounded(values: Floats) -> Floats:
    """Round numbers that random draws depend on, so that the last bits of a sum do not change the draws."""
    return values.astype(np.float32).astype(np.float64)


def floor_of(errors: Floats) -> Floor:
    """Summarise the errors of calibrated draws."""
    return Floor(float(errors.mean()), float(np.quantile(errors, 0.95)))


def third_cumulant(cells: BinStats, scale: Floats) -> Floats:
    """Return third cumulants of the sums of outcomes, as if the probabilities of a cell were equal."""
    mean = np.where(cells.count > 0, cells.confidence / np.maximum(cells.count, LEAST), 0.0)
    third: Floats = cells.variance * (1 - 2 * mean) * scale
    return third


def p_of_gap(gap: Floats, variance: Floats, third: Floats) -> Floats:
    """Return two-sided p-values of sums of (p - y), by a shifted gamma distribution with the same three cumulants."""
    deviation = np.sqrt(np.maximum(variance, LEAST_TOTAL))
    skewness = np.where(variance > LEAST_TOTAL, third, 0.0) / deviation**3
    z, size = -np.asarray(gap) / deviation, np.maximum(np.abs(skewness), 1e-4)
    shape = 4 / size**2
    argument = np.sign(skewness) * z * 2 / size + shape
    upper = np.where(argument > 0, gammaincc(shape, np.maximum(argument, 0.0)), 1.0)
    both = np.where(np.abs(skewness) < 1e-4, ndtr(-np.abs(z)), np.minimum(upper, 1 - upper))
    p: Floats = np.minimum(2 * both, 1.0)
    return p


def rarity(statistics: Sequence[Floats], among: Sequence[Floats]) -> NDArray[np.int64]:
    """Count the draws ``among``, (R,), that are at least as large, up to rounding; the minimum over all statistics."""
    as_large = [
        len(drawn) - np.searchsorted(np.sort(drawn), values * (1 - SAME))
        for values, drawn in zip(statistics, among, strict=True)
    ]
    smallest: NDArray[np.int64] = np.min(as_large, axis=0)
    return smallest


def rank_of_last(statistics: Sequence[Floats]) -> float:
    """Return the p-value of the last entry of several statistics among all entries: the most extreme one counts."""
    rare = rarity(statistics, statistics)  # draws and data are exchangeable if the model is calibrated
    return float((rare <= rare[-1]).mean())


def crossing(places: Iterable[int], at: Callable[[int], tuple[float, float]]) -> float:
    """Return the first theta with a positive excess, interpolated, or the last theta if there is none.

    ``at`` returns theta and excess of a place on a grid; it is called for as many places as are needed.

    >>> crossing(range(4), lambda i: (10.0 * i, i - 1.5))
    15.0
    """
    before: list[tuple[float, float]] = []
    for place in places:
        theta, excess = at(place)
        before.append((excess, theta))
        if excess > 0:
            break
    if before[-1][0] <= 0 or len(before) == 1:
        return before[-1][1]
    (low, start), (high, end) = before[-2:]
    return float(np.interp(0.0, [low, high], [start, end]))
