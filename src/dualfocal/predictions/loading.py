"""Load predictions: find the names, turn labels into class indices."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.predictions._arrays import NpzFile, SafetensorsFile
from dualfocal.predictions._labels import class_indices, plain_groups
from dualfocal.predictions._names import LOGITS, PROBS, Roles, Values, find_names, splits
from dualfocal.predictions._sources import FLOATS, Array, PredictionsError, Source, dtype_name, form
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
    source = open_source(Path(path))
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
        reason = str(error).removeprefix(f"{source.path}: ")
        why = f" ({roles.label!r} cannot be used: {reason})"
        # If the labels were not the reason, this fails as well.
        return _load(source, replace(roles, label=None, no_label=why), positive)


def _load(source: Source, roles: Roles, positive: str | None) -> Predictions:
    names = [name for name in (roles.label, roles.group) if name is not None]
    arrays, columns = source.read(roles.values.names, names)
    others = dict(zip(names, columns, strict=True))
    values, origin = _checked_values(source, roles.values, arrays)
    taken = f"{'probabilities' if roles.values.kind == 'probs' else 'logits'} from {origin}"
    labels = groups = None
    if roles.label is None:
        taken += f", no labels{roles.no_label}"
    else:
        shape = tuple(values.shape)
        indices, remark = class_indices(source, roles.label, others[roles.label], roles.values, shape, positive)
        if indices.ndim == 0 or len(values) != len(indices):
            raise source.error(f"rows must have one label each, got {origin} and {roles.label!r} {form(indices)}")
        labels = torch.from_numpy(indices)
        taken += f", labels from {roles.label!r}{remark}"
    if roles.group is not None:
        groups = plain_groups(source, roles.group, others[roles.group])
        if groups.shape != (len(values),):
            raise source.error(f"rows must have one group each, got {origin} and {roles.group!r} {form(groups)}")
        taken += f", groups from {roles.group!r}"
    class_names = roles.values.classes
    if values.ndim > 1:
        class_names = class_names or source.class_names(values.shape[1])
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


def _checked_values(source: Source, roles: Values, arrays: list[Array]) -> tuple[Tensor, str]:
    """Return the values as one tensor, and where they come from."""
    array = arrays[0] if len(arrays) == 1 else np.stack(arrays, axis=1)
    kind, names = roles.kind, roles.names
    origin = repr(names[0]) if len(names) == 1 else f"{len(names)} columns {names[0]!r} to {names[-1]!r}"
    if dtype_name(array) not in FLOATS:
        raise source.error(f"{kind} must be {', '.join(FLOATS)}, but {origin} is {dtype_name(array)}")
    values = array if isinstance(array, Tensor) else torch.from_numpy(np.require(array, requirements="W"))
    origin = f"{origin} {form(values)}{roles.why}"
    if values.ndim == 0:
        raise source.error(f"{kind} must have one row per sample, got {origin}")
    if values.numel() == 0:
        raise source.error(f"holds no predictions: {origin} is empty")
    return (values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values), origin  # one score, as Keras has it


READERS: dict[str, Callable[[Path], Source]] = {
    ".npz": NpzFile,
    ".safetensors": SafetensorsFile,
    ".csv": TextTable,
    ".tsv": TextTable,
    ".csv.gz": TextTable,
    ".tsv.gz": TextTable,
    ".parquet": ParquetFile,
}


def open_source(path: Path) -> Source:
    """Open a file by its suffix."""
    if not path.is_file():
        raise PredictionsError(
            f"{path}: {'must be a file, but is a folder' if path.is_dir() else 'there is no such file'}"
        )
    suffix = path.suffix.lower()
    if suffix == ".gz":
        suffix = Path(path.stem).suffix.lower() + suffix
    if suffix not in READERS:
        raise PredictionsError(f"{path}: must be {', '.join(READERS)}, got {suffix!r}")
    source = READERS[suffix](path)
    if twice := [name for i, name in enumerate(source.names) if name in source.names[:i]]:
        raise source.error(f"has more than one {source.noun} {twice[0]!r}")
    return source
