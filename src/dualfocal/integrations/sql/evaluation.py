"""A table of predictions in a database, reduced to sums and evaluated."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dualfocal.checks import listed
from dualfocal.integrations.sql._quoting import identifier, relation
from dualfocal.integrations.sql._rows import read_rows
from dualfocal.integrations.sql._text import Reduction
from dualfocal.integrations.sql._types import column_type, labels_of_classes
from dualfocal.integrations.sql.databases import Connection
from dualfocal.metrics import BinnedPredictions, Evaluation
from dualfocal.metrics.groups import MOST_GROUPS
from dualfocal.predictions import PredictionsError
from dualfocal.predictions.columns import PredictionColumns, find_columns


def reduction_query(
    source: str,
    values: Sequence[str],
    target: str,
    *,
    input: str = "probs",
    array_length: int | None = None,
    num_bins: int = 15,
    dtype: str = "float64",
    group: str | None = None,
    class_labels: Sequence[str | int] | None = None,
    dialect: str = "duckdb",
) -> str:
    """Return the SQL that reduces a table of predictions to sums.

    The result has the columns of :meth:`BinnedPredictions.from_table
    <dualfocal.metrics.BinnedPredictions.from_table>`, with a column ``group`` before them if a group is given. Invalid
    rows are counted in rows of other kinds, such as ``label``; ``from_table`` refuses these kinds.

    Args:
        source: a table, ``name`` or ``schema.name``, or a SELECT. It becomes part of the query as it is.
        values: one column per class, in class order; or one column, with an array per row (give ``array_length``), or
            with one score per sample, that of class 1.
        target: column of the labels.
        input: whether the values are ``"probs"`` or ``"logits"``.
        array_length: length of the arrays, the number of classes (None: the values are not arrays).
        num_bins: number of bins of the calibration errors.
        dtype: type of stored probabilities, ``"float32"`` for REAL and FLOAT4, otherwise ``"float64"``: the edges of
            the bins are rounded to it.
        group: column of the groups (None: no groups).
        class_labels: label of each class, in class order; texts or numbers (None: 0, 1, ...).
        dialect: ``"duckdb"`` or ``"postgresql"``. Both read either text, but PostgreSQL would take much longer for the
            other one.

    >>> query = reduction_query("predictions", ["cat", "dog"], "label", class_labels=["cat", "dog"])
    >>> query.splitlines()[2]
    'FROM "predictions" AS predictions'
    """
    reduction = Reduction(
        source=source,
        values=tuple(values),
        target=target,
        input=input,
        array_length=array_length,
        num_bins=num_bins,
        dtype=dtype,
        group=group,
        class_labels=None if class_labels is None else tuple(class_labels),
        dialect=dialect,
    )
    return reduction.text()


@dataclass(frozen=True)
class PredictionTable:
    """A table of predictions in a database, whose columns are known. Make one with :meth:`find`.

    Args:
        connection: the database.
        source: a table or a SELECT.
        columns: names of the columns.
        array_length: length of the arrays, if the values of a row are one array.
        dtype: ``"float32"`` or ``"float64"``, type of the values.
        class_labels: label of each class (None: 0, 1, ...).
        logits_were_named: whether the caller said that the values are logits, which are then not checked.
    """

    connection: Connection
    source: str
    columns: PredictionColumns
    array_length: int | None
    dtype: str
    class_labels: tuple[str | int, ...] | None
    logits_were_named: bool

    @classmethod
    def find(
        cls,
        connection: Connection,
        source: str,
        *,
        logits: str | None = None,
        probs: str | None = None,
        target: str | None = None,
        group: str | None = None,
        positive: str | None = None,
        class_labels: Sequence[str | int] | None = None,
    ) -> "PredictionTable":
        """Find the columns of a table by their usual or given names, and how the labels name the classes.

        Args:
            connection: an open connection of duckdb, psycopg or another DB-API driver.
            source: a table, ``name`` or ``schema.name``, or a SELECT. It is run as it is.
            logits: column of the logits, see :func:`~dualfocal.predictions.load_predictions`.
            probs: the same for probabilities.
            target: column of the labels.
            group: column of the groups.
            positive: with one score per sample, the label of class 1; there must be at most one other label.
            class_labels: label of each class, in class order (None: by the names of the columns, or 0, 1, ...).

        Raises:
            PredictionsError: names are missing or ambiguous, or a column has the wrong type.
        """
        described = _run(connection, f"SELECT * FROM {relation(source)} AS predictions LIMIT 0").description
        types = {str(column[0]): column_type(column[1]) for column in described}
        place = "the query" if "\n" in relation(source) else source
        columns = find_columns(place, list(types), logits=logits, probs=probs, target=target, group=group)
        value_types = [types[name] for name in columns.values]
        for name, kind in zip(columns.values, value_types, strict=True):
            if kind.name in ("text", "boolean") or (kind.is_array and len(value_types) > 1):
                raise PredictionsError(f"{place}: {columns.input} must be numbers, but {name!r} is {kind.description}")
        array_length = _length(connection, source, columns.values[0]) if value_types[0].is_array else None
        if class_labels is None and positive is not None:
            class_labels = _one_against_other(connection, source, columns, positive)
        elif class_labels is None:
            num_classes = array_length or max(2, len(value_types))
            class_labels = labels_of_classes(place, columns, types[columns.target], num_classes)
        return cls(
            connection=connection,
            source=source,
            columns=columns,
            array_length=array_length,
            dtype="float32" if all(kind.name == "float32" for kind in value_types) else "float64",
            class_labels=None if class_labels is None else tuple(class_labels),
            logits_were_named=logits is not None,
        )

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes (None: they are numbered)."""
        return self.columns.class_names

    @property
    def taken(self) -> str:
        """Which columns are read, in words."""
        names, target, group = self.columns.values, self.columns.target, self.columns.group
        kind = "probabilities" if self.columns.input == "probs" else "logits"
        origin = repr(names[0]) if len(names) == 1 else f"{len(names)} columns {names[0]!r} to {names[-1]!r}"
        form = self.dtype if self.array_length is None else f"arrays of {self.array_length}, {self.dtype}"
        classes = [f"{k} = {label}" for k, label in enumerate(self.class_labels or ())]
        labels = f" ({listed(classes)})" if classes else ""
        groups = "" if group is None else f", groups from {group!r}"
        return f"{kind} from {origin} ({form}), labels from {target!r}{labels}{groups}"

    def reduction(self, num_bins: int = 15) -> Reduction:
        """Return the query that reduces the table; ``text()`` is its SQL, see :func:`reduction_query`."""
        return Reduction(
            source=self.source,
            values=self.columns.values,
            target=self.columns.target,
            input=self.columns.input,
            array_length=self.array_length,
            num_bins=num_bins,
            dtype=self.dtype,
            group=self.columns.group,
            class_labels=self.class_labels,
            dialect="duckdb" if "duckdb" in type(self.connection).__module__ else "postgresql",
        )

    def bin(self, *, num_bins: int = 15) -> BinnedPredictions:
        """Reduce the table to sums; rows of all groups together.

        Raises:
            PredictionsError: rows are invalid or missing; the message says how many and why.
        """
        first, *others = self.bin_groups(num_bins=num_bins).values()
        return sum(others, first)

    def bin_groups(self, *, num_bins: int = 15) -> dict[str, BinnedPredictions]:
        """Reduce the table to sums of each group, sorted by name; without groups, of one group ``""``.

        Raises:
            PredictionsError: rows are invalid or missing, or there are more than 1000 groups.
        """
        if self.columns.group is not None:
            self._check_number_of_groups(self.columns.group)
        reduction = self.reduction(num_bins)
        cursor = _run(self.connection, reduction.text())
        names = [str(column[0]) for column in cursor.description]
        return read_rows(names, cursor.fetchall(), reduction, logits_were_named=self.logits_were_named)

    def _check_number_of_groups(self, group: str) -> None:
        distinct = f"SELECT DISTINCT {identifier(group)} FROM {relation(self.source)} AS predictions"
        query = f"SELECT COUNT(*) FROM (\n{distinct} LIMIT {MOST_GROUPS + 1}\n) AS groups"
        if _run(self.connection, query).fetchall()[0][0] > MOST_GROUPS:
            raise PredictionsError(f"--group-by: at most {MOST_GROUPS} groups are supported, {group!r} holds more")


def bin_table(
    connection: Connection,
    source: str,
    *,
    logits: str | None = None,
    probs: str | None = None,
    target: str | None = None,
    class_labels: Sequence[str | int] | None = None,
    num_bins: int = 15,
) -> BinnedPredictions:
    """Reduce a table of predictions to sums, inside the database.

    For groups, one score per sample with other labels than 0 and 1, or the text of the query, use
    :class:`PredictionTable`.

    Args:
        connection: see :meth:`PredictionTable.find`.
        source: see :meth:`PredictionTable.find`.
        logits: see :meth:`PredictionTable.find`.
        probs: see :meth:`PredictionTable.find`.
        target: see :meth:`PredictionTable.find`.
        class_labels: see :meth:`PredictionTable.find`.
        num_bins: number of bins of the calibration errors.

    Raises:
        PredictionsError: columns are missing or ambiguous, or rows are invalid; the message says how many and why.
    """
    table = PredictionTable.find(
        connection, source, logits=logits, probs=probs, target=target, class_labels=class_labels
    )
    return table.bin(num_bins=num_bins)


def evaluate_table(
    connection: Connection,
    source: str,
    *,
    logits: str | None = None,
    probs: str | None = None,
    target: str | None = None,
    class_labels: Sequence[str | int] | None = None,
    num_bins: int = 15,
    inference: bool = True,
    level: float = 0.9,
    seed: int = 0,
) -> Evaluation:
    """Evaluate a table of predictions, inside the database: every metric, noise floors and the verdict.

    Args:
        connection: see :meth:`PredictionTable.find`.
        source: see :meth:`PredictionTable.find`.
        logits: see :meth:`PredictionTable.find`.
        probs: see :meth:`PredictionTable.find`.
        target: see :meth:`PredictionTable.find`.
        class_labels: see :meth:`PredictionTable.find`.
        num_bins: number of bins of the calibration errors.
        inference: see :meth:`BinnedPredictions.evaluate <dualfocal.metrics.evaluate>`.
        level: nominal coverage of the interval.
        seed: seed of the draws.

    Raises:
        PredictionsError: columns are missing or ambiguous, or rows are invalid; the message says how many and why.
    """
    bins = bin_table(
        connection,
        source,
        logits=logits,
        probs=probs,
        target=target,
        class_labels=class_labels,
        num_bins=num_bins,
    )
    return bins.evaluate(inference=inference, level=level, seed=seed)


def _run(connection: Connection, query: str) -> Any:
    """Run a query. A cursor of duckdb would not see the temporary views of its connection."""
    if hasattr(connection, "execute"):
        return connection.execute(query)
    cursor = connection.cursor()
    cursor.execute(query)
    return cursor


def _length(connection: Connection, source: str, name: str) -> int:
    """Return the length of the arrays in a column, that of the first row."""
    column = identifier(name)
    query = f"SELECT CARDINALITY({column}) FROM {relation(source)} AS predictions WHERE {column} IS NOT NULL LIMIT 1"
    rows = _run(connection, query).fetchall()
    if not rows or rows[0][0] < 2:
        raise PredictionsError(
            f"{name!r} must hold arrays of at least two values, got {rows[0][0] if rows else 'no row'}"
        )
    return int(rows[0][0])


def _one_against_other(
    connection: Connection, source: str, columns: PredictionColumns, positive: str
) -> tuple[str, str]:
    """Return the labels of class 0 and of class 1, which is ``positive``."""
    if len(columns.values) > 1:
        raise PredictionsError(f"--positive {positive} needs one score per sample, but here each class has a score")
    label = f"CAST({identifier(columns.target)} AS VARCHAR)"
    query = f"SELECT DISTINCT {label} FROM {relation(source)} AS predictions WHERE {label} IS NOT NULL LIMIT 3"
    labels = sorted(row[0] for row in _run(connection, query).fetchall())
    if positive not in labels or len(labels) > 2:
        got = f"{positive!r} for {listed(labels)}{', ...' if len(labels) > 2 else ''}"
        raise PredictionsError(f"--positive must name one of two labels in {columns.target!r}, got {got}")
    return next((text for text in labels if text != positive), f"not {positive}"), positive
