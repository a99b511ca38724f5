"""SQL is built without a database: names and texts are quoted, arguments are checked, columns have types."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dualfocal.cli import main
from dualfocal.integrations.sql import PredictionTable, reduction_query
from dualfocal.predictions import PredictionsError

HOSTILE = 'x"; DROP TABLE victims; --'


def without_quoted(query: str) -> str:
    """Return a query without its quoted names and texts."""
    return re.sub(r""""(?:[^"]|"")*"|'(?:[^']|'')*'""", "", query)


def test_hostile_names_and_labels_stay_in_quotes() -> None:
    names = {"values": [HOSTILE, "b'"], "target": f"t{HOSTILE}", "group": f"g{HOSTILE}"}
    query = reduction_query(f"s{HOSTILE}", class_labels=["it's'; DROP TABLE victims; --", "b"], **names)
    assert "DROP" in query
    assert "DROP" not in without_quoted(query)
    assert ";" not in without_quoted(query)


def test_quoting() -> None:
    query = reduction_query('main.my "table"', ['a"b', "c"], "y", class_labels=["it's", "back\\slash"])
    for text in ('"main"."my ""table"""', '"a""b"', "'it''s'", "E'back\\\\slash'"):
        assert text in query
    for options in ({"values": ["a\0b", "c"]}, {"values": ["a", "b"], "class_labels": ["a\0b", "c"]}):
        with pytest.raises(ValueError, match="null character"):
            reduction_query("t", target="y", **options)


@pytest.mark.parametrize("query", ["SELECT 1", " select 1 ", "WITH a AS (SELECT 1) SELECT 1", "FROM t", "(SELECT 1)"])
def test_a_query_is_put_in_parentheses(query: str) -> None:
    assert f"(\n{query.strip()}\n)" in reduction_query(query + "; ", ["a", "b"], "y")
    assert '"selection"' in reduction_query("selection", ["a", "b"], "y")


@pytest.mark.parametrize(
    "arguments",
    [
        {"values": []},
        {"values": ["a", "b"], "array_length": 2},
        {"values": ["a"], "array_length": 1},
        {"values": ["a", "b"], "class_labels": ["a"]},
        {"values": ["a", "b"], "class_labels": ["a", "a"]},
        {"values": ["a", "b"], "class_labels": ["a", 1]},
        {"values": ["a", "b"], "dtype": "float16"},
        {"values": ["a", "b"], "input": "scores"},
        {"values": ["a", "b"], "num_bins": 0},
        {"values": ["a", "b"], "dialect": "oracle"},
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError), match="must"):
        reduction_query("t", target="y", **arguments)


class Described:
    """A connection to a table of which only the columns are known: names and types, as a driver describes them."""

    def __init__(self, *columns: tuple[str, object]) -> None:
        self.description = columns

    def execute(self, query: str) -> "Described":
        return self

    def fetchall(self) -> list[tuple[int]]:
        return [(3,)]  # the length of arrays


TYPES = {"FLOAT": "float32", 700: "float32", "DOUBLE": "float64", 701: "float64"}
TYPES |= dict.fromkeys(["DECIMAL(5,2)", "UTINYINT", "HUGEINT"], "float64")
TYPES |= dict.fromkeys(["VARCHAR", "BOOLEAN", "ENUM('INT')", 25])  # no numbers


@pytest.mark.parametrize(("code", "dtype"), TYPES.items())
def test_types_of_duckdb_and_postgresql(code: object, dtype: str | None) -> None:
    connection = Described(("prob_0", code), ("prob_1", code), ("label", "INTEGER"))
    if dtype is None:
        with pytest.raises(PredictionsError, match="must be numbers"):
            PredictionTable.find(connection, "t")
    else:
        assert PredictionTable.find(connection, "t").dtype == dtype


@pytest.mark.parametrize(("code", "length"), [("FLOAT[]", 3), ("FLOAT[10]", 3), (1022, 3), ("FLOAT", None)])
def test_a_column_may_hold_arrays(code: object, length: int | None) -> None:
    table = PredictionTable.find(Described(("probs", code), ("label", "INTEGER")), "t")
    assert table.array_length == length


def test_columns_are_found_as_in_files() -> None:
    def found(*names: str, **options: str) -> PredictionTable:
        columns = [(name, "INTEGER" if name == "y" else "DOUBLE") for name in names]
        return PredictionTable.find(Described(*columns), "t", **options)

    table = found("id", "p2", "p1", "y", "region", group="region")
    assert (table.taken, table.class_labels) == (
        "probabilities from 2 columns 'p1' to 'p2' (float64), labels from 'y' (0 = 1, 1 = 2), groups from 'region'",
        (1, 2),
    )
    with pytest.raises(PredictionsError, match="give the columns in class order"):
        found("prob_dog", "prob_cat", "y")
    with pytest.raises(PredictionsError, match="--probs"):
        found("cat", "dog", "label")
    with pytest.raises(PredictionsError, match="no column 'x'"):
        found("p0", "p1", "y", target="x")


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
