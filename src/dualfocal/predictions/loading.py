"""What a file says of its samples: names are settled, labels become class indices."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.predictions._labels import Classes, class_indices, plain_groups
from dualfocal.predictions._names import LOGITS, PROBS, Found, Values, find_names, splits, suggested
from dualfocal.predictions._readers import open_source
from dualfocal.predictions._sources import FLOATS, Array, Column, PredictionsError, Source, dtype_name, form


@dataclass(frozen=True, eq=False)  # tensors have no single answer to ==
class MaybeLabelled:
    """What a file says about its N samples, where labels are not needed."""

    values: Tensor  # (N, C), (N, C, d1, ...) or (N,): one score per sample
    input: str  # "logits" or "probs"
    target: Tensor | None  # (N,) or (N, d1, ...) int64
    groups: NDArray[Any] | None  # (N,) strings, integers or booleans; None: not asked for
    class_names: tuple[str, ...] | None  # where the header of a table, or "class_names" beside arrays, says them
    taken: str  # "logits from 'logits' (10000 x 10, float32), labels from 'target'"
    columns: tuple[str, ...] = ()  # the arrays or columns of the values, in the order of the classes
    label_name: str | None = None  # the array or column of the labels
    group_name: str | None = None  # that of the groups


@dataclass(frozen=True, eq=False)
class Predictions(MaybeLabelled):
    """What a file says about its N samples."""

    target: Tensor


@overload
def load_predictions(
    path: str | os.PathLike[str],
    *,
    logits: str | None = ...,
    probs: str | None = ...,
    target: str | None = ...,
    group: str | None = ...,
    split: str | None = ...,
    run_split: str | None = ...,
    positive: str | None = ...,
    labels: Literal[True] = ...,
) -> Predictions: ...
@overload
def load_predictions(
    path: str | os.PathLike[str],
    *,
    logits: str | None = ...,
    probs: str | None = ...,
    target: str | None = ...,
    group: str | None = ...,
    split: str | None = ...,
    run_split: str | None = ...,
    positive: str | None = ...,
    labels: Literal[False],
) -> MaybeLabelled: ...
def load_predictions(
    path: str | os.PathLike[str],
    *,
    logits: str | None = None,
    probs: str | None = None,
    target: str | None = None,
    group: str | None = None,
    split: str | None = None,
    run_split: str | None = None,
    positive: str | None = None,
    labels: bool = True,
) -> MaybeLabelled:
    """Read logits or probabilities, labels and, if asked for, a group per sample.

    Args:
        path: a ``.npz``, ``.safetensors``, ``.csv``, ``.tsv`` (or these packed, ``.csv.gz``) or ``.parquet`` file, or a
            run folder, of which ``predictions.safetensors`` is read.
        logits: the array of logits; in a table, a column, the prefix of one column per class, or these columns,
            separated by commas, in the order of the classes.
        probs: the same for probabilities. At most one of the two.
        target: the array or column of labels.
        group: an array or column with one group per sample.
        split: prefix of the names, "test" for ``test_logits`` and ``test_target``. Not for tables.
        run_split: the split of a run folder where none is given; otherwise an error asks which.
        positive: with one score per sample, the label of class 1; there may be one other.
        labels: whether there must be labels. If not, they are taken where ``target`` or exactly one usual name says
            which they are; what has a usual name but cannot be used is left out, and ``taken`` says why.

    Raises:
        PredictionsError: the file cannot be read, or does not say clearly what is what.
    """
    if logits is not None and probs is not None:
        raise PredictionsError(f"{path}: give --logits or --probs, not both (got {logits!r} and {probs!r})")
    source = open_source(Path(path))
    if split is None and Path(path).is_dir() and splits(source.names, LOGITS + PROBS):
        split = run_split
    found = find_names(
        source,
        given=probs if logits is None else logits,
        kind="probs" if logits is None else "logits",
        target=target,
        group=group,
        split=split,
        needed=labels,
    )
    array, column, unusable = _read(source, found, optional=not labels and target is None)
    values, origin = _checked_values(source, found.values, array)
    taken = f"{'probabilities' if found.values.kind == 'probs' else 'logits'} from {origin}"
    indices = groups = label_name = None
    if len(found.labels) == 1 and not unusable:
        try:
            indices, remark = _labels(source, found, column[found.labels[0]], values, origin, positive)
            label_name = found.labels[0]
            taken += f", labels from {label_name!r}{remark}"
        except PredictionsError as error:
            if labels or target is not None:
                raise
            unusable = _reason(source, error)
    if unusable:
        taken += f", no labels ({found.labels[0]!r} cannot be used: {unusable})"
    elif indices is None:
        which = f" ({' or '.join(map(repr, found.labels))}: say which with --target)" if found.labels else ""
        taken += f", no labels{which}"
    if found.group is not None:
        groups = plain_groups(source, found.group, column[found.group])
        if groups.shape != (len(values),):
            raise source.error(f"rows must have one group each, got {origin} and {found.group!r} {form(groups)}")
        taken += f", groups from {found.group!r}"
    class_names = found.values.classes
    if values.ndim > 1:
        class_names = class_names or source.class_names(values.shape[1])
    columns, kind = tuple(found.values.names), found.values.kind
    if indices is None:
        return MaybeLabelled(values, kind, None, groups, class_names, taken, columns, None, found.group)
    return Predictions(values, kind, indices, groups, class_names, taken, columns, label_name, found.group)


def _read(source: Source, found: Found, optional: bool) -> tuple[Array, dict[str, Column], str]:
    """The values, the other columns, and why there are no labels if they are ``optional`` and cannot be read."""
    labels = found.labels if len(found.labels) == 1 else []
    groups = [] if found.group is None else [found.group]
    try:
        array, read = source.read(found.values.names, labels + groups)
    except PredictionsError as error:
        if not optional or not labels:
            raise
        array, read = source.read(found.values.names, groups)  # if it is not for the labels, this fails too
        return array, dict(zip(groups, read, strict=True)), _reason(source, error)
    return array, dict(zip(labels + groups, read, strict=True)), ""


def _reason(source: Source, error: PredictionsError) -> str:
    return str(error).removeprefix(f"{source.path}: ")


def _checked_values(source: Source, found: Values, array: Array) -> tuple[Tensor, str]:
    """The values as a tensor, and what they are called."""
    kind, names = found.kind, found.names
    origin = repr(names[0]) if len(names) == 1 else f"{len(names)} columns {names[0]!r} to {names[-1]!r}"
    if dtype_name(array) not in FLOATS:
        raise source.error(f"{kind} must be {', '.join(FLOATS)}, but {origin} is {dtype_name(array)}")
    values = array if isinstance(array, Tensor) else torch.from_numpy(np.require(array, requirements="W"))
    origin = f"{origin} {form(values)}{found.why}"
    if values.ndim == 0:
        raise source.error(f"{kind} must have one row per sample, got {origin}")
    if values.numel() == 0:
        raise source.error(f"holds no predictions: {origin} is empty")
    return (values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values), origin  # one score, as Keras has it


def _labels(
    source: Source, found: Found, column: Column, values: Tensor, origin: str, positive: str | None
) -> tuple[Tensor, str]:
    kind, names, classes = found.values.kind, found.values.names, found.values.classes
    how = ""
    if classes is not None:
        by_class = [name for _, name in sorted(zip(classes, names, strict=True))]
        how = f"--{kind} {suggested(names)} or --{kind} {suggested(by_class)}"
    about = Classes(
        shape=tuple(values.shape),
        names=classes,
        beside=source.class_names(2 if values.ndim == 1 else values.shape[1]),
        ordered=found.values.ordered,
        how=how,
        positive=positive,
    )
    name = found.labels[0]
    indices, remark = class_indices(source, name, column, about)
    if indices.ndim == 0 or len(values) != len(indices):
        raise source.error(f"rows must have one label each, got {origin} and {name!r} {form(indices)}")
    return torch.from_numpy(indices), remark
