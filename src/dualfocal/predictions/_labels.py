"""Convert labels to class indices, by the class names of the file."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.predictions._class_columns import Values
from dualfocal.predictions._formats.interface import (
    INTEGERS,
    Column,
    PredictionFile,
    dtype_name,
    form,
    is_number,
    shortened,
)

WHOLE = re.compile("0|-?[1-9][0-9]{0,17}")  # "007" is a name, not a number
MOST_SHOWN = 8  # classes listed in a message


@dataclass
class LabelRule:
    """How labels are read, which is the same for all chunks of a file."""

    how: str = ""  # empty until there is a label that is a class
    texts: set[str] = field(default_factory=set)  # labels of a problem with one score per sample, if one is positive

    def check(self, source: PredictionFile, how: str, indices: NDArray[np.int64], num_classes: int) -> None:
        """Raise a PredictionsError if labels of this chunk are read in another way than those before."""
        is_class = (indices >= 0) & (indices < num_classes)
        if not is_class.any():  # all are ignored, or an error of the metrics
            return
        if self.how not in ("", how):
            row = int(is_class.reshape(len(is_class), -1).any(1).argmax())
            raise source.error(
                f"the label in {source.place(row)} is {how}, but labels before are {self.how}: write all of them in "
                "the same way"
            )
        self.how = how


def class_indices(
    source: PredictionFile,
    name: str,
    column: Column,
    values: Values,
    shape: tuple[int, ...],
    positive: str | None,
    rule: LabelRule,
) -> tuple[NDArray[np.int64], str]:
    """Turn labels into class indices.

    Args:
        source: the file.
        name: name of the labels.
        column: the labels.
        values: names and order of the classes, if the columns give them.
        shape: shape of the values.
        positive: the label of class 1, if an option gives it.
        rule: how the labels before were read.

    Returns:
        The indices, and a remark on how the labels were read.

    Raises:
        PredictionsError: a label is not a class, or the classes of the labels are ambiguous.
    """
    labels, remark = _without_class_axis(source, name, column, shape)
    if positive is not None:
        return _one_against_other(source, name, labels, shape, positive, rule), f", {positive!r} as class 1"
    num_classes = 2 if len(shape) == 1 else shape[1]
    indices, remark, how = _find_indices(source, name, labels, values, num_classes, remark)
    rule.check(source, how, indices, num_classes)
    return indices, remark


def _find_indices(
    source: PredictionFile,
    name: str,
    labels: NDArray[Any] | list[str],
    values: Values,
    num_classes: int,
    remark: str,
) -> tuple[NDArray[np.int64], str, str]:
    """Return the indices, a remark, and what kind of labels they are."""
    names, kind = values.classes, "a number"
    if isinstance(labels, list):
        names = names or source.class_names(num_classes)
        indices = _by_name(source, labels, names)
        if indices is not None:
            return indices, _order(names, "name"), "the name of a class"
        booleans = _are_booleans(labels)
        labels = np.array([text.casefold() == "true" if booleans else float(text) for text in labels])
        kind = "true or false" if booleans else kind
    if names and labels.dtype == bool and _are_true_and_false(names):
        true = [text.casefold() for text in names].index("true")
        return np.where(labels, true, 1 - true), _order(names, "name"), "the name of a class"
    indices = _whole(source, name, labels).astype(np.int64, copy=False)
    numbered = names is not None and all(map(str.isdecimal, names))
    if not names or (numbered and remark):
        return indices, remark, kind
    if numbered:
        return _by_number(source, indices, names), f" by number ({names[0]} to {names[-1]})", kind
    _check_positions(source, name, indices, names, values)
    return indices, remark + _order(names, "position"), kind


def check_positive(source: PredictionFile, name: str, positive: str, rule: LabelRule) -> None:
    """Raise a PredictionsError unless ``positive`` is one of at most two labels."""
    if positive not in rule.texts or len(rule.texts) > 2:
        got = f"{positive!r} for {listing(sorted(rule.texts))}"
        raise source.error(f"--positive must name one of two labels in {name!r}, got {got}")


def positions_are_clear(classes: tuple[str, ...]) -> bool:
    """Return whether class numbers can only be positions: names are numbered 0, 1, ... or are in sorted order.

    >>> positions_are_clear(("cat", "dog")), positions_are_clear(("dog", "cat")), positions_are_clear(("c2", "c10"))
    (True, False, False)
    """
    ends = [text[len(text.rstrip("0123456789")) :] for text in classes]  # class_10 or grade1
    if not all(ends):
        return list(classes) == sorted(classes)
    return [int(end) for end in ends] == list(range(len(classes)))


def _without_class_axis(
    source: PredictionFile, name: str, labels: Column, shape: tuple[int, ...]
) -> tuple[NDArray[Any] | list[str], str]:
    """Return labels as texts or as an array, with one-hot rows converted to indices; and a remark."""
    if isinstance(labels, list):
        return labels, ""
    if isinstance(labels, Tensor):
        labels = (labels.float() if dtype_name(labels) == "bfloat16" else labels).numpy()
    if labels.shape == (*shape[:1], *shape[2:], 1):  # the layout of Keras
        labels = labels[..., 0]
    if labels.dtype.kind == "U" and labels.ndim == 1:
        return [text.strip() for text in labels.tolist()], ""
    per_class = shape if len(shape) == 2 else (*shape, 2)
    if labels.ndim == 2 and labels.shape == per_class and labels.dtype.kind in "biuf":
        return _from_one_hot(source, name, labels), " (one-hot)"
    return labels, ""


def _from_one_hot(source: PredictionFile, name: str, labels: NDArray[Any]) -> NDArray[np.int64]:
    ones: NDArray[np.bool_] = labels == 1
    good = (ones.sum(1) == 1) & (ones | (labels == 0)).all(1)
    if not good.all():
        row = int(good.argmin())
        got = listing([f"{value:g}" for value in labels[row].tolist() if value != 0]) or "only 0"
        rule = "labels with a column per class must be one-hot, one 1 and the rest 0"
        binary = (ones | (labels == 0) | (labels < 0)).all()
        how = "use dualfocal evaluate and calibrate with --task multilabel"
        hint = f"; if a sample can have several labels, {how}" if binary else ""
        raise source.error(f"{rule}, but {source.place(row)} of {name!r} {form(labels)} holds {got}{hint}")
    return np.asarray(ones.argmax(1))


def _one_against_other(
    source: PredictionFile,
    name: str,
    labels: NDArray[Any] | list[str],
    shape: tuple[int, ...],
    positive: str,
    rule: LabelRule,
) -> NDArray[np.int64]:
    if len(shape) > 1:
        raise source.error(f"--positive {positive} needs one score per sample, but here each class has a score")
    texts = labels if isinstance(labels, list) else list(map(str, _whole(source, name, labels).tolist()))
    rule.texts |= set(texts)
    if len(rule.texts) > 2 or not source.in_chunks:
        check_positive(source, name, positive, rule)
    return np.array([text == positive for text in texts], dtype=np.int64)


def _by_name(source: PredictionFile, labels: list[str], names: tuple[str, ...] | None) -> NDArray[np.int64] | None:
    """Look up labels among the class names; a number that is not a position, such as -100, is kept as it is.

    Returns None if the labels are numbers, or true and false.
    """
    index = {text: i for i, text in enumerate(names or ())}
    distinct = set(labels)
    unknown = {text for text in distinct if not is_number(text)}
    if not unknown and all(map(str.isdecimal, index)):
        return None
    if by_name := not distinct.isdisjoint(index):
        whole = {text: int(text) for text in distinct if WHOLE.fullmatch(text)}
        index |= {text: k for text, k in whole.items() if text not in index and not 0 <= k < len(names or ())}
        unknown = distinct - index.keys()
    elif _are_booleans(distinct) and (not names or _are_true_and_false(names)):
        return None
    if unknown:
        row = next(i for i, text in enumerate(labels) if text in unknown)
        problem = f"none of the classes ({listing(list(names or ()))})"
        if not names:
            example = ",".join(sorted(distinct)) if len(distinct) <= MOST_SHOWN else "NAME,NAME,..."
            how = f"give the classes in order, such as --class-names {example}, or for one score --positive LABEL"
            problem = f"not a class index: {how} (labels: {listing(sorted(distinct))})"
        raise source.error(f"label {shortened(repr(labels[row]))} in {source.place(row)} is {problem}")
    return np.array([index[text] for text in labels], dtype=np.int64) if by_name else None


def _by_number(source: PredictionFile, indices: NDArray[np.int64], names: tuple[str, ...]) -> NDArray[np.int64]:
    """Look up numeric labels among numeric class names; negative labels, which are to be ignored, are kept."""
    index = {int(text): i for i, text in enumerate(names)}
    for label in np.unique(indices).tolist():
        if label >= 0 and label not in index:
            place = source.place(int((indices == label).argmax()))
            hint = "; do labels start at 0 and columns at 1?" if label == 0 and min(index) == 1 else ""
            raise source.error(f"label {label} in {place} is none of the classes ({listing(list(names))}){hint}")
        index.setdefault(label, label)
    return np.array([index[label] for label in indices.tolist()], dtype=np.int64)


def _check_positions(
    source: PredictionFile, name: str, indices: NDArray[np.int64], names: tuple[str, ...], values: Values
) -> None:
    if values.ordered or positions_are_clear(names) or not ((indices >= 0) & (indices < len(names))).any():
        return
    how = "" if values.classes is None else f", or give the columns in class order, --{values.kind} NAME,NAME,..."
    raise source.error(
        f"labels in {name!r} are numbers, which may not be positions, counted from 0, among the classes "
        f"({listing(list(names))}): write the labels as class names{how}"
    )


def _whole(source: PredictionFile, name: str, labels: NDArray[Any]) -> NDArray[Any]:
    """Return labels as integers or booleans."""
    if labels.dtype.kind == "f":  # text, pandas and Keras may write integers as 3.0
        whole = (np.abs(labels) < 2**53) & (np.floor(labels) == labels)
        if not whole.all():
            row = int(whole.reshape(len(labels), -1).all(1).argmin()) if labels.ndim else 0
            hint = "; a regression target has no classes and cannot be evaluated"
            if np.isnan(labels[~whole].flat[0]):
                hint = "; --drop-missing leaves out such rows"
            raise source.error(f"label {labels[~whole].flat[0]} in {source.place(row)} is not a whole number{hint}")
        return labels.astype(np.int64)
    if dtype_name(labels) not in INTEGERS:
        raise source.error(f"labels must be integers, but {name!r} is {dtype_name(labels)}")
    if labels.dtype == np.uint64 and (large := labels >= 2**63).any():  # as int64, 2**64 - 100 would be -100
        row = int(np.nonzero(large)[0][0]) if labels.ndim else 0
        raise source.error(f"label {labels[large].flat[0]} in {source.place(row)} must be below 2**63")
    return np.require(labels, requirements="W")


def _are_booleans(texts: Iterable[str]) -> bool:
    return {text.casefold() for text in set(texts)} <= {"true", "false"}


def _are_true_and_false(names: tuple[str, ...]) -> bool:
    return sorted(map(str.casefold, names)) == ["false", "true"]


def _order(names: tuple[str, ...] | None, by: str) -> str:
    return f" by {by} ({listing([f'{i} = {text}' for i, text in enumerate(names or ())])})"


def listing(texts: list[str]) -> str:
    """Return names for a message, on one line."""
    shown = texts if len(texts) <= MOST_SHOWN else [*texts[: MOST_SHOWN - 1], "...", texts[-1]]
    return ", ".join(map(shortened, shown))
