"""Sums of (p - y) by cluster: what :mod:`dualfocal.metrics.inference.clusters` needs to know of the samples."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from dualfocal.metrics.inference.classwise import LEAST_VARIANCE
from dualfocal.metrics.inference.cluster_noise import Array, ClusterNoise, Grouping
from dualfocal.metrics.inference.label_counts import RowLabels
from dualfocal.metrics.scan import Scan
from dualfocal.metrics.units import Binner, from_units, scatter_sum, to_units

COLUMNS = 1024  # classwise bins drawn at a time
MOST_CELLS = 1 << 24  # sums by cluster and bin in memory


class ClusterSums(ABC):
    """Sums over the samples of each cluster. Methods that take ``noise`` add up the clusters that it draws together."""

    num_clusters: int
    # Sum of the squared (confidence - correctness) of all samples; with weights w, sum w^2 (c - y - mean)^2 + N mean^2.
    squares: float
    least_variance: float = 0.0  # of independent samples; sums by class with a smaller variance count less

    @abstractmethod
    def totals(self) -> tuple[Array, Array]:
        """Return the sum of (confidence - correctness) and the number of samples of each cluster, ``(K,)``."""

    @abstractmethod
    def by_bin(self, noise: ClusterNoise, edges: Tensor) -> tuple[Array, Array]:
        """Return the sums of (confidence - correctness) and the numbers of samples by cluster and bin, ``(K, B)``."""

    @abstractmethod
    def by_class(self, noise: Grouping) -> Iterator[tuple[slice, Array]]:
        """Yield some classes and their sums of (p - y), ``(K, classes, B + 1)``.

        The last entry is the sum over the samples that are predicted as the class.
        """


class RowClusterSums(ClusterSums):
    """Sums over the rows of each cluster.

    Args:
        clusters: cluster of each row, ``(N,)``, 0, 1, ...
        stats: scan of the rows.
        labels: labels of the rows, for the sums by class.
        weight: weight of each row, ``(N,)``: sums are weighted, and numbers of samples are sums of weights.
    """

    def __init__(
        self, clusters: Tensor, stats: Scan, labels: RowLabels | None = None, weight: Tensor | None = None
    ) -> None:
        self.clusters, self.confidence, self.labels = clusters, stats.confidence, labels
        self.residual = from_units(stats.confidence) - stats.correct.double()
        self.weight = torch.ones_like(self.residual) if weight is None else weight
        self.num_clusters = int(clusters.max()) + 1
        if weight is None:
            self.squares = float((self.residual**2).sum())
        else:
            total, mean = float(weight.sum()), float((weight * self.residual).sum() / weight.sum())
            self.least_variance = LEAST_VARIANCE * float((weight**2).mean())
            self.squares = float(((weight * (self.residual - mean)) ** 2).sum()) + total * mean**2
            self.residual = weight * self.residual

    def totals(self) -> tuple[Array, Array]:
        """Return the sum of (confidence - correctness) and the number of samples of each cluster, ``(K,)``."""
        values = (self.residual, self.weight)
        sums, sizes = (scatter_sum(self.clusters, x, self.num_clusters).cpu().numpy() for x in values)
        return sums, sizes

    def by_bin(self, noise: ClusterNoise, edges: Tensor) -> tuple[Array, Array]:
        """Return the sums of (confidence - correctness) and the numbers of samples by cluster and bin, ``(K, B)``."""
        num_bins = len(edges) - 1
        cells = noise.group_of(self.clusters) * num_bins + Binner(edges)(self.confidence)
        values = (self.residual, self.weight)
        sums, sizes = (
            scatter_sum(cells, x, noise.groups * num_bins).view(noise.groups, num_bins).cpu().numpy() for x in values
        )
        return sums, sizes

    def by_class(self, noise: Grouping) -> Iterator[tuple[slice, Array]]:
        """Yield some classes and their sums of (p - y), ``(K, classes, B + 1)``."""
        assert self.labels is not None
        labels, groups = self.labels, noise.group_of(self.clusters)
        num_classes, width = labels.expected.shape
        step = max(1, min(COLUMNS // width, MOST_CELLS // (noise.groups * width)))
        for start in range(0, num_classes, step):
            part = slice(start, min(start + step, num_classes))
            classes = torch.arange(part.start, part.stop, device=groups.device)
            number = len(classes)
            p = labels.probabilities(part)  # (N, classes)
            residual = p - (labels.rows.target[:, None] == classes).double()
            if labels.rows.weight is not None:
                residual *= self.weight[:, None]
            cell = labels.binner(to_units(p).reshape(-1)).view_as(p) + width * (classes - start)
            cell += (groups * (number * width))[:, None]
            sums = scatter_sum(cell.reshape(-1), residual.reshape(-1), noise.groups * number * width)
            sums = sums.view(noise.groups, number, width)
            here = ((labels.guess >= part.start) & (labels.guess < part.stop)).nonzero()[:, 0]
            column = labels.guess[here] - start
            predicted = scatter_sum(groups[here] * number + column, residual[here, column], noise.groups * number)
            sums[..., -1] = predicted.view(noise.groups, number)
            yield part, sums.cpu().numpy()
