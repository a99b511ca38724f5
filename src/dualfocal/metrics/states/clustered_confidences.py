"""Evaluations of clustered samples without keeping them: sums by cluster that merge exactly.

Pixels of images, tokens of texts: there are too many to keep them all, and those of one image or text depend on each
other. The states of this module hold the sums of all samples, as :class:`~dualfocal.metrics.BinnedPredictions`
does, and for each cluster the few sums that :mod:`dualfocal.metrics.inference.clusters` needs. Their size depends on
the numbers of clusters, classes and bins, not on the number of samples.
"""

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from dualfocal._checks import check_count, check_level
from dualfocal.metrics.bins import ONE, Binner, BinStats, equal_edges, to_units
from dualfocal.metrics.inference.clusters import cluster_inference, cluster_squared_error
from dualfocal.metrics.inference.top_label import infer
from dualfocal.metrics.result import Evaluation
from dualfocal.metrics.rows import Array, as_tensor, cluster_names
from dualfocal.metrics.states._cluster_table import ClusterTable, Name, TableClusterSums, middle_starts
from dualfocal.metrics.states.binned import LARGEST_NLL, sum_of_units
from dualfocal.metrics.states.cells import CellConfidences, bins_of_cells, fine_edges

FEW_CLUSTERS = (
    "{number} cluster does not show how much clusters differ, inference needs at least two: add more, or evaluate with "
    "inference=False"
)


class ClusteredConfidences:
    """Sums of the confidences of predicted classes in clusters, for predictions with very many classes.

    ``update`` adds samples; ``a + b`` merges two states, whether their clusters are the same or not.

    Args:
        num_bins: number of bins of the calibration errors.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> state = ClusteredConfidences()
    >>> for text in range(100):
    ...     confidence = torch.rand(50, generator=generator)
    ...     right = torch.rand(50, generator=generator) < confidence
    ...     state.update(confidence, right, clusters=text)
    >>> state
    ClusteredConfidences(5,000 samples in 100 clusters, 15 bins)
    >>> result = state.evaluate()
    >>> result.inference.clusters.number, result.inference.p_value > 0.05
    (100, True)
    """

    def __init__(self, num_bins: int = 15) -> None:
        self.edges = equal_edges(num_bins)
        self.fine = BinStats.empty(edges=fine_edges(self.edges))
        self.clusters = ClusterTable()
        self.starts = middle_starts(num_bins)
        self.middle = Binner(torch.cat([self.fine.edges[self.starts], self.edges[-1:]]))
        # Sums in units of 2^-32; None as soon as samples are added without them.
        self.nll: int | None = 0
        self.brier: int | None = 0
        self.infinite_nll = 0

    @property
    def num_bins(self) -> int:
        """Number of bins."""
        return len(self.edges) - 1

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return int(self.fine.count.sum())

    @property
    def num_clusters(self) -> int:
        """Number of clusters."""
        return len(self.clusters.names)

    @property
    def bins(self) -> BinStats:
        """Bins of the confidence, for ECE and reliability diagram."""
        return bins_of_cells(self.fine, self.edges)

    def update(
        self,
        confidence: Array,
        right: Array,
        clusters: Array | int | str,
        *,
        nll: Array | None = None,
        brier: Array | None = None,
    ) -> None:
        """Add samples. If an argument is invalid, nothing is added.

        Args:
            confidence: probability of the predicted class of each sample, ``(N,)``, in [0, 1].
            right: whether the predicted class is the true class, ``(N,)``, bool or 0 and 1.
            clusters: the cluster of each sample, ``(N,)``, whole numbers or texts; or one cluster for all samples. A
                cluster can be added in several parts.
            nll: negative log-likelihood of each sample, ``(N,)``. The NLL of the evaluation is NaN unless all samples
                have one.
            brier: Brier score of each sample over all classes, ``(N,)``; likewise.

        Raises:
            ValueError: a shape, dtype or value breaks one of these rules.
        """
        confidence, right = as_tensor("confidence", confidence), as_tensor("right", right)
        fine = BinStats.from_confidence(confidence, right, edges=self.fine.edges)
        scores = [
            None if x is None else _scores(name, x, len(confidence)) for name, x in (("nll", nll), ("brier", brier))
        ]
        names, codes = names_and_codes(clusters, len(confidence))
        units, right, codes = (x.cpu() for x in (to_units(confidence.detach()), right, codes))
        size, cells = len(self.starts), self.middle(units)
        values = (torch.ones_like(units), units, right.long())
        sums = torch.zeros(len(names) * 3 * size, dtype=torch.int64)
        for i, value in enumerate(values):
            sums.index_add_(0, (codes * 3 + i) * size + cells, value)
        for name, row in zip(names, sums.view(len(names), -1).numpy(), strict=True):
            self.clusters.add(name, row)
        self.fine = self.fine + fine.to("cpu")
        likelihood, squares = scores
        finite = None if likelihood is None else likelihood < LARGEST_NLL
        self.nll = None if self.nll is None or likelihood is None else self.nll + sum_of_units(likelihood[finite])
        self.infinite_nll += 0 if finite is None else int((~finite).sum())
        self.brier = None if self.brier is None or squares is None else self.brier + sum_of_units(squares)

    def __add__(self, other: Self) -> Self:
        if not isinstance(other, ClusteredConfidences):
            return NotImplemented
        if self.num_bins != other.num_bins:
            raise ValueError(f"cannot merge {self!r} and {other!r}: they need the same number of bins")
        result = type(self)(self.num_bins)
        result.fine, result.clusters = self.fine + other.fine, self.clusters.copy()
        result.clusters.merge(other.clusters)
        result.nll = None if self.nll is None or other.nll is None else self.nll + other.nll
        result.brier = None if self.brier is None or other.brier is None else self.brier + other.brier
        result.infinite_nll = self.infinite_nll + other.infinite_nll
        return result

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClusteredConfidences):
            return NotImplemented
        names = ("num_bins", "fine", "clusters", "nll", "brier", "infinite_nll")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        samples = f"{self.num_samples:,} samples in {self.num_clusters:,} clusters"
        return f"ClusteredConfidences({samples}, {self.num_bins} bins)"

    def evaluate(self, *, inference: bool = True, level: float = 0.9, draws: int = 1000, seed: int = 0) -> Evaluation:
        """Compute the metrics of the predicted class; those that need all class probabilities are NaN.

        Adaptive ECE and AURC are computed from fine cells; the field ``bounds`` of the result holds their largest
        possible differences. Noise floors, test and interval allow for the clusters.

        Args:
            inference: whether to compute noise floors, test and interval, too.
            level: nominal coverage of the interval.
            draws: number of draws for floors and p-value.
            seed: seed of the draws.

        Raises:
            ValueError: there are no samples, only one cluster, or an option is invalid.
        """
        check_count("draws", draws, 100)
        check_level(level)
        if not self.num_samples:
            raise ValueError("no samples: add some with update first")
        clusters = cluster_sums(self.clusters, self.fine, self.num_bins, inference=inference)
        bins, samples = self.bins, CellConfidences(self.fine)
        adaptive, adaptive_bound = samples.adaptive_bins(self.num_bins)
        squared = float(bins.squared_error()) if clusters is None else cluster_squared_error(clusters, bins)
        inferred = None
        if inference and clusters is not None:
            inferred = infer(samples, bins, adaptive, level=level, draws=draws, seed=seed)
            inferred = cluster_inference(inferred, clusters, None, bins, adaptive)
        aurc, n, accuracy = samples.aurc(), self.num_samples, float(bins.correct.sum()) / self.num_samples
        nll = math.nan if self.nll is None else math.inf if self.infinite_nll else self.nll / (ONE * n)
        return Evaluation(
            num_samples=n,
            num_classes=0,
            num_bins=self.num_bins,
            error=1 - accuracy,
            nll=nll,
            brier=math.nan if self.brier is None else self.brier / (ONE * n),
            brier_calibration=math.nan,
            brier_refinement=math.nan,
            aurc=aurc.value,
            ece=float(bins.ece()),
            adaptive_ece=float(adaptive.ece()),
            classwise_ece=math.nan,
            mce=float(bins.mce()),
            debiased_ece=math.sqrt(max(squared, 0.0)),
            confidence=float(bins.confidence.sum()) / n,
            accuracy=accuracy,
            bins=bins,
            inference=inferred,
            bounds={"aurc": aurc.bound, "adaptive_ece": adaptive_bound},
            confidence_only=True,
        )


def cluster_sums(table: ClusterTable, fine: BinStats, num_bins: int, *, inference: bool) -> TableClusterSums | None:
    """Return the sums by cluster; None for one cluster, which only allows an evaluation without inference."""
    number = len(table.names)
    if number >= 2:
        return TableClusterSums(table, fine, num_bins)
    if inference:
        raise ValueError(FEW_CLUSTERS.format(number=number))
    return None


def cluster_name(name: Any) -> Name:
    """Return the name of one cluster as a Python number or text."""
    if isinstance(name, bool | int | np.integer):
        return int(name)
    if isinstance(name, str):
        return str(name)
    raise ValueError(f"a cluster must be a whole number or a text, got {name!r}")


def names_and_codes(clusters: Array | int | str, number: int) -> tuple[Sequence[Name], Tensor]:
    """Return the names of the clusters and the index of the name of each of ``number`` samples."""
    if isinstance(clusters, int | str | np.integer):
        return [cluster_name(clusters)], torch.zeros(number, dtype=torch.int64)
    names, codes = cluster_names(clusters, (number,))
    return [cluster_name(name) for name in names.tolist()], codes


def _scores(name: str, values: Array, number: int) -> Tensor:
    """Return the scores of the samples as float64 on the CPU."""
    scores = as_tensor(name, values).detach().cpu().double()
    if scores.shape != (number,) or not bool((scores >= 0).all()):
        raise ValueError(f"{name} must have shape ({number},) and hold no NaN or negative value")
    return scores
