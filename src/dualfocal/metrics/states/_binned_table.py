"""Columns of :class:`~dualfocal.metrics.BinnedPredictions`; its method ``from_table`` describes them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dualfocal.metrics._wide import WideSum
from dualfocal.metrics.bins import ONE, BinStats

if TYPE_CHECKING:
    from dualfocal.metrics.states.binned import BinnedPredictions

State = TypeVar("State", bound="BinnedPredictions")

KINDS = ("confidence", "class", "scores")
KEYS = ("class", "predicted", "cell")
COUNTS = ("count", "correct", "infinite_nll")
WIDE = ("units", "squares", "cubes", "nll", "brier")
WHOLE = "_whole"  # suffix of the columns of whole parts


def write_table(state: "BinnedPredictions") -> dict[str, np.ndarray]:
    """Return the columns of a state, without empty cells."""
    fine, classes = state.fine, state.classes
    cell = fine.count.nonzero()[:, 0]
    key = classes.count.nonzero(as_tuple=True)
    parts: list[tuple[str, dict[str, Tensor]]] = [
        ("confidence", {"cell": cell} | {name: getattr(fine, source)[cell] for name, source in _BIN_COLUMNS.items()}),
        ("class", dict(zip(KEYS, key, strict=True)) | _class_columns(state, key)),
        ("scores", {"count": torch.tensor([state.num_samples]), "infinite_nll": torch.tensor([state.infinite_nll])}),
    ]
    for name, total in (("nll", state.nll), ("brier", state.brier)):
        parts[-1][1].update({name: torch.tensor([total % ONE]), name + WHOLE: torch.tensor([total // ONE])})
    sizes = [len(part["count"]) for _, part in parts]
    columns = {"kind": np.repeat(np.array([kind for kind, _ in parts]), sizes)}
    for name in (*KEYS, *COUNTS, *(column for wide in WIDE for column in (wide, wide + WHOLE))):
        blocks = [part.get(name, torch.zeros(n, dtype=torch.int64)) for (_, part), n in zip(parts, sizes, strict=True)]
        columns[name] = torch.cat(blocks).numpy()
    return columns


_BIN_COLUMNS = {"count": "count", "correct": "correct", "units": "units", "units_whole": "whole"}


def _class_columns(state: "BinnedPredictions", key: tuple[Tensor, ...]) -> dict[str, Tensor]:
    columns = {name: getattr(state.classes, source)[key] for name, source in _BIN_COLUMNS.items()}
    for name in ("squares", "cubes"):
        wide: WideSum = getattr(state, name)
        columns |= {name: wide.units[key], name + WHOLE: wide.whole[key]}
    return columns


def read_table(empty: State, columns: Mapping[str, Any]) -> State:
    """Add the rows of a table to an empty state.

    Raises:
        ValueError: a column is missing, has another length or holds something else, or the sums contradict each other.
    """
    known = {"kind", *KEYS, *COUNTS, *WIDE, *(name + WHOLE for name in WIDE)}
    if unknown := set(columns) - known:
        raise ValueError(f"unknown columns: {', '.join(sorted(unknown))}; known are {', '.join(sorted(known))}")
    if missing := {"kind", "cell", "count", "correct", "units"} - set(columns):
        raise ValueError(f"columns are missing: {', '.join(sorted(missing))}")
    kind = np.asarray(columns["kind"]).astype(str)
    if unknown := set(kind.tolist()) - set(KINDS):
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {sorted(unknown)[0]!r}")
    reader = _Reader(columns, kind)
    fine, _ = reader.sums("confidence", ("cell",), (empty.fine.num_bins,))
    classes, powers = reader.sums("class", KEYS, tuple(empty.classes.count.shape))
    state = replace(
        empty,
        fine=BinStats(*fine, empty.fine.edges),
        classes=BinStats(*classes, empty.classes.edges),
        squares=powers["squares"],
        cubes=powers["cubes"],
        nll=reader.total("nll"),
        infinite_nll=reader.total("infinite_nll"),
        brier=reader.total("brier"),
    )
    _check_sums(state, reader.total("count"))
    return state


class _Reader:
    def __init__(self, columns: Mapping[str, Any], kind: np.ndarray) -> None:
        self.columns, self.kind = columns, kind

    def sums(
        self, kind: str, keys: tuple[str, ...], shape: tuple[int, ...]
    ) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], dict[str, WideSum]]:
        """Sum the rows of a kind by their keys: (count, whole, units, correct), and squares and cubes."""
        here = self.kind == kind
        index = torch.zeros(int(here.sum()), dtype=torch.int64)
        for name, size in zip(keys, shape, strict=True):
            value = torch.from_numpy(self._integers(name, here).astype(np.int64))
            if bool(((value < 0) | (value >= size)).any()):
                bad = int(value[(value < 0) | (value >= size)][0])
                raise ValueError(f"{name} must lie in [0, {size - 1}] in a row of kind {kind!r}, got {bad}")
            index = index * size + value

        def wide(name: str) -> WideSum:
            size = int(np.prod(shape))
            whole, units = (
                torch.zeros(size, dtype=torch.int64).index_add_(0, index, part).view(shape)
                for part in self._split(name, here)
            )
            return WideSum.from_units(units, whole)

        count, correct = (wide(name) for name in ("count", "correct"))
        units, powers = wide("units"), {name: wide(name) for name in ("squares", "cubes")}
        counts, hits = ((part.whole << 32) + part.units for part in (count, correct))
        return (counts, units.whole, units.units, hits), powers

    def total(self, name: str) -> int:
        """Sum a column over the rows of the scores."""
        here = self.kind == "scores"
        whole, units = (sum(map(int, part.tolist())) for part in self._split(name, here))
        return whole * ONE + units

    def _split(self, name: str, here: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return whole parts and rests of the rows ``here`` of a column."""
        values = self._integers(name, here)
        whole, rest = values // ONE, values % ONE
        if name + WHOLE in self.columns:
            whole = whole + self._integers(name + WHOLE, here)
        try:
            return torch.from_numpy(whole.astype(np.int64)), torch.from_numpy(rest.astype(np.int64))
        except OverflowError:
            raise ValueError(f"a sum in column {name} is too large: at most 2^62 samples are possible") from None

    def _integers(self, name: str, here: np.ndarray) -> np.ndarray:
        """Return the rows ``here`` of a column, as int64 or as Python integers of any size; None counts as 0."""
        if name not in self.columns:
            return np.zeros(int(here.sum()), dtype=np.int64)
        column = self.columns[name]
        values: np.ndarray = column.filled(0) if isinstance(column, np.ma.MaskedArray) else np.asarray(column)
        if values.shape != here.shape:
            raise ValueError(f"column {name} must have the {len(here)} rows of kind, got shape {values.shape}")
        values = values[here]
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
