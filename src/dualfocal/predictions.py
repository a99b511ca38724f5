"""Predictions on disk: ``.npz``, ``.safetensors``, ``.csv``, ``.parquet`` or a run folder. Never a pickle.

What holds logits, probabilities or labels follows from names alone: usual ones, or given ones. Where they are unclear,
the error says which option settles it; values are never looked at to guess. Only structure is checked here: NaN, ranges
and sums are the metrics' business. Rows are counted from 0, as in the tensors, and the lines of a csv from 1.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal._readers import (
    FLOATS,
    INTEGERS,
    ArrayFile,
    Column,
    PredictionsError,
    Source,
    dtype_name,
    form,
    is_number,
    numbered_otherwise,
    open_source,
)
from dualfocal._writers import save_predictions

__all__ = ["MaybeLabelled", "Predictions", "PredictionsError", "load_predictions", "save_predictions"]

LOGITS = ("logits", "logit")
PROBS = ("probs", "prob", "probabilities", "probability", "proba", "softmax", "y_prob", "y_proba")
LABELS = ("target", "targets", "label", "labels", "y", "y_true")


@dataclass(frozen=True, eq=False)  # tensors have no single answer to ==
class MaybeLabelled:
    """What a file says about its N samples, where labels are not needed."""

    values: Tensor  # (N, C), (N, C, d1, ...) or (N,): one score per sample
    input: str  # "logits" or "probs"
    target: Tensor | None  # (N,) or (N, d1, ...) int64
    groups: NDArray[Any] | None  # (N,) strings, integers or booleans; None: not asked for
    class_names: tuple[str, ...] | None  # where the header of a table, or "class_names" beside arrays, says them
    taken: str  # "logits from 'logits' (10000 x 10, float32), labels from 'target'"


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
    labels: bool = True,
) -> MaybeLabelled:
    """Read logits or probabilities, labels and, if asked for, a group per sample.

    Args:
        path: a ``.npz``, ``.safetensors``, ``.csv`` or ``.parquet`` file, or a run folder, of which
            ``predictions.safetensors`` is read.
        logits: the array of logits; in a table, a column or the prefix of one column per class.
        probs: the same for probabilities. At most one of the two.
        target: the array or column of labels.
        group: an array or column with one group per sample.
        split: prefix of the names, "test" for ``test_logits`` and ``test_target``. Not for tables.
        run_split: the split of a run folder where none is given; otherwise an error asks which.
        labels: whether there must be labels. If not, they are taken where ``target`` or exactly one usual name says
            which they are.

    Raises:
        PredictionsError: the file cannot be read, or does not say clearly what is what.
    """
    if logits is not None and probs is not None:
        raise PredictionsError(f"{path}: give --logits or --probs, not both (got {logits!r} and {probs!r})")
    source = open_source(Path(path))
    given = probs if logits is None else logits
    if split is None and Path(path).is_dir() and _splits(source.names, LOGITS + PROBS):
        split = run_split
    if given is None:
        split = _find_split(source, split, LOGITS + PROBS)
    else:
        split = _find_split(source, split, LABELS if target is None else (), needed=labels)
    target = None if target is None else source.given(target, split)
    group = None if group is None else source.given(group, split)
    kind, columns = _find_values(source, split, given, "probs" if logits is None else "logits", (target, group))
    names, class_names = _in_class_order(source, kind, columns)
    candidates = [target] if target is not None else _find_labels(source, split, names, needed=labels)
    target = candidates[0] if len(candidates) == 1 else None
    others = [name for name in (target, group) if name is not None]

    array, read = source.read(names, others)
    column = dict(zip(others, read, strict=True))
    origin = repr(names[0]) if len(names) == 1 else f"{len(names)} columns {names[0]!r} to {names[-1]!r}"
    if dtype_name(array) not in FLOATS:
        raise source.error(f"{kind} must be {', '.join(FLOATS)}, but {origin} is {dtype_name(array)}")
    values = array if isinstance(array, Tensor) else torch.from_numpy(np.require(array, requirements="W"))
    origin = f"{origin} {form(values)}"
    if values.ndim == 0:
        raise source.error(f"{kind} must have one row per sample, got {origin}")
    if values.numel() == 0:
        raise source.error(f"holds no predictions: {origin} is empty")
    taken = f"{'probabilities' if kind == 'probs' else kind} from {origin}"
    indices = groups = None
    if target is not None:
        indices = torch.from_numpy(_class_indices(source, target, column[target], class_names))
        if indices.ndim == 0 or len(values) != len(indices):
            raise source.error(f"rows must have one label each, got {origin} and {target!r} {form(indices)}")
        taken += f", labels from {target!r}"
    else:
        which = f" ({' or '.join(map(repr, candidates))}: say which with --target)" if candidates else ""
        taken += f", no labels{which}"
    if group is not None:
        groups = _plain_groups(source, group, column[group])
        if groups.shape != (len(values),):
            raise source.error(f"rows must have one group each, got {origin} and {group!r} {form(groups)}")
        taken += f", groups from {group!r}"
    if values.ndim > 1:
        class_names = class_names or source.class_names(values.shape[1])
    if indices is None:
        return MaybeLabelled(values, kind, None, groups, class_names, taken)
    return Predictions(values, kind, indices, groups, class_names, taken)


# Finding: which names hold what. Values are a dict of column -> class, {name: ""} where a single one holds all.


def _find_split(source: Source, split: str | None, usual: tuple[str, ...], needed: bool = True) -> str | None:
    """The split to read, given or the only one; ``usual`` are the names that have to be found, if ``needed``."""
    if not isinstance(source, ArrayFile):
        if split is not None:
            raise source.error(f"a table has no splits, got --split {split}")
        return None
    if split is not None:
        if not any(name.lower().startswith(f"{split.lower()}_") for name in source.names):
            splits = _splits(source.names, LOGITS + PROBS + LABELS)
            there = f"(it holds the splits {', '.join(splits)})" if splits else source.holds()
            raise source.error(f"has no split {split!r} {there}")
        return split
    splits = _splits(source.names, usual) if usual and not _usual(source.names, usual, None) else []
    if len(splits) > 1 and needed:
        raise source.error(f"holds several splits ({', '.join(splits)}): say which with --split")
    return splits[0] if len(splits) == 1 else None


def _splits(names: list[str], usual: tuple[str, ...]) -> list[str]:
    """What stands before usual names, sorted: "val" of val_y_prob. But y_prob itself is a usual name."""
    pattern = re.compile(f"(.+?)_(?:{'|'.join(usual)})")
    matches = [pattern.fullmatch(name.lower()) for name in names if not _usual([name], LOGITS + PROBS + LABELS, None)]
    return sorted({match[1] for match in matches if match})


def _usual(names: list[str], usual: tuple[str, ...], split: str | None) -> list[str]:
    start = "" if split is None else f"{split.lower()}_"
    return [name for name in names if name.lower() in {start + word for word in usual}]


def _find_labels(source: Source, split: str | None, taken: list[str], needed: bool) -> list[str]:
    """Every array or column of a usual name; if ``needed``, exactly one."""
    found = [name for name in _usual(source.names, LABELS, split) if name not in taken]
    if needed and len(found) > 1:
        raise source.error(f"holds several labels ({', '.join(map(repr, found))}): say which with --target")
    if needed and not found:
        raise source.error(f"holds no labels of a usual name; say which with --target NAME {source.holds()}")
    return found


def _find_values(
    source: Source, split: str | None, given: str | None, kind: str, taken: tuple[str | None, ...]
) -> tuple[str, dict[str, str]]:
    """The kind and the columns of the values; ``taken`` is labels or groups already."""
    names = [name for name in source.names if name not in taken]
    table = source.noun == "column"
    if given is not None:
        if table and given not in source.names:
            by_class = _class_columns(names, re.escape(given.rstrip("_. -")))
            if by_class:
                return kind, {name: text for columns in by_class for name, text in columns.items()}
        if (name := source.given(given, split)) in taken:
            raise source.error(f"{name!r} cannot hold {kind} and labels or groups too")
        return kind, {name: ""}
    found: list[tuple[str, dict[str, str]]] = []
    for kind, usual in (("logits", LOGITS), ("probs", PROBS)):
        found += [(kind, {name: ""}) for name in _usual(names, usual, split)]
        if table:  # "p" alone may be many things, p0 and p1 are probabilities
            prefixes = "|".join(usual if kind == "logits" else (*usual, "p"))
            found += [(kind, columns) for columns in _class_columns(names, f"(?i:{prefixes})")]
    if not found:
        how = "say which holds logits or probabilities: --logits NAME or --probs NAME"
        raise source.error(f"holds no {source.noun} of a usual name; {how} {source.holds()}")
    if len(found) > 1:
        both = " and ".join(repr(next(iter(columns))) for _, columns in found)
        raise source.error(f"holds both {both}: say which with --logits or --probs")
    return found[0]


def _class_columns(names: list[str], prefix: str) -> list[dict[str, str]]:
    """Columns per class, by what stands before the class: p0; logit_0; "prob.cat"."""
    pattern = re.compile(rf"((?:{prefix})(?:[_. -][_. ]*|(?=\d+$)))(.+)")
    sets: dict[str, dict[str, str]] = {}
    for name in names:
        if match := pattern.fullmatch(name):
            sets.setdefault(match[1], {})[name] = match[2]
    return list(sets.values())


def _in_class_order(source: Source, kind: str, columns: dict[str, str]) -> tuple[list[str], tuple[str, ...] | None]:
    """Numbered classes in the order of their numbers, named ones as in the file, with their names."""
    names, classes = list(columns), list(columns.values())
    if classes == [""]:
        return names, None
    if len(names) == 1:
        raise source.error(f"has one class column only; if it is one score per sample, say --{kind} {names[0]!r}")
    if all(re.fullmatch("[0-9]+", text) for text in classes):
        number = {name: int(text) for name, text in columns.items()}
        for k in range(len(names)):
            if (count := list(number.values()).count(k)) != 1:
                rule = f"classes must be numbered 0 to {len(names) - 1}, one column each"
                raise source.error(f"{rule}: class {k} has {count} columns ({names[0]!r} to {names[-1]!r})")
        return sorted(names, key=number.__getitem__), None
    for name, text in columns.items():
        if is_number(text) or classes.count(text) > 1:
            raise source.error(f"classes must all be numbered or all have names of their own: {name!r} does not fit")
    return names, tuple(classes)


# Converting: labels to class indices, groups to plain arrays.


def _class_indices(source: Source, name: str, labels: Column, classes: tuple[str, ...] | None) -> NDArray[np.int64]:
    if isinstance(labels, list):
        index = {text: i for i, text in enumerate(classes or ())}
        by_name = not index.keys().isdisjoint(labels)
        strange = {text for text in set(labels) if not (text in index if by_name else is_number(text))}
        if strange:
            row = next(i for i, text in enumerate(labels) if text in strange)
            rule = f"none of the classes ({', '.join(index)})" if index else "not a class index"
            raise source.error(f"label {labels[row]!r} in {source.place(row)} is {rule}")
        if by_name:
            return np.array([index[text] for text in labels], dtype=np.int64)
        number = {text: float(text) for text in set(labels)}
        labels = np.array([number[text] for text in labels], dtype=np.float64)
    if classes and numbered_otherwise(classes):
        raise source.error(f"labels in {name!r} are numbers but classes are {', '.join(classes)}: use these names")
    if source.noun == "column" and isinstance(labels, np.ndarray) and labels.dtype.kind == "f" and labels.ndim == 1:
        whole = (np.abs(labels) < 2**53) & (np.floor(labels) == labels)  # text and pandas have integers as 3.0
        if not whole.all():
            row = int(whole.argmin())
            raise source.error(f"label {labels[row]} in {source.place(row)} is not a whole number")
        return labels.astype(np.int64)
    if dtype_name(labels) not in INTEGERS:
        raise source.error(f"labels must be integers, but {name!r} is {dtype_name(labels)}")
    return np.require(np.asarray(labels).astype(np.int64, copy=False), requirements="W")


def _plain_groups(source: Source, name: str, groups: Column) -> NDArray[Any]:
    if isinstance(groups, list):  # of a table; "007" is a name, not a number
        numbers = all(re.fullmatch("0|-?[1-9][0-9]{0,17}", text) for text in set(groups))
        return np.array(groups, dtype=np.int64 if numbers else np.str_)
    if dtype_name(groups) in INTEGERS or (isinstance(groups, np.ndarray) and groups.dtype.kind == "U"):
        return np.asarray(groups)
    raise source.error(f"groups must be strings, integers or booleans, but {name!r} is {dtype_name(groups)}")
