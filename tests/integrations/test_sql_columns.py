"""Columns of a table are found by their names and types, and errors hide passwords: no database is needed."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dualfocal.cli import main
from dualfocal.integrations.sql import PredictionTable
from dualfocal.predictions import PredictionsError


class Described:
    """A connection to a table of which only the columns are known: names and types, as a driver describes them."""

    def __init__(self, *columns: tuple[str, object]) -> None:
        self.description = columns
        self.queries: list[str] = []

    def execute(self, query: str) -> "Described":
        self.queries.append(query)
        return self

    def fetchall(self) -> list[tuple[int]]:
        return [(3,)]  # the length of arrays


@pytest.mark.parametrize("query", ["SELECT 1", " select 1 ", "WITH a AS (SELECT 1) SELECT 1", "FROM t", "(SELECT 1)"])
def test_a_query_is_put_in_parentheses(query: str) -> None:
    connection = Described(("p0", "FLOAT"), ("p1", "FLOAT"), ("y", "INTEGER"))
    PredictionTable.find(connection, query + "; ")
    PredictionTable.find(connection, "selection")
    assert f"FROM (\n{query.strip()}\n) AS" in connection.queries[0]
    assert 'FROM "selection" AS' in connection.queries[1]


def test_names_without_a_meaning_are_refused() -> None:
    with pytest.raises(ValueError, match="null character"):
        PredictionTable.find(Described(("p0", "FLOAT")), "a\0b")


TYPES = {"FLOAT": "float32", 700: "float32", "DOUBLE": "float64", 701: "float64"}
TYPES |= dict.fromkeys(["DECIMAL(5,2)", "UTINYINT", "HUGEINT", 1700], "float64")
TYPES |= dict.fromkeys(["VARCHAR", "BOOLEAN", "ENUM('INT')", 25])  # no numbers


@pytest.mark.parametrize(("code", "dtype"), TYPES.items())
def test_types_of_duckdb_and_postgresql(code: object, dtype: str | None) -> None:
    connection = Described(("prob_0", code), ("prob_1", code), ("label", "INTEGER"))
    if dtype is None:
        with pytest.raises(PredictionsError, match="must be numbers"):
            PredictionTable.find(connection, "t")
    else:
        assert f"({dtype})" in PredictionTable.find(connection, "t").taken


@pytest.mark.parametrize(("code", "is_array"), [("FLOAT[]", True), ("FLOAT[10]", True), (1022, True), ("FLOAT", False)])
def test_a_column_may_hold_arrays(code: object, is_array: bool) -> None:
    table = PredictionTable.find(Described(("probs", code), ("label", "INTEGER")), "t")
    assert (table.is_array, table.one_score) == (is_array, not is_array)
    assert table.labels == ((0, 1, 2) if is_array else (0, 1))


def found(*names: str, **options: str) -> PredictionTable:
    """A table with these columns: numbers, and the labels y."""
    columns = [(name, "INTEGER" if name == "y" else "DOUBLE") for name in names]
    return PredictionTable.find(Described(*columns), "t", **options)


def test_columns_are_found_as_in_files() -> None:
    table = found("id", "p2", "p1", "y", "region", "patient", group="region", cluster="patient")
    assert (table.taken, table.labels) == (
        "probabilities from 2 columns 'p1' to 'p2' (float64), labels from 'y' (0 = 1, 1 = 2), groups from 'region', "
        "clusters from 'patient'",
        (1, 2),
    )
    with pytest.raises(PredictionsError, match="give the columns in class order"):
        found("prob_dog", "prob_cat", "y")
    with pytest.raises(PredictionsError, match="--probs"):
        found("cat", "dog", "label")
    with pytest.raises(PredictionsError, match="no column 'x'"):
        found("p0", "p1", "y", target="x")
    with pytest.raises(PredictionsError, match="no column 'x'"):
        found("p0", "p1", "y", cluster="x")


def test_class_names_say_what_numbers_mean() -> None:
    assert found("prob_0", "prob_1", "y", class_names="dog,cat").labels == (0, 1)
    table = found("prob_dog", "prob_cat", "y", class_names="dog,cat")
    assert (table.labels, table.columns.class_names) == ((0, 1), ("dog", "cat"))
    assert found("prob_0", "prob_1", "y", class_names="7,-1").labels == (7, -1)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The message of ``dualfocal evaluate ... --sql`` if it is refused."""
    with pytest.raises(SystemExit):
        main(["evaluate", *arguments, "--sql", "SELECT 1"])
    return capsys.readouterr().err


def test_a_missing_driver_names_the_extra(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert 'pip install "dualfocal[sql]"' in refusal(capsys)


PLACES = {
    "postgresql://ann:p@ss/w:ord@host/db": "postgresql://ann:***@host/db",
    "postgresql://h/db?password=secret&x=1": "postgresql://h/db?password=***&x=1",
    "host=h user=ann password=secret": "host=h user=ann password=***",
}


@pytest.mark.parametrize("place", PLACES)
def test_passwords_are_hidden(capsys, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """With drivers that cannot connect."""

    def connect(place: str) -> None:
        raise OSError(f"no answer from {place}")

    for name in ("duckdb", "psycopg"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(Error=OSError, connect=connect))
    message = " ".join(refusal(capsys, place).split())
    assert PLACES[place] in message
    assert "secret" not in message
    assert "w:ord" not in message


def test_a_prediction_file_is_no_database(capsys, tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="pip install duckdb")
    path = tmp_path / "a.csv"
    path.write_text("prob_0,prob_1,label\n0.5,0.5,1\n")
    assert re.search(r"is not a DuckDB file; .* SELECT . FROM '.*a.csv'", refusal(capsys, str(path)))
