"""Predictions of several files: merge them, compare their labels, and bring classes and rows into one order."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.predictions.loading import Predictions
from dualfocal.tables import quantity


def merge_predictions(parts: Mapping[str, Predictions]) -> Predictions:
    """Concatenate labelled predictions that are parts of one set.

    Args:
        parts: at least one set of predictions, by name for error messages.

    Returns:
        One set of predictions, with the samples of all parts.

    Raises:
        ValueError: the parts differ in the kind or shape of their values, or in their classes.
    """
    (first_name, first), *others = parts.items()
    for name, part in others:
        if part.input != first.input or part.values.shape[1:] != first.values.shape[1:]:
            raise ValueError(f"--merge: {first_name} has {first.taken}, but {name} has {part.taken}")
        if part.class_names != first.class_names:
            raise ValueError(f"--merge: {name} must have the same classes in the same order as {first_name}")
    members = list(parts.values())
    return replace(
        first,
        values=torch.cat([part.values for part in members]),
        labels=torch.cat([part.target for part in members]),
        groups=None if first.groups is None else np.concatenate([part.groups for part in members]),
        clusters=None if first.clusters is None else np.concatenate([part.clusters for part in members]),
        weights=None if first.weights is None else np.concatenate([part.weights for part in members]),
        taken=f"{len(parts)} files; of the first, {first.taken}",
        path=None,
        kept=None,
        first_row=0,
    )


def check_same_labels(a: Predictions, b: Predictions) -> None:
    """Raise a ValueError unless both predictions have the same labels, as those of the same samples do."""
    rule = f"{a.path} and {b.path} must have the same labels in the same order"
    matched = a.groups is not None  # by align_rows
    remedy = "are these the same samples?" if matched else "--id COLUMN matches rows in another order"
    if a.target.shape != b.target.shape:
        shapes = " and ".join(" x ".join(map(str, data.target.shape)) for data in (a, b))
        raise ValueError(f"{rule}, but they have {shapes} labels: {remedy}")
    differ = (a.target != b.target).nonzero()
    if len(differ):
        place = tuple(differ[0].tolist())
        rows = int((a.target != b.target).reshape(len(a.target), -1).any(1).sum())
        row = f"id {str(a.groups[place[0]])!r}" if a.groups is not None else f"row {a.row_of_file(place[0])}"
        labels = " and ".join(_label_name(data, place) for data in (a, b))
        verb = "differs" if rows == 1 else "differ"
        raise ValueError(
            f"{rule}, but {rows:,} of {quantity(len(a.target), 'row')} {verb}, first {row}: {labels}; {remedy}"
        )


def _label_name(data: Predictions, place: tuple[int, ...]) -> str:
    label = int(data.target[place])
    names = data.class_names or ()
    return names[label] if 0 <= label < len(names) else str(label)


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
    if ids[0].dtype.kind != ids[1].dtype.kind:  # 7 in one file, 7.0 or "7" in the other
        ids = [_as_text(identities) for identities in ids]
    common, first, second = np.intersect1d(ids[0], ids[1], assume_unique=True, return_indices=True)
    if not len(common):
        raise ValueError(f"{a.path} and {b.path} have no id of {a.group_name!r} in common, such as {str(ids[0][0])!r}")
    order = np.argsort(first)
    remark = f"{quantity(len(common), 'row')} matched by {a.group_name!r}"
    if len(common) < max(map(len, ids)):
        only_a, only_b = (len(identities) - len(common) for identities in ids)
        verb = "is" if only_a == 1 else "are"
        remark += f"; {quantity(only_a, 'row')} {verb} only in A and {only_b:,} only in B"
    return _select_rows(a, first[order]), _select_rows(b, second[order]), remark


def _unique_ids(data: Predictions) -> NDArray[Any]:
    assert data.groups is not None
    ids, count = np.unique(data.groups, return_counts=True)
    if len(ids) < len(data.groups):
        twice = ids[count > 1][0]
        raise ValueError(f"{data.path}: ids must be unique, but {data.group_name!r} has {str(twice)!r} more than once")
    return data.groups


def _as_text(ids: NDArray[Any]) -> NDArray[np.str_]:
    """Return ids as text; whole floats are written like whole numbers.

    >>> _as_text(np.array([7.0, 0.5]))
    array(['7', '0.5'], dtype='<U3')
    """
    if ids.dtype.kind != "f":
        return ids.astype(np.str_)
    return np.array([str(int(number)) if number.is_integer() else str(number) for number in ids.tolist()])


def _select_rows(data: Predictions, rows: NDArray[np.intp]) -> Predictions:
    index = torch.from_numpy(rows)
    assert data.groups is not None
    return replace(
        data,
        values=data.values[index],
        labels=None if data.labels is None else data.labels[index],
        groups=data.groups[rows],
        taken=data.taken.replace(f", groups from {data.group_name!r}", f", ids from {data.group_name!r}"),
        clusters=None if data.clusters is None else data.clusters[rows],
        weights=None if data.weights is None else data.weights[rows],
    )


def _renumber(labels: Tensor, order: Sequence[int]) -> Tensor:
    """Return the labels in the new numbering; labels that are no class, such as ignored ones, stay as they are."""
    new = torch.empty(len(order), dtype=torch.int64)
    new[torch.tensor(order)] = torch.arange(len(order))
    is_class = (labels >= 0) & (labels < len(order))
    return torch.where(is_class, new[labels.clamp(0, len(order) - 1)], labels)
