"""Test, interval and smallest detectable error from random draws of the gaps of bins."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dualfocal.metrics.inference import ranks
from dualfocal.metrics.inference.cluster_noise import LEAST
from dualfocal.metrics.inference.ranks import Array


@dataclass(frozen=True, eq=False)
class GapDraws:
    """The sums of (confidence - correctness) of the bins that are not empty, and random draws of them.

    Args:
        count: number of samples, or sum of their weights, ``(B,)``.
        gap: sum of (confidence - correctness), ``(B,)``.
        variance: variance of these sums, ``(B,)``.
        known: bins whose variance is known, ``(B,)``.
        null: gaps of a calibrated model, ``(R, B)``.
        noise: difference of the gaps to their expectation, also if the model is miscalibrated, ``(R, B)``.
        carried: how much larger the draws of the test become for a gap of 1 in every bin, ``(R, B)`` or 0.
    """

    count: Array
    gap: Array
    variance: Array
    known: NDArray[np.bool_]
    null: Array
    noise: Array
    carried: Array | float = 0.0

    @property
    def total(self) -> float:
        """Number of samples, or sum of their weights."""
        return float(self.count.sum())

    @property
    def observed(self) -> float:
        """Squared error over the bins, less its noise."""
        return float(self._debiased(self.gap))

    @property
    def p_value(self) -> float:
        """Share of draws as extreme as the data, by the squares of all bins or of a single bin."""
        return ranks.last_rank(self.squares(np.concatenate([self.null, self.gap[None]])))

    def squares(self, gaps: Array) -> tuple[Array, Array]:
        """Return the square over all bins, and that of a single bin, of each draw of the gaps."""
        return (gaps**2 / self.count).sum(-1), gaps.sum(-1) ** 2

    def _debiased(self, gaps: Array) -> Array:
        squares: Array = (self.known * (gaps**2 - self.variance) / self.count).sum(-1) / self.total
        return squares

    def interval(self, p_value: float, alpha: float) -> tuple[float, float]:
        """Return the interval of the root of the squared error, see :mod:`dualfocal.metrics.inference.top_label`."""
        if not self.known.any():
            return 0.0, 1.0  # no bin has a known variance: there is no information
        gap, n = self.gap / self.count, self.total
        spread = float(self._debiased(self.noise).std())
        linear = 4 * float((gap**2 * self.variance).sum()) / n**2
        sizes = ranks.size_grid(self.observed, spread, linear, float((self.count * gap**2).sum()), n)
        shape = (
            self.gap + self.noise[::-1][: ranks.SHAPES]
        ) / self.count  # reversed: no shape with the noise of its draw
        shape /= np.sqrt((self.count * shape**2).sum(1, keepdims=True) / n + LEAST)
        shift = np.resize(shape, self.noise.shape) * self.count
        statistic = np.stack([self._debiased(theta * shift + self.noise) for theta in sizes])
        low, high = ranks.unified_interval(sizes, torch.from_numpy(statistic), self.observed, spread, p_value, alpha)
        return low, min(high, 1.0)

    def detectable(self, significance: float) -> float:
        """Return the gap, the same in every bin, that the test detects in 80 % of the draws."""
        limits = [float(np.quantile(square, 1 - significance)) for square in self.squares(self.noise)]
        widest = 4 * math.sqrt(max(limits[0] / self.total, limits[1] / self.total**2))
        sizes = min(1.0, widest) * np.linspace(0, 1, ranks.GRID) ** 2
        detected = []
        for size in sizes:
            null = self.squares(self.noise + size * self.carried)  # a wild bootstrap draws the gap, too
            detected.append(ranks.power(self.squares(self.noise + size * self.count), null, significance))
        return ranks.detectable_size(sizes, np.array(detected))
