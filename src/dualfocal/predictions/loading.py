"""Load predictions from a file, and merge the predictions of several files."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.metrics.rows import are_probabilities
from dualfocal.predictions._class_columns import parse_class_names, suggested
from dualfocal.predictions._conversion import REMEDY, Conversion, are_percent, nan_rows
from dualfocal.predictions._formats.interface import (
    Content,
    PredictionFile,
    PredictionsError,
    TooLargeError,
    form,
    is_number,
    one_line_errors,
    shortened,
)
from dualfocal.predictions._labels import LabelRule, class_indices, correctness, plain_groups
from dualfocal.predictions._names import Roles, find_names
from dualfocal.predictions._opening import open_source
from dualfocal.predictions._questions import Given

KINDS = {"logits": "logits", "probs": "probabilities", "confidence": "confidences of the predicted class"}


@dataclass(frozen=True, eq=False)  # == of tensors is not a bool
class Predictions:
    """Predictions for N samples, with labels if the file has them.

    Args:
        values: logits or probabilities, (N, C) or (N, C, d1, ...), or (N,) for one score per sample; or (N,), the
            confidence of each predicted class.
        input: ``"logits"``, ``"probs"`` or ``"confidence"``.
        labels: class indices, (N,) or (N, d1, ...) int64 (None: no labels); with ``input="confidence"``, 1 where the
            prediction is right and 0 where it is wrong.
        groups: group of each sample, (N,) strings, numbers or booleans (None: not requested).
        clusters: cluster of each sample, in the same form (None: not requested).
        weights: weight of each sample, (N,) float64 (None: not requested).
        class_names: class names, from the header of a table or an array ``class_names`` (None: unknown).
        taken: which arrays or columns were read: "logits from 'logits' (10000 x 10, float32), labels from 'target'".
        path: the file (None: several files).
        columns: names of the arrays or columns of the values, in class order.
        label_name: name of the array or column of the labels.
        group_name: name of the array or column of the groups.
        kept: which rows of the file these are (None: all); others have missing values and were dropped.
        first_row: row of the file where these start, if they are a chunk of it.
    """

    values: Tensor
    input: str
    labels: Tensor | None
    groups: NDArray[Any] | None
    class_names: tuple[str, ...] | None
    taken: str
    path: Path | None = None
    columns: tuple[str, ...] = ()
    label_name: str | None = None
    group_name: str | None = None
    kept: NDArray[np.intp] | None = None
    first_row: int = 0
    clusters: NDArray[Any] | None = None
    weights: NDArray[np.float64] | None = None

    @property
    def target(self) -> Tensor:
        """The labels; raises a PredictionsError if there are none."""
        if self.labels is None:
            raise PredictionsError(f"{self.path}: has no usable labels: {self.taken}")
        return self.labels

    def row_of_file(self, row: int) -> int:
        """Return which row of the file a row is."""
        return self.first_row + row if self.kept is None else int(self.kept[row])


def load_predictions(
    path: str | os.PathLike[str],
    *,
    logits: str | None = None,
    probs: str | None = None,
    target: str | None = None,
    group: str | None = None,
    cluster: str | None = None,
    weight: str | None = None,
    split: str | None = None,
    default_split: str | None = None,
    prediction: str | None = None,
    confidence: str | None = None,
    positive: str | None = None,
    class_names: str | Sequence[str] | None = None,
    percent: bool = False,
    drop_missing: bool = False,
    labels: bool = True,
    max_memory: int | str | None = None,
) -> Predictions:
    """Read logits or probabilities, labels and, on request, a group, a cluster and a weight per sample from a file.

    Args:
        path: a ``.npz``, ``.npy``, ``.safetensors``, ``.pt``, ``.csv``, ``.tsv``, ``.jsonl``, ``.parquet``, ``.arrow``
            or ``.feather`` file; text may be gzipped.
        logits: name of the array of logits; in a table, the name of a column, the prefix of one column per class, or
            the names of these columns in class order, separated by commas; or another file, with one array or column.
        probs: the same for probabilities. Give at most one of the two.
        target: name of the array or column of labels, or another file.
        group: name of an array or column with one group per sample, or another file.
        cluster: name of an array or column with the cluster of each sample, or another file.
        weight: name of an array or column with the weight of each sample, or another file.
        split: prefix of the names, "test" for ``test_logits`` and ``test_target``. Not for tables.
        default_split: the split to read if ``split`` is not given and the names have such prefixes (None: the only
            split; several are an error).
        prediction: name of the column of predicted classes, if there are no probabilities of all classes.
        confidence: name of the column of their confidences. Give both or none of the two.
        positive: with one score per sample, the label of class 1; there must be at most one other label.
        class_names: names of the classes, in order: a list, text with commas, or a file with one name per line. If
            columns have names of classes, these must be the same.
        percent: whether probabilities are in percent. Rows whose sum is 100 up to rounding are divided by it.
        drop_missing: leave out rows with NaN or empty cells, and say in ``taken`` how many. Otherwise an empty cell is
            an error, and so is a label of NaN; NaN among the values is left to the metrics.
        labels: whether labels are required. If not, they are read if ``target`` or exactly one usual name identifies
            them; labels with a usual name that cannot be used are left out, and ``taken`` says why.
        max_memory: the most memory that reading may take, in bytes or as text such as ``"8GB"`` (None: half of the
            free memory). A small compressed file can hold more than any machine has.

    Returns:
        The predictions, with labels as class indices.

    Raises:
        PredictionsError: the file cannot be read or is too large, or names are missing or ambiguous.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "predictions.csv")
    ...     _ = path.write_text("prob_cat,prob_dog,label\\n0.9,0.1,cat\\n0.4,0.6,cat\\n")
    ...     data = load_predictions(path)
    >>> data.values.shape, data.input, data.labels, data.class_names
    (torch.Size([2, 2]), 'probs', tensor([0, 0]), ('cat', 'dog'))
    """
    # Apart from bugs, only memory and numbers of thousands of digits raise other errors than PredictionsError here.
    with one_line_errors(Path(path), kinds=(MemoryError, ValueError, OverflowError)):
        given = Given(
            logits=logits,
            probs=probs,
            target=target,
            group=group,
            cluster=cluster,
            weight=weight,
            split=split,
            prediction=prediction,
            confidence=confidence,
        )
        source, given = open_source(Path(path), given, default_split, max_memory)
        roles = find_names(source, given, required=labels)
        conversion = Conversion(
            positive=positive,
            class_names=None if class_names is None else parse_class_names(class_names),
            percent=percent,
            drop_missing=drop_missing,
        )
        try:
            data = _load(source, roles, conversion)
        except PredictionsError as error:
            if labels or target is not None or roles.label is None or isinstance(error, TooLargeError):
                raise
            why = f" ({roles.label!r} cannot be used: {str(error).removeprefix(f'{source.path}: ')})"
            # If the labels are not the reason, this raises the error again.
            data = _load(source, replace(roles, label=None, no_label=why), conversion)
        if logits is None:
            check_not_probabilities(source, data)
        return data


def check_usable(data: Predictions, ignore_index: int = -100) -> None:
    """Raise a PredictionsError, with the option that helps, if values are NaN or percent; ignored rows may be NaN."""
    rows = nan_rows(data.values)
    if rows is not None and data.labels is not None:
        rows &= (data.labels != ignore_index).reshape(len(rows), -1).any(1).numpy()
    if rows is not None and rows.any():
        count = f"{int(rows.sum()):,} of {len(rows):,} rows have missing values"
        rule = f"{data.input} must not be NaN, but row {data.row_of_file(int(rows.argmax()))} holds NaN"
        raise PredictionsError(f"{data.path}: {rule}; {count}: {REMEDY}")
    if data.input != "logits" and are_percent(data.values):
        problem = "probabilities must be from 0 to 1, but these are percent: give --percent"
        raise PredictionsError(f"{data.path}: {problem} ({data.taken})")


def convert(
    source: PredictionFile, roles: Roles, conversion: Conversion, content: Content, rule: LabelRule
) -> Predictions:
    """Convert what was read from a file, or from a chunk of it, to tensors.

    Args:
        source: the file.
        roles: which arrays or columns hold what.
        conversion: options on the content.
        content: values and other columns of the roles, without missing values.
        rule: how labels of chunks before were read.

    Raises:
        PredictionsError: the content cannot be used.
    """
    others = dict(zip(roles.others, content.others, strict=True))
    values, origin = conversion.values(source, roles.values, content.values)
    value_names = conversion.named(source, roles.values, values)
    taken = f"{KINDS[roles.values.kind]} from {origin}"
    labels = None
    if roles.label is None:
        taken += f", no labels{roles.no_label}"
    else:
        if roles.values.prediction is None:
            column, shape = others[roles.label], tuple(values.shape)
            indices, how = class_indices(source, roles.label, column, value_names, shape, conversion.positive, rule)
        else:
            predicted, column = others[roles.values.prediction], others[roles.label]
            indices = correctness(source, roles.values, values, predicted, roles.label, column)
            how = f", predictions from {roles.values.prediction!r}"
        if indices.ndim == 0 or len(values) != len(indices):
            raise source.error(f"each row needs one label, got {origin} and {roles.label!r} {form(indices)}")
        labels = torch.from_numpy(indices)
        taken += f", labels from {roles.label!r}{how}"
    members: dict[str, NDArray[Any] | None] = {"group": None, "cluster": None, "weight": None}
    for kind, name in (("group", roles.group), ("cluster", roles.cluster), ("weight", roles.weight)):
        if name is None:
            continue
        members[kind] = column = plain_groups(source, name, others[name])
        per_pixel = kind == "weight" and column.shape == (len(values), *values.shape[2:])
        if column.shape != (len(values),) and not per_pixel:
            raise source.error(f"each row needs one {kind}, got {origin} and {name!r} {form(column)}")
        if kind == "weight":
            members[kind] = _numbers(source, name, column)
        taken += f", {kind}s from {name!r}"
    return Predictions(
        values,
        roles.values.kind,
        labels,
        members["group"],
        (value_names.classes or source.class_names(values.shape[1])) if values.ndim > 1 else None,
        taken,
        path=source.path,
        columns=tuple(roles.values.names),
        label_name=roles.label,
        group_name=roles.group,
        kept=None if source.kept is None else source.kept + source.first_row,
        first_row=source.first_row,
        clusters=members["cluster"],
        weights=members["weight"],
    )


def _numbers(source: PredictionFile, name: str, column: NDArray[Any]) -> NDArray[np.float64]:
    """Return weights as numbers, which must be finite and not negative."""
    if column.dtype.kind not in "iufb":
        row = next((i for i, text in enumerate(column.tolist()) if not is_number(text) or "n" in text.lower()), 0)
        got = f"{name!r} is {shortened(repr(str(column[row])))} in {source.place(row)}"
        raise source.error(f"weights must be finite numbers, but {got}: name another column with --weight")
    weights = column.astype(np.float64)
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any():
        row = int(bad.argmax()) // max(weights[0].size, 1)
        value = weights[row] if weights.ndim == 1 else weights[row][bad[row]][0]
        raise source.error(
            f"weights must be finite and not negative, but {name!r} is {value:g} in {source.place(row)}: correct it, "
            "or set it to 0 to leave the sample out"
        )
    if not weights.any():
        raise source.error(f"weights must not be 0 for all samples, but {name!r} is")
    return weights


def check_not_probabilities(source: PredictionFile, data: Predictions) -> None:
    """Raise a PredictionsError if values with a usual name of logits are probabilities."""
    if data.input != "logits" or data.values.ndim < 2 or data.values.shape[1] < 2:
        return  # one score per sample is in [0, 1] by chance, or sums to 1
    if are_probabilities(data.values.movedim(1, -1).reshape(-1, data.values.shape[1])):
        names = suggested(list(data.columns))
        raise source.error(
            f"{names!r} must hold logits, but all rows lie in [0, 1] and sum to 1: if they are probabilities, give "
            f"--probs {names}, otherwise --logits {names}"
        )


def _load(source: PredictionFile, roles: Roles, conversion: Conversion) -> Predictions:
    content = source.read(roles.values.names, roles.others)
    number = len(content.values[0]) if content.values[0].ndim else 0
    content, dropped = conversion.without_missing(source, roles.values.names, roles.others, content)
    if dropped and dropped == number:
        raise source.error("every row has missing values: no row is left")
    data = convert(source, roles, conversion, content, LabelRule())
    return replace(data, taken=data.taken + dropped_remark(dropped, number))


def dropped_remark(dropped: int, number: int) -> str:
    """Return how many rows were dropped, for ``Predictions.taken``."""
    return f"; {dropped:,} of {number:,} rows had missing values and were dropped" if dropped else ""


def merge_predictions(parts: Mapping[str, Predictions]) -> Predictions:
    """Concatenate labelled predictions that are parts of one set.

    Args:
        parts: at least one set of predictions, by name for error messages.

    Returns:
        One set of predictions, with the samples of all parts.

    Raises:
        ValueError: the parts differ in the kind or shape of their values, or in their classes.
    """
    (first_name, first), *others = parts.items()
    for name, part in others:
        if part.input != first.input or part.values.shape[1:] != first.values.shape[1:]:
            raise ValueError(f"--merge: {first_name} has {first.taken}, but {name} has {part.taken}")
        if part.class_names != first.class_names:
            raise ValueError(f"--merge: {name} must have the same classes in the same order as {first_name}")
    members = list(parts.values())
    return Predictions(
        values=torch.cat([part.values for part in members]),
        input=first.input,
        labels=torch.cat([part.target for part in members]),
        groups=None if first.groups is None else np.concatenate([part.groups for part in members]),
        class_names=first.class_names,
        taken=f"{len(parts)} files; of the first, {first.taken}",
        clusters=None if first.clusters is None else np.concatenate([part.clusters for part in members]),
        weights=None if first.weights is None else np.concatenate([part.weights for part in members]),
    )


def check_same_labels(a: Predictions, b: Predictions) -> None:
    """Raise a ValueError unless both predictions have the same labels, as those of the same samples do."""
    rule = "both files must hold the same labels"
    if a.target.shape != b.target.shape:
        raise ValueError(f"{rule}, got shapes {tuple(a.target.shape)} and {tuple(b.target.shape)}")
    pairs = torch.stack([a.target.reshape(-1), b.target.reshape(-1)], dim=1)
    differ = (pairs[:, 0] != pairs[:, 1]).nonzero()[:, 0].tolist()
    if differ:
        labels = " and ".join(map(str, pairs[differ[0]].tolist()))
        raise ValueError(f"{rule}: {len(differ)} differ, the first at {differ[0]}: {labels}")
