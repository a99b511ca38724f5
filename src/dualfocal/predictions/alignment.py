"""Align predictions whose classes or rows are in another order."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.predictions.loading import Predictions


def class_order(names: Sequence[str] | None, wanted: Sequence[str] | None) -> list[int] | None:
    """Return where each wanted class stands among ``names``, or None if the order is the same or unknown.

    >>> class_order(("cat", "dog"), ("dog", "cat")), class_order(("cat", "dog"), ("cat", "dog"))
    ([1, 0], None)

    Raises:
        ValueError: the classes are not the same.
    """
    if not names or not wanted or tuple(names) == tuple(wanted):
        return None
    kinds = {"missing": set(wanted) - set(names), "additional": set(names) - set(wanted)}
    if any(kinds.values()) or len(names) != len(wanted):
        differences = [f"{kind} {', '.join(sorted(some)[:5])}" for kind, some in kinds.items() if some]
        raise ValueError(f"the classes must be {', '.join(wanted[:10])}: {'; '.join(differences)}")
    places = {name: place for place, name in enumerate(names)}
    return [places[name] for name in wanted]


def reorder_classes(data: Predictions, order: Sequence[int]) -> Predictions:
    """Return the predictions with class ``order[k]`` as class k."""
    names, columns = data.class_names, data.columns
    return replace(
        data,
        values=data.values[:, list(order)],
        labels=None if data.labels is None else _renumber(data.labels, order),
        class_names=None if names is None else tuple(names[place] for place in order),
        columns=tuple(columns[place] for place in order) if len(columns) == len(order) else columns,
        taken=f"{data.taken}, classes brought into the same order",
    )


def restore_classes(values: Tensor, order: Sequence[int]) -> Tensor:
    """Return values of reordered classes in the order that they had before :func:`reorder_classes`."""
    restored = torch.empty_like(values)
    restored[:, list(order)] = values
    return restored


def align_rows(a: Predictions, b: Predictions) -> tuple[Predictions, Predictions, str]:
    """Return the rows that both predictions have, in the order of ``a``, and a remark on what was done.

    Args:
        a: predictions whose ``groups`` identify the samples.
        b: other predictions of the same samples.

    Raises:
        ValueError: an id occurs more than once, or the predictions have no samples in common.
    """
    ids = [_unique_ids(data) for data in (a, b)]
    if ids[0].dtype.kind != ids[1].dtype.kind:  # 7 in one file, "7" in the other
        ids = [one.astype(np.str_) for one in ids]
    common, first, second = np.intersect1d(ids[0], ids[1], assume_unique=True, return_indices=True)
    if not len(common):
        raise ValueError(f"{a.path} and {b.path} have no id of {a.group_name!r} in common, such as {str(ids[0][0])!r}")
    order = np.argsort(first)
    left_out = f"; {len(ids[0]) - len(common):,} rows are only in A and {len(ids[1]) - len(common):,} only in B"
    remark = f"{len(common):,} rows matched by {a.group_name!r}{left_out if len(common) < max(map(len, ids)) else ''}"
    return _select_rows(a, first[order]), _select_rows(b, second[order]), remark


def _unique_ids(data: Predictions) -> NDArray[Any]:
    assert data.groups is not None
    ids, count = np.unique(data.groups, return_counts=True)
    if len(ids) < len(data.groups):
        twice = ids[count > 1][0]
        raise ValueError(f"{data.path}: ids must be unique, but {data.group_name!r} has {str(twice)!r} more than once")
    return data.groups


def _select_rows(data: Predictions, rows: NDArray[np.intp]) -> Predictions:
    index = torch.from_numpy(rows)
    assert data.groups is not None
    return replace(
        data,
        values=data.values[index],
        labels=None if data.labels is None else data.labels[index],
        groups=data.groups[rows],
        clusters=None if data.clusters is None else data.clusters[rows],
        weights=None if data.weights is None else data.weights[rows],
    )


def _renumber(labels: Tensor, order: Sequence[int]) -> Tensor:
    """Return the labels in the new numbering; labels that are no class, such as ignored ones, stay as they are."""
    new = torch.empty(len(order), dtype=torch.int64)
    new[torch.tensor(order)] = torch.arange(len(order))
    is_class = (labels >= 0) & (labels < len(order))
    return torch.where(is_class, new[labels.clamp(0, len(order) - 1)], labels)
