"""Sums by cluster, with the names of the clusters, so that a cluster can be added in several parts."""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dualfocal.metrics.arrays import Array
from dualfocal.metrics.cells import Floats
from dualfocal.metrics.inputs import cluster_names
from dualfocal.metrics.scan import Scan
from dualfocal.metrics.units import MOST_UNITS, UnitSums

Name = int | str


@dataclass(frozen=True, eq=False)
class ClusterSums:
    """Sums of (p - y) over the samples of each cluster; with very many clusters, of groups of them.

    Args:
        names: names of all clusters.
        keys: name, or number of the group, that each row of the sums belongs to.
        gap: sums of (confidence - correctness) by bin, ``(K, B)``.
        size: numbers of samples by bin, ``(K, B)``.
        moments: see :class:`~dualfocal.metrics.units.UnitSums`.
        classes: sums of (p - y) by class and bin, and of the samples predicted as the class, ``(K, C, B + 1)``; None if
            only the predicted class is known.
    """

    names: frozenset[Name]
    keys: tuple[Name, ...]
    gap: Floats
    size: Floats
    moments: Floats
    classes: Floats | None

    @classmethod
    def of(cls, names: Sequence[Name], keys: tuple[Name, ...], sums: UnitSums) -> Self:
        """Name the units of sums."""
        classes = None if sums.class_gaps is None else sums.class_gaps(slice(None))
        return cls(frozenset(names), keys, sums.gap, sums.size, sums.moments, classes)

    def __add__(self, other: Self) -> Self:
        names = self.names | other.names
        parts = [part.folded() if len(names) > MOST_UNITS else part for part in (self, other)]
        place = {key: i for i, key in enumerate(dict.fromkeys([*parts[0].keys, *parts[1].keys]))}
        index = [place[key] for key in parts[1].keys]

        def added(first: Floats, second: Floats) -> Floats:
            total = np.zeros((len(place), *first.shape[1:]))
            total[: len(first)] = first
            total[index] += second
            return total

        classes = [part.classes for part in parts]
        return type(self)(
            names,
            tuple(place),
            added(parts[0].gap, parts[1].gap),
            added(parts[0].size, parts[1].size),
            self.moments + other.moments,
            None if classes[0] is None or classes[1] is None else added(classes[0], classes[1]),
        )

    def folded(self) -> "ClusterSums":
        """Add clusters to groups, by a hash of their names; the sums of a group have the same variance."""
        if len(self.keys) < len(self.names):
            return self
        keys, index = np.unique(_groups(self.keys), return_inverse=True)

        def summed(values: Floats) -> Floats:
            total = np.zeros((len(keys), *values.shape[1:]))
            np.add.at(total, index, values)
            return total

        classes = None if self.classes is None else summed(self.classes)
        return ClusterSums(self.names, tuple(keys.tolist()), summed(self.gap), summed(self.size), self.moments, classes)

    def unit_sums(self) -> UnitSums:
        """Return the sums for the inference, sorted by name: random signs must not depend on the order of merging."""
        order = sorted(range(len(self.keys)), key=lambda i: (isinstance(self.keys[i], str), self.keys[i]))
        classes = None if self.classes is None else self.classes[order]
        by_class = None if classes is None else lambda part: classes[:, part]
        return UnitSums(self.gap[order], self.size[order], len(self.names), self.moments, by_class)

    def to_dict(self) -> dict[str, Any]:
        """Return plain content for JSON."""
        arrays = {name: getattr(self, name) for name in ("gap", "size", "moments", "classes")}
        return {
            "names": sorted(self.names, key=lambda name: (isinstance(name, str), name)),
            "keys": list(self.keys),
            **{name: None if array is None else array.tolist() for name, array in arrays.items()},
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read the output of :meth:`to_dict`."""
        arrays = [
            None if content[name] is None else np.array(content[name], np.float64)
            for name in ("gap", "size", "moments", "classes")
        ]
        return cls(frozenset(content["names"]), tuple(content["keys"]), *arrays)  # type: ignore[arg-type]


def names_and_codes(clusters: Array | int | str, shape: tuple[int, ...]) -> tuple[list[Name], NDArray[np.int64]]:
    """Return the names of the clusters, and the index of the name of each sample, ``(N,)``."""
    if isinstance(clusters, int | str | np.integer):
        name = clusters if isinstance(clusters, str) else int(clusters)
        return [name], np.zeros(math.prod(shape), np.int64)
    names, codes = cluster_names(clusters, shape)
    return names.tolist(), codes.numpy()


def with_clusters(
    stats: Scan, names: Sequence[Name], codes: NDArray[np.int64]
) -> tuple[list[Name], tuple[Name, ...], Scan]:
    """Return the names of the clusters that have samples, the keys of their sums, and the scan with their numbers."""
    used, index = np.unique(codes, return_inverse=True)
    present = [names[i] for i in used]
    if len(present) <= MOST_UNITS:
        return present, tuple(present), replace(stats, cluster=index)
    keys, group = np.unique(_groups(present), return_inverse=True)
    return present, tuple(keys.tolist()), replace(stats, cluster=group[index])


def _groups(names: Sequence[Name]) -> NDArray[np.int64]:
    """Return the group of each name, by a hash."""
    return np.array([zlib.crc32(repr(name).encode()) % MOST_UNITS for name in names])


def check_clusters(clusters: ClusterSums, num_bins: int, num_classes: int) -> None:
    """Raise a ValueError unless every cluster, or group of very many clusters, has its sums."""
    number, names, classes = len(set(clusters.keys)), clusters.names, clusters.classes
    complete = names == set(clusters.keys) or number <= MOST_UNITS < len(names)
    shapes = [clusters.gap.shape, clusters.size.shape, clusters.moments.shape]
    expected: list[tuple[int, ...]] = [(number, num_bins), (number, num_bins), (3,)]
    if classes is not None or num_classes:
        shapes.append(() if classes is None else classes.shape)
        expected.append((number, num_classes, num_bins + 1))
    if not complete or shapes != expected:
        raise ValueError(f"clusters: {len(names)} names and {number} keys need sums of shapes {expected}, got {shapes}")
