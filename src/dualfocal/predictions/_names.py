"""Find the arrays or columns with logits, probabilities, labels and groups, by usual or given names."""

import csv
import os.path
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dualfocal.predictions._formats import (
    INTEGERS,
    PredictionFile,
    PredictionsError,
    Table,
    TooLargeError,
    dtype_name,
    is_number,
)

LOGITS = ("logits", "logit")
PROBS = ("probs", "prob", "probabilities", "probability", "proba", "softmax", "y_prob", "y_proba")
LABELS = ("target", "targets", "label", "labels", "y", "y_true", "y_test")
# Prefixes of class columns. "p" is only a prefix: a column "p" can be many things, but p0 and p1 are probabilities.
PREFIXES = {"logits": f"(?i:{'|'.join(LOGITS)})", "probs": f"(?i:{'|'.join(PROBS)}|p)"}
MOST_SUGGESTED = 8  # columns listed in the suggestion of an error


@dataclass(frozen=True)
class Values:
    """The arrays or columns of the predictions."""

    kind: str  # "logits" or "probs"
    names: list[str]  # one array or column, or one column per class, in class order
    classes: tuple[str, ...] | None = None  # class names, from the names of the columns
    ordered: bool = False  # whether the caller gave the order
    why: str = ""  # how the columns were found, if not by usual or given names


@dataclass(frozen=True)
class Roles:
    """The arrays or columns of predictions, labels and groups."""

    values: Values
    label: str | None
    group: str | None
    no_label: str = ""  # why there are no labels, in parentheses


def find_names(
    source: PredictionFile,
    *,
    given: str | None,
    kind: str,
    target: str | None,
    group: str | None,
    split: str | None,
    required: bool,
) -> Roles:
    """Find the values, the labels and the groups.

    Args:
        source: the file.
        given: name of the values, if an option gives it.
        kind: kind of the given values, "logits" or "probs".
        target: name of the labels, if an option gives it.
        group: name of the groups, if an option gives it.
        split: prefix of all names, if an option gives it.
        required: whether labels are required.

    Raises:
        PredictionsError: a name is missing or ambiguous; the message says which option decides.
    """
    inferred = split is None
    usual = LOGITS + PROBS if given is None else LABELS if target is None else ()
    split = _find_split(source, split, usual, required or given is None)
    target, group = (None if name is None else _given_name(source, name, split) for name in (target, group))
    values = (
        _usual_values(source, split, target, group)
        if given is None
        else _given_values(source, split, given, kind, (target, group))
    )
    labels = [target] if target is not None else _find_labels(source, split, values.names, required, inferred)
    if len(labels) == 1:
        return Roles(values, labels[0], group)
    which = f" ({' or '.join(map(repr, labels))}: choose one with --target)" if labels else ""
    return Roles(values, None, group, which)


def splits(names: list[str], usual: tuple[str, ...] = LOGITS + PROBS + LABELS) -> list[str]:
    """Return the split prefixes of names, sorted: "val" for val_y_prob. A usual name such as y_prob has no prefix."""
    pattern = re.compile(f"(.+?)_(?:{'|'.join(usual)})")
    unprefixed = set(_usual(names, LOGITS + PROBS + LABELS, None))
    matches = [pattern.fullmatch(name.lower()) for name in names if name not in unprefixed]
    return sorted({match[1] for match in matches if match})


def _find_split(source: PredictionFile, split: str | None, usual: tuple[str, ...], required: bool) -> str | None:
    """Return the split to read: the given one, or the only one with a name in ``usual``; None: no prefix."""
    if split is None:
        unprefixed = isinstance(source, Table) or not usual or _usual(source.names, usual, None)
        prefixes = [] if unprefixed else splits(source.names, usual)
        if len(prefixes) > 1 and required:
            raise source.error(f"holds several splits ({', '.join(prefixes)}): choose one with --split")
        return prefixes[0] if len(prefixes) == 1 else None
    if isinstance(source, Table):
        raise source.error(f"a table has no splits, got --split {split}")
    if not any(name.lower().startswith(f"{split.lower()}_") for name in source.names):
        prefixes = splits(source.names)
        content = f"(it holds the splits {', '.join(prefixes)})" if prefixes else source.holds()
        raise source.error(f"has no split {split!r} {content}")
    return split


def _usual(names: list[str], usual: tuple[str, ...], split: str | None) -> list[str]:
    start = "" if split is None else f"{split.lower()}_"
    words = {start + word for word in usual}
    return [name for name in names if name.lower() in words]


def _given_name(source: PredictionFile, name: str, split: str | None) -> str:
    """Return the array or column that an option names, within the split if there is one."""
    if split is not None and f"{split}_{name}" in source.name_set:
        return f"{split}_{name}"
    if name not in source.name_set:
        raise source.error(f"has no {source.noun} {name!r} {source.holds()}")
    if split is not None and not name.lower().startswith(f"{split.lower()}_"):
        for other in splits(source.names):
            if name.lower().startswith(f"{other}_"):
                raise source.error(f"{name!r} belongs to the split {other!r}, but the split to read is {split!r}")
    return name


def _find_labels(
    source: PredictionFile, split: str | None, taken: list[str], required: bool, inferred: bool
) -> list[str]:
    """Return the arrays or columns with a usual name of labels; if ``required``, exactly one."""
    values = set(taken)
    names = [name for name in source.names if name not in values]
    labels = _usual(names, LABELS, split)
    if not labels and inferred:  # the prefix "y_pred" of y_pred_proba is not a split: y_true holds its labels
        labels = _usual(names, LABELS, None)
    if required and len(labels) != 1:
        problem = f"several labels ({', '.join(map(repr, labels))}):" if labels else "no labels with a usual name:"
        raise source.error(f"holds {problem} name them with --target NAME {source.holds()}")
    return labels


def _given_values(
    source: PredictionFile, split: str | None, given: str, kind: str, taken: tuple[str | None, str | None]
) -> Values:
    """Return the values that an option names; ``taken`` are the names of labels and groups."""
    if not given.strip():
        raise source.error(f"--{kind} must name an array or column, got {given!r}")
    table = isinstance(source, Table)
    listed = table and given not in source.names and "," in given
    if table and given not in source.names and not listed:
        free = [name for name in source.names if name not in taken]
        if by_class := _class_columns(free, re.escape(given.rstrip("_. -"))):
            return _in_class_order(source, kind, {name: text for group in by_class for name, text in group.items()})
    texts = [text.strip() for text in next(csv.reader([given], skipinitialspace=True))] if listed else [given]
    names = [_given_name(source, text, split) for text in texts]
    for name, count in Counter(names).items():
        if count > 1:
            raise source.error(f"--{kind} must name each column once, got {name!r} twice")
        if name in taken:
            raise source.error(f"{name!r} cannot hold both {kind} and labels or groups")
    if listed:
        return Values(kind, names, _class_parts(names), ordered=True)
    # One score per sample is the score of class 1: a column named like class 0 would invert every prediction.
    if table and re.fullmatch(rf"{PREFIXES[kind]}[_. -]*0", given):
        how = f"give --{kind} {given[:-1]}1, or rename {given!r} if it is the score of class 1"
        raise source.error(f"{given!r} is named like class 0, but one score per sample must be that of class 1: {how}")
    return Values(kind, names)


def _usual_values(source: PredictionFile, split: str | None, target: str | None, group: str | None) -> Values:
    """Return the values with a usual name, other than ``target`` and ``group``."""
    names = [name for name in source.names if name not in (target, group)]
    candidates: list[tuple[str, dict[str, str]]] = []  # kind, and the class of each column
    for kind, usual in (("logits", LOGITS), ("probs", PROBS)):
        candidates += [(kind, {name: ""}) for name in _usual(names, usual, split)]
        if isinstance(source, Table):
            candidates += [(kind, columns) for columns in _class_columns(names, PREFIXES[kind])]
    if len(candidates) > 1:
        both = " and ".join(repr(next(iter(columns))) for _, columns in candidates)
        raise source.error(f"holds both {both}: choose one with --logits or --probs")
    if candidates:
        kind, columns = candidates[0]
        return Values(kind, list(columns)) if "" in columns.values() else _in_class_order(source, kind, columns)
    if isinstance(source, Table) and (named := _named_as_labels(source, target, group)):
        return named
    how = "--logits NAME or --probs NAME (for a table also NAME,NAME,... in class order)"
    raise source.error(
        f"holds no {source.noun} with a usual name: name the logits or probabilities with {how} {source.holds()}"
    )


# One column per class


def _class_columns(names: list[str], prefix: str) -> list[dict[str, str]]:
    """Return the class columns (p0, logit_0, "prob.cat"), grouped by the text before the class."""
    pattern = re.compile(rf"((?:{prefix})(?:[_. -][_. ]*|(?=\d+$)))(.+)", re.DOTALL)
    groups: dict[str, dict[str, str]] = {}
    for name in names:
        if match := pattern.fullmatch(name):
            groups.setdefault(match[1], {})[name] = match[2]
    return list(groups.values())


def _in_class_order(source: PredictionFile, kind: str, columns: dict[str, str]) -> Values:
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
                    f"{columns_of[k]} columns ({names[0]!r} to {names[-1]!r})"
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


def _class_parts(names: list[str]) -> tuple[str, ...] | None:
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


def _named_as_labels(source: PredictionFile, target: str | None, group: str | None) -> Values | None:
    """Return the columns named like the labels, as in cat,dog,emu,label, if all exist and hold probabilities."""
    labels = [target] if target is not None else _usual(source.names, LABELS, None)
    if len(labels) != 1:
        return None
    try:
        column = source.read([], labels)[1][0]
        # Only text, integer and boolean labels can be names of columns.
        plain = isinstance(column, list) or dtype_name(column) in INTEGERS
        texts = set(map(str, np.unique(np.asarray(column)).tolist())) if plain else set()
        names = [name for name in source.names if name in texts and name not in (labels[0], group)]
        if len(names) < max(2, len(texts)):
            return None
        rows = np.stack(source.read(names, [])[0], axis=1)
    except TooLargeError:
        raise
    except PredictionsError:  # not numbers, or no label: the error about names is clearer
        return None
    if rows.dtype.kind != "f" or not bool(((rows > -1e-6) & (abs(rows.sum(1, keepdims=True) - 1) < 0.0101)).all()):
        return None
    names = sorted(names, key=int) if all(map(str.isdecimal, names)) else names
    return Values("probs", names, unless_indices(names), why=", named like the labels")


def suggested(names: list[str]) -> str:
    texts = [f'"{name}"' if "," in name else name for name in names[:MOST_SUGGESTED]]
    text = ",".join(texts) + (",..." if len(names) > MOST_SUGGESTED else "")
    return f"'{text}'" if re.search(r"[^\w.,-]", text) else text
