"""Load multi-label predictions: a 2-D target of 0 and 1, or one column per label for scores and for targets."""

import csv
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.predictions._class_columns import Values, class_columns, class_parts, parse_class_names, suggested
from dualfocal.predictions._conversion import Conversion
from dualfocal.predictions._formats.interface import (
    Column,
    PredictionFile,
    dtype_name,
    form,
    is_number,
    one_line_errors,
    shortened,
)
from dualfocal.predictions._formats.readers import is_prediction_file
from dualfocal.predictions._names import LABEL_PREFIX, Roles, find_names
from dualfocal.predictions._opening import open_source
from dualfocal.predictions._questions import NameOptions
from dualfocal.predictions._sample_columns import sample_columns
from dualfocal.predictions.loading import KINDS, Predictions, check_not_probabilities
from dualfocal.tables import quantity

NAMING = "such as prob_cat,prob_dog beside target_cat,target_dog"


def load_multilabel_predictions(
    path: str | os.PathLike[str],
    *,
    logits: str | None = None,
    probs: str | None = None,
    target: str | None = None,
    cluster: str | None = None,
    split: str | None = None,
    class_names: str | None = None,
    percent: bool = False,
    drop_missing: bool = False,
    labels: bool = True,
    max_memory: int | str | None = None,
) -> Predictions:
    """Read multi-label predictions from a file: logits or probabilities and a target of 0 and 1, both ``(N, L)``.

    Arrays are found by the names that :func:`~dualfocal.predictions.load_predictions` knows. A table has one column per
    label for scores and for targets, ``prob_cat``, ``prob_dog``, ``target_cat``, ``target_dog``, or columns of lists.

    Args:
        path: see :func:`~dualfocal.predictions.load_predictions`.
        logits: array, column of lists, prefix of columns, or names of columns separated by commas.
        probs: the same for probabilities. Give at most one of the two.
        target: the same for the target; or another file.
        cluster: name of an array or column with the cluster of each sample, or another file.
        split: prefix of the names of arrays.
        class_names: names of the labels, separated by commas, or a file with one name per line.
        percent: whether probabilities are in percent.
        drop_missing: leave out rows with NaN or empty cells.
        labels: whether a target is required.
        max_memory: see :func:`~dualfocal.predictions.load_predictions`.

    Returns:
        The predictions; ``labels`` has the shape of ``values``, and ``class_names`` are the names of the labels.

    Raises:
        PredictionsError: the file cannot be read or is too large, or names are missing or ambiguous.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "predictions.csv")
    ...     _ = path.write_text("prob_cat,prob_dog,target_cat,target_dog\\n0.9,0.8,1,1\\n0.4,0.1,0,0\\n")
    ...     data = load_multilabel_predictions(path)
    >>> data.labels.tolist(), data.class_names
    ([[1, 1], [0, 0]], ('cat', 'dog'))
    """
    with one_line_errors(Path(path), kinds=(MemoryError, ValueError, OverflowError)):
        options = NameOptions(logits=logits, probs=probs, target=target, cluster=cluster, split=split)
        source, options = open_source(Path(path), options, None, max_memory)
        is_one = target is None or target in source.name_set or is_prediction_file(target)
        several = source.is_table and not is_one
        roles = find_names(source, replace(options, target=None if several else options.target), required=False)
        names = _label_columns(source, roles, target if several else None) if source.is_table else []
        single = [roles.label] if roles.label is not None else []
        if not names or (target is not None and not several):
            names = single
        if labels and not names:
            how = f"columns per label, {NAMING}, or --target" if source.is_table else "--target NAME"
            raise source.error(f"holds no target: name it with {how} {source.holds()}")
        conversion = Conversion(
            class_names=None if class_names is None else parse_class_names(class_names),
            percent=percent,
            drop_missing=drop_missing,
            independent=True,
        )
        data = _load(source, roles, names, conversion)
        if logits is None:
            check_not_probabilities(source, data, independent=True)
        return data


def _label_columns(source: PredictionFile, roles: Roles, target: str | None) -> list[str]:
    """Return the columns of the target, in the order of the columns of the scores; empty if there are none."""
    values = roles.values
    taken = {*values.names, roles.cluster}
    free = [name for name in source.names if name not in taken]
    if target is not None and "," in target:
        names = [text.strip() for text in next(csv.reader([target], skipinitialspace=True))]
        if missing := [name for name in names if name not in source.name_set]:
            raise source.error(f"has no column {missing[0]!r} {source.holds()}")
        return _checked(source, values, names, class_parts(names))
    prefix = LABEL_PREFIX if target is None else re.escape(target.rstrip("_. -"))
    groups = class_columns(free, prefix)
    if target is not None and not groups:
        raise source.error(f"has no column {target!r}, and none that starts with {target!r} {source.holds()}")
    wanted = values.classes or tuple(map(str, range(len(values.names))))
    for group in groups:
        by_label = {label: name for name, label in group.items()}
        if set(wanted) == set(by_label):
            return [by_label[label] for label in wanted]
    if groups and (target is not None or len(groups[0]) > 1):
        names, labels = list(groups[0]), tuple(groups[0].values())
        return _checked(source, values, names, labels)
    return []


def _checked(source: PredictionFile, values: Values, names: list[str], labels: tuple[str, ...] | None) -> list[str]:
    """Return the columns of the target, or raise a PredictionsError if they do not fit the columns of the scores."""
    if len(names) != len(values.names) or len(set(names)) < len(names):
        raise source.error(
            f"each label needs a column of scores and one of targets, got {len(values.names)} of scores "
            f"({suggested(values.names)}) and {len(set(names))} of targets ({suggested(names)}): name them {NAMING}"
        )
    classes = values.classes or tuple(map(str, range(len(names))))
    labels = labels or tuple(map(str, range(len(names))))
    if classes != labels and (set(classes) == set(labels) or not values.ordered):
        raise source.error(
            f"labels of scores ({suggested(list(classes))}) and of targets ({suggested(list(labels))}) differ, or "
            "their order does: give both with --probs and --target, as lists with commas in the same order"
        )
    return names


def _load(source: PredictionFile, roles: Roles, names: list[str], conversion: Conversion) -> Predictions:
    others = [*dict.fromkeys([*names, *([] if roles.cluster is None else [roles.cluster])])]
    content, dropped = conversion.read(source, roles.values.names, others)
    values, origin = conversion.values(source, roles.values, content)
    values = values[:, None] if values.ndim == 1 else values
    taken = f"{KINDS[roles.values.kind]} of {quantity(values.shape[-1], 'label')} from {origin}"
    labels = None
    if names:
        rule = f"--task multilabel needs a target with a 0 or 1 for each sample and label, {tuple(values.shape)}"
        first = content.others[names[0]]
        if len(names) == 1 < values.shape[1] and (isinstance(first, list) or first.ndim == 1):
            raise source.error(
                f"{rule}, got one value per sample in {names[0]!r}: give one column per label, {NAMING}; if each "
                "sample has exactly one class, leave out --task"
            )
        parts = [_zeros_and_ones(source, name, content.others[name]) for name in names]
        array = parts[0] if len(parts) == 1 else np.stack(parts, axis=1)
        labels = torch.from_numpy(array[:, None] if array.ndim == 1 else array)
        if labels.shape != values.shape:
            raise source.error(f"{rule}, got {shortened(names[0])!r} {form(labels)}")
        where = repr(names[0]) if len(names) == 1 else f"{len(names)} columns {names[0]!r} to {names[-1]!r}"
        taken += f", target from {where}"
    columns, remark = sample_columns(source, roles, content.others, values, origin)
    return Predictions(
        values,
        roles.values.kind,
        labels,
        None,
        _names_of_labels(source, roles.values, values, conversion),
        taken + remark + dropped,
        path=source.path,
        columns=tuple(roles.values.names),
        label_name=names[0] if len(names) == 1 else None,
        kept=source.kept,
        clusters=columns.get("cluster"),
        percent=conversion.percent,
    )


def _names_of_labels(
    source: PredictionFile, roles: Values, values: Tensor, conversion: Conversion
) -> tuple[str, ...] | None:
    if values.shape[1] == 1:
        return conversion.class_names or roles.classes
    return conversion.named(source, roles, values).classes or source.class_names(values.shape[1])


def _zeros_and_ones(source: PredictionFile, name: str, column: Column) -> NDArray[np.int64]:
    """Return targets as integers: 0, 1, or a negative number to be ignored."""
    if isinstance(column, list):
        words = {"true": "1", "false": "0"}
        texts = [words.get(text.casefold(), text) for text in column]
        for row, text in enumerate(texts):
            if not is_number(text):
                raise source.error(
                    f"the target of a label must be 0 or 1, got {shortened(column[row])!r} in {source.place(row)} of "
                    f"{name!r}: --task multilabel needs one column per label, {NAMING}"
                )
        column = np.array([float(text) for text in texts])
    if isinstance(column, Tensor):
        column = (column.float() if dtype_name(column) == "bfloat16" else column).numpy()
    if column.dtype.kind not in "biuf" or column.ndim not in (1, 2):
        raise source.error(f"the target of labels must hold 0 and 1, one per label, but {name!r} is {form(column)}")
    good = (column == 0) | (column == 1) | ((column < 0) & (column == np.floor(column)))
    if not good.all():
        row = int(good.reshape(len(good), -1).all(1).argmin())
        value = column[~good].flat[0]
        hint = "; --drop-missing leaves out such rows, -100 only the entry" if value != value else ""
        raise source.error(
            f"the target of a label must be 0 or 1, got {value:g} in {source.place(row)} of {name!r}{hint}"
        )
    return column.astype(np.int64)
