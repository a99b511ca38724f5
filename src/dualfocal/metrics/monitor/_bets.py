"""The mathematics of :class:`~dualfocal.metrics.CalibrationMonitor`: bets against calibration.

**Null hypothesis.** y is 1 if an outcome occurred (the prediction is right, or the label is class c), p the probability
stated for it. The model is calibrated given the past: E[y | p, all earlier p and y] = p. A tolerance t weakens this to
|E[y | ...] - p| <= t.

**One bet.** A gambler who suspects that the true log-odds are those of p plus theta multiplies a wealth of 1 by

    e^(theta y) / (1 + p (e^theta - 1))  =  1 + lambda (y - p),   lambda = (e^theta - 1) / (1 + p (e^theta - 1))

for each sample. This is the likelihood ratio of the shifted to the stated probability. Its mean is 1 under the null,
and it is positive for every p from 0 to 1: lambda always lies between -1/(1 - p) and 1/p. So the wealth is a
non-negative martingale, and the order of the samples does not matter. theta > 0 bets on under-confidence, theta < 0 on
over-confidence. The grid of thetas doubles at each step: between two steps, at most 1/9 of the growth is lost.

**From sums alone.** log(1 + p c) is concave in p, so for n samples of a bin with mean probability m and h outcomes

    theta h - n log(1 + m c)  <=  sum_i log(1 + lambda_i (y_i - p_i)),   c = e^theta - 1.

The left side is what we use: a supermartingale that needs three sums per bin, which workers add. The loss
is the variance of p within a bin relative to p (1 - p): at most 7 % of the growth with 15 bins. A tolerance replaces m
by m + t for theta > 0 and by m - t for theta < 0. There is always a tolerance of 2^-20, which exceeds the rounding of
confidences computed in float32; ``ROUNDING`` exceeds that of our own sums. So rounding cannot add wealth.

**Dependent samples.** If up to m samples depend on each other in any way (pixels of an image), the geometric mean of
their factors has a mean of at most 1, by Hoelder's inequality. So log-wealths are divided by m, the ``cluster_size``.

**Mixture.** Every cell (all samples or one bin, theta) is a gambler of its own; a weighted mean of supermartingales is
one again, however the cells depend on each other. Half of the weight belongs to the gamblers that bet on all samples,
half to those of the bins; class-wise, half of both belongs to the classes.

**Restarts.** After a long calibrated past a gambler is poor, and would notice a change late. So each one keeps cash and
invests a part of it after every period: c_k = 1 / (1 + ln(1 + k)) is the share that is still cash after the k-th
investment, w_k = c_(k-1) - c_k the k-th investment. Cash plus investments is a supermartingale from 1, because moving
cash does not change the sum, and its wealth is at least w_k times that of a gambler who starts at period k. All
investments of a cell are multiplied by the same factors, so one number W per cell is enough: W <- W * factor + w_k.
w_k is about 1 / (k ln^2 k). The weights 1 / (k (k + 1)) would be smaller from k = 12 on, and unlike them, cutting
periods into r parts hardly costs anything: r investments of w_(r k) add up to almost w_k.

**Alarm.** By Ville's inequality, P(the evidence ever reaches 1/alpha) <= alpha. Looks are free.
"""

import math

import numpy as np
from numpy.typing import NDArray

from dualfocal.metrics.cells import BinStats

Floats = NDArray[np.float64]

STEPS = 2.0 ** np.arange(-5, 3)  # of the log-odds: gaps of about 0.8 to 43 points at p = 0.5
SHIFTS = np.concatenate([-STEPS, STEPS])  # over-confident first
SLACK = 2.0**-20  # tolerance of every monitor, for confidences computed in float32
ROUNDING = 2.0**-46  # of a sum, relative to its largest possible value


def log_factors(bins: BinStats, tolerance: float, cluster_size: int) -> Floats:
    """Return by how much a period changes the log-wealth of each cell.

    Args:
        bins: samples of the period, ``(R, B)``: one row of bins for the top label, and one for each class.
        tolerance: difference between probabilities and frequencies that counts as calibrated.
        cluster_size: largest number of samples that depend on each other.

    Returns:
        ``(R, 1 + B, len(SHIFTS))``; index 0 of the second axis is that of all samples.
    """
    count, hits = bins.count[..., None], bins.correct[..., None]
    mean = np.nan_to_num(bins.mean_confidence)[..., None]
    limit = np.clip(mean + np.sign(SHIFTS) * (tolerance + SLACK), 0.0, 1.0)
    change = SHIFTS * hits - count * (np.log1p(limit * np.expm1(SHIFTS)) + ROUNDING * np.abs(SHIFTS))
    return np.concatenate([change.sum(1, keepdims=True), change], axis=1) / cluster_size


def log_prior(num_classes: int, num_bins: int) -> Floats:
    """Return the log of the weight of each cell, ``(R, 1 + B, len(SHIFTS))``; ``num_classes`` is 0 if not class-wise.

    >>> float(np.exp(log_prior(3, 15)).sum().round(12))
    1.0
    """
    row_weights = [1.0] if num_classes == 0 else [0.5] + [0.5 / num_classes] * num_classes
    place_weights = [0.5] + [0.5 / num_bins] * num_bins
    cells: Floats = np.log(np.multiply.outer(row_weights, place_weights))[..., None] - math.log(len(SHIFTS))
    return np.repeat(cells, len(SHIFTS), axis=-1)


def log_cash(k: int) -> float:
    """Return the log of the share that is not invested after k investments.

    >>> log_cash(0)
    -0.0
    """
    return -math.log1p(math.log1p(k))


def log_investment(k: int) -> float:
    """Return the log of the k-th investment, k >= 1.

    >>> math.isclose(math.exp(log_investment(7)), math.exp(log_cash(6)) - math.exp(log_cash(7)))
    True
    """
    return math.log(math.log1p(1 / k)) + log_cash(k - 1) + log_cash(k)


def log_sum(values: Floats) -> float:
    """Return log(sum(exp(values))), without overflow."""
    top = float(values.max())
    return top + math.log(float(np.exp(values - top).sum()))
