"""Tables of predictions in a database: find the columns, sum up the rows, evaluate the sums."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from dualfocal.checks import listed
from dualfocal.integrations.sql._query import (
    Field,
    check_numbers,
    column_type,
    fields_of,
    identifier,
    labels_of_classes,
    relation,
)
from dualfocal.integrations.sql._rows import RowReader, Rows
from dualfocal.integrations.sql.databases import Connection, fetch_batches, joined, run
from dualfocal.metrics import CalibrationSums, Evaluation
from dualfocal.metrics.groups import MOST_GROUPS
from dualfocal.predictions import PredictionsError
from dualfocal.predictions.columns import PredictionColumns, find_columns


@dataclass(frozen=True)
class PredictionTable:
    """A table of predictions in a database, whose columns are known. Make one with :meth:`find`.

    Args:
        connection: the database.
        source: a table or a SELECT.
        columns: names of the columns.
        fields: the columns as they are read.
        labels: label of each class.
        is_array: whether the values of a row are one array.
        logits_were_named: whether the caller said that the values are logits, which can then look like probabilities.
    """

    connection: Connection
    source: str
    columns: PredictionColumns
    fields: tuple[Field, ...]
    labels: tuple[str | int, ...]
    is_array: bool
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
        cluster: str | None = None,
        positive: str | None = None,
        class_names: str | Sequence[str | int] | None = None,
    ) -> "PredictionTable":
        """Find the columns of a table by their usual or given names, and how the labels name the classes.

        Args:
            connection: an open connection of duckdb or psycopg.
            source: a table, ``name`` or ``schema.name``, or a SELECT. It is run as it is.
            logits: column of the logits, see :func:`~dualfocal.predictions.load_predictions`.
            probs: the same for probabilities.
            target: column of the labels.
            group: column of the groups.
            cluster: column of the clusters; rows of one cluster may depend on each other.
            positive: with one score per row, the label of class 1; there must be at most one other label.
            class_names: names of the classes, in order (None: by the names of the columns, or 0, 1, ...). Labels that
                are texts are matched by name, and so are numbers if all names are numbers; other numbers are positions.

        Raises:
            PredictionsError: names are missing or ambiguous, or a column has the wrong type.
        """
        described = connection.execute(f"SELECT * FROM {relation(source)} AS predictions LIMIT 0").description
        types = {str(column[0]): column_type(column[1]) for column in described}
        place = "the query" if "\n" in relation(source) else source
        columns = find_columns(
            place, list(types), logits=logits, probs=probs, target=target, group=group, cluster=cluster
        )
        check_numbers(place, columns, types)
        is_array = types[columns.values[0]].is_array
        num_classes = _length(connection, source, columns.values[0]) if is_array else max(2, len(columns.values))
        if class_names is not None:
            columns = columns.named(place, class_names, num_classes)
        labels: tuple[str | int, ...]
        if positive is None:
            labels = labels_of_classes(place, columns, types[columns.target], num_classes)
        else:
            labels = names = _one_against_other(connection, source, columns, positive)
            columns = columns.named(place, names, num_classes)
        fields = fields_of(columns, types, labels)
        return cls(connection, source, columns, fields, labels, is_array, logits is not None)

    @property
    def one_score(self) -> bool:
        """Whether each row holds one score, that of class 1."""
        return len(self.columns.values) == 1 and not self.is_array

    @property
    def taken(self) -> str:
        """Which columns are read, in words."""
        columns, names, num_classes = self.columns, self.columns.values, len(self.labels)
        kind = "probabilities" if columns.input == "probs" else "logits"
        origin = repr(names[0]) if len(names) == 1 else f"{len(names)} columns {names[0]!r} to {names[-1]!r}"
        dtype = self.fields[0].type
        form = f"arrays of {num_classes}, {dtype}" if self.is_array else dtype
        numbered = self.labels == tuple(range(num_classes))
        classes = "" if numbered else f" ({listed([f'{k} = {label}' for k, label in enumerate(self.labels)])})"
        others = {"groups": columns.group, "clusters": columns.cluster}
        more = "".join(f", {what} from {name!r}" for what, name in others.items() if name is not None)
        return f"{kind} from {origin} ({form}), labels from {columns.target!r}{classes}{more}"

    def sums(
        self, *, num_bins: int = 15, binary: str | None = None, progress: Callable[[float], object] | None = None
    ) -> CalibrationSums:
        """Sum up the table; rows of all groups together.

        Args:
            num_bins: number of bins of the calibration errors.
            binary: see :meth:`~dualfocal.metrics.Samples.from_arrays`; ``"top_label"`` if there is one score per row.
            progress: called after each batch with the fraction of the rows that was read; costs a query to count them.

        Raises:
            PredictionsError: rows are invalid or missing; the message says how many and why.
        """
        first, *others = self.sums_by_group(num_bins=num_bins, binary=binary, progress=progress).values()
        return sum(others, first)

    def sums_by_group(
        self, *, num_bins: int = 15, binary: str | None = None, progress: Callable[[float], object] | None = None
    ) -> dict[str, CalibrationSums]:
        """Sum up each group, sorted by name; without groups, one group ``""``.

        Args:
            num_bins: see :meth:`sums`.
            binary: see :meth:`sums`.
            progress: see :meth:`sums`.

        Raises:
            PredictionsError: rows are invalid or missing, or there are more than 1000 groups.
        """
        reader = RowReader(self.columns, self.labels, is_array=self.is_array)
        sums: dict[str, CalibrationSums] = {}
        count = f"SELECT COUNT(*) FROM {relation(self.source)} AS predictions"
        total = 0 if progress is None else int(run(self.connection, count)[0][0])
        num_values = len(self.labels) if self.is_array else len(self.columns.values)
        # An open result would block the connection after an error.
        with closing(fetch_batches(self.connection, self.fields, self.source, num_values)) as batches:
            # Each sum of a group takes about a millisecond, so groups are read in batches of full size.
            for batch in batches if self.columns.group is None else joined(batches):
                for group, rows in reader.read(batch):
                    part = self._sum(rows, num_bins, binary)
                    sums[group] = sums[group] + part if group in sums else part
                    if len(sums) > MOST_GROUPS:
                        what = f"at most {MOST_GROUPS} groups are supported, {self.columns.group!r} holds more"
                        raise PredictionsError(f"--group-by: {what}")
                if progress is not None:
                    progress(min(1.0, reader.num_rows / max(1, total)))
        reader.check(logits_were_named=self.logits_were_named)
        return {group: sums[group] for group in sorted(sums)}

    def _sum(self, rows: Rows, num_bins: int, binary: str | None) -> CalibrationSums:
        return CalibrationSums.from_predictions(
            rows.values,
            rows.target,
            input=self.columns.input,
            num_bins=num_bins,
            binary=binary or ("top_label" if self.one_score else None),
            clusters=rows.clusters,
            class_names=self.columns.class_names,
        )


def evaluate_table(
    connection: Connection,
    source: str,
    *,
    logits: str | None = None,
    probs: str | None = None,
    target: str | None = None,
    cluster: str | None = None,
    class_names: str | Sequence[str | int] | None = None,
    num_bins: int = 15,
    binary: str | None = None,
    inference: bool = True,
    level: float = 0.9,
    seed: int = 0,
) -> Evaluation:
    """Evaluate a table of predictions in a database: every metric, noise floors and the verdict.

    For groups, or one score per row with other labels than 0 and 1, use :class:`PredictionTable`.

    Args:
        connection: see :meth:`PredictionTable.find`.
        source: see :meth:`PredictionTable.find`.
        logits: see :meth:`PredictionTable.find`.
        probs: see :meth:`PredictionTable.find`.
        target: see :meth:`PredictionTable.find`.
        cluster: see :meth:`PredictionTable.find`.
        class_names: see :meth:`PredictionTable.find`.
        num_bins: number of bins of the calibration errors.
        binary: see :meth:`~dualfocal.metrics.Samples.from_arrays`; ``"top_label"`` if there is one score per row.
        inference: see :meth:`CalibrationSums.evaluate <dualfocal.metrics.CalibrationSums.evaluate>`.
        level: nominal coverage of the interval.
        seed: seed of the draws.

    Raises:
        PredictionsError: columns are missing or ambiguous, or rows are invalid; the message says how many and why.
    """
    table = PredictionTable.find(
        connection, source, logits=logits, probs=probs, target=target, cluster=cluster, class_names=class_names
    )
    return table.sums(num_bins=num_bins, binary=binary).evaluate(inference=inference, level=level, seed=seed)


def _length(connection: Connection, source: str, name: str) -> int:
    """Return the length of the arrays in a column, that of the first row."""
    column = identifier(name)
    query = f"SELECT CARDINALITY({column}) FROM {relation(source)} AS predictions WHERE {column} IS NOT NULL LIMIT 1"
    rows = run(connection, query)
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
    labels = sorted(row[0] for row in run(connection, query))
    if positive not in labels or len(labels) > 2:
        got = f"{positive!r} for {listed(labels)}{', ...' if len(labels) > 2 else ''}"
        raise PredictionsError(f"--positive must name one of two labels in {columns.target!r}, got {got}")
    return next((text for text in labels if text != positive), f"not {positive}"), positive
