"""Wild bootstrap of sums over clusters, see :mod:`dualfocal.metrics.clusters`."""

import copy
import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.metrics.bins import scatter_sum

MOST_CLUSTERS = 4096  # with more, random groups of clusters are drawn together, whose sums have the same variance
FEW_CLUSTERS = 50  # with fewer, signs alone would give too few different draws
SAME = 1e-7  # relative tolerance of equal statistics
LEAST = 1e-300

Array = NDArray[np.float64]


def cluster_groups(codes: Tensor, rng: np.random.Generator) -> tuple[Tensor, int]:
    """Return the cluster of each sample and the number of clusters, or of random groups if there are very many."""
    number = int(codes.max()) + 1
    if number <= MOST_CLUSTERS:
        return codes, number
    return torch.from_numpy(rng.permutation(number) % MOST_CLUSTERS).to(codes.device)[codes], MOST_CLUSTERS


class ClusterNoise:
    """Wild bootstrap of sums over clusters.

    Args:
        codes: cluster of each sample, ``(N,)``, 0, 1, ...
        draws: number of draws.
        seed: seed of the draws.
    """

    def __init__(self, codes: Tensor, draws: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.clusters, self.number = codes, int(codes.max()) + 1
        self.codes, self.groups = cluster_groups(codes, rng)
        values = [-1.0, 1.0]
        if self.number < FEW_CLUSTERS:
            values = [sign * math.sqrt(square) for square in (0.5, 1.0, 1.5) for sign in (-1.0, 1.0)]
        self.weights: Array = rng.choice(np.array(values), size=(draws, self.groups))

    def at(self, index: Tensor) -> "ClusterNoise":
        """Return the noise of a subset of the samples, with the same draws."""
        subset = copy.copy(self)
        subset.clusters, subset.codes = self.clusters[index], self.codes[index]
        return subset

    def sums(self, values: Tensor, index: Tensor | int = 0, width: int = 1) -> Array:
        """Sum values, (N,) or (N, ...), by cluster and by index: (clusters, width)."""
        codes = self.codes.view(-1, *[1] * (values.ndim - 1))
        cells = (codes * width + index).expand(values.shape).reshape(-1)
        sums = scatter_sum(cells, values.double().reshape(-1), self.groups * width)
        return sums.view(self.groups, width).cpu().numpy()

    def draw(self, sums: Array) -> Array:
        """Return the sums of each draw, (draws, ...), of sums by cluster, (clusters, ...)."""
        flat = sums.reshape(len(sums), -1)
        drawn = np.zeros((len(self.weights), flat.shape[1]))
        full = flat.any(0)
        drawn[:, full] = self.weights @ flat[:, full]
        return drawn.reshape(-1, *sums.shape[1:])


def cluster_factor(sums: Array) -> Array:
    """Return K / (K - 1), where K is the number of clusters with samples; 0 if there is only one.

    The sum of squares over clusters, after the mean was subtracted, is multiplied by it.
    """
    number = np.count_nonzero(sums, axis=0)
    factor: Array = np.where(number > 1, number / np.maximum(number - 1, 1), 0.0)
    return factor


def as_large(values: Array, among: Array) -> NDArray[np.int64]:
    """Count the entries of ``among`` that are at least as large as each value, up to rounding."""
    return len(among) - np.searchsorted(np.sort(among), values * (1 - SAME))


def last_rank(statistics: Sequence[Array]) -> float:
    """Return the p-value of the last entry of several statistics among all entries: the most extreme one counts."""
    smallest = np.min([as_large(values, values) for values in statistics], axis=0)
    return float((smallest <= smallest[-1]).mean())
