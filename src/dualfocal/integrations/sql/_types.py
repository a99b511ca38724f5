"""Types of the columns of a query, from the description that a driver gives, and which label means which class."""

import re
from dataclasses import dataclass
from typing import Any

from dualfocal.checks import listed
from dualfocal.predictions import PredictionsError
from dualfocal.predictions.columns import PredictionColumns

# PostgreSQL describes types by numbers, which are fixed.
POSTGRESQL = {
    **{16: "boolean", 700: "float32", 701: "float64", 1700: "number", 20: "number", 21: "number", 23: "number"},
    **{1021: "float32[]", 1022: "float64[]", 1231: "number[]"},
}
DUCKDB = {"BOOLEAN": "boolean", "FLOAT": "float32", "DOUBLE": "float64"}
DUCKDB_NUMBER = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DECIMAL\b.*")


@dataclass(frozen=True)
class ColumnType:
    """The type of a column: float32, float64, number, boolean or text (everything else), or arrays of these."""

    name: str
    is_array: bool
    description: str  # for messages


def column_type(code: Any) -> ColumnType:
    """Return the type of a column from its type code in a DB-API description.

    >>> column_type(1021)
    ColumnType(name='float32', is_array=True, description='float32[]')
    >>> column_type("DECIMAL(10,2)").name
    'number'
    """
    if isinstance(code, int):
        name = POSTGRESQL.get(code, "text")
        return ColumnType(name.removesuffix("[]"), name.endswith("[]"), name)
    text = str(code).upper()
    plain = re.sub(r"\[\d*\]$", "", text)
    number = "number" if DUCKDB_NUMBER.fullmatch(plain) else "text"
    return ColumnType(DUCKDB.get(plain, number), plain != text, text)


def labels_of_classes(
    place: str, columns: PredictionColumns, kind: ColumnType, num_classes: int
) -> tuple[str | int, ...] | None:
    """Return the label of each class, or None if labels are 0, 1, ...; the rules are those for files.

    Args:
        place: what has the columns, for messages.
        columns: the columns.
        kind: type of the labels.
        num_classes: number of classes.

    Raises:
        PredictionsError: it is not clear which label means which class.
    """
    names, by_position = columns.class_names, tuple(map(str, range(num_classes)))
    if kind.name == "text":
        return names or by_position
    if kind.name == "boolean":
        order = tuple(name.casefold() for name in names or ("false", "true"))
        if sorted(order) == ["false", "true"] and num_classes == 2:
            return order
        raise PredictionsError(
            f"{place}: {columns.target!r} is boolean, but the classes are {listed(names or by_position)}"
        )
    if names is not None and all(map(str.isdecimal, names)):
        return tuple(map(int, names))
    if not columns.numbers_are_positions:
        raise PredictionsError(
            f"{place}: labels in {columns.target!r} are numbers, which may not be positions, counted from 0, among the "
            f"classes ({listed(names or ())}): give the columns in class order, --{columns.input} NAME,NAME,..."
        )
    return None
