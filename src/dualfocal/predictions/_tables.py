"""The table formats of predictions: csv and tsv with a header line, and parquet."""

import csv
import gzip
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dualfocal.predictions._formats import Array, Column, Table, is_number, one_line_errors

MOST_UNPACKED = 4 << 30  # bytes of text in a .gz, as a few kilobytes could unpack to more than the memory


class TextTable(Table):
    """A ``.csv`` or ``.tsv`` file, optionally gzipped. The header decides the delimiter: comma, semicolon or tab."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.packed = path.suffix.lower() == ".gz"
        with one_line_errors(path):
            if self.packed:
                with gzip.open(path) as packed:
                    if packed.seek(MOST_UNPACKED + 1) > MOST_UNPACKED:  # returns the length of a shorter text
                        raise self.error(f"holds more than {MOST_UNPACKED:,} bytes of text: unpack it first")
            with self._open() as file:
                line = file.readline()
            self.delimiter = max(",;\t", key=re.sub('"[^"]*"', "", line).count)  # "prob_a;b;c" is one name
            header = next(csv.reader([line], delimiter=self.delimiter), [])
        if not line:
            raise self.error("is empty")
        self.names = [name.strip() for name in header]
        if all(name == "" or is_number(name) for name in self.names):
            raise self.error(f"needs a header line with column names, got {line.strip()[:60]!r}")

    def place(self, row: int) -> str:
        return next(f"line {line}" for i, (line, _) in enumerate(self._rows()) if i == row)

    def read(self, values: list[str], others: list[str]) -> tuple[list[Array], list[Column]]:
        # Unused columns are read too, truncated, so that a row with too many fields cannot shift the others.
        kinds = ["f8" if name in values else "O" if name in others else "U1" for name in self.names]
        with one_line_errors(self.path), warnings.catch_warnings(), self._open() as file:
            warnings.simplefilter("ignore")  # of numpy, if there are no rows: an error is raised later
            try:
                table = np.loadtxt(
                    file if self.packed else str(self.path),  # numpy reads a path faster than an open file
                    dtype=[(f"f{i}", kind) for i, kind in enumerate(kinds)],
                    delimiter=self.delimiter,
                    quotechar='"',
                    comments=None,
                    skiprows=1,
                    ndmin=1,
                    encoding="utf-8-sig",
                )
            except ValueError:
                self._explain(values)
                raise
        column = {name: table[f"f{i}"] for i, name in enumerate(self.names)}
        # Copy, because torch cannot read one field of a record array.
        return [column[name].copy() for name in values], [self._strings(name, column[name]) for name in others]

    def carried(self, names: list[str]) -> dict[str, Any]:
        places = [self.names.index(name) for name in names]
        with one_line_errors(self.path):
            rows = [[row[place] for place in places] for _, row in self._rows()]
        return {name: [row[i] for row in rows] for i, name in enumerate(names)}

    def _strings(self, name: str, column: NDArray[Any]) -> list[str]:
        strings = [text.strip() for text in column.tolist()]
        if "" in strings:
            raise self.error(f"column {name!r} is empty in {self.place(strings.index(''))}")
        return strings

    def _explain(self, values: list[str]) -> None:
        """Raise an error that names the bad line: read the file again with a slower parser."""
        for line, row in self._rows():
            if len(row) != len(self.names):
                raise self.error(f"line {line} has {len(row)} fields, but the header has {len(self.names)}")
            for name, text in zip(self.names, row, strict=True):
                if name in values and not is_number(text):
                    hint = "; write decimal points, not commas" if is_number(text.replace(",", ".", 1)) else ""
                    raise self.error(f"column {name!r} must hold numbers, got {text!r} in line {line}{hint}")

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        with self._open() as file:
            reader = csv.reader(file, delimiter=self.delimiter)
            next(reader)
            yield from ((reader.line_num, row) for row in reader if row)

    def _open(self) -> IO[str]:
        if self.packed:
            return gzip.open(self.path, "rt", encoding="utf-8-sig", newline="")
        return self.path.open(encoding="utf-8-sig", newline="")


class ParquetFile(Table):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with one_line_errors(path):
            self.arrow = import_pyarrow()
            self.schema = self.arrow.parquet.read_schema(path)
        self.names = list(self.schema.names)

    def describe(self, name: str) -> str:
        return f"{name!r} ({self.schema.field(name).type})"

    def read(self, values: list[str], others: list[str]) -> tuple[list[Array], list[Column]]:
        with one_line_errors(self.path):
            columns = self.carried(list(dict.fromkeys(values + others)))
            arrays = {name: self._array(name, column) for name, column in columns.items()}
        return [arrays[name] for name in values], [_plain(arrays[name]) for name in others]

    def carried(self, names: list[str]) -> dict[str, Any]:
        with one_line_errors(self.path), self.arrow.parquet.ParquetFile(self.path) as file:
            table = file.read(columns=names)
        return {name: table.column(name) for name in names}

    def _array(self, name: str, column: Any, width: int = 1) -> NDArray[Any]:
        """Return a column as (N,), or a column of lists of length K as (N, K)."""
        if column.null_count:
            raise self.error(f"column {name!r} is empty in row {np.asarray(column.is_null()).argmax() // width}")
        if self.arrow.types.is_dictionary(column.type):  # categorical
            column = column.cast(column.type.value_type)
        if not self.arrow.types.is_nested(column.type):
            return np.asarray(column)
        lengths = np.asarray(self.arrow.compute.list_value_length(column))
        if len(odd := np.flatnonzero(lengths != lengths[:1])):
            raise self.error(
                f"the lists of column {name!r} must have the same length, got {lengths[0]} in row 0 "
                f"and {lengths[odd[0]]} in row {odd[0]}"
            )
        width = int(lengths[0]) if len(lengths) else 1
        return self._array(name, self.arrow.compute.list_flatten(column), width).reshape(len(lengths), width)


def _plain(array: NDArray[Any]) -> Column:
    """Return an array of objects (strings, dates, decimals) as texts."""
    return [str(item).strip() for item in array.tolist()] if array.dtype == object else array


def import_pyarrow() -> Any:
    """Import pyarrow, an optional dependency."""
    try:
        import pyarrow.compute  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError('needs pyarrow: pip install "dualfocal[parquet]"') from error
    return pyarrow
