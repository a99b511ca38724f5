"""Tables with one column per class: which columns they are, and in which order."""

import csv
import os.path
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dualfocal.metrics.rounding import are_rounded_probabilities
from dualfocal.predictions._formats.interface import (
    INTEGERS,
    PredictionFile,
    PredictionsError,
    TooLargeError,
    dtype_name,
    is_number,
)
from dualfocal.tables import quantity

MOST_BYTES_OF_NAMES = 10_000_000  # of a file of class names
MOST_SUGGESTED = 8  # columns listed in the suggestion of an error


@dataclass(frozen=True)
class Values:
    """The arrays or columns of the predictions."""

    kind: str  # "logits", "probs" or "confidence"
    names: list[str]  # one array or column, or one column per class, in class order
    classes: tuple[str, ...] | None = None  # class names, from the names of the columns or from an option
    ordered: bool = False  # whether the caller gave the order
    why: str = ""  # how the columns were found, if not by usual or given names
    prediction: str | None = None  # the predicted classes, if the values are their confidence

    @property
    def all_names(self) -> set[str]:
        """The arrays or columns of the values and of the predicted classes."""
        return {*self.names} if self.prediction is None else {*self.names, self.prediction}


def class_columns(names: list[str], prefix: str) -> list[dict[str, str]]:
    """Return the class columns (p0, logit_0, "prob.cat"), grouped by the text before the class."""
    pattern = re.compile(rf"((?:{prefix})(?:[_. -][_. ]*|(?=\d+$)))(.+)", re.DOTALL)
    groups: dict[str, dict[str, str]] = {}
    for name in names:
        if match := pattern.fullmatch(name):
            groups.setdefault(match[1], {})[name] = match[2]
    return list(groups.values())


def in_class_order(source: PredictionFile, kind: str, columns: dict[str, str]) -> Values:
    """Sort numbered class columns by number; named class columns keep the order of the file."""
    names, classes = list(columns), list(columns.values())
    if len(names) == 1:
        raise source.error(f"has only one class column; if it is one score per sample, give --{kind} {names[0]!r}")
    unnumbered = [name for name in names if not re.fullmatch("[0-9]+", columns[name])]
    if not unnumbered:
        numbers = [int(text) for text in classes]
        columns_of = Counter(numbers)
        first = 1 if 0 not in columns_of and 1 in columns_of else 0
        for k in range(first, first + len(names)):
            if columns_of[k] != 1:
                raise source.error(
                    f"classes must be numbered {first} to {first + len(names) - 1}, one column each: class {k} has "
                    f"{quantity(columns_of[k], 'column')} ({names[0]!r} to {names[-1]!r})"
                )
        ordered = [name for _, name in sorted(zip(numbers, names, strict=True))]
        return Values(kind, ordered, tuple(str(k + 1) for k in range(len(names))) if first else None)
    columns_named = Counter(classes)
    misfits = [name for name in names if columns_named[columns[name]] > 1]
    numeric = [name for name in names if is_number(columns[name])]
    if numeric and not misfits:  # numbers or names, whichever are fewer
        misfits = min([name for name in names if not is_number(columns[name])] or unnumbered, numeric, key=len)
    if misfits:
        odd = set(misfits)
        rest = [name for name in names if name not in odd]
        hint = f"; if it is not a class, give --{kind} {suggested(rest)}" if len(rest) > 1 else ""
        raise source.error(
            f"classes must all be numbered or all have distinct names: {misfits[0]!r} does not fit{hint}"
        )
    return Values(kind, names, tuple(classes))


def class_parts(names: list[str]) -> tuple[str, ...] | None:
    """Strip the common prefix of names: up to a separator (prob_cat, prob_cow), or before numbers (p10, p11)."""
    common = os.path.commonprefix(names)  # noqa: RUF071, compares characters on purpose
    start = len(common.rstrip("0123456789"))
    if not all(name[start:].isdecimal() for name in names):
        start = max(common.rfind(mark) for mark in "_. -") + 1
    parts = [name[start:] for name in names]
    return unless_indices(parts if all(parts) else names)


def unless_indices(classes: Sequence[str]) -> tuple[str, ...] | None:
    """Return class names, or None if they are only the indices 0, 1, ..."""
    return None if list(classes) == [str(k) for k in range(len(classes))] else tuple(classes)


def parse_class_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return class names: of a list, of a text with commas, or of a file with one name per line, ``@FILE`` or ``FILE``.

    >>> parse_class_names('cat, dog,"bird, other"')
    ('cat', 'dog', 'bird, other')
    """
    if not isinstance(names, str):
        return tuple(map(str, names))
    file = Path(names.removeprefix("@"))
    exists = False
    with suppress(OSError, ValueError):  # no path: too long, or with a null character
        exists = file.is_file()
    if exists and file.stat().st_size <= MOST_BYTES_OF_NAMES:
        return tuple(line.strip() for line in file.read_text("utf-8-sig").splitlines() if line.strip())
    if exists or names.startswith("@"):
        raise PredictionsError(f"--class-names: {file} must be a text file with one name per line")
    return tuple(text.strip() for text in next(csv.reader([names], skipinitialspace=True), []))


def named_as_labels(source: PredictionFile, label: str, taken: Sequence[str | None] = ()) -> list[str]:
    """Return the columns that are named like the labels, as in cat,dog,emu,label; none unless every label has one.

    Columns that are ``taken`` hold something else.
    """
    try:
        column = source.sample([], [label]).others[label]
    except TooLargeError:
        raise
    except PredictionsError:  # the error about names is clearer
        return []
    # Only text, integer and boolean labels can be names of columns.
    plain = isinstance(column, list) or dtype_name(column) in INTEGERS
    texts = set(map(str, np.unique(np.asarray(column)).tolist())) - {""} if plain else set()
    names = [name for name in source.names if name in texts and name not in (label, *taken)]
    if len(names) < max(2, len(texts)):
        return []
    return sorted(names, key=int) if all(map(str.isdecimal, names)) else names


def hold_probabilities(source: PredictionFile, names: list[str]) -> bool:
    """Whether the rows of these columns are probabilities; rows with an empty cell do not count."""
    try:
        content = source.sample(names, [])
    except TooLargeError:
        raise
    except PredictionsError:  # not numbers: the error about names is clearer
        return False
    rows = np.stack([*content.values.values()], axis=1)
    rows = rows[~np.logical_or.reduce([*content.missing.values()])] if content.missing else rows
    if rows.dtype.kind != "f" or not len(rows):
        return False
    sum_to_one = ((rows > -1e-6) & (abs(rows.sum(1, keepdims=True) - 1) < 0.0101)).all()
    return bool(sum_to_one) or are_rounded_probabilities(torch.from_numpy(rows))


def listed(names: list[str]) -> str:
    """Return the value of an option that names columns."""
    return ",".join(f'"{name}"' if "," in name else name for name in names)


def suggested(names: list[str]) -> str:
    """Return the value of an option for a message: quoted for a shell, and short."""
    text = listed(names[:MOST_SUGGESTED]) + (",..." if len(names) > MOST_SUGGESTED else "")
    return f"'{text}'" if re.search(r"[^\w.,-]", text) else text
