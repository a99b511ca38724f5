"""Which arrays or columns of a file hold logits, probabilities, labels and groups: by usual names, or given ones."""

import csv
import re
from dataclasses import dataclass

import numpy as np

from dualfocal.predictions._labels import distinct_texts
from dualfocal.predictions._readers import ArrayFile
from dualfocal.predictions._sources import PredictionsError, Source, is_number

LOGITS = ("logits", "logit")
PROBS = ("probs", "prob", "probabilities", "probability", "proba", "softmax", "y_prob", "y_proba")
LABELS = ("target", "targets", "label", "labels", "y", "y_true", "y_test")
MOST_SUGGESTED = 8  # columns that an error lists to be copied


@dataclass(frozen=True)
class Values:
    """Where the values are."""

    kind: str  # "logits" or "probs"
    names: list[str]  # one array or column, or one column for each class, in the order of the classes
    classes: tuple[str, ...] | None = None  # as the columns call them
    ordered: bool = False  # whether the order is given, and not that of the file
    why: str = ""  # why these, if not by usual or given names


@dataclass(frozen=True)
class Found:
    """Where everything is."""

    values: Values
    labels: list[str]  # if labels are needed, exactly one
    group: str | None


def find_names(
    source: Source,
    *,
    given: str | None,
    kind: str,
    target: str | None,
    group: str | None,
    split: str | None,
    needed: bool,
) -> Found:
    """Find everything.

    Args:
        source: the file.
        given: what an option says holds the values.
        kind: what they then are, "logits" or "probs".
        target: what an option says holds labels.
        group: what an option says holds groups.
        split: the prefix of all names, where one is given.
        needed: whether there must be labels.
    """
    inferred = split is None
    if given is None:
        split = _find_split(source, split, LOGITS + PROBS)
    else:
        split = _find_split(source, split, LABELS if target is None else (), needed=needed)
    target = None if target is None else _given(source, target, split)
    group = None if group is None else _given(source, group, split)
    values = _find_values(source, split, given, kind, target, group)
    labels = [target] if target is not None else _find_labels(source, split, values.names, needed, inferred)
    return Found(values, labels, group)


def splits(names: list[str], usual: tuple[str, ...] = LOGITS + PROBS + LABELS) -> list[str]:
    """What stands before usual names, sorted: "val" of val_y_prob. But y_prob itself is a usual name."""
    pattern = re.compile(f"(.+?)_(?:{'|'.join(usual)})")
    matches = [pattern.fullmatch(name.lower()) for name in names if not _usual([name], LOGITS + PROBS + LABELS, None)]
    return sorted({match[1] for match in matches if match})


def _find_split(source: Source, split: str | None, usual: tuple[str, ...], needed: bool = True) -> str | None:
    """The split to read, given or the only one; ``usual`` are the names that have to be found, if ``needed``."""
    if not isinstance(source, ArrayFile):
        if split is not None:
            raise source.error(f"a table has no splits, got --split {split}")
        return None
    if split is not None:
        if not any(name.lower().startswith(f"{split.lower()}_") for name in source.names):
            there = f"(it holds the splits {', '.join(all_)})" if (all_ := splits(source.names)) else source.holds()
            raise source.error(f"has no split {split!r} {there}")
        return split
    found = splits(source.names, usual) if usual and not _usual(source.names, usual, None) else []
    if len(found) > 1 and needed:
        raise source.error(f"holds several splits ({', '.join(found)}): say which with --split")
    return found[0] if len(found) == 1 else None


def _usual(names: list[str], usual: tuple[str, ...], split: str | None) -> list[str]:
    start = "" if split is None else f"{split.lower()}_"
    return [name for name in names if name.lower() in {start + word for word in usual}]


def _given(source: Source, name: str, split: str | None) -> str:
    """The array or column that an option names, within the split where there is one."""
    if split is not None and f"{split}_{name}" in source.names:
        return f"{split}_{name}"
    if name not in source.names:
        raise source.error(f"has no {source.noun} {name!r} {source.holds()}")
    if split is not None and not name.lower().startswith(f"{split.lower()}_"):
        for other in splits(source.names):
            if other != split.lower() and name.lower().startswith(f"{other}_"):
                raise source.error(f"{name!r} is of the split {other!r}, but {split!r} is to be read")
    return name


def _find_labels(source: Source, split: str | None, taken: list[str], needed: bool, inferred: bool) -> list[str]:
    """Every array or column of a usual name; if ``needed``, exactly one."""
    found = [name for name in _usual(source.names, LABELS, split) if name not in taken]
    if not found and inferred:  # "y_pred" of y_pred_proba is no split, and y_true its labels
        found = [name for name in _usual(source.names, LABELS, None) if name not in taken]
    if needed and len(found) > 1:
        raise source.error(f"holds several labels ({', '.join(map(repr, found))}): say which with --target")
    if needed and not found:
        raise source.error(f"holds no labels of a usual name; say which with --target NAME {source.holds()}")
    return found


def _find_values(
    source: Source, split: str | None, given: str | None, kind: str, target: str | None, group: str | None
) -> Values:
    """Where the values are; ``target`` and ``group`` are something else already."""
    names = [name for name in source.names if name not in (target, group)]
    table = source.noun == "column"
    if given is not None:
        if not given.strip():
            raise source.error(f"--{kind} must name an array or column, got {given!r}")
        if table and given not in source.names:
            if "," in given:
                return _listed(source, kind, given, (target, group))
            by_class = _class_columns(names, re.escape(given.rstrip("_. -")))
            if by_class:
                return _in_class_order(source, kind, {name: text for of in by_class for name, text in of.items()})
        if (name := _given(source, given, split)) in (target, group):
            raise source.error(f"{name!r} cannot hold {kind} and labels or groups too")
        if table:
            _check_not_class_0(source, kind, name)
        return Values(kind, [name])
    found: list[tuple[str, dict[str, str]]] = []
    for kind, usual in (("logits", LOGITS), ("probs", PROBS)):
        found += [(kind, {name: ""}) for name in _usual(names, usual, split)]
        if table:  # "p" alone may be many things, p0 and p1 are probabilities
            found += [(kind, columns) for columns in _class_columns(names, _prefixes(kind))]
    if not found and table and (named := _named_as_labels(source, target, group)):
        return named
    if not found:
        how = "say which holds logits or probabilities: --logits NAME or --probs NAME"
        if table:
            how += ", or the columns of the classes in their order: --probs NAME,NAME,..."
        raise source.error(f"holds no {source.noun} of a usual name; {how} {source.holds()}")
    if len(found) > 1:
        both = " and ".join(repr(next(iter(columns))) for _, columns in found)
        raise source.error(f"holds both {both}: say which with --logits or --probs")
    kind, columns = found[0]
    return Values(kind, list(columns)) if "" in columns.values() else _in_class_order(source, kind, columns)


def _prefixes(kind: str) -> str:
    return f"(?i:{'|'.join(LOGITS if kind == 'logits' else (*PROBS, 'p'))})"


def _check_not_class_0(source: Source, kind: str, name: str) -> None:
    """One score per sample is that of class 1; a column that is called by class 0 would turn every answer round."""
    if match := re.fullmatch(rf"({_prefixes(kind)}[_. -]*)0", name):
        one = f"{match[1]}1"
        how = f"say --{kind} {one}" if one in source.names else "rename the column if it is"
        raise source.error(f"{name!r} is named as class 0, one score per sample must be that of class 1: {how}")


# Columns for each class


def _class_columns(names: list[str], prefix: str) -> list[dict[str, str]]:
    """Columns per class, by what stands before the class: p0; logit_0; "prob.cat"."""
    pattern = re.compile(rf"((?:{prefix})(?:[_. -][_. ]*|(?=\d+$)))(.+)")
    sets: dict[str, dict[str, str]] = {}
    for name in names:
        if match := pattern.fullmatch(name):
            sets.setdefault(match[1], {})[name] = match[2]
    return list(sets.values())


def _in_class_order(source: Source, kind: str, columns: dict[str, str]) -> Values:
    """Numbered classes in the order of their numbers, named ones as in the file, with their names."""
    names, classes = list(columns), list(columns.values())
    if len(names) == 1:
        raise source.error(f"has one class column only; if it is one score per sample, say --{kind} {names[0]!r}")
    if all(re.fullmatch("[0-9]+", text) for text in classes):
        number = {name: int(text) for name, text in columns.items()}
        first = 1 if 0 not in number.values() and 1 in number.values() else 0
        for k in range(first, first + len(names)):
            if (count := list(number.values()).count(k)) != 1:
                rule = f"classes must be numbered {first} to {first + len(names) - 1}, one column each"
                raise source.error(f"{rule}: class {k} has {count} columns ({names[0]!r} to {names[-1]!r})")
        ordered = sorted(names, key=number.__getitem__)
        return Values(kind, ordered, tuple(str(k + 1) for k in range(len(names))) if first else None)
    strange = [name for name, text in columns.items() if classes.count(text) > 1]
    numbers = [name for name, text in columns.items() if is_number(text)]
    if numbers and not strange:  # whatever fewer of them are is what does not fit
        strange = numbers if 2 * len(numbers) < len(names) else [name for name in names if name not in numbers]
        strange = strange or [name for name in names if not re.fullmatch("[0-9]+", columns[name])]
    if strange:
        rest = [name for name in names if name not in strange]
        hint = f"; if it is no class, say --{kind} {suggested(rest)}" if len(rest) > 1 else ""
        rule = "classes must all be numbered or all have names of their own"
        raise source.error(f"{rule}: {strange[0]!r} does not fit{hint}")
    return Values(kind, names, tuple(classes))


def _listed(source: Source, kind: str, given: str, taken: tuple[str | None, ...]) -> Values:
    """Columns that are given one by one, in the order of the classes."""
    names = [name.strip() for name in next(csv.reader([given], skipinitialspace=True))]
    for name in names:
        if name not in source.names:
            raise source.error(f"has no column {name!r} {source.holds()}")
        if names.count(name) > 1:
            raise source.error(f"--{kind} must name each column once, got {name!r} twice")
        if name in taken:
            raise source.error(f"{name!r} cannot hold {kind} and labels or groups too")
    return Values(kind, names, _class_parts(names), ordered=True)


def _class_parts(names: list[str]) -> tuple[str, ...] | None:
    """Names less what they share: up to a mark (prob_cat, prob_cow), or before numbers (p10, p11)."""
    first, last = min(names), max(names)
    common = first[: next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]
    start = len(common.rstrip("0123456789"))
    if not all(name[start:].isdecimal() for name in names):
        start = max(common.rfind(mark) for mark in "_. -") + 1
    parts = tuple(name[start:] for name in names)
    parts = parts if all(parts) else tuple(names)
    return None if parts == tuple(map(str, range(len(parts)))) else parts


def _named_as_labels(source: Source, target: str | None, group: str | None) -> Values | None:
    """Columns that are called as the labels are, cat,dog,emu,label, if all are there and hold probabilities."""
    labels = [target] if target is not None else _usual(source.names, LABELS, None)
    if len(labels) != 1:
        return None
    try:
        texts = distinct_texts(source.read([], labels)[1][0])
        names = [name for name in source.names if name in texts and name not in (labels[0], group)]
        if len(names) < max(2, len(texts)):
            return None
        rows = np.asarray(source.read(names, [])[0])
    except PredictionsError:  # no numbers, or no label: what to do about names says more
        return None
    if rows.dtype.kind != "f" or not bool(((rows > -1e-6) & (abs(rows.sum(1, keepdims=True) - 1) < 0.0101)).all()):
        return None
    names = sorted(names, key=int) if all(map(str.isdecimal, names)) else names
    classes = None if names == [str(k) for k in range(len(names))] else tuple(names)
    return Values("probs", names, classes, why=", named as the labels")


def suggested(names: list[str]) -> str:
    """Columns as an option takes them."""
    texts = [f'"{name}"' if "," in name else name for name in names[:MOST_SUGGESTED]]
    text = ",".join(texts) + (",..." if len(names) > MOST_SUGGESTED else "")
    return f"'{text}'" if re.search(r"[^\w.,-]", text) else text
