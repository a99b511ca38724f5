"""From what was read to tensors: rows with missing values, percent, names of classes."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.metrics.inputs import are_probabilities
from dualfocal.predictions._class_columns import Values
from dualfocal.predictions._formats.interface import (
    INTEGERS,
    Column,
    Content,
    PredictionFile,
    check_values,
    dtype_name,
    form,
    form_text,
    shortened,
    without_axis_of_one,
)

REMEDY = "give --drop-missing to leave them out"
ROUNDING = 0.005  # of one probability, in whole percent


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """Options on the content of a file; see :func:`~dualfocal.predictions.load_predictions`."""

    positive: str | None = None
    class_names: tuple[str, ...] | None = None
    percent: bool = False
    drop_missing: bool = False
    independent: bool = False  # whether the probabilities of a row are of labels, which do not sum to 1

    def read(self, source: PredictionFile, values: list[str], others: list[str]) -> tuple[Content, str]:
        """Read columns of a file, without rows that have missing values; and a remark on how many were dropped.

        Raises:
            PredictionsError: there are such rows, and the caller did not ask to drop them; or no row is left.
        """
        content = source.read(values, others)
        number = content.num_rows
        content, dropped = self.without_missing(source, content)
        if dropped and dropped == number:
            raise source.error("every row has missing values: no row is left")
        return content, dropped_remark(dropped, number)

    def without_missing(self, source: PredictionFile, content: Content) -> tuple[Content, int]:
        """Drop rows with missing values, and return their number.

        Raises:
            PredictionsError: there are such rows, and the caller did not ask to drop them.
        """
        missing = dict(content.missing)
        if self.drop_missing:  # otherwise NaN is left to the metrics, which ignore it in rows that are ignored
            for name, column in {**content.values, **content.others}.items():
                if (rows := nan_rows(column)) is not None:
                    missing[name] = missing[name] | rows if name in missing else rows
        number = content.num_rows
        masks = {name: rows for name, rows in missing.items() if len(rows) == number}
        if not masks:
            return content, 0
        dropped = np.logical_or.reduce([*masks.values()])
        if not self.drop_missing:
            name, rows = next(iter(masks.items()))
            place = source.place(int(rows.argmax()))
            missing_rows = int(dropped.sum())
            count = f"{missing_rows:,} of {number:,} rows{source.from_row()} {'has' if missing_rows == 1 else 'have'}"
            raise source.error(f"{source.noun} {name!r} is empty in {place}; {count} empty cells: {REMEDY}")
        source.kept = kept = np.flatnonzero(~dropped)
        values = {name: _rows(column, kept) for name, column in content.values.items()}
        others = {name: _rows(column, kept) for name, column in content.others.items()}
        return Content(values, others), number - len(kept)

    def values(self, source: PredictionFile, roles: Values, content: Content) -> tuple[Tensor, str]:
        """Return the values as a tensor, and a description of their origin."""
        arrays = [content.values[name] for name in roles.names]
        array = arrays[0] if len(arrays) == 1 else np.stack(arrays, axis=1)
        first, last = shortened(repr(roles.names[0])), shortened(repr(roles.names[-1]))
        origin = first if len(roles.names) == 1 else f"{len(roles.names)} columns {first} to {last}"
        whole = dtype_name(array) in INTEGERS and array.ndim and roles.kind != "logits"
        if whole and (self.percent or int(array.max()) > 1):
            if not self.percent:
                rule = f"{origin} must hold probabilities from 0 to 1, got {form(array)} up to {int(array.max())}"
                raise source.error(f"{rule}: if they are percent, give --percent")
            array = np.asarray(array, np.float64)
        check_values(f"{source.path}: {roles.kind} of {origin}", array)
        values = array if isinstance(array, Tensor) else torch.from_numpy(np.require(array, requirements="W"))
        values = without_axis_of_one(values)
        shape = ("N", *values.shape[1:]) if source.in_chunks else values.shape
        text = f"{origin} {form_text(shape, dtype_name(values))}{roles.why}"
        if self.percent:
            if roles.kind == "logits":
                raise source.error(f"--percent is for probabilities, but {origin} holds logits")
            if self.independent:
                return values / 100, f"{text}, in percent"
            if values.ndim > 1 and are_probabilities(values.movedim(1, -1).reshape(-1, values.shape[1])):
                raise source.error(
                    f"--percent: rows of {origin} must sum to 100, but they sum to 1: leave out --percent"
                )
            return _fractions(values), f"{text}, in percent"
        return values, text

    def named(self, source: PredictionFile, roles: Values, values: Tensor) -> Values:
        """Return the values with the class names that an option gives."""
        if self.class_names is None:
            return roles
        number = 2 if values.ndim == 1 else values.shape[1]
        if len(self.class_names) != number or len(set(self.class_names)) < number:
            raise source.error(
                f"--class-names must be {number} distinct names, one per class, got {shortened(str(self.class_names))}"
            )
        numbers = roles.classes is None or all(map(str.isdecimal, roles.classes))
        if not numbers and roles.classes != self.class_names:
            raise source.error(
                f"--class-names must be those of the columns, {shortened(str(roles.classes))}, in the same order, got "
                f"{shortened(str(self.class_names))}"
            )
        return replace(roles, classes=self.class_names, ordered=True)


def dropped_remark(dropped: int, number: int) -> str:
    """Return how many rows were dropped, for ``Predictions.taken``."""
    verb = "was" if dropped == 1 else "were"
    return f"; {dropped:,} of {number:,} rows had missing values and {verb} dropped" if dropped else ""


def nan_rows(column: Column) -> NDArray[np.bool_] | None:
    """Return the rows with NaN, or None if there are none."""
    if isinstance(column, np.ndarray):
        if column.dtype.kind != "f":
            return None
        column = torch.from_numpy(np.require(column, requirements="W"))
    if isinstance(column, list) or not column.is_floating_point() or column.ndim == 0 or not column.numel():
        return None
    if not bool(column.amax().isnan()):  # needs no memory
        return None
    rows: NDArray[np.bool_] = column.reshape(len(column), -1).isnan().any(1).numpy()
    return rows


def _rows(column: Any, kept: NDArray[np.intp]) -> Any:
    if isinstance(column, list):
        return [column[row] for row in kept.tolist()]
    return column[torch.from_numpy(kept)] if isinstance(column, Tensor) else column[kept]


def are_percent(values: Tensor) -> bool:
    """Whether probabilities must be percent: up to 100, with rows that sum to 100."""
    if values.ndim > 2 or not 1.5 < float(values.amax()) <= 100.5 or float(values.amin()) < 0:
        return False
    sums = values.double().sum(1) if values.ndim == 2 else torch.tensor(100.0)
    return bool(((sums - 100).abs() <= 100 * ROUNDING * values.shape[-1] + 0.1).all())


def _fractions(percent: Tensor) -> Tensor:
    """Divide by 100, or rows that do not sum to 100 only because they were rounded, by their sum."""
    if percent.ndim != 2:
        return percent / 100
    sums = percent.sum(1, keepdim=True)
    rounded = (sums - 100).abs() <= 100 * ROUNDING * percent.shape[1]
    return percent / torch.where(rounded, sums, 100.0)
