"""How far the number of right predictions may lie from what confidences promise, if every confidence holds.

Of n samples with confidences p_1, ..., p_n that number has a Poisson-binomial distribution: exact also for a class with
three predictions, where a normal distribution would call each mistake a finding.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, xlog1py, xlogy

Vector = NDArray[np.float64]

GROUPS = 64  # of neighbours in confidence, which count as equal: fewer samples are all by themselves
WIDE, MORE = 9.0, 40.0  # standard deviations, and samples, around a group's mean: beyond lies less than 1e-15
TIE = 1e-9  # distances this close are the same but for rounding


def distribution(confidence: Vector) -> tuple[int, Vector]:
    """The Poisson-binomial distribution: the least number that is right, and the probability of each from there on.

    >>> distribution(np.array([0.5, 0.5]))
    (0, array([0.25, 0.5 , 0.25]))
    """
    least, masses = 0, np.ones(1)
    for group in np.array_split(np.sort(confidence), min(len(confidence), GROUPS)):
        low, own = _binomial(len(group), float(group.mean()))
        least += low
        masses = np.convolve(masses, own)
    return least, masses


def _binomial(n: int, p: float) -> tuple[int, Vector]:
    if n == 1:
        return 0, np.array([1 - p, p])
    half = WIDE * np.sqrt(n * p * (1 - p)) + MORE
    low, high = max(0, int(n * p - half)), min(n, int(n * p + half) + 1)
    k = np.arange(low, high + 1)
    ways = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    return low, np.exp(ways + xlogy(k, p) + xlog1py(n - k, -p))


def chance_bound(confidence: Vector, right: float, level: float) -> tuple[float, float]:
    """What chance explains: of |number right - sum of confidences|, the bound that it keeps with ``level``.

    Args:
        confidence: of each sample, at least one.
        right: how many are right.
        level: probability of staying within the bound, at least.

    Returns:
        The bound, and the p-value of the number seen.
    """
    least, masses = distribution(confidence)
    distance = np.abs(least + np.arange(len(masses)) - confidence.sum())
    order = np.argsort(-distance)
    beyond = np.cumsum(masses[order])  # probability of lying as far as this, or further
    seen = float(masses[distance >= abs(right - confidence.sum()) - TIE].sum())
    # The largest distances are left out while together they are as rare as they should be.
    left_out = int(np.searchsorted(beyond, 1 - level, side="right"))
    bound = float(distance[order[min(left_out, len(order) - 1)]])
    return bound, min(seen, 1.0)
