"""Load predictions from a file."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.metrics.inputs import are_probabilities
from dualfocal.predictions._class_columns import parse_class_names, suggested
from dualfocal.predictions._confidences import correctness, right_or_wrong
from dualfocal.predictions._conversion import REMEDY, Conversion, are_percent, nan_rows
from dualfocal.predictions._formats.interface import (
    Content,
    PredictionFile,
    PredictionsError,
    TooLargeError,
    form,
    one_line_errors,
)
from dualfocal.predictions._labels import LabelRule, class_indices
from dualfocal.predictions._names import Roles, find_names
from dualfocal.predictions._opening import open_source
from dualfocal.predictions._questions import NameOptions
from dualfocal.predictions._sample_columns import sample_columns

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
        percent: whether the file holds the values in percent; ``values`` are fractions.
        positive: with one score per sample, the label of class 1 (None: labels are 0 and 1).
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
    percent: bool = False
    positive: str | None = None

    @property
    def names_of_classes(self) -> tuple[str, ...] | None:
        """The class names, also of one score per sample if an option names the label of class 1 (None: unknown)."""
        return self.class_names if self.positive is None else (f"not {self.positive}", self.positive)

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
        confidence: name of the column of their confidences; without ``prediction``, the labels say whether each
            prediction is right.
        positive: with one score per sample, the label of class 1; there must be at most one other label.
        class_names: names of the classes, in order: a list, text with commas, or a file with one name per line. If
            columns have names of classes, these must be the same.
        percent: whether probabilities are in percent. Samples whose sum is 100 up to rounding are divided by it.
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
        options = NameOptions(
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
        source, options = open_source(Path(path), options, default_split, max_memory)
        roles = find_names(source, options, required=labels)
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
        number = int(rows.sum())
        count = f"{number:,} of {len(rows):,} rows {'has' if number == 1 else 'have'} missing values"
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
    values, origin = conversion.values(source, roles.values, content)
    value_names = conversion.named(source, roles.values, values)
    taken = f"{KINDS[roles.values.kind]} from {origin}"
    labels = None
    if roles.label is None:
        taken += f", no labels{roles.no_label}"
    else:
        column = content.others[roles.label]
        if roles.values.kind == "confidence" and roles.values.prediction is None:
            indices, how = right_or_wrong(source, roles.label, column), ", which say whether predictions are right"
        elif roles.values.prediction is None:
            shape = tuple(values.shape)
            indices, how = class_indices(source, roles.label, column, value_names, shape, conversion.positive, rule)
        else:
            predicted = content.others[roles.values.prediction]
            indices = correctness(source, roles.values, values, predicted, roles.label, column)
            how = f", predictions from {roles.values.prediction!r}"
        if indices.ndim == 0 or len(values) != len(indices):
            raise source.error(f"each row needs one label, got {origin} and {roles.label!r} {form(indices)}")
        labels = torch.from_numpy(indices)
        taken += f", labels from {roles.label!r}{how}"
    columns, remark = sample_columns(source, roles, content.others, values, origin)
    return Predictions(
        values,
        roles.values.kind,
        labels,
        columns.get("group"),
        (value_names.classes or source.class_names(values.shape[1])) if values.ndim > 1 else None,
        taken + remark,
        path=source.path,
        columns=tuple(roles.values.names),
        label_name=roles.label,
        group_name=roles.group,
        kept=None if source.kept is None else source.kept + source.first_row,
        first_row=source.first_row,
        clusters=columns.get("cluster"),
        weights=columns.get("weight"),
        percent=conversion.percent,
        positive=conversion.positive,
    )


def check_not_probabilities(source: PredictionFile, data: Predictions, *, independent: bool = False) -> None:
    """Raise a PredictionsError if values with a usual name of logits are probabilities.

    Args:
        source: the file.
        data: what was read.
        independent: whether the values of a row are of labels, whose probabilities do not sum to 1.
    """
    if data.input != "logits":
        return
    if independent or data.values.ndim == 1:
        like_probabilities, what = bool(((data.values >= 0) & (data.values <= 1)).all()), "values lie in [0, 1]"
    else:
        rows = data.values.movedim(1, -1).reshape(-1, data.values.shape[1])
        like_probabilities, what = are_probabilities(rows), "rows lie in [0, 1] and sum to 1"
    if like_probabilities:
        names = suggested(list(data.columns))
        raise source.error(
            f"{names!r} must hold logits, but all {what}: if they are probabilities, give --probs {names}, otherwise "
            f"--logits {names}"
        )


def _load(source: PredictionFile, roles: Roles, conversion: Conversion) -> Predictions:
    content, remark = conversion.read(source, roles.values.names, roles.others)
    data = convert(source, roles, conversion, content, LabelRule())
    return replace(data, taken=data.taken + remark)
