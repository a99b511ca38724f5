"""The Poisson-binomial distribution: the number of hits among independent trials with different probabilities.

For a calibrated model, it is the distribution of the number of samples of a class, given their probabilities.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincc, gammaln, ndtr, xlog1py, xlogy

GROUPS = 64  # of similar probabilities, which are treated as equal; up to this many trials the distribution is exact
WIDE, MORE = 9.0, 40.0  # standard deviations and samples around the mean of a group; less than 1e-15 lies beyond
LEAST_VARIANCE = 1e-12  # below it, any other number of hits than the mean is impossible
LEAST_SKEWNESS = 1e-4  # below it, the normal distribution is used

Array = NDArray[np.float64]


def distribution(p: Array) -> tuple[int, Array]:
    """Return the least number of hits, and the probability of each number from there.

    >>> distribution(np.array([0.5, 0.5]))
    (0, array([0.25, 0.5 , 0.25]))
    """
    least, masses = 0, np.ones(1)
    for group in np.array_split(np.sort(p), min(len(p), GROUPS)):
        n, mean = len(group), float(group.mean())
        half = WIDE * np.sqrt(n * mean * (1 - mean)) + MORE
        k = np.arange(max(0, int(n * mean - half)), min(n, int(n * mean + half) + 1) + 1)
        ways = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
        least += int(k[0])
        masses = np.convolve(masses, np.exp(ways + xlogy(k, mean) + xlog1py(n - k, -mean)))
    return least, masses


def mid_p_value(p: Array, hits: int) -> float:
    """Return the two-sided mid-p-value of a number of hits: half of the probability of this number is counted.

    >>> round(mid_p_value(np.array([0.5, 0.5]), 2), 6)
    0.25
    """
    least, masses = distribution(p)
    place = hits - least
    if not 0 <= place < len(masses):
        return 0.0
    half = masses[place] / 2
    return float(min(1.0, 2 * min(half + masses[:place].sum(), half + masses[place + 1 :].sum())))


def approximate_mid_p(hits: Array, mean: Array, variance: Array, third: Array) -> Array:
    """Approximate :func:`mid_p_value` by a shifted gamma distribution with the same first three cumulants.

    Args:
        hits: numbers of hits, of a shape that broadcasts with the others.
        mean: sum of p.
        variance: sum of p (1 - p).
        third: sum of p (1 - p) (1 - 2 p).
    """
    deviation = np.sqrt(np.maximum(variance, LEAST_VARIANCE))
    skewness = np.where(variance > LEAST_VARIANCE, third, 0.0) / deviation**3
    z = (hits - mean) / deviation
    size = np.maximum(np.abs(skewness), LEAST_SKEWNESS)
    shape = 4 / size**2
    argument = np.sign(skewness) * z * 2 / size + shape
    upper = np.where(argument > 0, gammaincc(shape, np.maximum(argument, 0.0)), 1.0)
    upper = np.where(np.abs(skewness) < LEAST_SKEWNESS, ndtr(-np.abs(z)), upper)
    result: Array = np.minimum(2 * np.minimum(upper, 1 - upper), 1.0)
    return result
