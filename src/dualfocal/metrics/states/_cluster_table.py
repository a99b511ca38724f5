"""Sums by cluster that merge exactly, for states that keep no samples."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.metrics.bins import BinStats
from dualfocal.metrics.inference import cluster_noise
from dualfocal.metrics.inference.cluster_noise import Array, ClusterNoise, Grouping
from dualfocal.metrics.inference.cluster_sums import COLUMNS, MOST_CELLS, ClusterSums
from dualfocal.metrics.states.cells import CELLS, SPLITS
from dualfocal.metrics.units import ONE

Integers = NDArray[np.int64]
Name = int | str

MIDDLE = 16  # middle cells per bin, and per split of its topmost cell
MOST_SAMPLES = 1 << 31  # per cluster: a sum of 2^31 confidences in units of 2^-32 is below 2^63


def middle_starts(num_bins: int) -> Integers:
    """Return the first fine cell of each middle cell; middle cells lie within bins and are cut finely next to 1.

    A middle cell holds 16 fine cells. Of the topmost 16 cells of each split, 8, 4, 2 and 1 cells are taken together,
    and the topmost one is split itself, see :func:`~dualfocal.metrics.states.cells.fine_edges`.

    >>> len(middle_starts(15))
    297
    """
    even = np.arange(0, CELLS, CELLS // MIDDLE)
    near_one = np.array([CELLS - 8, CELLS - 4, CELLS - 2])
    last = CELLS * (num_bins - 1)
    parts = [CELLS * b + even for b in range(num_bins - 1)]
    parts += [last + (CELLS - 1) * split + np.concatenate([even, near_one]) for split in range(SPLITS)]
    return np.concatenate([*parts, last + (CELLS - 1) * SPLITS + even])


class ClusterTable:
    """Whole numbers of each cluster, by name, that are added up if a cluster is seen again.

    More than 4096 clusters are added up in 4096 groups, by a hash of their names: a cluster is in the same group in
    every table, so that tables can still be merged. Groups do not depend on the labels, so that the sums of a group
    have mean 0 if the model is calibrated, as those of a cluster have.
    """

    def __init__(self) -> None:
        self.sums: dict[Name, Integers] = {}  # by name, or by group
        self.names: set[Name] = set()

    @property
    def grouped(self) -> bool:
        """Whether there are so many clusters that they are added up in groups."""
        return len(self.names) > cluster_noise.MOST_CLUSTERS

    def add(self, name: Name, sums: Integers) -> None:
        """Add the sums of samples of one cluster."""
        was_grouped = self.grouped
        self.names.add(name)
        if self.grouped and not was_grouped:
            self._group()
        self._add(group_of(name) if self.grouped else name, sums)

    def __add__(self, other: Self) -> Self:
        """Return the sums of both tables. Arrays are never changed in place, so tables can share them."""
        result = type(self)()
        result.sums, result.names = dict(self.sums), set(self.names)
        if not other.grouped:
            for name, sums in other.sums.items():
                result.add(name, sums)
            return result
        if not result.grouped:
            result._group()
        result.names |= other.names
        for group, sums in other.sums.items():
            result._add(group, sums)
        return result

    def stacked(self) -> Integers:
        """Return the sums of all clusters in the order of their names, or of all groups, ``(K, ...)``."""
        if not self.grouped:
            return np.stack([self.sums[name] for name in sorted_names(self.sums)])
        empty = np.zeros_like(next(iter(self.sums.values())))
        return np.stack([self.sums.get(group, empty) for group in range(cluster_noise.MOST_CLUSTERS)])

    def _add(self, key: Name, sums: Integers) -> None:
        self.sums[key] = self.sums[key] + sums if key in self.sums else sums

    def _group(self) -> None:
        clusters, self.sums = self.sums, {}
        for name, sums in clusters.items():
            self._add(group_of(name), sums)

    def to_dict(self) -> dict[str, Any]:
        """Return plain content for JSON; zeros are left out.

        Entry ``place[i]`` of the sums of ``keys[row[i]]`` is ``value[i]``. A key is a name, or a group of names.
        """
        sums = np.stack(list(self.sums.values())) if self.sums else np.zeros((0, 0), np.int64)
        row, place = np.nonzero(sums)
        columns = {"row": row, "place": place, "value": sums[row, place]}
        return {
            "names": sorted_names(self.names),
            "keys": list(self.sums),
            "width": sums.shape[1],
            **{name: column.tolist() for name, column in columns.items()},
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read the output of :meth:`to_dict`."""
        table = cls()
        table.names = set(content["names"])
        sums = np.zeros((len(content["keys"]), content["width"]), np.int64)
        row, place, value = (np.array(content[name], np.int64) for name in ("row", "place", "value"))
        sums[row, place] = value
        table.sums = dict(zip(content["keys"], sums, strict=True))
        return table

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClusterTable):
            return NotImplemented
        if self.names != other.names or self.sums.keys() != other.sums.keys():
            return False
        return all(np.array_equal(sums, other.sums[key]) for key, sums in self.sums.items())

    __hash__ = None  # type: ignore[assignment]


def group_of(name: Name) -> int:
    """Return the group of a cluster, which only depends on its name."""
    digest = hashlib.blake2b(str(name).encode(), digest_size=8).digest()
    return int.from_bytes(digest) % cluster_noise.MOST_CLUSTERS


def sorted_names(names: Iterable[Name]) -> list[Name]:
    """Sort numbers by value, and texts, or both together, as texts."""
    names = list(names)
    numbers = all(isinstance(name, int) for name in names)
    return sorted(names) if numbers else sorted(names, key=str)


class TableClusterSums(ClusterSums):
    """Sums by cluster from a table of clusters.

    The squares are those of all fine cells, as if the confidences of a cell were equal. Bins whose edges are not edges
    of middle cells, such as those of the adaptive ECE, are cut at the nearest ones.

    Args:
        table: for each cluster counts, units and correct samples by middle cell, then the sums of (p - y) by class and
            bin, ``(C, B + 1)``, in units.
        fine: fine cells of all samples.
        num_bins: number of bins.
    """

    def __init__(self, table: ClusterTable, fine: BinStats, num_bins: int) -> None:
        self.num_clusters, self.num_bins = len(table.names), num_bins
        starts, stacked = middle_starts(num_bins), table.stacked()
        self.edges = np.append(fine.edges.numpy()[starts], 1.0)
        cells, self.classes = np.split(stacked, [3 * len(starts)], axis=1)
        count, units, correct = cells.reshape(len(cells), 3, -1).transpose(1, 0, 2)
        if int(count.sum(1).max()) >= MOST_SAMPLES:
            raise OverflowError(f"a cluster holds {int(count.sum(1).max()):,} samples, at most 2^31 - 1 are possible")
        self.count, self.gap = count, units - correct * ONE
        self.squares = _sum_of_squares(fine)

    def totals(self) -> tuple[Array, Array]:
        """Return the sum of (confidence - correctness) and the number of samples of each cluster, ``(K,)``."""
        return self.gap.sum(1) / ONE, self.count.sum(1).astype(np.float64)

    def by_bin(self, noise: ClusterNoise, edges: Tensor) -> tuple[Array, Array]:
        """Return the sums of (confidence - correctness) and the numbers of samples by cluster and bin, ``(K, B)``."""
        inner = np.abs(edges.cpu().numpy()[1:-1, None] - self.edges).argmin(1)
        ends = np.concatenate([[0], inner, [len(self.edges) - 1]])
        sums, sizes = (
            np.diff(np.pad(cells, ((0, 0), (1, 0))).cumsum(1)[:, ends], axis=1) for cells in (self.gap, self.count)
        )
        return sums / ONE, sizes.astype(np.float64)

    def by_class(self, noise: Grouping) -> Iterator[tuple[slice, Array]]:
        """Yield some classes and their sums of (p - y), ``(K, classes, B + 1)``."""
        width = self.num_bins + 1
        sums = self.classes.reshape(len(self.classes), -1, width)
        step = max(1, min(COLUMNS // width, MOST_CELLS // (len(sums) * width)))
        for start in range(0, sums.shape[1], step):
            part = slice(start, min(start + step, sums.shape[1]))
            yield part, sums[:, part] / ONE


def _sum_of_squares(fine: BinStats) -> float:
    """Return the sum of (confidence - correctness)^2, as if the confidences of a cell were equal."""
    p = fine.mean_confidence.nan_to_num(0.0)
    return float((fine.count * p**2 + fine.correct * (1 - 2 * p)).sum())
