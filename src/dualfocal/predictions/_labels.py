"""Labels as class indices, whatever a file calls the classes; groups as plain arrays. Never a silent guess."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.predictions._sources import INTEGERS, Column, Source, dtype_name, form, is_number

WHOLE = re.compile("0|-?[1-9][0-9]{0,17}")  # but "007" is a name
MOST_SHOWN = 8  # classes that a line lists


@dataclass(frozen=True)
class Classes:
    """What is known of the classes before any label is seen."""

    shape: tuple[int, ...]  # of the values
    names: tuple[str, ...] | None  # as the columns call them
    beside: tuple[str, ...] | None  # as a file of arrays states them: for labels that are text
    ordered: bool  # whether somebody said that the columns are in the order of the classes
    how: str  # what would say so: "--probs prob_cat,prob_dog or --probs prob_dog,prob_cat"
    positive: str | None  # the label of class 1

    @property
    def one_score(self) -> bool:
        return len(self.shape) == 1


def class_indices(source: Source, name: str, labels: Column, classes: Classes) -> tuple[NDArray[np.int64], str]:
    """Labels as indices, and a remark on how they were read."""
    if isinstance(labels, Tensor):
        labels = (labels.float() if dtype_name(labels) == "bfloat16" else labels).numpy()
    remark = ""
    if not isinstance(labels, list):
        if labels.shape == (*classes.shape[:1], *classes.shape[2:], 1):  # as Keras has them
            labels = labels[..., 0]
        per_class = classes.shape if len(classes.shape) == 2 else (*classes.shape, 2)
        if labels.ndim == 2 and labels.shape == per_class and labels.dtype.kind in "biuf":
            labels, remark = _from_one_hot(source, name, labels), " (one-hot)"
        elif labels.dtype.kind == "U" and labels.ndim == 1:
            labels = [text.strip() for text in labels.tolist()]
    if classes.positive is not None:
        return _one_against_other(source, name, labels, classes, classes.positive), f", {classes.positive!r} as class 1"
    names = classes.names
    if isinstance(labels, list):
        names = names or classes.beside
        indices = _by_name(source, name, labels, names, classes)
        if indices is not None:
            return indices, _order(names, "name")
        if _are_booleans(labels):
            labels = np.array([text.casefold() == "true" for text in labels])
        else:
            number = {text: float(text) for text in set(labels)}
            labels = np.array([number[text] for text in labels], dtype=np.float64)
    if names and labels.dtype == bool and _are_true_and_false(names):
        true = [text.casefold() for text in names].index("true")
        return np.where(labels, true, 1 - true), _order(names, "name")
    indices = _whole(source, name, labels)
    numbered = bool(names) and all(text.isdecimal() for text in names or ())
    if not names or (numbered and remark):
        return indices, remark
    if numbered:
        return _by_number(source, indices, names), f" by number ({names[0]} to {names[-1]})"
    _check_positions(source, name, indices, names, classes)
    return indices, remark + _order(names, "position")


def distinct_texts(labels: Column) -> set[str]:
    """What labels say, as columns might be called; of what is no text, integer or boolean, nothing."""
    if isinstance(labels, list):
        return set(labels)
    return {str(label) for label in np.unique(np.asarray(labels)).tolist()} if dtype_name(labels) in INTEGERS else set()


def numbered_otherwise(classes: tuple[str, ...]) -> bool:
    """Whether a number is not to be trusted as the index of one of these: class_10 before class_2, grade1 the first."""
    ends = [re.search("[0-9]+$", text) for text in classes]
    return all(ends) and [int(end[0]) for end in ends if end] != list(range(len(ends)))


def positions_are_clear(classes: tuple[str, ...]) -> bool:
    """Whether the number of a class can only be its position: names are numbered 0, 1, ... or in sorted order.

    >>> positions_are_clear(("cat", "dog")), positions_are_clear(("dog", "cat")), positions_are_clear(("c2", "c10"))
    (True, False, False)
    """
    if all(re.search("[0-9]$", text) for text in classes):
        return not numbered_otherwise(classes)
    return list(classes) == sorted(classes)


def plain_groups(source: Source, name: str, groups: Column) -> NDArray[Any]:
    """Strings, integers or booleans."""
    if isinstance(groups, list):  # of a table
        numbers = all(WHOLE.fullmatch(text) for text in set(groups))
        return np.array(groups, dtype=np.int64 if numbers else np.str_)
    if dtype_name(groups) in INTEGERS or (isinstance(groups, np.ndarray) and groups.dtype.kind == "U"):
        return np.asarray(groups)
    raise source.error(f"groups must be strings, integers or booleans, but {name!r} is {dtype_name(groups)}")


def _from_one_hot(source: Source, name: str, labels: NDArray[Any]) -> NDArray[np.int64]:
    ones: NDArray[np.bool_] = labels == 1
    good = (ones.sum(1) == 1) & (ones | (labels == 0)).all(1)
    if not good.all():
        row = int(good.argmin())
        other = labels[row][~ones[row] & (labels[row] != 0)]
        found = f"holds {other[0]:g}" if len(other) else f"has {ones[row].sum()} of them"
        rule = "labels with a column for each class must be one-hot, one 1 and the rest 0"
        raise source.error(f"{rule}, but row {row} of {name!r} {form(labels)} {found}")
    indices: NDArray[np.int64] = ones.argmax(1)
    return indices


def _one_against_other(
    source: Source, name: str, labels: NDArray[Any] | list[str], classes: Classes, positive: str
) -> NDArray[np.int64]:
    if not classes.one_score:
        raise source.error(f"--positive {positive} is for one score per sample, here each class has its own")
    texts = labels if isinstance(labels, list) else list(map(str, _whole_or_boolean(source, name, labels).tolist()))
    found = sorted(set(texts))
    if positive not in found or len(found) > 2:
        rule = f"--positive must name one of two labels in {name!r}"
        raise source.error(f"{rule}, got {positive!r} for {_listing(found)}")
    return np.array([text == positive for text in texts], dtype=np.int64)


def _by_name(
    source: Source, name: str, labels: list[str], names: tuple[str, ...] | None, classes: Classes
) -> NDArray[np.int64] | None:
    """Text by the names of classes; a number that is no position, such as -100, may stand among them.

    None: these are numbers, or true and false.
    """
    index = {text: i for i, text in enumerate(names or ())}
    if names and all(map(str.isdecimal, names)) and all(map(is_number, set(labels))):
        return None
    if not index.keys().isdisjoint(labels):
        for text in set(labels) - index.keys():
            if WHOLE.fullmatch(text) and not 0 <= int(text) < len(names or ()):
                index[text] = int(text)
        strange = set(labels) - index.keys()
    elif _are_booleans(labels) and (not names or _are_true_and_false(names)):
        return None
    else:
        strange = {text for text in set(labels) if not is_number(text)}
    if strange:
        row = next(i for i, text in enumerate(labels) if text in strange)
        label = f"label {labels[row]!r} in {source.place(row)} is"
        if names:
            raise source.error(f"{label} none of the classes ({', '.join(names)})")
        if classes.one_score:
            how = "name the label of class 1 with --positive"
            raise source.error(f"{label} not 0, 1, True or False: {how} (labels: {_listing(sorted(set(labels)))})")
        if source.noun == "array":
            how = "put 'class_names' into the file, text in the order of the classes"
            raise source.error(f"{label} text, which says no class by itself: {how}")
        raise source.error(f"{label} not a class index")
    return np.array([index[text] for text in labels], dtype=np.int64) if index.keys() & set(labels) else None


def _by_number(source: Source, indices: NDArray[np.int64], names: tuple[str, ...]) -> NDArray[np.int64]:
    """Numbers by the numbers that classes are called by; negative ones are no class, but to be ignored."""
    index = {int(text): i for i, text in enumerate(names)}
    for label in np.unique(indices).tolist():
        if label >= 0 and label not in index:
            row = int((indices == label).argmax())
            hint = "; do labels start at 0, columns at 1?" if label == 0 and min(index) == 1 else ""
            where = f"label {label} in {source.place(row)}"
            raise source.error(f"{where} is none of the classes ({', '.join(names)}){hint}")
        index.setdefault(label, label)
    return np.array([index[label] for label in indices.tolist()], dtype=np.int64)


def _check_positions(
    source: Source, name: str, indices: NDArray[np.int64], names: tuple[str, ...], classes: Classes
) -> None:
    if classes.ordered or positions_are_clear(names) or not ((indices >= 0) & (indices < len(names))).any():
        return
    if numbered_otherwise(names):
        raise source.error(f"labels in {name!r} are numbers but classes are {', '.join(names)}: use these names")
    by_name = sorted(names)
    k = next(k for k, text in enumerate(names) if text != by_name[k])
    raise source.error(
        f"labels in {name!r} are numbers: does {k} mean {names[k]}, as in the file, or {by_name[k]}, by sorted order? "
        f"Say the order of the classes: {classes.how}"
    )


def _whole(source: Source, name: str, labels: NDArray[Any]) -> NDArray[np.int64]:
    return _whole_or_boolean(source, name, labels).astype(np.int64, copy=False)


def _whole_or_boolean(source: Source, name: str, labels: NDArray[Any]) -> NDArray[Any]:
    if labels.dtype.kind == "f":  # text, pandas and Keras have integers as 3.0
        whole = (np.abs(labels) < 2**53) & (np.floor(labels) == labels)
        if not whole.all():
            row = int(whole.reshape(len(labels), -1).all(1).argmin()) if labels.ndim else 0
            bad = labels.reshape(-1)[~whole.reshape(-1)][0]
            raise source.error(f"label {bad} in {source.place(row)} is not a whole number")
        return labels.astype(np.int64)
    if dtype_name(labels) not in INTEGERS:
        raise source.error(f"labels must be integers, but {name!r} is {dtype_name(labels)}")
    return np.require(labels, requirements="W")


def _are_booleans(texts: Iterable[str]) -> bool:
    return {text.casefold() for text in set(texts)} <= {"true", "false"}


def _are_true_and_false(names: tuple[str, ...]) -> bool:
    return sorted(map(str.casefold, names)) == ["false", "true"]


def _order(names: tuple[str, ...] | None, by: str) -> str:
    return f" by {by} ({_listing([f'{i} = {text}' for i, text in enumerate(names or ())])})"


def _listing(texts: list[str]) -> str:
    """Joined, cut to a readable length."""
    if len(texts) <= MOST_SHOWN:
        return ", ".join(texts)
    return f"{', '.join(texts[: MOST_SHOWN - 1])}, ..., {texts[-1]}"
