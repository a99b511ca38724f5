"""Rows of a database as arrays. Invalid rows are counted by the rule that they break."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dualfocal._extras import import_extra
from dualfocal.checks import listed
from dualfocal.integrations.sql._query import identifier
from dualfocal.metrics.inputs import ROUNDING, are_probabilities
from dualfocal.metrics.scan import SUM_TOLERANCE
from dualfocal.predictions import PredictionsError
from dualfocal.predictions.columns import PredictionColumns
from dualfocal.tables import quantity

Batch = Any  # a pyarrow.RecordBatch with the columns value_0, value_1, ..., label, group, cluster
Mask = NDArray[np.bool_]


class Rows(NamedTuple):
    """Valid rows of one group."""

    values: NDArray[Any]  # (N, C), or (N,) for one score per row
    target: NDArray[np.int64]  # (N,), class indices
    clusters: NDArray[Any] | None  # (N,), numbers or texts


class RowReader:
    """Turns batches of a table into arrays, and counts the invalid rows of all batches.

    Args:
        columns: the columns of the table.
        labels: label of each class.
        is_array: whether the values of a row are one array.
    """

    def __init__(self, columns: PredictionColumns, labels: Sequence[str | int], *, is_array: bool) -> None:
        self.columns, self.labels, self.is_array = columns, labels, is_array
        self.num_rows = 0
        self.invalid = Counter[str]()  # rule -> number of rows; a row counts for the first rule that it breaks
        self.like_probabilities = columns.input == "logits"  # whether all rows could be probabilities

    def read(self, batch: Batch) -> Iterator[tuple[str, Rows]]:
        """Yield the rows of each group; nothing after the first invalid row, because then only the counts matter."""
        pa, pc = import_extra("pyarrow"), import_extra("pyarrow.compute")
        values, rules = self._values(batch)
        label = batch["label"]
        index = pc.index_in(label, value_set=pa.array(self.labels, label.type)).fill_null(-1)
        target = index.to_numpy(zero_copy_only=False).astype(np.int64)
        rules |= {"missing label": _present(label), "label": target >= 0}
        for name in ("group", "cluster"):
            if name in batch.schema.names:
                rules[f"missing {name}"] = _present(batch[name])
        valid = np.ones(batch.num_rows, bool)
        for rule, good in rules.items():
            self.invalid[rule] += int((valid & ~good).sum())
            valid &= good
        self.num_rows += batch.num_rows
        if self.invalid.total() or not batch.num_rows:
            return
        if self.like_probabilities:
            self.like_probabilities = values.ndim > 1 and are_probabilities(torch.from_numpy(values))
        clusters = None if self.columns.cluster is None else batch["cluster"].to_numpy(zero_copy_only=False)
        rows = Rows(values, target, clusters)
        yield from [("", rows)] if self.columns.group is None else _by_group(rows, batch["group"])

    def _values(self, batch: Batch) -> tuple[NDArray[Any], dict[str, Mask]]:
        """Return the values, and for each rule about them the rows that keep it."""
        rules: dict[str, Mask] = {}
        if self.is_array:
            values, rules["width"], rules["missing value"] = _matrix(batch["value_0"], len(self.labels))
        else:
            columns = [batch[f"value_{k}"] for k in range(len(self.columns.values))]
            values = np.stack([column.to_numpy(zero_copy_only=False) for column in columns]).T
            rules["missing value"] = np.logical_and.reduce([_present(column) for column in columns])
            values = values[:, 0] if len(columns) == 1 else values
        with np.errstate(invalid="ignore"):  # inf - inf
            rules["value"] = _are_logits(values) if self.columns.input == "logits" else _are_probabilities(values)
        return values, rules

    def check(self, *, logits_were_named: bool) -> None:
        """Raise a PredictionsError if rows were invalid, or if there was none.

        Args:
            logits_were_named: whether the caller said that the values are logits: then they can look like
                probabilities.
        """
        if self.invalid.total():
            raise PredictionsError(self._explanation())
        if not self.num_rows:
            raise PredictionsError("no samples: the table or the result of the query is empty")
        if self.like_probabilities and not logits_were_named:
            columns = ",".join(self.columns.values)
            raise PredictionsError(
                f"{columns!r} must hold logits, but all rows lie in [0, 1] and sum to 1: if they are probabilities, "
                f"give --probs {columns}, otherwise --logits {columns}"
            )

    def _explanation(self) -> str:
        """Return how many rows break which rules, and how to exclude them."""
        columns, labels = self.columns, self.labels
        values, target = [identifier(name) for name in columns.values], identifier(columns.target)
        present = " AND ".join(f"{name} IS NOT NULL" for name in values[:3]) + (" AND ..." if len(values) > 3 else "")
        size, last = len(labels), len(labels) - 1
        value = f"probabilities must sum to 1 (within {SUM_TOLERANCE:g}), lie in [0, 1] and not be NaN"
        value += "; are these logits?"
        if columns.input == "logits":
            value = "logits must not be NaN or +inf, and each row needs a finite value"
        label = f"labels must be one of {listed(labels)}", f"{target} IN (...)"
        if list(labels) == list(range(size)):
            label = f"labels must be whole numbers from 0 to {last}", f"{target} BETWEEN 0 AND {last}"
        rules = {
            "width": (f"arrays in {values[0]} must have {size} values", f"CARDINALITY({values[0]}) = {size}"),
            "missing value": (f"{columns.input} must not be NULL", present),
            "value": (value, ""),
            "label": label,
        }
        for name, column in (("label", columns.target), ("group", columns.group), ("cluster", columns.cluster)):
            if column is not None:
                rules[f"missing {name}"] = f"{name}s must not be NULL", f"{identifier(column)} IS NOT NULL"
        broken = {rule: count for rule, count in self.invalid.items() if count}
        parts = [f"{rules[rule][0]}: {quantity(count, 'row')}" for rule, count in broken.items()]
        wheres = [rules[rule][1] for rule in broken if rules[rule][1]]
        number = self.invalid.total()
        how = f", such as SELECT ... WHERE {' AND '.join(wheres)}" if wheres else ""
        return (
            f"{number:,} of {self.num_rows:,} rows {'is' if number == 1 else 'are'} invalid ({'; '.join(parts)}). "
            f"Correct them, or exclude them by a query with a WHERE clause{how}"
        )


def _present(column: Any) -> Mask:
    """Return the rows that are not NULL."""
    if not column.null_count:
        return np.ones(len(column), bool)
    present: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return present


def _matrix(column: Any, width: int) -> tuple[NDArray[Any], Mask, Mask]:
    """Return the values of a column of arrays, ``(N, C)``, which rows have C values, and which have no NULL."""
    pc = import_extra("pyarrow.compute")
    fitting = pc.equal(pc.list_value_length(column), width).fill_null(False)
    fits: Mask = fitting.to_numpy(zero_copy_only=False)
    flat = column.filter(fitting).flatten()
    values = np.full((len(column), width), np.nan, flat.type.to_pandas_dtype())
    values[fits] = flat.to_numpy(zero_copy_only=False).reshape(-1, width)
    present = np.ones(len(column), bool)
    present[fits] = _present(flat).reshape(-1, width).all(1)
    return values, fits, present


def _are_probabilities(values: NDArray[Any]) -> Mask:
    """Return the rows that :func:`~dualfocal.metrics.scan.scan` accepts as probabilities. NaN breaks each rule."""
    rows = values.reshape(len(values), -1)
    good: Mask = (rows.min(1) >= -ROUNDING) & (rows.max(1) <= 1 + ROUNDING)
    if values.ndim > 1:
        good &= np.abs(rows.sum(1, dtype=np.float64) - 1) <= SUM_TOLERANCE + ROUNDING
    return good


def _are_logits(values: NDArray[Any]) -> Mask:
    """Return the rows without NaN and +inf that have a finite value; one score per row stands beside a logit of 0."""
    good: Mask = values < np.inf if values.ndim == 1 else np.isfinite(values.max(1))
    return good


def _by_group(rows: Rows, group: Any) -> Iterator[tuple[str, Rows]]:
    """Yield the rows of each group."""
    encoded = group.dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(encoded.dictionary)))
    for name, index in zip(encoded.dictionary.to_pylist(), np.split(order, ends[:-1]), strict=True):
        clusters = None if rows.clusters is None else rows.clusters[index]
        yield name, Rows(rows.values[index], rows.target[index], clusters)
