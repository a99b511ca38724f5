"""Wild bootstrap of sums over clusters, see :mod:`dualfocal.metrics.inference.clusters`."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MOST_CLUSTERS = 4096  # with more, random groups of clusters are drawn together, whose sums have the same variance
FEW_CLUSTERS = 50  # with fewer, signs alone would give too few different draws
LEAST = 1e-300

Array = NDArray[np.float64]


class Grouping:
    """Clusters that are drawn together: each on its own, or in random groups if there are very many.

    Args:
        number: number of clusters.
        rng: where the groups come from.
    """

    def __init__(self, number: int, rng: np.random.Generator) -> None:
        self.number, self.groups = number, min(number, MOST_CLUSTERS)
        self.group = torch.from_numpy(rng.permutation(number) % MOST_CLUSTERS) if number > MOST_CLUSTERS else None

    def group_of(self, codes: Tensor) -> Tensor:
        """Return the group of each entry, given its cluster."""
        return codes if self.group is None else self.group.to(codes.device)[codes]


class ClusterNoise(Grouping):
    """Wild bootstrap of sums over clusters.

    Args:
        number: number of clusters.
        draws: number of draws.
        seed: seed of the draws.
    """

    def __init__(self, number: int, draws: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        super().__init__(number, rng)
        values = [-1.0, 1.0]
        if number < FEW_CLUSTERS:
            values = [sign * math.sqrt(square) for square in (0.5, 1.0, 1.5) for sign in (-1.0, 1.0)]
        self.weights: Array = rng.choice(np.array(values), size=(draws, self.groups))

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
