"""Evaluations of clustered samples without keeping them: sums by cluster that merge exactly.

Pixels of images, tokens of texts: there are too many to keep them all, and those of one image or text depend on each
other. The states hold the sums of all samples, as :class:`~dualfocal.metrics.BinnedPredictions` does, and for each
cluster the few sums that :mod:`dualfocal.metrics.inference.clusters` needs. Their size depends on the numbers of
clusters, classes and bins, not on the number of samples.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from dualfocal.checks import check_count
from dualfocal.metrics.arrays import Array
from dualfocal.metrics.result import Evaluation, check_schema
from dualfocal.metrics.rows import cluster_names
from dualfocal.metrics.states._cluster_table import ClusterTable, Integers, Name, TableClusterSums, middle_starts
from dualfocal.metrics.states.binned_confidences import BinnedConfidences, evaluate_binned
from dualfocal.tables import quantity

SCHEMA = 1
FEW_CLUSTERS = (
    "{number} cluster does not show how much clusters differ, inference needs at least two: add more, or evaluate with "
    "inference=False"
)

Binned = TypeVar("Binned", bound=BinnedConfidences)


class ClusteredState(Generic[Binned]):
    """Sums of all samples, and of the samples of each cluster.

    Args:
        num_bins: number of bins of the calibration errors.
    """

    binned_type: ClassVar[type[BinnedConfidences]]

    def __init__(self, num_bins: int = 15) -> None:
        check_count("num_bins", num_bins)
        self.num_bins = num_bins
        self.binned: Binned | None = None
        self.clusters = ClusterTable()
        self.starts = middle_starts(num_bins)

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return 0 if self.binned is None else self.binned.num_samples

    @property
    def num_clusters(self) -> int:
        """Number of clusters."""
        return len(self.clusters.names)

    def _add(self, part: Binned, names: Sequence[Name], sums: Sequence[Integers]) -> None:
        """Add samples: their sums, and those of each cluster."""
        self.binned = part if self.binned is None else self.binned + part
        for name, row in zip(names, sums, strict=True):
            self.clusters.add(name, row)

    def __add__(self, other: Self) -> Self:
        if not isinstance(other, type(self)):
            return NotImplemented
        if self.num_bins != other.num_bins:
            raise ValueError(f"cannot merge {self!r} and {other!r}: they need the same number of bins")
        result = type(self)(self.num_bins)
        if self.binned is None or other.binned is None:
            result.binned = self.binned or other.binned
        else:
            result.binned = self.binned + other.binned
        result.clusters = self.clusters + other.clusters
        return result

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in ("num_bins", "binned", "clusters"))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        samples = f"{quantity(self.num_samples, 'sample')} in {quantity(self.num_clusters, 'cluster')}"
        return f"{type(self).__name__}({samples}, {quantity(self.num_bins, 'bin')})"

    def evaluate(self, *, inference: bool = True, level: float = 0.9, draws: int = 1000, seed: int = 0) -> Evaluation:
        """Compute the metrics of all samples. Noise floors, tests and interval allow for the clusters.

        Adaptive ECE and AURC are computed from fine cells; the field ``bounds`` of the result holds their largest
        possible differences, see :meth:`BinnedPredictions.evaluate <dualfocal.metrics.BinnedPredictions.evaluate>`. Of
        what the clusters add, the noise floor of the adaptive ECE and the design effect are computed from cells of
        similar confidences.

        Args:
            inference: whether to compute noise floors, tests and interval, too.
            level: nominal coverage of the interval.
            draws: number of draws for floors and p-value.
            seed: seed of the draws.

        Raises:
            ValueError: there are no samples, only one cluster, or an option is invalid.
        """
        if self.binned is None or not self.num_samples:
            raise ValueError("no samples: add some with update first, or all of them were ignored")
        clusters = None
        if self.num_clusters > 1:
            clusters = TableClusterSums(self.clusters, self.binned.fine, self.num_bins)
        elif inference:
            raise ValueError(FEW_CLUSTERS.format(number=self.num_clusters))
        return evaluate_binned(self.binned, clusters, inference=inference, level=level, draws=draws, seed=seed)

    def to_dict(self) -> dict[str, Any]:
        """Return the state for JSON, to be kept in a file and merged with those of other machines."""
        return {
            "schema": SCHEMA,
            "num_bins": self.num_bins,
            "binned": None if self.binned is None else self.binned.to_dict(),
            "clusters": self.clusters.to_dict(),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read the output of :meth:`to_dict`.

        Raises:
            ValueError: the content has another schema, or its sums contradict each other.
            KeyError, TypeError, IndexError: an entry is missing or invalid.
        """
        check_schema("a state of clustered samples", content, SCHEMA)
        state = cls(content["num_bins"])
        if content["binned"] is not None:
            state.binned = cls.binned_type.from_dict(content["binned"])  # type: ignore[assignment]
        state.clusters = ClusterTable.from_dict(content["clusters"])
        in_clusters = sum(int(sums[: len(state.starts)].sum()) for sums in state.clusters.sums.values())
        if in_clusters != state.num_samples:
            raise ValueError(f"the clusters hold {in_clusters:,} samples, but there are {state.num_samples:,} in all")
        return state


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
