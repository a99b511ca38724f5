"""Connections to DuckDB and PostgreSQL, read-only where possible, and their errors as one line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dualfocal._extras import how_to_install

POSTGRESQL = ("postgresql://", "postgres://")
LONGEST_MESSAGE = 2000


Connection = Any  # an open connection of a DB-API driver: duckdb, psycopg, ...


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
    try:
        if place is not None and place.startswith(POSTGRESQL):
            import psycopg
        else:
            import duckdb
    except ModuleNotFoundError as error:
        raise DatabaseError(how_to_install(error)) from None
    if place is not None and place.startswith(POSTGRESQL):
        with one_line_errors(psycopg.Error, place), psycopg.connect(place) as connection:
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
    with one_line_errors(duckdb.Error, place), duckdb.connect(place or ":memory:", read_only=read_only) as database:
        yield database


def _is_database(path: Path) -> bool:
    """Whether a file starts like one of DuckDB, or of SQLite, which DuckDB reads, too."""
    with path.open("rb") as file:
        start = file.read(16)
    return start[8:12] == b"DUCK" or start.startswith(b"SQLite format 3")


@contextmanager
def one_line_errors(kind: type[Exception], place: str | None) -> Iterator[None]:
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
