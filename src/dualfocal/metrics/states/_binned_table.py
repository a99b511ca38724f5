"""Columns of :class:`~dualfocal.metrics.BinnedPredictions`; its method ``from_table`` describes them."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from dualfocal.metrics._wide import WideSum
from dualfocal.metrics.bins import BinStats
from dualfocal.metrics.units import ONE, scatter_sum

if TYPE_CHECKING:
    from dualfocal.metrics.states.binned import BinnedPredictions

State = TypeVar("State", bound="BinnedPredictions")
Parts = tuple[Tensor, Tensor]  # whole parts and rests of sums, in units of 2^-32

KEYS = {"confidence": ("cell",), "class": ("class", "predicted", "cell"), "scores": ()}  # of each kind of rows
REQUIRED = ("kind", "cell", "count", "correct", "units")
BINS = {"count": "count", "correct": "correct", "units": "units", "units_whole": "whole"}  # column -> sum of BinStats
WHOLE = "_whole"  # suffix of the columns of whole parts
COUNTS = ("count", "correct", "infinite_nll")
WIDE = ("units", "squares", "cubes", "nll", "brier")
COLUMNS = (*KEYS["class"], *COUNTS, *(column for name in WIDE for column in (name, name + WHOLE)))


def write_table(state: "BinnedPredictions") -> dict[str, np.ndarray]:
    """Return the columns of a state, without empty cells."""
    cell = state.fine.count.nonzero(as_tuple=True)
    place = state.classes.count.nonzero(as_tuple=True)
    blocks = {
        "confidence": {"cell": cell[0]} | {name: getattr(state.fine, source)[cell] for name, source in BINS.items()},
        "class": dict(zip(KEYS["class"], place, strict=True))
        | {name: getattr(state.classes, source)[place] for name, source in BINS.items()}
        | {"squares": state.squares.units[place], "squares_whole": state.squares.whole[place]}
        | {"cubes": state.cubes.units[place], "cubes_whole": state.cubes.whole[place]},
        "scores": {"count": torch.tensor([state.num_samples]), "infinite_nll": torch.tensor([state.infinite_nll])}
        | {"nll": torch.tensor([state.nll % ONE]), "nll_whole": torch.tensor([state.nll // ONE])}
        | {"brier": torch.tensor([state.brier % ONE]), "brier_whole": torch.tensor([state.brier // ONE])},
    }
    zeros = {kind: torch.zeros_like(block["count"]) for kind, block in blocks.items()}
    kinds = np.repeat(list(blocks), [len(block["count"]) for block in blocks.values()])
    return {"kind": kinds} | {
        name: torch.cat([block.get(name, zeros[kind]) for kind, block in blocks.items()]).numpy() for name in COLUMNS
    }


def read_table(empty: State, columns: Mapping[str, Any]) -> State:
    """Add the rows of a table to an empty state.

    Raises:
        ValueError: a column is missing, has another length or holds something else, or the sums contradict each other.
    """
    kind = _checked_kinds(columns)
    sums = {name: _read_sums(columns, name, len(kind)) for name in (*COUNTS, *WIDE)}
    fine = _Cells.read(columns, kind, "confidence", empty.fine.count.shape)
    classes = _Cells.read(columns, kind, "class", empty.classes.count.shape)
    total = {name: _total(sums[name], kind == "scores") for name in ("count", "nll", "infinite_nll", "brier")}
    state = replace(
        empty,
        fine=fine.bins(sums, empty.fine.edges),
        classes=classes.bins(sums, empty.classes.edges),
        squares=classes.sum(sums["squares"]),
        cubes=classes.sum(sums["cubes"]),
        nll=total["nll"],
        infinite_nll=total["infinite_nll"],
        brier=total["brier"],
    )
    _check_sums(state, total["count"])
    return state


def _checked_kinds(columns: Mapping[str, Any]) -> np.ndarray:
    """Check the names of the columns, and return the kind of each row."""
    known = {"kind", *COLUMNS}
    if unknown := set(columns) - known:
        raise ValueError(f"unknown columns: {', '.join(sorted(unknown))}; known are {', '.join(sorted(known))}")
    if missing := set(REQUIRED) - set(columns):
        raise ValueError(f"columns are missing: {', '.join(sorted(missing))}")
    kind = np.asarray(columns["kind"]).astype(str)
    if unknown := set(kind.tolist()) - set(KEYS):
        raise ValueError(f"kind must be one of {', '.join(KEYS)}, got {sorted(unknown)[0]!r}")
    return kind


class _Cells(NamedTuple):
    """The rows of one kind, and the cell that each of them belongs to."""

    rows: np.ndarray
    cell: Tensor
    shape: tuple[int, ...]

    @classmethod
    def read(cls, columns: Mapping[str, Any], kinds: np.ndarray, kind: str, shape: tuple[int, ...]) -> Self:
        rows = np.flatnonzero(kinds == kind)
        cell = torch.zeros(len(rows), dtype=torch.int64)
        for name, size in zip(KEYS[kind], shape, strict=True):
            value = torch.from_numpy(_integers(columns, name, len(kinds))[rows].astype(np.int64))
            outside = value[(value < 0) | (value >= size)]
            if len(outside):
                raise ValueError(f"{name} must lie in [0, {size - 1}] in a row of kind {kind!r}, got {int(outside[0])}")
            cell = cell * size + value
        return cls(rows, cell, shape)

    def sum(self, parts: Parts) -> WideSum:
        """Sum the rows of each cell."""
        size = math.prod(self.shape)
        whole, units = (scatter_sum(self.cell, part[self.rows], size).view(self.shape) for part in parts)
        return WideSum.from_units(units, whole)

    def bins(self, sums: Mapping[str, Parts], edges: Tensor) -> BinStats:
        units, counts = self.sum(sums["units"]), (self.sum(sums[name]) for name in ("count", "correct"))
        count, correct = ((wide.whole << 32) + wide.units for wide in counts)
        return BinStats(count, units.whole, units.units, correct, edges)


def _total(parts: Parts, here: np.ndarray) -> int:
    whole, units = (int(sum(part[here].tolist())) for part in parts)
    return whole * ONE + units


def _read_sums(columns: Mapping[str, Any], name: str, number: int) -> Parts:
    """Return whole parts and rests of a column."""
    values = _integers(columns, name, number)
    whole = values // ONE + _integers(columns, name + WHOLE, number)
    try:
        return torch.from_numpy(whole.astype(np.int64)), torch.from_numpy((values % ONE).astype(np.int64))
    except OverflowError:
        raise ValueError(f"a sum in column {name} is too large: at most 2^62 samples are possible") from None


def _integers(columns: Mapping[str, Any], name: str, number: int) -> np.ndarray:
    """Return a column as int64, or as Python integers of any size; None and a missing column count as 0."""
    if name not in columns:
        return np.zeros(number, dtype=np.int64)
    column = columns[name]
    values: np.ndarray = column.filled(0) if isinstance(column, np.ma.MaskedArray) else np.asarray(column)
    if values.shape != (number,):
        raise ValueError(f"column {name} must have the {number} rows of kind, got shape {values.shape}")
    if values.dtype.kind in "iu" and values.dtype != np.uint64:
        return values.astype(np.int64)
    integers = [0 if value is None else int(value) for value in values.tolist()]
    if any(value is not None and value != whole for value, whole in zip(values.tolist(), integers, strict=True)):
        raise ValueError(f"column {name} must hold integers, got {values.dtype}")
    return np.array(integers, dtype=object)


def _check_sums(state: "BinnedPredictions", num_samples: int) -> None:
    """Raise a ValueError unless the sums can be those of one set of samples."""
    if state.num_samples != num_samples:
        raise ValueError(
            f"the rows of the confidences count {state.num_samples:,} samples, those of the scores {num_samples:,}"
        )
    by_class = state.classes.count.sum((1, 2))
    if not bool((by_class == num_samples).all()):
        c = int((by_class != num_samples).nonzero()[0])
        raise ValueError(f"the rows of class {c} count {int(by_class[c]):,} samples, expected {num_samples:,}")
    for bins in (state.fine, state.classes):
        if bool(((bins.count < 0) | (bins.correct < 0) | (bins.correct > bins.count)).any()):
            raise ValueError("a count is negative, or correct is larger than count")
    labels, right = int(state.classes.correct.sum()), int(state.classes.correct[:, 1].sum())
    if labels != num_samples or right != int(state.fine.correct.sum()):
        raise ValueError(
            f"the rows of the classes count {labels:,} labels and {right:,} right predictions, expected "
            f"{num_samples:,} and {int(state.fine.correct.sum()):,}"
        )
