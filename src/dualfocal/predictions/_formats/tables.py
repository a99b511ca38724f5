"""Tables as text: csv and tsv with a header line."""

import csv
import gzip
import io
import math
import re
import warnings
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dualfocal._memory import memory_limit
from dualfocal.predictions._formats.interface import (
    Content,
    Look,
    PredictionsError,
    Table,
    is_number,
    one_line_errors,
    shortened,
)
from dualfocal.tables import quantity

CHUNK = 1 << 20  # characters of text after which limits are checked again
READ_AT_ONCE = 16_000_000  # bytes of memory for the rows that numpy reads at a time
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
            with self._open() as (_, text):
                most = memory_limit(max_memory) // BYTES_PER_CHARACTER
                line = text.readline(most)
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
        limit = memory_limit(self.max_memory)
        num_rows = max(1, min(READ_AT_ONCE, limit) // self.bytes_per_row(values, others))
        contents, needed = [], 0
        for content in self._parts(values, others, num_rows):
            contents.append(content)
            needed += content.num_rows * self._bytes_of_row(values, others)
            if needed > limit:
                self.check_memory(needed, at_least=True)
        self.first_row = 0
        return _concatenated(contents, values, others)

    def chunks(self, values: list[str], others: list[str], num_rows: int) -> Iterator[Content]:
        return self._parts(values, others, num_rows, most_packed=MOST_PACKED)

    def _parts(
        self, values: list[str], others: list[str], num_rows: int, most_packed: float = math.inf
    ) -> Iterator[Content]:
        """Read columns, ``num_rows`` rows at a time; a byte of the file may hold at most ``most_packed`` characters."""
        line, row, number = 1, 0, num_rows  # lines and rows before the chunk, and rows of the chunk before
        with one_line_errors(self.path), self._open() as (stored, text):
            lines = self._lines(stored, text, most_packed)
            while number == num_rows:
                self.first_row = row
                kept: list[str] = []  # the lines of the chunk
                content = self._parse(lines, kept, line, values, others, num_rows)
                number = content.num_rows
                line, row = line + len(kept), row + number
                self.fraction = stored.tell() / self.path.stat().st_size
                if number:
                    yield content

    def bytes_per_row(self, values: list[str], others: list[str]) -> int:
        with one_line_errors(self.path), self._open() as (_, text):
            sample = text.read(SAMPLE)
        length = len(sample) // max(1, len(sample.splitlines()) - 1)
        return self._bytes_of_row(values, others) + COPIES * length

    def _bytes_of_row(self, values: list[str], others: list[str]) -> int:
        """Return the memory that a row needs, without its text."""
        unused = (len(self.names) + 1) * BYTES_PER_UNUSED
        return len(values) * BYTES_PER_VALUE + len(others) * BYTES_PER_TEXT + unused

    def looks(self) -> dict[str, Look]:
        with one_line_errors(self.path), self._open() as (_, text):
            sample = text.read(SAMPLE)
        lines = sample.splitlines()[: None if len(sample) < SAMPLE else -1]
        with _fields_of_any_length():
            rows = [row for row in csv.reader(lines[1:], delimiter=self.delimiter) if len(row) == len(self.names)]
        return {name: Look(_kind([row[i].strip() for row in rows]), 1) for i, name in enumerate(self.names)}

    def carried(self, names: list[str]) -> dict[str, Any]:
        columns: dict[str, list[str]] = {name: [] for name in names}
        place_of = {name: i for i, name in enumerate(self.names)}
        needed, limit = 0, memory_limit(self.max_memory)
        with one_line_errors(self.path):
            for _, row in self._rows():
                for name, column in columns.items():
                    column.append(row[place_of[name]])
                needed += self._bytes_of_row([], names) + len(names) * BYTES_PER_TEXT
                if needed > limit:
                    self.check_memory(needed, at_least=True)
        return columns

    def _parse(
        self, lines: Iterator[str], kept: list[str], line: int, values: list[str], others: list[str], num_rows: int
    ) -> Content:
        """Read columns of some rows with numpy, or if there are empty cells, from the fields of each row.

        Args:
            lines: the lines that were not read yet.
            kept: gets the lines that are read.
            line: number of lines before these.
            values: columns of numbers.
            others: columns of text.
            num_rows: number of rows to read.
        """
        # Unused columns are read too, truncated, so that a row with too many fields cannot shift the others.
        kind_of = dict.fromkeys(values, "f8") | dict.fromkeys(others, "O")
        kinds = [kind_of.get(name, "U1") for name in self.names]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of numpy, about empty lines, and if there are no rows
            try:
                table = np.loadtxt(
                    self._keep(lines, kept, num_rows),
                    dtype=[(f"f{i}", kind) for i, kind in enumerate(kinds)],
                    delimiter=self.delimiter,
                    quotechar='"',
                    comments=None,
                    max_rows=num_rows,
                    ndmin=1,
                )
            except PredictionsError:  # of the lines
                raise
            except ValueError:
                again = chain(tuple(kept), self._keep(lines, kept, num_rows))
                content = self._read_slowly(values, others, islice(self._split(again, line), num_rows))
                if not content.missing:  # the cells are fine: numpy has another reason
                    raise
                return content
        column = {name: table[f"f{i}"] for i, name in enumerate(self.names)}
        texts = {name: [text.strip() for text in column[name].tolist()] for name in others}
        # Copy, because torch cannot read one field of a record array.
        return Content({name: column[name].copy() for name in values}, {**texts}, _empty(texts))

    def _read_slowly(self, values: list[str], others: list[str], rows: Iterator[tuple[int, list[str]]]) -> Content:
        """Read a table with empty cells, or raise an error that names the bad line; numpy can do neither."""
        numbers = {name: array("d") for name in values}
        texts: dict[str, list[str]] = {name: [] for name in others}
        place_of = {name: i for i, name in enumerate(self.names)}
        for line, row in rows:
            if len(row) != len(self.names):
                raise self.error(f"line {line} has {quantity(len(row), 'field')}, but the header has {len(self.names)}")
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
        return Content({**columns}, {**texts}, missing | _empty(texts))

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the fields of each row, and the line where it ends."""
        with self._open() as (stored, text):
            yield from self._split(self._lines(stored, text, math.inf), 1)

    def _split(self, lines: Iterable[str], before: int) -> Iterator[tuple[int, list[str]]]:
        """Yield the fields of the rows of a text, and the line where each ends; ``before`` lines precede the text."""
        with _fields_of_any_length():
            reader = csv.reader(lines, delimiter=self.delimiter)
            yield from ((before + reader.line_num, row) for row in reader if row)

    def _lines(self, stored: IO[bytes], text: IO[str], most_packed: float) -> Iterator[str]:
        """Yield the lines below the header, of which none may be too long for the memory."""
        most = memory_limit(self.max_memory) // BYTES_PER_CHARACTER
        length = len(text.readline(most))  # the header
        checked = 0  # characters after which the size in the file was checked
        while line := text.readline(most):
            if len(line) == most:
                self.check_memory((most + 1) * BYTES_PER_CHARACTER, at_least=True)
            length += len(line)
            if length > checked + CHUNK:
                checked = length
                if length > CHUNK + most_packed * stored.tell():
                    raise self.error(f"unpacks to more than {most_packed} times its size: is it made to harm?")
            yield line

    def _keep(self, lines: Iterator[str], kept: list[str], num_rows: int) -> Iterator[str]:
        """Yield lines and add them to a list, unless they are too many for the memory: a quote may not be closed."""
        needed = sum(map(len, kept)) + len(kept) * BYTES_PER_TEXT
        limit = memory_limit(self.max_memory) + num_rows * BYTES_PER_TEXT  # one line per row is expected
        for line in lines:
            needed += len(line) + BYTES_PER_TEXT
            if needed > limit:
                self.check_memory(needed, at_least=True)
            kept.append(line)
            yield line

    @contextmanager
    def _open(self) -> Iterator[tuple[IO[bytes], IO[str]]]:
        """Open the file, and its text, which may be packed."""
        with self.path.open("rb") as stored:
            unpacked = gzip.GzipFile(fileobj=stored) if self.packed else stored
            yield stored, io.TextIOWrapper(unpacked, encoding="utf-8-sig", newline="")


def _concatenated(contents: list[Content], values: list[str], others: list[str]) -> Content:
    """Return the rows of several parts of a table as one."""
    columns = {name: np.concatenate([np.empty(0), *(part.values[name] for part in contents)]) for name in values}
    texts = {name: [text for part in contents for text in part.others[name]] for name in others}
    missing = {}
    for name in dict.fromkeys(name for part in contents for name in part.missing):
        masks = [part.missing.get(name, np.zeros(part.num_rows, bool)) for part in contents]
        missing[name] = np.concatenate(masks)
    return Content({**columns}, {**texts}, missing)


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
