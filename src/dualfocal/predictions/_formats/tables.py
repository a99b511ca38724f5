"""Tables as text: csv and tsv with a header line."""

import csv
import gzip
import io
import math
import re
import warnings
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dualfocal._memory import memory_limit
from dualfocal.predictions._formats.interface import Content, Look, Table, is_number, one_line_errors, shortened

CHUNK = 1 << 20  # bytes of text that are measured at a time
BYTES_PER_VALUE = 16  # of a number: in the table that numpy reads and in a column
BYTES_PER_TEXT = 80  # of a short string and a reference to it
BYTES_PER_UNUSED = 4  # one character
BYTES_PER_CHARACTER = 8  # of the longest row: four, in a buffer that doubles
COPIES = 4  # of the text of a chunk, with the objects that numpy makes of its lines
BYTES_PER_NAME = 1000  # of a column: its name, and its entries in the tables of names
MOST_PACKED = 200  # characters per byte of a gzipped table that is read in one pass; more is made to harm
SAMPLE = 1 << 16  # characters of the table that show what its columns look like
MISSING = ("", "na", "n/a", "nan", "none", "null")  # instead of a number


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

    def line(self, row: int) -> str:
        with one_line_errors(self.path):
            return next(f"line {line}" for i, (line, _) in enumerate(self._rows()) if i == row)

    def read(self, values: list[str], others: list[str]) -> Content:
        self._check_rows(len(values) * BYTES_PER_VALUE + len(others) * BYTES_PER_TEXT)
        with one_line_errors(self.path), self._open() as file:
            # numpy reads a path faster than an open file
            return self._parse(file if self.packed else str(self.path), self._rows, values, others, skip=1)

    def chunks(self, values: list[str], others: list[str], num_rows: int) -> Iterator[Content]:
        row, lines = 0, 1  # before the chunk; the header is a line
        for text, count in self._blocks(num_rows):
            self.first_row = row
            with one_line_errors(self.path):
                content = self._parse(_lines(text), partial(self._rows_of, text, lines), values, others)
                if count != (got := len([*content.values, *content.others][0])):
                    raise self.error(
                        f"the {count:,} rows from line {lines + 1} on are read as {got:,}: check the quotes"
                    )
            row, lines = row + count, lines + text.count(b"\n" if b"\n" in text else b"\r")
            yield content

    def bytes_per_row(self, values: list[str], others: list[str]) -> int:
        with one_line_errors(self.path), self._open() as file:
            sample = file.read(SAMPLE)
        length = len(sample) // max(1, len(sample.splitlines()) - 1)
        numbers = len(values) * BYTES_PER_VALUE + len(others) * BYTES_PER_TEXT
        return numbers + (len(self.names) + 1) * BYTES_PER_UNUSED + COPIES * length

    def _parse(
        self,
        file: Any,
        rows: Callable[[], Iterator[tuple[int, list[str]]]],
        values: list[str],
        others: list[str],
        skip: int = 0,
    ) -> Content:
        """Read columns of a text with numpy, or if there are empty cells, from the fields of its rows."""
        # Unused columns are read too, truncated, so that a row with too many fields cannot shift the others.
        kind_of = dict.fromkeys(values, "f8") | dict.fromkeys(others, "O")
        kinds = [kind_of.get(name, "U1") for name in self.names]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of numpy, if there are no rows: an error is raised later
            try:
                table = np.loadtxt(
                    file,
                    dtype=[(f"f{i}", kind) for i, kind in enumerate(kinds)],
                    delimiter=self.delimiter,
                    quotechar='"',
                    comments=None,
                    skiprows=skip,
                    ndmin=1,
                    encoding="utf-8-sig",
                )
            except ValueError:
                content = self._read_slowly(values, others, rows())
                if not content.missing:  # the cells are fine: numpy has another reason
                    raise
                return content
        column = {name: table[f"f{i}"] for i, name in enumerate(self.names)}
        # Copy, because torch cannot read one field of a record array.
        texts = {name: [text.strip() for text in column[name].tolist()] for name in others}
        return Content([column[name].copy() for name in values], [*texts.values()], _empty(texts))

    def looks(self) -> dict[str, Look]:
        with one_line_errors(self.path), self._open() as file:
            sample = file.read(SAMPLE)
        lines = sample.splitlines()[: None if len(sample) < SAMPLE else -1]
        with _fields_of_any_length():
            rows = [row for row in csv.reader(lines[1:], delimiter=self.delimiter) if len(row) == len(self.names)]
        return {name: Look(_kind([row[i].strip() for row in rows]), 1) for i, name in enumerate(self.names)}

    def carried(self, names: list[str]) -> dict[str, Any]:
        place_of = {name: i for i, name in enumerate(self.names)}
        places = [place_of[name] for name in names]
        self._check_rows(2 * len(names) * BYTES_PER_TEXT)
        with one_line_errors(self.path):
            rows = [[row[place] for place in places] for _, row in self._rows()]
        return {name: [row[i] for row in rows] for i, name in enumerate(names)}

    def _read_slowly(self, values: list[str], others: list[str], rows: Iterator[tuple[int, list[str]]]) -> Content:
        """Read a table with empty cells, or raise an error that names the bad line; numpy can do neither."""
        numbers = {name: array("d") for name in values}
        texts: dict[str, list[str]] = {name: [] for name in others}
        place_of = {name: i for i, name in enumerate(self.names)}
        for line, row in rows:
            if len(row) != len(self.names):
                raise self.error(f"line {line} has {len(row)} fields, but the header has {len(self.names)}")
            for name, column in numbers.items():
                text = row[place_of[name]].strip()
                if text.casefold() not in MISSING and not is_number(text):
                    hint = "; write decimal points, not commas" if is_number(text.replace(",", ".", 1)) else ""
                    raise self.error(
                        f"column {name!r} must hold numbers, got {shortened(repr(text))} in line {line}{hint}"
                    )
                column.append(math.nan if text.casefold() in MISSING else float(text))
            for name, fields in texts.items():
                fields.append(row[place_of[name]].strip())
        columns = {name: np.array(column) for name, column in numbers.items()}
        missing = {name: np.isnan(column) for name, column in columns.items() if np.isnan(column).any()}
        return Content([*columns.values()], [*texts.values()], missing | _empty(texts))

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

    def _blocks(self, num_rows: int) -> Iterator[tuple[bytes, int]]:
        """Yield parts of the text with ``num_rows`` rows each (the last has the rest), and the number of their rows."""
        parts: list[bytes] = []
        rows = 0
        for text in self._whole_rows():
            ends, counts = _count_rows(text)
            start = counted = 0
            while rows + counts[-1] - counted >= num_rows:
                counted += num_rows - rows
                stop = int(ends[np.searchsorted(counts, counted)])
                yield b"".join([*parts, text[start:stop]]), num_rows
                parts, rows, start = [], 0, stop
            parts.append(text[start:])
            self.check_memory(sum(map(len, parts)), at_least=True)  # rows may be longer than those of the sample
            rows += int(counts[-1]) - counted
        if rows:
            yield b"".join(parts), rows

    def _whole_rows(self) -> Iterator[bytes]:
        """Yield the text below the header, in parts that end where a row ends."""
        tail, mark, total = b"", b"", 0
        with (
            one_line_errors(self.path),
            self.path.open("rb") as stored,
            gzip.open(stored) if self.packed else nullcontext(stored) as file,
        ):
            size = self.path.stat().st_size
            while chunk := file.read(CHUNK):
                total += len(chunk)
                if total > CHUNK + MOST_PACKED * stored.tell():
                    raise self.error(f"unpacks to more than {MOST_PACKED} times its size: is it made to harm?")
                self.fraction = stored.tell() / size
                tail += chunk
                ends, _ = _row_ends(tail, False, mark)
                if len(ends):
                    start = 0 if mark else int(ends[0]) + 1  # the first row is the header
                    mark = tail[ends[0] : ends[0] + 1]
                    text, tail = tail[start : ends[-1] + 1], tail[ends[-1] + 1 :]
                    if text:
                        yield text
                self.check_memory(len(tail) * BYTES_PER_CHARACTER, at_least=True)
        if mark and tail:
            yield tail + mark

    def _rows_of(self, text: bytes, lines: int) -> Iterator[tuple[int, list[str]]]:
        """Yield number and fields of the rows of a part of the text that starts after so many lines."""
        with _fields_of_any_length():
            reader = csv.reader(_lines(text), delimiter=self.delimiter)
            yield from ((lines + reader.line_num, row) for row in reader if row)

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        with self._open() as file, _fields_of_any_length():
            reader = csv.reader(file, delimiter=self.delimiter)
            next(reader)
            yield from ((reader.line_num, row) for row in reader if row)

    def _open(self) -> IO[str]:
        return io.TextIOWrapper(self._open_bytes(), encoding="utf-8-sig", newline="")

    def _open_bytes(self) -> gzip.GzipFile | io.BufferedReader:
        return gzip.open(self.path) if self.packed else self.path.open("rb")


def _lines(text: bytes) -> IO[str]:
    return io.TextIOWrapper(io.BytesIO(text), encoding="utf-8", newline="")


def _count_rows(text: bytes) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the ends of the rows of a text, and the number of rows up to each end; empty lines are no rows."""
    ends = _row_ends(text, False)[0] + 1
    starts = np.concatenate([[0], ends[:-1]])
    lengths = ends - starts
    empty = (lengths == 1) | ((lengths == 2) & (np.frombuffer(text, np.uint8)[starts] == ord("\r")))
    return (ends, np.cumsum(~empty)) if len(ends) else (np.array([len(text)]), np.array([1]))  # a quote is not closed


def _row_ends(chunk: bytes, quoted: bool, mark: bytes = b"") -> tuple[NDArray[np.intp], bool]:
    """Return where rows end in a part of a text, and whether the part ends within quotes, where lines are no rows.

    ``mark`` is the last character of each row; by default a line feed, or a carriage return if there is none.
    """
    text = np.frombuffer(chunk, np.uint8)
    ends = text == ord(mark or ("\n" if b"\n" in chunk else "\r"))
    if b'"' in chunk:
        within = (np.cumsum(text == ord('"')) + quoted) % 2 == 1
        return np.flatnonzero(ends & ~within), bool(within[-1])
    return np.flatnonzero(ends) if not quoted else np.array([], np.intp), quoted


def _empty(texts: dict[str, list[str]]) -> dict[str, NDArray[np.bool_]]:
    """Return the empty rows of columns that have any."""
    return {name: np.array([text == "" for text in column]) for name, column in texts.items() if "" in column}


def _kind(texts: list[str]) -> str:
    """Return the kind of a column, for ``Look``."""
    filled = [text for text in texts if text]
    if not filled or not all(map(is_number, filled)):
        return "text"
    return "integer" if all(text.lstrip("-").isdecimal() for text in filled) else "float"


@contextmanager
def _fields_of_any_length() -> Iterator[None]:
    """Lift the limit of the csv module, 131,072 characters, which numpy does not have."""
    limit = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(limit)
