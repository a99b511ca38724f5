"""Load predictions: find the names, turn labels into class indices. Merge those of several files."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.predictions._formats import (
    Array,
    NpzFile,
    PredictionFile,
    PredictionsError,
    SafetensorsFile,
    check_values,
    form,
    without_axis_of_one,
)
from dualfocal.predictions._labels import class_indices, plain_groups
from dualfocal.predictions._names import LOGITS, PROBS, Roles, Values, find_names, splits
from dualfocal.predictions._tables import ParquetFile, TextTable


@dataclass(frozen=True, eq=False)  # tensors have no single answer to ==
class Predictions:
    """Predictions for N samples, with their labels if there are any."""

    values: Tensor  # (N, C), (N, C, d1, ...) or (N,): one score per sample
    input: str  # "logits" or "probs"
    labels: Tensor | None  # (N,) or (N, d1, ...) int64; None: there are none
    groups: NDArray[Any] | None  # (N,) strings, integers or booleans; None: not asked for
    class_names: tuple[str, ...] | None  # where the header of a table, or "class_names" beside arrays, says them
    taken: str  # "logits from 'logits' (10000 x 10, float32), labels from 'target'"
    path: Path | None = None  # the file; None: several files
    columns: tuple[str, ...] = ()  # the arrays or columns of the values, in the order of the classes
    label_name: str | None = None  # the array or column of the labels
    group_name: str | None = None  # the array or column of the groups

    @property
    def target(self) -> Tensor:
        """The labels; a PredictionsError if there are none."""
        if self.labels is None:
            raise PredictionsError(f"{self.path}: holds no labels that can be used: {self.taken}")
        return self.labels


def load_predictions(
    path: str | os.PathLike[str],
    *,
    logits: str | None = None,
    probs: str | None = None,
    target: str | None = None,
    group: str | None = None,
    split: str | None = None,
    default_split: str | None = None,
    positive: str | None = None,
    labels: bool = True,
) -> Predictions:
    """Read logits or probabilities, labels and, if asked for, a group per sample from a file.

    Args:
        path: a ``.npz``, ``.safetensors``, ``.csv``, ``.tsv`` (or these packed, ``.csv.gz``) or ``.parquet`` file.
        logits: the array of logits; in a table, a column, the prefix of one column per class, or these columns,
            separated by commas, in the order of the classes.
        probs: the same for probabilities. At most one of the two.
        target: the array or column of labels.
        group: an array or column with one group per sample.
        split: prefix of the names, "test" for ``test_logits`` and ``test_target``. Not for tables.
        default_split: the split to read if ``split`` is not given and the names have such prefixes (None: the only
            split; if there are several, an error asks which).
        positive: with one score per sample, the label of class 1; there may be one other.
        labels: whether there must be labels. If not, they are read where ``target`` or exactly one usual name says
            which they are; labels of a usual name that cannot be used are left out, and ``taken`` says why.

    Raises:
        PredictionsError: the file cannot be read, or does not say clearly what is what.
    """
    if logits is not None and probs is not None:
        raise PredictionsError(f"{path}: give --logits or --probs, not both (got {logits!r} and {probs!r})")
    source = open_prediction_file(Path(path))
    if split is None and splits(source.names, LOGITS + PROBS):
        split = default_split
    roles = find_names(
        source,
        given=probs if logits is None else logits,
        kind="probs" if logits is None else "logits",
        target=target,
        group=group,
        split=split,
        required=labels,
    )
    try:
        return _load(source, roles, positive)
    except PredictionsError as error:
        if labels or target is not None or roles.label is None:
            raise
        why = f" ({roles.label!r} cannot be used: {str(error).removeprefix(f'{source.path}: ')})"
        # If the labels were not the reason, this fails as well.
        return _load(source, replace(roles, label=None, no_label=why), positive)


def _load(source: PredictionFile, roles: Roles, positive: str | None) -> Predictions:
    names = [name for name in (roles.label, roles.group) if name is not None]
    arrays, columns = source.read(roles.values.names, names)
    others = dict(zip(names, columns, strict=True))
    values, origin = _checked_values(source, roles.values, arrays)
    taken = f"{'probabilities' if roles.values.kind == 'probs' else 'logits'} from {origin}"
    labels = groups = None
    if roles.label is None:
        taken += f", no labels{roles.no_label}"
    else:
        column, shape = others[roles.label], tuple(values.shape)
        indices, remark = class_indices(source, roles.label, column, roles.values, shape, positive)
        if indices.ndim == 0 or len(values) != len(indices):
            raise source.error(f"rows must have one label each, got {origin} and {roles.label!r} {form(indices)}")
        labels = torch.from_numpy(indices)
        taken += f", labels from {roles.label!r}{remark}"
    if roles.group is not None:
        groups = plain_groups(source, roles.group, others[roles.group])
        if groups.shape != (len(values),):
            raise source.error(f"rows must have one group each, got {origin} and {roles.group!r} {form(groups)}")
        taken += f", groups from {roles.group!r}"
    class_names = roles.values.classes or (source.class_names(values.shape[1]) if values.ndim > 1 else None)
    return Predictions(
        values,
        roles.values.kind,
        labels,
        groups,
        class_names,
        taken,
        path=source.path,
        columns=tuple(roles.values.names),
        label_name=roles.label,
        group_name=roles.group,
    )


def _checked_values(source: PredictionFile, roles: Values, arrays: list[Array]) -> tuple[Tensor, str]:
    array = arrays[0] if len(arrays) == 1 else np.stack(arrays, axis=1)
    names = roles.names
    origin = repr(names[0]) if len(names) == 1 else f"{len(names)} columns {names[0]!r} to {names[-1]!r}"
    check_values(f"{source.path}: {roles.kind} of {origin}", array)
    values = array if isinstance(array, Tensor) else torch.from_numpy(np.require(array, requirements="W"))
    return without_axis_of_one(values), f"{origin} {form(values)}{roles.why}"


def merge_predictions(parts: Mapping[str, Predictions]) -> Predictions:
    """Concatenate labelled predictions that are parts of one set.

    Args:
        parts: the predictions by name, which errors mention; at least one.

    Raises:
        ValueError: the parts differ in the kind or shape of their values, or in their classes.
    """
    (first_name, first), *others = parts.items()
    for name, part in others:
        if part.input != first.input or part.values.shape[1:] != first.values.shape[1:]:
            raise ValueError(f"--merge: {first_name} has {first.taken}, but {name} has {part.taken}")
        if part.class_names != first.class_names:
            raise ValueError(f"--merge: the classes of {name} are not those of {first_name}, in the same order")
    every = list(parts.values())
    return Predictions(
        values=torch.cat([part.values for part in every]),
        input=first.input,
        labels=torch.cat([part.target for part in every]),
        groups=None if first.groups is None else np.concatenate([part.groups for part in every]),
        class_names=first.class_names,
        taken=f"{len(parts)} files; of the first, {first.taken}",
    )


def check_same_labels(a: Predictions, b: Predictions) -> None:
    """Raise a ValueError unless both have the same labels, so that they can be of the same samples."""
    if a.class_names and b.class_names and a.class_names != b.class_names:
        raise ValueError("both files must have the same classes in the same order")
    rule = "both files must hold the same labels"
    if a.target.shape != b.target.shape:
        raise ValueError(f"{rule}, got shapes {tuple(a.target.shape)} and {tuple(b.target.shape)}")
    pairs = torch.stack([a.target.reshape(-1), b.target.reshape(-1)], dim=1)
    differ = (pairs[:, 0] != pairs[:, 1]).nonzero()[:, 0].tolist()
    if differ:
        labels = " and ".join(map(str, pairs[differ[0]].tolist()))
        raise ValueError(f"{rule}: {len(differ)} differ, the first at {differ[0]}: {labels}")


READERS: dict[str, Callable[[Path], PredictionFile]] = {
    ".npz": NpzFile,
    ".safetensors": SafetensorsFile,
    ".csv": TextTable,
    ".tsv": TextTable,
    ".csv.gz": TextTable,
    ".tsv.gz": TextTable,
    ".parquet": ParquetFile,
}


def open_prediction_file(path: Path) -> PredictionFile:
    """Open a file by its suffix."""
    if not path.is_file():
        raise PredictionsError(
            f"{path}: {'must be a file, but is a folder' if path.is_dir() else 'there is no such file'}"
        )
    suffix = "".join(path.suffixes[-2:] if path.suffix.lower() == ".gz" else path.suffixes[-1:]).lower()
    if suffix not in READERS:
        raise PredictionsError(f"{path}: must be {', '.join(READERS)}, got {suffix!r}")
    source = READERS[suffix](path)
    if twice := [name for i, name in enumerate(source.names) if name in source.names[:i]]:
        raise source.error(f"has more than one {source.noun} {twice[0]!r}")
    return source
