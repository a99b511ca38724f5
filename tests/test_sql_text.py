"""SQL is built without a database: names and texts are quoted, arguments are checked, columns have types."""

import re
from pathlib import Path

import pytest

from dualfocal.integrations.sql import reduction_query
from dualfocal.integrations.sql._quoting import identifier, literal, relation
from dualfocal.integrations.sql._types import column_type
from dualfocal.integrations.sql.databases import open_database, without_password
from dualfocal.predictions import PredictionsError
from dualfocal.predictions.columns import find_columns

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
    assert (identifier('a"b'), literal("a'b"), literal("a\\'b")) == ('"a""b"', "'a''b'", "E'a\\\\''b'")
    for quote in (identifier, literal):
        with pytest.raises(ValueError, match="null character"):
            quote("a\0b")


@pytest.mark.parametrize("query", ["SELECT 1", " select 1 ", "WITH a AS (SELECT 1) SELECT 1", "FROM t", "(SELECT 1)"])
def test_a_query_is_put_in_parentheses(query: str) -> None:
    assert relation(query + "; ") == f"(\n{query.strip()}\n)"


def test_a_table_is_quoted_part_by_part() -> None:
    assert relation("selection") == '"selection"'
    assert relation("main.my table") == '"main"."my table"'


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


def test_types_of_duckdb_and_postgresql() -> None:
    codes = [
        "FLOAT",
        "DOUBLE",
        "DECIMAL(5,2)",
        "UTINYINT",
        "HUGEINT",
        "VARCHAR",
        "BOOLEAN",
        "ENUM('INT')",
        700,
        701,
        25,
    ]
    names = [column_type(code).name for code in codes]
    assert names == ["float32", "float64", *["number"] * 3, "text", "boolean", "text", "float32", "float64", "text"]
    assert [column_type(code).is_array for code in ("FLOAT[]", "FLOAT[10]", 1022, "FLOAT")] == [True, True, True, False]


def test_columns_are_found_as_in_files() -> None:
    columns = find_columns("t", ["id", "p2", "p1", "y", "region"], group="region")
    assert (columns.values, columns.class_names, columns.target) == (("p1", "p2"), ("1", "2"), "y")
    assert not find_columns("t", ["prob_dog", "prob_cat", "y"]).numbers_are_positions
    with pytest.raises(PredictionsError, match="--probs"):
        find_columns("t", ["cat", "dog", "label"])
    with pytest.raises(PredictionsError, match="no column 'x'"):
        find_columns("t", ["p0", "p1", "y"], target="x")


def test_passwords_are_hidden() -> None:
    texts = ["postgresql://ann:p@ss/w:ord@host/db", "host=h password=secret", "postgresql://h/db?password=secret&x=1"]
    hidden = ["postgresql://ann:***@host/db", "host=h password=***", "postgresql://h/db?password=***&x=1"]
    assert [without_password(text) for text in texts] == hidden


def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    with pytest.raises(ValueError, match=re.escape('pip install "dualfocal[sql]"')), open_database(None):
        pass


def test_a_place_that_is_no_database_is_named_without_its_password() -> None:
    place = "host=h user=ann password=secret"
    pytest.importorskip("duckdb", reason="pip install duckdb")
    with pytest.raises(ValueError, match="no such DuckDB file") as error, open_database(place):
        pass
    assert "secret" not in str(error.value)


def test_a_prediction_file_is_no_database(tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="pip install duckdb")
    path = tmp_path / "a.csv"
    path.write_text("prob_0,prob_1,label\n0.5,0.5,1\n")
    with pytest.raises(ValueError, match=r"is not a DuckDB file; .* SELECT . FROM '.*a.csv'"), open_database(str(path)):
        pass
