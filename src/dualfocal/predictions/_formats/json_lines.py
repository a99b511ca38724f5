"""Tables as JSON: one object per line."""

import gzip
import io
import json
import math
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualfocal._memory import memory_limit
from dualfocal.predictions._formats.interface import (
    LONGEST_MESSAGE,
    STREAMED,
    Column,
    Content,
    Look,
    PredictionsError,
    Table,
    one_line_errors,
    shortened,
)

BYTES_PER_CHARACTER = 40  # of a line: "[]," is a list of 56 bytes and a reference
BYTES_PER_NAME = 1000  # of a column: its name, and its entries in the tables of names
BYTES_PER_ITEM = 80  # of a label, besides its text
BYTES_PER_NUMBER = 24  # in an array that grows, in the final one, and among the other columns
CHECKED_EVERY = 1 << 20  # bytes


def read_records(
    path: Path, max_memory: int | str | None, check_memory: Callable[..., None]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the object of each line of a file, of which none may be too long for the memory.

    Args:
        path: the file, optionally gzipped.
        max_memory: limit of the memory (None: half of the free memory).
        check_memory: called with the bytes that a line needs at least, if that is above the limit; must raise an error.
    """
    most = memory_limit(max_memory) // BYTES_PER_CHARACTER
    packed = path.suffix.lower() == ".gz"
    with gzip.open(path) if packed else path.open("rb") as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig")
        number = 0
        while line := text.readline(most + 1):
            number += 1
            if len(line) > most:
                check_memory(len(line) * BYTES_PER_CHARACTER, at_least=True)
            if line.strip():
                yield number, _record(path, number, line)


def _record(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise PredictionsError(f"{path}: {shortened(f'line {number} is not JSON: {error}', LONGEST_MESSAGE)}") from None
    if not isinstance(record, dict):
        got = shortened(line.strip(), 40)
        raise PredictionsError(f"{path}: line {number} must be an object with names, {{...}}, got {got}")
    return record


class JsonLines(Table):
    """A ``.jsonl`` file, optionally gzipped.

    The keys of the first line are the columns. An object within the line, such as ``{"probs": {"cat": 0.9}}``, has a
    column for each of its keys: ``probs.cat``.
    """

    how_to_stream = (
        f"dualfocal evaluate reads {STREAMED} in one pass, so write the table as .parquet or .csv, for example with "
        "polars.scan_ndjson(file).sink_parquet('predictions.parquet')"
    )

    def __init__(self, path: Path, max_memory: int | str | None = None) -> None:
        super().__init__(path, max_memory)
        with one_line_errors(path):
            first = next(self._rows(), None)
        if first is None:
            raise self.error("is empty")
        self.first = first[1]
        self.names = list(self.first)
        self.check_memory(len(self.names) * BYTES_PER_NAME)

    def line(self, row: int) -> str:
        with one_line_errors(self.path):
            return next(f"line {line}" for i, (line, _) in enumerate(self._rows()) if i == row)

    def looks(self) -> dict[str, Look]:
        looks = {}
        for name, cell in self.first.items():
            ndim = 1
            while isinstance(cell, list) and cell:
                cell, ndim = cell[0], ndim + 1
            # Whole numbers may be written without a point, also in lists of logits.
            if isinstance(cell, bool) or (isinstance(cell, int) and ndim == 1):
                kind = "integer"
            elif isinstance(cell, int | float):
                kind = "float"
            else:
                kind = "text" if isinstance(cell, str) else "other"
            looks[name] = Look(kind, ndim)
        return looks

    def read(self, values: list[str], others: list[str]) -> Content:
        numbers = {name: NumberColumn() for name in values}
        cells: dict[str, list[Any]] = {name: [] for name in others}
        empty: dict[str, list[int]] = {name: [] for name in values + others}
        used = checked = 0
        with one_line_errors(self.path):
            for index, (line, row) in enumerate(self._rows()):
                for name, column in numbers.items():
                    try:
                        if column.append(row.get(name)):
                            empty[name].append(index)
                    except (TypeError, ValueError, OverflowError) as error:
                        raise self.error(f"column {name!r} {error} in line {line}") from None
                    used += BYTES_PER_NUMBER * (column.width or 1)
                for name, items in cells.items():
                    items.append(row.get(name))
                    if items[-1] is None or items[-1] == "":
                        empty[name].append(index)
                    size = len(items[-1]) if isinstance(items[-1], str | list) else 0
                    used += BYTES_PER_ITEM + size * (BYTES_PER_ITEM if isinstance(items[-1], list) else 4)
                if used > checked + CHECKED_EVERY:
                    self.check_memory(used, at_least=True)
                    checked = used
            self.check_memory(used)
            columns = {name: self._column(name, items) for name, items in cells.items()}
        missing = {name: np.isin(np.arange(index + 1), rows) for name, rows in empty.items() if rows}
        return Content({name: column.array() for name, column in numbers.items()}, columns, missing)

    def carried(self, names: list[str]) -> dict[str, Any]:
        columns: dict[str, list[str]] = {name: [] for name in names}
        used = 0
        with one_line_errors(self.path):
            for _, row in self._rows():
                for name, texts in columns.items():
                    cell = row.get(name)
                    text = cell if isinstance(cell, str) else json.dumps(cell)
                    texts.append("" if cell is None else text)
                    used += BYTES_PER_ITEM + 4 * len(texts[-1])
                self.check_memory(used, at_least=True)
        return columns

    def _rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number and the cells of each line."""
        for number, record in read_records(self.path, self.max_memory, self.check_memory):
            yield number, self._cells(number, record)

    def _cells(self, number: int, record: dict[str, Any]) -> dict[str, Any]:
        cells: dict[str, Any] = {}
        for name, cell in record.items():
            within = {f"{name}.{key}": item for key, item in cell.items()} if isinstance(cell, dict) else {name: cell}
            for full_name, item in within.items():
                if full_name in cells:
                    raise self.error(f"line {number} has more than one value of {shortened(repr(full_name))}")
                cells[full_name] = item
        return cells

    def _column(self, name: str, items: list[Any]) -> Column:
        """Return labels or groups as an array or as texts; missing ones are 0 or empty."""
        kinds = {type(item) for item in items if item is not None}
        if list in kinds:
            column = NumberColumn()
            for row, item in enumerate(items):
                try:
                    column.append(item)
                except (TypeError, ValueError) as error:
                    raise self.error(f"column {name!r} {error} in {self.line(row)}") from None
            return column.array()
        for dtype, accepted in ((np.bool_, {bool}), (np.int64, {int}), (np.float64, {int, float})):
            if kinds and kinds <= accepted:
                return np.array([0 if item is None else item for item in items], dtype)
        return ["" if item is None else str(item).strip() for item in items]


class NumberColumn:
    """A column of numbers, or of equally long lists of numbers, which grows by a row at a time."""

    def __init__(self) -> None:
        self.numbers = array("d")
        self.width: int | None = None  # None: one number per row
        self.rows = 0

    def append(self, cell: Any) -> bool:
        """Add a row, and return whether a number is missing; raises a ValueError or TypeError for other cells."""
        if isinstance(cell, list):
            if self.width is None and len(self.numbers) == self.rows:  # the first list
                if not all(map(math.isnan, self.numbers)):
                    raise ValueError("must hold numbers or lists, not both")
                self.width = len(cell)
                self.numbers = array("d", [math.nan]) * (self.rows * self.width)
            if len(cell) != self.width:
                raise ValueError(f"must have lists of the same length, got {self.width} and {len(cell)}")
            items = cell
        elif self.width is not None and cell is not None:
            raise ValueError(f"must hold numbers or lists, not both, got {shortened(repr(cell))}")
        else:
            items = [cell] * (1 if self.width is None else self.width)
        for item in items:
            if item is not None and (isinstance(item, bool) or not isinstance(item, int | float)):
                raise TypeError(f"must hold numbers, got {shortened(repr(item))}")
            self.numbers.append(math.nan if item is None else item)
        self.rows += 1
        return None in items

    def array(self) -> NDArray[Any]:
        numbers = np.array(self.numbers)
        return numbers if self.width is None else numbers.reshape(self.rows, self.width)
