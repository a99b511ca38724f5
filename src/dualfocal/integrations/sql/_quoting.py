"""Quoting of names, texts and tables in SQL: nothing of the caller stands in a query without it."""

import re

QUERY = re.compile(r"\s*(?:(?:select|with|from|values|table)\b|\()", re.IGNORECASE)


def identifier(name: str) -> str:
    """Quote the name of a column or table.

    >>> identifier('a"b')
    '"a""b"'
    """
    if not name or "\0" in name:
        raise ValueError(f"a name in SQL must have at least one character and no null character, got {name!r}")
    return '"' + name.replace('"', '""') + '"'


def literal(value: str | int) -> str:
    """Quote a text, or write a number.

    >>> literal("it's"), literal(3)
    ("'it''s'", '3')
    """
    if isinstance(value, int):
        return str(int(value))
    if "\0" in value:
        raise ValueError(f"a text in SQL must not hold a null character, got {value!r}")
    quoted = "'" + value.replace("'", "''") + "'"
    return "E" + quoted.replace("\\", "\\\\") if "\\" in value else quoted


def relation(source: str) -> str:
    """Return a query in parentheses, or the quoted name of a table, ``table`` or ``schema.table``.

    >>> relation("main.predictions"), relation("SELECT * FROM predictions;")
    ('"main"."predictions"', '(\\nSELECT * FROM predictions\\n)')
    """
    if QUERY.match(source):
        return f"(\n{source.strip().rstrip('; ')}\n)"  # a line break, because the query can end with a comment
    return ".".join(identifier(part) for part in source.strip().split("."))
