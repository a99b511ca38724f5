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
from dualfocal.predictions._formats import PredictionFile, PredictionsError, TooLargeError, form, one_line_errors
from dualfocal.predictions._labels import class_indices, correctness, plain_groups
from dualfocal.predictions._names import VALUES, Roles, find_names, only_name, splits
from dualfocal.predictions._questions import Given
from dualfocal.predictions._readers import JoinedFile, is_prediction_file, open_prediction_file

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
        class_names: class names, from the header of a table or an array ``class_names`` (None: unknown).
        taken: which arrays or columns were read: "logits from 'logits' (10000 x 10, float32), labels from 'target'".
        path: the file (None: several files).
        columns: names of the arrays or columns of the values, in class order.
        label_name: name of the array or column of the labels.
        group_name: name of the array or column of the groups.
        kept: which rows of the file these are (None: all); others have missing values and were dropped.
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

    @property
    def target(self) -> Tensor:
        """The labels; raises a PredictionsError if there are none."""
        if self.labels is None:
            raise PredictionsError(f"{self.path}: has no usable labels: {self.taken}")
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
    prediction: str | None = None,
    confidence: str | None = None,
    positive: str | None = None,
    class_names: str | Sequence[str] | None = None,
    percent: bool = False,
    drop_missing: bool = False,
    labels: bool = True,
    max_memory: int | str | None = None,
) -> Predictions:
    """Read logits or probabilities, labels and, on request, a group per sample from a file.

    Args:
        path: a ``.npz``, ``.npy``, ``.safetensors``, ``.pt``, ``.csv``, ``.tsv``, ``.jsonl``, ``.parquet``, ``.arrow``
            or ``.feather`` file; text may be gzipped.
        logits: name of the array of logits; in a table, the name of a column, the prefix of one column per class, or
            the names of these columns in class order, separated by commas; or another file, with one array or column.
        probs: the same for probabilities. Give at most one of the two.
        target: name of the array or column of labels, or another file.
        group: name of an array or column with one group per sample, or another file.
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
    if logits is not None and probs is not None:
        raise PredictionsError(f"{path}: give --logits or --probs, not both (got {logits!r} and {probs!r})")
    if (prediction is None) != (confidence is None) or (prediction is not None and (logits or probs) is not None):
        raise PredictionsError(f"{path}: give --prediction and --confidence together, without --logits and --probs")
    # Apart from bugs, only memory and numbers of thousands of digits raise other errors than PredictionsError here.
    with one_line_errors(Path(path), kinds=(MemoryError, ValueError, OverflowError)):
        given = Given(
            logits=logits,
            probs=probs,
            target=target,
            group=group,
            split=split,
            prediction=prediction,
            confidence=confidence,
        )
        source = _with_files(open_prediction_file(Path(path), max_memory), given)
        if split is None and splits(source.names, VALUES):
            given = replace(given, split=default_split)
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
        if logits is None and data.input == "logits" and data.values.ndim == 2 and are_probabilities(data.values):
            names = suggested(list(data.columns))
            raise source.error(
                f"{names!r} must hold logits, but all rows lie in [0, 1] and sum to 1: if they are probabilities, give "
                f"--probs {names}, otherwise --logits {names}"
            )
        return data


def check_usable(data: Predictions, ignore_index: int = -100) -> None:
    """Raise a PredictionsError, with the option that helps, if values are NaN or percent; ignored rows may be NaN."""
    rows = nan_rows(data.values)
    if rows is not None and data.labels is not None:
        rows &= (data.labels != ignore_index).reshape(len(rows), -1).any(1).numpy()
    if rows is not None and rows.any():
        count = f"{int(rows.sum()):,} of {len(rows):,} rows have missing values"
        rule = f"{data.input} must not be NaN, but row {int(rows.argmax())} holds NaN"
        raise PredictionsError(f"{data.path}: {rule}; {count}: {REMEDY}")
    if data.input != "logits" and are_percent(data.values):
        problem = "probabilities must be from 0 to 1, but these are percent: give --percent"
        raise PredictionsError(f"{data.path}: {problem} ({data.taken})")


def _with_files(source: PredictionFile, given: Given) -> PredictionFile:
    """Add the files that options name instead of arrays or columns."""
    parts = {}
    for option in ("logits", "probs", "target", "group"):
        text = getattr(given, option)
        if text is not None and text not in source.name_set and is_prediction_file(text):
            part = open_prediction_file(Path(text), source.max_memory)
            parts[text] = part, only_name(part, option)
    return JoinedFile(source, parts) if parts else source


def _load(source: PredictionFile, roles: Roles, conversion: Conversion) -> Predictions:
    names = [name for name in (roles.label, roles.group, roles.values.prediction) if name is not None]
    content = source.read(roles.values.names, names)
    content, remark = conversion.without_missing(source, roles.values.names, names, content)
    others = dict(zip(names, content.others, strict=True))
    values, origin = conversion.values(source, roles.values, content.values)
    value_names = conversion.named(source, roles.values, values)
    taken = f"{KINDS[roles.values.kind]} from {origin}"
    labels = groups = None
    if roles.label is None:
        taken += f", no labels{roles.no_label}"
    else:
        if roles.values.prediction is None:
            column, shape = others[roles.label], tuple(values.shape)
            indices, how = class_indices(source, roles.label, column, value_names, shape, conversion.positive)
        else:
            predicted, column = others[roles.values.prediction], others[roles.label]
            indices = correctness(source, roles.values, values, predicted, roles.label, column)
            how = f", predictions from {roles.values.prediction!r}"
        if indices.ndim == 0 or len(values) != len(indices):
            raise source.error(f"each row needs one label, got {origin} and {roles.label!r} {form(indices)}")
        labels = torch.from_numpy(indices)
        taken += f", labels from {roles.label!r}{how}"
    if roles.group is not None:
        groups = plain_groups(source, roles.group, others[roles.group])
        if groups.shape != (len(values),):
            raise source.error(f"each row needs one group, got {origin} and {roles.group!r} {form(groups)}")
        taken += f", groups from {roles.group!r}"
    return Predictions(
        values,
        roles.values.kind,
        labels,
        groups,
        (value_names.classes or source.class_names(values.shape[1])) if values.ndim > 1 else None,
        taken + remark,
        path=source.path,
        columns=tuple(roles.values.names),
        label_name=roles.label,
        group_name=roles.group,
        kept=source.kept,
    )


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
