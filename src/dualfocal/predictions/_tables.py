"""The table formats of predictions: csv and tsv with a header line, and parquet."""

import csv
import gzip
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dualfocal._memory import memory_limit
from dualfocal.predictions._formats import Array, Column, Table, is_number, one_line_errors, shortened

CHUNK = 1 << 20  # bytes of text that are measured at a time
BYTES_PER_VALUE = 16  # of a number: in the table that numpy reads and in a column
BYTES_PER_TEXT = 80  # of a short string and a reference to it
BYTES_PER_UNUSED = 4  # one character
BYTES_PER_CHARACTER = 8  # of the longest row: four, in a buffer that doubles
PARQUET_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
PARQUET_WIDTHS["BYTE_ARRAY"] = 16  # an index and a reference per row; the texts are counted by their size
BYTES_PER_NAME = 1000  # of a column: its name, and its entries in the tables of names


class TextTable(Table):
    """A ``.csv`` or ``.tsv`` file, optionally gzipped. The header decides the delimiter: comma, semicolon or tab."""

    def __init__(self, path: Path, max_memory: int | str | None = None) -> None:
        super().__init__(path, max_memory)
        self.packed = path.suffix.lower() == ".gz"
        with one_line_errors(path):
            with self._open() as file:
                most = memory_limit(max_memory) // BYTES_PER_CHARACTER
                line = file.readline(most)
                if len(line) == most:
                    self.check_memory((most + 1) * BYTES_PER_CHARACTER, at_least=True)
            self.delimiter = max(",;\t", key=re.sub('"[^"]*"', "", line).count)  # "prob_a;b;c" is one name
            self.check_memory(line.count(self.delimiter) * BYTES_PER_NAME)
            with _fields_of_any_length():
                header = next(csv.reader([line], delimiter=self.delimiter), [])
        if not line:
            raise self.error("is empty")
        self.names = [name.strip() for name in header]
        if all(name == "" or is_number(name) for name in self.names):
            raise self.error(f"needs a header line with column names, got {line.strip()[:60]!r}")

    def place(self, row: int) -> str:
        with one_line_errors(self.path):
            return next(f"line {line}" for i, (line, _) in enumerate(self._rows()) if i == row)

    def read(self, values: list[str], others: list[str]) -> tuple[list[Array], list[Column]]:
        # Unused columns are read too, truncated, so that a row with too many fields cannot shift the others.
        kind_of = dict.fromkeys(values, "f8") | dict.fromkeys(others, "O")
        kinds = [kind_of.get(name, "U1") for name in self.names]
        self._check_rows(len(values) * BYTES_PER_VALUE + len(others) * BYTES_PER_TEXT)
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
                self._explain(set(values))
                raise
        column = {name: table[f"f{i}"] for i, name in enumerate(self.names)}
        # Copy, because torch cannot read one field of a record array.
        return [column[name].copy() for name in values], [self._strings(name, column[name]) for name in others]

    def carried(self, names: list[str]) -> dict[str, Any]:
        place_of = {name: i for i, name in enumerate(self.names)}
        places = [place_of[name] for name in names]
        self._check_rows(2 * len(names) * BYTES_PER_TEXT)
        with one_line_errors(self.path):
            rows = [[row[place] for place in places] for _, row in self._rows()]
        return {name: [row[i] for row in rows] for i, name in enumerate(names)}

    def _strings(self, name: str, column: NDArray[Any]) -> list[str]:
        strings = [text.strip() for text in column.tolist()]
        if "" in strings:
            raise self.error(f"column {name!r} is empty in {self.place(strings.index(''))}")
        return strings

    def _explain(self, values: set[str]) -> None:
        """Raise an error that names the bad line: read the file again with a slower parser."""
        for line, row in self._rows():
            if len(row) != len(self.names):
                raise self.error(f"line {line} has {len(row)} fields, but the header has {len(self.names)}")
            for name, text in zip(self.names, row, strict=True):
                if name in values and not is_number(text):
                    hint = "; write decimal points, not commas" if is_number(text.replace(",", ".", 1)) else ""
                    raise self.error(
                        f"column {name!r} must hold numbers, got {shortened(repr(text))} in line {line}{hint}"
                    )

    def _check_rows(self, bytes_per_row: int) -> None:
        """Raise an error if the rows do not fit into memory; counts them in chunks, because a .gz can hold any size."""
        bytes_per_row += (len(self.names) + 1) * BYTES_PER_UNUSED
        rows = longest = length = 0  # length: of the current row
        quoted = False
        with one_line_errors(self.path), self._open_bytes() as file:
            while chunk := file.read(CHUNK):
                ends, quoted = _row_ends(chunk, quoted)
                if len(ends):
                    longest = max(longest, length + int(ends[0]))
                    length = len(chunk) - int(ends[-1])
                    rows += len(ends)
                else:
                    length += len(chunk)
                needed = rows * bytes_per_row + max(longest, length) * BYTES_PER_CHARACTER
                self.check_memory(needed, at_least=True)

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        with self._open() as file, _fields_of_any_length():
            reader = csv.reader(file, delimiter=self.delimiter)
            next(reader)
            yield from ((reader.line_num, row) for row in reader if row)

    def _open(self) -> IO[str]:
        return io.TextIOWrapper(self._open_bytes(), encoding="utf-8-sig", newline="")

    def _open_bytes(self) -> gzip.GzipFile | io.BufferedReader:
        return gzip.open(self.path) if self.packed else self.path.open("rb")


def _row_ends(chunk: bytes, quoted: bool) -> tuple[NDArray[np.intp], bool]:
    """Return where rows end in a part of a text, and whether the part ends within quotes, where lines are no rows."""
    text = np.frombuffer(chunk, np.uint8)
    ends = text == ord("\n" if b"\n" in chunk else "\r")
    if b'"' in chunk:
        within = (np.cumsum(text == ord('"')) + quoted) % 2 == 1
        return np.flatnonzero(ends & ~within), bool(within[-1])
    return np.flatnonzero(ends) if not quoted else np.array([], np.intp), quoted


@contextmanager
def _fields_of_any_length() -> Iterator[None]:
    """Lift the limit of the csv module, 131,072 characters, which numpy does not have."""
    limit = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


class ParquetFile(Table):
    def __init__(self, path: Path, max_memory: int | str | None = None) -> None:
        super().__init__(path, max_memory)
        with one_line_errors(path):
            self.arrow = import_pyarrow()
            metadata = self.arrow.parquet.read_metadata(path)
            self.schema = metadata.schema.to_arrow_schema()
            self.leaves = [metadata.schema.column(i) for i in range(metadata.num_columns)]
        self.names = list(self.schema.names)

    def describe(self, names: list[str]) -> list[str]:
        return [f"{shortened(repr(name))} ({self.schema.field(name).type})" for name in names]

    def read(self, values: list[str], others: list[str]) -> tuple[list[Array], list[Column]]:
        names = dict.fromkeys(values + others)
        for leaf in self.leaves:
            if leaf.path not in names and leaf.path.split(".")[0] in names and leaf.physical_type == "BYTE_ARRAY":
                name = leaf.path.split(".")[0]
                raise self.error(f"lists must hold numbers, but {name!r} is {self.schema.field(name).type}")
        with one_line_errors(self.path):
            arrays = {name: self._array(name, column) for name, column in self._columns(list(names)).items()}
        return [arrays[name] for name in values], [_plain(arrays[name]) for name in others]

    def carried(self, names: list[str]) -> dict[str, Any]:
        with one_line_errors(self.path):
            columns = self._columns(names)
            repeated = [name for name in names if columns[name].type != self.schema.field(name).type]
            self.check_memory(sum(_num_bytes_repeated(columns[name]) for name in repeated))
            return columns | {name: columns[name].cast(self.schema.field(name).type) for name in repeated}

    def _columns(self, names: list[str]) -> dict[str, Any]:
        wanted = set(names)
        # "logits.list.element" is a part of the column "logits"; a name may have dots, too.
        leaves = [leaf for leaf in self.leaves if leaf.path in wanted or leaf.path.split(".")[0] in wanted]
        # Texts are read as dictionaries: each text once, and an index per row. A repeated text can fill any memory.
        texts = [leaf.path for leaf in leaves if leaf.path in wanted and leaf.physical_type == "BYTE_ARRAY"]
        with self.arrow.parquet.ParquetFile(self.path, read_dictionary=texts) as file:
            if leaves:
                # Scanning needs little memory and a sixth of the time of reading. Without it, the metadata of a column
                # are not checked, and damaged ones would abort the process instead of raising an error.
                file.scan_contents(columns=[leaf.path for leaf in leaves])
            self.check_memory(_num_bytes(file.metadata, {leaf.path for leaf in leaves}))
            table = file.read(columns=names)
        return dict(zip(table.column_names, table.columns, strict=True))

    def _array(self, name: str, column: Any, width: int = 1) -> NDArray[Any]:
        """Return a column as (N,), or a column of lists of length K as (N, K)."""
        if column.null_count:
            raise self.error(f"column {name!r} is empty in row {np.asarray(column.is_null()).argmax() // width}")
        if self.arrow.types.is_dictionary(column.type):  # text or categorical
            parts = [_stripped(np.asarray(part.dictionary))[np.asarray(part.indices)] for part in column.chunks]
            return np.concatenate(parts) if parts else np.array([], object)
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


def _num_bytes(metadata: Any, paths: set[str]) -> int:
    """Return the memory that columns of a parquet file need, measured: arrow keeps what it has freed."""
    total = 0
    for i in range(metadata.num_columns):
        column = metadata.schema.column(i)
        if column.path not in paths:
            continue
        width = PARQUET_WIDTHS.get(column.physical_type, column.length)
        for group in range(metadata.num_row_groups):
            part = metadata.row_group(group).column(i)
            total += 4 * width * max(part.num_values, 0)
            if column.physical_type == "BYTE_ARRAY":
                total += 2 * max(part.total_uncompressed_size, 0)
    return total


def _num_bytes_repeated(column: Any) -> int:
    """Return the size of a column of texts if each row has a text of its own."""
    return sum(
        int(np.array([len(text) for text in part.dictionary.to_pylist()], np.int64)[np.asarray(part.indices)].sum())
        for part in column.drop_null().chunks
        if len(part)
    )


def _stripped(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array of objects (strings, dates, decimals) as stripped texts; other arrays do not change."""
    if array.dtype != object:
        return array
    texts = np.empty(len(array), object)
    texts[:] = [str(item).strip() for item in array.tolist()]
    return texts


def _plain(array: NDArray[Any]) -> Column:
    """Return an array of objects as a list of texts."""
    texts: list[str] = _stripped(array).tolist()
    return texts if array.dtype == object else array


def import_pyarrow() -> Any:
    """Import pyarrow, an optional dependency."""
    try:
        import pyarrow.compute  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError('needs pyarrow: pip install "dualfocal[parquet]"') from error
    return pyarrow
