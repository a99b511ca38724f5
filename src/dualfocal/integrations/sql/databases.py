"""Connections to DuckDB and PostgreSQL: opened read-only where possible, read in batches, with errors of one line."""

import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dualfocal._extras import import_extra
from dualfocal.integrations.sql._query import Field, select

POSTGRESQL = ("postgresql://", "postgres://")
LONGEST_MESSAGE = 2000
BATCH_BYTES = 64_000_000
# Bytes per value and per row while a batch is read: of Arrow and numpy arrays, and of the Python objects of psycopg.
ARROW, OBJECTS = (16, 256), (64, 512)

Connection = Any  # an open connection of duckdb or psycopg


class DatabaseError(ValueError):
    """A database cannot be opened, or refuses a query; the message is one line, without passwords."""


@contextmanager
def open_database(place: str | None) -> Iterator[Connection]:
    """Connect to a database for reading.

    Args:
        place: a DuckDB file, or a ``postgresql://`` URL (None: DuckDB in memory, for queries of parquet or csv files).

    Raises:
        DatabaseError: the driver is not installed, the database cannot be opened, or it refuses a query of the ``with``
            block.
    """
    is_postgresql = place is not None and place.startswith(POSTGRESQL)
    try:
        import_extra("pyarrow")
        driver = import_extra("psycopg" if is_postgresql else "duckdb")
    except ImportError as error:
        raise DatabaseError(str(error)) from None
    if is_postgresql:
        with one_line_errors(driver.Error, place), driver.connect(place) as connection:
            connection.read_only = True
            yield connection
        return
    if place is not None and not Path(place).is_file():
        raise DatabaseError(
            f"{without_password(place)}: no such DuckDB file; give a DuckDB file, or postgresql://USER@HOST/DATABASE"
        )
    if place is not None and not _is_database(Path(place)):
        raise DatabaseError(
            f"{place}: is not a DuckDB file; to read prediction files, name them in the query, and give no database: "
            f"SELECT * FROM '{place}'"
        )
    read_only = place is not None
    with one_line_errors(driver.Error, place), driver.connect(place or ":memory:", read_only=read_only) as database:
        yield database


def run(connection: Connection, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a small result."""
    rows: list[tuple[Any, ...]] = connection.execute(query).fetchall()
    return rows


def fetch_batches(connection: Connection, fields: Sequence[Field], source: str, num_values: int) -> Generator[Any]:
    """Read columns of a table as record batches of Arrow, in one query.

    Args:
        connection: the database.
        fields: the columns.
        source: a table or a SELECT.
        num_values: number of logits or probabilities of a row, which decides the number of rows of a batch.
    """
    pyarrow = import_extra("pyarrow")
    is_duckdb = hasattr(connection, "sql")
    per_value, per_row = ARROW if is_duckdb else OBJECTS
    num_rows = max(1, BATCH_BYTES // (per_value * num_values + per_row))
    query = select(fields, source)
    with one_line_errors((pyarrow.ArrowException, OSError), None):  # errors of the database in the middle of the rows
        if is_duckdb:
            with connection.sql(query).to_arrow_reader(num_rows) as reader:
                yield from reader
            return
        types = [pyarrow.type_for_alias(field.type) for field in fields]
        types = [pyarrow.list_(kind) if field.is_array else kind for field, kind in zip(fields, types, strict=True)]
        # A cursor with a name stays on the server: without one, psycopg fetches all rows at once.
        with connection.cursor(name="dualfocal", withhold=connection.autocommit) as cursor:
            cursor.execute(query)
            while rows := cursor.fetchmany(num_rows):
                columns = zip(*rows, strict=True)
                arrays = [pyarrow.array(column, kind) for column, kind in zip(columns, types, strict=True)]
                yield pyarrow.record_batch(arrays, [field.name for field in fields])


def joined(batches: Iterable[Any]) -> Iterator[Any]:
    """Join record batches, whose Arrow arrays are smaller than the objects that they were made of, to full size."""
    pyarrow = import_extra("pyarrow")
    waiting: list[Any] = []
    for batch in batches:
        waiting.append(batch)
        if sum(part.nbytes for part in waiting) >= BATCH_BYTES:
            yield from pyarrow.Table.from_batches(waiting).combine_chunks().to_batches()
            waiting = []
    if waiting:
        yield from pyarrow.Table.from_batches(waiting).combine_chunks().to_batches()


def _is_database(path: Path) -> bool:
    """Whether a file starts like one of DuckDB, or of SQLite, which DuckDB reads, too."""
    with path.open("rb") as file:
        start = file.read(16)
    return start[8:12] == b"DUCK" or start.startswith(b"SQLite format 3")


@contextmanager
def one_line_errors(kind: type[Exception] | tuple[type[Exception], ...], place: str | None) -> Iterator[None]:
    """Turn the errors of a driver into a DatabaseError whose message is one line."""
    try:
        yield
    except kind as error:
        text = " ".join(line.strip() for line in str(error).splitlines() if line.strip(" ^"))
        where = "" if place is None else f"{place}: "
        raise DatabaseError(without_password(where + (text or type(error).__name__))[:LONGEST_MESSAGE]) from None


def without_password(text: str) -> str:
    """Hide passwords of connection strings in a text.

    >>> without_password("postgresql://ann:secret@host/db?password=secret")
    'postgresql://ann:***@host/db?password=***'
    """
    hidden = re.sub(r"(://[^:/@\s]*):\S*@", r"\1:***@", text)
    return re.sub(r"(?i)(password=)[^&\s]+", r"\1***", hidden)
