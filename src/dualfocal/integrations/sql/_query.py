"""The text of a query, with all names quoted, and the types of columns."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dualfocal.checks import listed
from dualfocal.predictions import PredictionsError
from dualfocal.predictions.columns import PredictionColumns

QUERY = re.compile(r"\s*(?:(?:select|with|from|values|table)\b|\()", re.IGNORECASE)
# PostgreSQL describes types by numbers, which are fixed.
POSTGRESQL = {
    **{16: "boolean", 700: "float32", 701: "float64", 1700: "decimal", 20: "int64", 21: "int64", 23: "int64"},
    **{1021: "float32[]", 1022: "float64[]", 1231: "decimal[]"},
}
DUCKDB = {"BOOLEAN": "boolean", "FLOAT": "float32", "DOUBLE": "float64"}
DUCKDB_INTEGER = re.compile(r"U?(TINY|SMALL)INT|U?INTEGER|BIGINT")
DUCKDB_DECIMAL = re.compile(r"DECIMAL\b.*|UBIGINT|U?HUGEINT")
SQL_TYPES = {"float32": "REAL", "float64": "DOUBLE PRECISION", "int64": "BIGINT", "string": "VARCHAR"}


@dataclass(frozen=True)
class ColumnType:
    """The type of a column: float32, float64, int64, decimal, boolean or text (everything else), or arrays of these."""

    name: str
    is_array: bool
    description: str  # for messages


@dataclass(frozen=True)
class Field:
    """A column of a query: its name in the table, its name in the result, and its type, a key of ``SQL_TYPES``."""

    source: str
    name: str
    type: str
    is_array: bool = False

    @property
    def text(self) -> str:
        """The expression for a SELECT."""
        kind = SQL_TYPES[self.type] + "[]" * self.is_array
        return f"CAST({identifier(self.source)} AS {kind}) AS {identifier(self.name)}"


def select(fields: Sequence[Field], source: str) -> str:
    """Return the query for some columns of a table.

    >>> print(select([Field("Prob cat", "value_0", "float32")], "predictions"))
    SELECT CAST("Prob cat" AS REAL) AS "value_0"
    FROM "predictions" AS predictions
    """
    return f"SELECT {', '.join(field.text for field in fields)}\nFROM {relation(source)} AS predictions"


def identifier(name: str) -> str:
    """Quote the name of a column or table.

    >>> identifier('a"b')
    '"a""b"'
    """
    if not name or "\0" in name:
        raise ValueError(f"a name in SQL must have at least one character and no null character, got {name!r}")
    return '"' + name.replace('"', '""') + '"'


def relation(source: str) -> str:
    """Return a query in parentheses, or the quoted name of a table, ``table`` or ``schema.table``.

    >>> relation("main.predictions"), relation("SELECT * FROM predictions;")
    ('"main"."predictions"', '(\\nSELECT * FROM predictions\\n)')
    """
    if QUERY.match(source):
        return f"(\n{source.strip().rstrip('; ')}\n)"  # a line break, because the query can end with a comment
    return ".".join(identifier(part) for part in source.strip().split("."))


def column_type(code: Any) -> ColumnType:
    """Return the type of a column from its type code in a DB-API description.

    >>> column_type(1021)
    ColumnType(name='float32', is_array=True, description='float32[]')
    >>> column_type("DECIMAL(10,2)").name
    'decimal'
    """
    if isinstance(code, int):
        name = POSTGRESQL.get(code, "text")
        return ColumnType(name.removesuffix("[]"), name.endswith("[]"), name)
    text = str(code).upper()
    plain = re.sub(r"\[\d*\]$", "", text)
    number = "int64" if DUCKDB_INTEGER.fullmatch(plain) else "decimal" if DUCKDB_DECIMAL.fullmatch(plain) else "text"
    return ColumnType(DUCKDB.get(plain, number), plain != text, text)


def check_numbers(place: str, columns: PredictionColumns, types: Mapping[str, ColumnType]) -> None:
    """Raise a PredictionsError unless the values are columns of numbers, or one column of arrays of numbers."""
    for name in columns.values:
        kind = types[name]
        if kind.name in ("text", "boolean") or (kind.is_array and len(columns.values) > 1):
            raise PredictionsError(f"{place}: {columns.input} must be numbers, but {name!r} is {kind.description}")


def fields_of(
    columns: PredictionColumns, types: Mapping[str, ColumnType], labels: Sequence[str | int]
) -> tuple[Field, ...]:
    """Return the fields that hold predictions, labels, groups and clusters."""
    dtype = "float32" if all(types[name].name == "float32" for name in columns.values) else "float64"
    fields = [Field(name, f"value_{k}", dtype, types[name].is_array) for k, name in enumerate(columns.values)]
    number = "int64" if types[columns.target].name == "int64" else "float64"
    fields.append(Field(columns.target, "label", "string" if isinstance(labels[0], str) else number))
    if columns.group is not None:
        fields.append(Field(columns.group, "group", "string"))
    if columns.cluster is not None:
        is_whole = types[columns.cluster].name == "int64"
        fields.append(Field(columns.cluster, "cluster", "int64" if is_whole else "string"))
    return tuple(fields)


def labels_of_classes(
    place: str, columns: PredictionColumns, kind: ColumnType, num_classes: int
) -> tuple[str | int, ...]:
    """Return the label of each class: texts, or whole numbers; the rules are those for files.

    Args:
        place: what has the columns, for messages.
        columns: the columns.
        kind: type of the labels.
        num_classes: number of classes.

    Raises:
        PredictionsError: it is not clear which label means which class.
    """
    names, positions = columns.class_names, tuple(range(num_classes))
    if kind.name == "text":
        return names or tuple(map(str, positions))
    if kind.name == "boolean":
        order = tuple(name.casefold() for name in names or ("false", "true"))
        if sorted(order) == ["false", "true"] and num_classes == 2:
            return order
        raise PredictionsError(
            f"{place}: {columns.target!r} is boolean, but the classes are {listed(names or positions)}"
        )
    if names is not None and all(re.fullmatch(r"-?\d{1,19}", name) for name in names):
        return tuple(map(int, names))
    if not columns.numbers_are_positions:
        raise PredictionsError(
            f"{place}: labels in {columns.target!r} are numbers, which may not be positions, counted from 0, among the "
            f"classes ({listed(names or ())}): give the columns in class order, --{columns.input} NAME,NAME,..."
        )
    return positions
