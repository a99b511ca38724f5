"""Read the result of the query of :mod:`~dualfocal.integrations.sql`, and refuse tables with invalid rows."""

from collections.abc import Sequence
from typing import Any

from dualfocal.checks import listed
from dualfocal.integrations.sql._quoting import identifier
from dualfocal.integrations.sql._text import KINDS, LIKE_PROBABILITIES, Reduction
from dualfocal.metrics import BinnedPredictions
from dualfocal.metrics.scan import SUM_TOLERANCE
from dualfocal.predictions import PredictionsError
from dualfocal.tables import quantity


def read_rows(
    names: Sequence[str], rows: Sequence[Sequence[Any]], reduction: Reduction, *, logits_were_named: bool
) -> dict[str, BinnedPredictions]:
    """Return the sums of each group, sorted by name; without groups, of one group ``""``.

    Args:
        names: names of the columns of the result.
        rows: rows of the result.
        reduction: the query.
        logits_were_named: whether the caller said that the values are logits, which are then not checked.

    Raises:
        PredictionsError: rows of the table are invalid, or there is no row.
    """
    kind, count = names.index("kind"), names.index("count")
    invalid = {row[kind]: int(row[count]) for row in rows if row[kind] not in KINDS}
    num_like_probabilities = invalid.pop(LIKE_PROBABILITIES, 0)
    valid = [row for row in rows if row[kind] in KINDS]
    num_valid = sum(int(row[count]) for row in valid if row[kind] == "scores")
    if invalid:
        raise PredictionsError(_explain(invalid, num_valid + sum(invalid.values()), reduction))
    if not valid:
        raise PredictionsError("no samples: the table or the result of the query is empty")
    if num_like_probabilities == num_valid and not logits_were_named:
        columns = ",".join(reduction.values)
        raise PredictionsError(
            f"{columns!r} must hold logits, but all rows lie in [0, 1] and sum to 1: if they are probabilities, give "
            f"--probs {columns}, otherwise --logits {columns}"
        )
    groups: dict[str, list[Sequence[Any]]] = {}
    for row in valid:
        groups.setdefault("" if reduction.group is None else row[0], []).append(row)
    first = 0 if reduction.group is None else 1
    return {name: _state(names[first:], [row[first:] for row in groups[name]], reduction) for name in sorted(groups)}


def _state(names: Sequence[str], rows: Sequence[Sequence[Any]], reduction: Reduction) -> BinnedPredictions:
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    return BinnedPredictions.from_table(columns, num_classes=reduction.num_classes, edges=reduction.edges)


def _explain(invalid: dict[str, int], total: int, reduction: Reduction) -> str:
    """Say how many rows break which rules, and how to exclude them."""
    values, target = [identifier(name) for name in reduction.values], identifier(reduction.target)
    num_classes, labels = reduction.num_classes, reduction.class_labels
    whole = f"whole numbers from 0 to {num_classes - 1}"
    if reduction.input == "probs":
        value = (
            f"probabilities must sum to 1 (within {SUM_TOLERANCE:g}), lie in [0, 1] and not be NaN; are these logits?"
        )
    else:
        value = "logits must not be NaN or +inf, and each row needs a finite value"
    present = " AND ".join(f"{name} IS NOT NULL" for name in values[:3]) + (" AND ..." if len(values) > 3 else "")
    rules = {
        "width": (f"arrays in {values[0]} must have {num_classes} values", f"CARDINALITY({values[0]}) = {num_classes}"),
        "missing value": (f"{reduction.input} must not be NULL", present),
        "value": (value, ""),
        "missing label": ("labels must not be NULL", f"{target} IS NOT NULL"),
        "label": (
            f"labels must be {whole if labels is None else f'one of {listed(labels)}'}",
            f"{target} BETWEEN 0 AND {num_classes - 1}" if labels is None else f"{target} IN (...)",
        ),
        "missing group": ("groups must not be NULL", f"{identifier(reduction.group or 'group')} IS NOT NULL"),
    }
    parts = [f"{rules[name][0]}: {quantity(number, 'row')}" for name, number in invalid.items()]
    wheres = [rules[name][1] for name in invalid if rules[name][1]]
    how = f", such as SELECT ... WHERE {' AND '.join(wheres)}" if wheres else ""
    number = sum(invalid.values())
    verb = "is" if number == 1 else "are"
    return (
        f"{number:,} of {total:,} rows {verb} invalid ({'; '.join(parts)}). Correct them, or exclude them by a query "
        f"with a WHERE clause{how}"
    )
