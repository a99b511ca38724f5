"""The text of the SQL that reduces predictions to sums, see :func:`~dualfocal.integrations.sql.reduction_query`.

The text is plain SQL that DuckDB and PostgreSQL read alike; only for speed they differ. These points are not obvious:

- ``x + 2^52 - 2^52`` rounds to a whole number, a half to the even one, wherever arithmetic is that of IEEE 754, for
  0 <= x < 2^52. ``ROUND`` treats halves differently in different databases.
- Whole numbers are divided in double precision and rounded down, because ``/`` of integers differs. This is exact: they
  are below 2^53, and a quotient that is not whole is far from the next whole number.
- PostgreSQL refuses results that underflow to 0: tiny numbers are not multiplied or exponentiated.
- The values of invalid rows are replaced before anything is computed that could fail.
- Names and texts of the caller stand only in the first query, ``loaded``, and are quoted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from dualfocal.checks import check_choice, check_count, listed
from dualfocal.integrations.sql._quoting import identifier, literal, relation
from dualfocal.metrics.rows import INPUTS, ROUNDING
from dualfocal.metrics.scan import SUM_TOLERANCE
from dualfocal.metrics.states.cells import CELLS, SPLITS, fine_edges
from dualfocal.metrics.units import ONE, equal_edges, to_units

DTYPES = {"float32": torch.float32, "float64": torch.float64}
MOST_TERMS = 64  # of a sum without parentheses: deeply nested expressions are refused
ROUNDER = "4503599627370496e0"  # 2^52
INFINITY = "CAST('Infinity' AS DOUBLE PRECISION)"
LARGEST_NLL = "2147483648e0"  # larger values count as infinite, as in BinnedPredictions
LEAST_EXPONENT, LEAST_FACTOR = "-700e0", "1e-100"  # below them, exp(x) and x * x can underflow
# PostgreSQL would repeat the expressions of a step wherever a later step uses them; OFFSET 0 prevents it.
FENCES = {"duckdb": "", "postgresql": "\nOFFSET 0"}
KINDS = ("confidence", "scores", "class")  # of the rows of a result, see BinnedPredictions.from_table
# Further kinds: the rules that a row can break. A row has status 0 if it is valid, otherwise 1, 2, ... in this order.
RULES = ("width", "missing value", "value", "missing label", "label", "missing group")
LIKE_PROBABILITIES = "like probabilities"  # kind of logits that could be probabilities; they have status -1
SUMS = ("units", "squares", "cubes", "nll", "infinite_nll", "brier")


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """The arguments of :func:`~dualfocal.integrations.sql.reduction_query`, checked, and the text for them."""

    source: str
    values: tuple[str, ...]
    target: str
    input: str
    array_length: int | None
    num_bins: int
    dtype: str
    group: str | None
    class_labels: tuple[str | int, ...] | None
    dialect: str

    def __post_init__(self) -> None:
        check_choice("dialect", self.dialect, tuple(FENCES))
        check_choice("input", self.input, INPUTS)
        check_choice("dtype", self.dtype, tuple(DTYPES))
        check_count("num_bins", self.num_bins)
        if not self.values or (self.is_array and len(self.values) > 1):
            raise ValueError(f"values must name one array column, or one column per class, got {self.values}")
        check_count("array_length", self.num_classes, 2)
        labels = self.class_labels
        if labels is not None and not len(set(labels)) == len(labels) == self.num_classes:
            raise ValueError(f"class_labels must name {self.num_classes} different labels, got {listed(labels)}")
        if labels is not None and len({isinstance(label, str) for label in labels}) > 1:
            raise TypeError(f"class_labels must all be texts or all be integers, got {listed(labels)}")

    @property
    def is_array(self) -> bool:
        """Whether the values of a row are one array."""
        return self.array_length is not None

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return max(2, len(self.values)) if self.array_length is None else self.array_length

    @property
    def edges(self) -> Tensor:
        """Edges of the bins."""
        return equal_edges(self.num_bins, DTYPES[self.dtype] if self.input == "probs" else torch.float64)

    def text(self) -> str:
        """Return the query: from each row of the table, step by step, to sums."""
        steps = [
            ("loaded", self._loaded()),
            ("ranged", self._ranged()),
            ("checked", self._checked()),
            *([("powers", self._powers()), ("totalled", self._totalled())] if self.input == "logits" else []),
            ("probabilities", self._probabilities()),
            ("scored", self._scored()),
            ("rounded", self._rounded()),
            ("cells", self._cells()),
            ("entries", self._entries()),
            ("entry_units", _select("grp, class, label, predicted", f"{_round('p')} AS units", source="entries")),
            ("entry_squares", _select("*", f"FLOOR(units * units / {ONE}e0) AS squares", source="entry_units")),
            ("placed", self._placed()),
        ]
        # Materialised, the other steps would store all rows; the cells are few, and are used three times.
        fence = FENCES[self.dialect]
        opened = {name: f"{name} AS {'' if name == 'cells' else 'NOT '}MATERIALIZED (" for name, _ in steps}
        texts = [f"{opened[name]}\n{text}{'' if name == 'cells' else fence}\n)" for name, text in steps]
        return "WITH " + ",\n".join(texts) + "\n" + "\nUNION ALL\n".join(self._results())

    def _each(self, text: str) -> list[str]:
        """Return a text for each class, with its number in place of #."""
        return [text.replace("#", str(k)) for k in range(self.num_classes)]

    def _loaded(self) -> str:
        names = [identifier(name) for name in self.values]
        columns = [f"CAST({name} AS DOUBLE PRECISION)" for name in names]
        if self.is_array:
            columns = [f"CAST({names[0]}[{k + 1}] AS DOUBLE PRECISION)" for k in range(self.num_classes)]
        elif len(names) == 1:  # one score per sample, of class 1
            columns = ["CAST(0 AS DOUBLE PRECISION)" if self.input == "logits" else f"1 - {columns[0]}", columns[0]]
        return _select(
            *(f"{column} AS x{k}" for k, column in enumerate(columns)),
            f"{f'CARDINALITY({names[0]})' if self.is_array else self.num_classes} AS width",
            f"{'0' if self.group is None else f'CAST({identifier(self.group)} AS VARCHAR)'} AS grp",
            f"{identifier(self.target)} IS NULL AS unlabelled",
            f"{self._label()} AS label",
            source=f"{relation(self.source)} AS predictions",
        )

    def _label(self) -> str:
        """Return the class index of a label; NULL if it is not a class."""
        name = identifier(self.target)
        if self.class_labels is None:
            valid = f"{name} >= 0 AND {name} < {self.num_classes} AND {name} = FLOOR({name})"
            return f"CASE WHEN {valid} THEN CAST({name} AS INTEGER) END"
        name = f"CAST({name} AS VARCHAR)" if isinstance(self.class_labels[0], str) else name
        cases = " ".join(f"WHEN {literal(label)} THEN {k}" for k, label in enumerate(self.class_labels))
        return f"CASE {name} {cases} END"

    def _ranged(self) -> str:
        x = ", ".join(self._each("x#"))
        extremes = f"GREATEST({x}) AS highest", f"LEAST({x}) AS lowest", f"{_sum(self._each('x#'))} AS total"
        of_label = f"CASE label {' '.join(self._each('WHEN # THEN x#'))} END AS of_label"
        return _select(x, "width, grp, unlabelled, label", of_label, *extremes, source="loaded")

    def _checked(self) -> str:
        logits = self.input == "logits"
        rules = {
            "width": f"width IS NULL OR width <> {self.num_classes}",
            "missing value": "total IS NULL",
            "value": "NOT " + (f"(highest > -{INFINITY} AND highest < {INFINITY})" if logits else _sums_to_one()),
            "missing label": "unlabelled",
            "label": "label IS NULL",
            "missing group": "grp IS NULL",
        }
        cases = [f"WHEN {rules[name]} THEN {status}" for status, name in enumerate(RULES, start=1)]
        cases += [f"WHEN {_sums_to_one(1e-3)} THEN -1"] if logits else []
        return _select(
            *(self._each("x#") if logits else self._each("GREATEST(x#, 0e0) AS p#")),
            "grp, label, highest, of_label",
            f"CASE highest {' '.join(self._each('WHEN x# THEN #'))} END AS predicted",
            f"CASE {' '.join(cases)} ELSE 0 END AS status",
            source="ranged",
        )

    def _powers(self) -> str:
        powers = self._each(f"{_exp('x# - highest')} AS x#")
        return _select(*powers, "grp, label, predicted, status, highest - of_label AS gap", source="checked")

    def _totalled(self) -> str:
        """The largest power is 1, so the total is smaller only if the row is invalid; it must not be 0."""
        return _select("*", f"GREATEST({_sum(self._each('x#'))}, 1e0) AS total", source="powers")

    def _probabilities(self) -> str:
        """Probabilities, confidence and negative log-likelihood of each row; NaN, NULL and so on if it is invalid."""
        columns = [
            *self._each("p#"),
            "LEAST(highest, 1e0) AS confidence",
            "GREATEST(of_label, 0e0) AS of_label",
            f"CASE WHEN of_label > 0 THEN -LN(of_label) ELSE {INFINITY} END AS nll",
        ]
        source = "checked"
        if self.input == "logits":
            columns = [
                *self._each("x# / total AS p#"),
                "1 / total AS confidence",
                f"{_exp('-gap')} / total AS of_label",
                "gap + LN(total) AS nll",
            ]
            source = "totalled"
        return _select(*columns, "grp, label, predicted, status", source=source)

    def _scored(self) -> str:
        """Confidence and scores of each row, and which scores are finite; 0 if the row is invalid."""
        cannot_underflow = self.dtype == "float32" and self.input == "probs"
        square = "p# * p#" if cannot_underflow else f"CASE WHEN p# > {LEAST_FACTOR} THEN p# * p# ELSE 0e0 END"
        brier = f"GREATEST({_sum(self._each(square))} - 2 * of_label + 1, 0e0)"
        return _select(
            "grp, status",
            "CASE WHEN label = predicted THEN 1 ELSE 0 END AS correct",
            "CASE WHEN status > 0 THEN 0e0 ELSE confidence END AS confidence",
            f"CASE WHEN status > 0 OR NOT nll < {LARGEST_NLL} THEN 0e0 ELSE nll END AS nll",
            f"CASE WHEN status > 0 OR nll < {LARGEST_NLL} THEN 0 ELSE 1 END AS infinite_nll",
            f"CASE WHEN status > 0 THEN 0e0 ELSE {brier} END AS brier",
            source="probabilities",
        )

    def _rounded(self) -> str:
        return _select(
            "grp, status, correct, infinite_nll",
            f"{_round('confidence')} AS units",
            f"CAST(nll * {ONE}e0 AS BIGINT) AS nll",  # can be larger than 2^52
            f"CAST({_round('brier')} AS BIGINT) AS brier",
            source="scored",
        )

    def _cells(self) -> str:
        """Sums of the rows, by fine cell of the confidence; invalid rows are counted by status."""
        sums = ", ".join(f"SUM({name}) AS {name}" for name in ("correct", "nll", "infinite_nll", "brier"))
        columns = f"{_fine_cell(self.edges)} AS cell", f"COUNT(*) AS n, SUM(CAST(units AS BIGINT)) AS units, {sums}"
        return _select("grp, status", *columns, source="rounded") + "\nGROUP BY 1, 2, 3"

    def _entries(self) -> str:
        """One row for each class of each valid row."""
        p, classes = (", ".join(self._each(text)) for text in ("p#", "#"))
        unnested = f"UNNEST(ARRAY[{p}]) AS p", f"UNNEST(ARRAY[{classes}]) AS class"
        return _select("grp, label, predicted", *unnested, source="probabilities") + "\nWHERE status <= 0"

    def _placed(self) -> str:
        """Units, squares, cubes and bin of each entry."""
        bounds = to_units(self.edges).tolist()[1:-1]
        cases = " ".join(f"WHEN units <= {bound}e0 THEN {b}" for b, bound in enumerate(bounds))
        return _select(
            "grp, class, units, squares",
            f"FLOOR(squares * units / {ONE}e0) AS cubes",
            "CASE WHEN class = predicted THEN 1 ELSE 0 END AS predicted",
            "CASE WHEN class = label THEN 1 ELSE 0 END AS correct",
            f"{f'CASE {cases} ELSE {len(bounds)} END' if cases else '0'} AS cell",
            source="entry_squares",
        )

    def _results(self) -> list[str]:
        """Return the queries whose rows make up the result, with the columns of BinnedPredictions.from_table."""
        group = [] if self.group is None else ['grp AS "group"']
        no_group = [] if self.group is None else ['CAST(NULL AS VARCHAR) AS "group"']
        by_group = "" if self.group is None else "\nGROUP BY grp"
        total = {name: f"SUM({name})" for name in ("nll", "infinite_nll", "brier")}
        powers = {name: f"SUM(CAST({name} AS BIGINT))" for name in ("units", "squares", "cubes")}
        names = {-1: LIKE_PROBABILITIES, **dict(enumerate(RULES, start=1))}
        cases = " ".join(f"WHEN {status} THEN {literal(name)}" for status, name in names.items())
        kinds = f"CASE status {cases} END"
        classes = _row("'class'", "class, predicted, cell", "COUNT(*)", "SUM(correct)", **powers)
        by_cell = f"\nGROUP BY {'' if self.group is None else 'grp, '}class, predicted, cell"
        return [
            _select(*group, *_row("'confidence'", "0, 0, cell", "n", "correct", units="units"), source="cells")
            + "\nWHERE status <= 0",
            _select(*group, *_row("'scores'", "0, 0, 0", "SUM(n)", "0", **total), source="cells")
            + f"\nWHERE status <= 0{by_group}\nHAVING COUNT(*) > 0",
            _select(*no_group, *_row(kinds, "0, 0, 0", "SUM(n)", "0"), source="cells")
            + "\nWHERE status <> 0\nGROUP BY status",
            _select(*group, *classes, source="placed") + by_cell,
        ]


def _row(kind: str, keys: str, count: str, correct: str, **sums: str) -> list[str]:
    """Return the columns of a result; the first query names them."""
    keys_ = [f"{key} AS {name}" for key, name in zip(keys.split(", "), ("class", "predicted", "cell"), strict=True)]
    numbers = {"count": count, "correct": correct} | {name: sums.get(name, "0") for name in SUMS}
    decimals = [f'CAST({text} AS DECIMAL(38, 0)) AS "{name}"' for name, text in numbers.items()]
    return [f"{kind} AS kind", *keys_, *decimals]


def _select(*columns: str, source: str) -> str:
    return f"SELECT {', '.join(columns)}\nFROM {source}"


def _sum(terms: Sequence[str]) -> str:
    """Add terms from left to right; if there are many, in parts."""
    if len(terms) <= MOST_TERMS:
        return f"({' + '.join(terms)})"
    return _sum([_sum(terms[start : start + MOST_TERMS]) for start in range(0, len(terms), MOST_TERMS)])


def _exp(exponent: str) -> str:
    return f"CASE WHEN {exponent} > {LEAST_EXPONENT} THEN EXP({exponent}) ELSE 0e0 END"


def _sums_to_one(tolerance: float = SUM_TOLERANCE + ROUNDING) -> str:
    """Return the rule of probabilities, which NaN breaks: databases sort NaN above all numbers."""
    return f"(lowest >= {-ROUNDING!r} AND highest <= {1 + ROUNDING!r} AND ABS(total - 1) <= {tolerance!r})"


def _round(name: str) -> str:
    """Return a column in units of 2^-32, a whole number in double precision; a half is rounded to the even number."""
    return f"({name} * {ONE}e0 + {ROUNDER} - {ROUNDER})"


def _fine_cell(edges: Tensor) -> str:
    """Return the number of the fine cell, see ``cells.fine_edges``, of a confidence in units."""
    bounds, fine = to_units(edges).tolist(), to_units(fine_edges(edges)).tolist()
    last = CELLS * (len(bounds) - 2)
    # (first cell, low, high) of each range that is split into equal cells; the last ones are nested.
    ranges = [(CELLS * b, low, high) for b, (low, high) in enumerate(pairwise(bounds))]
    ranges += [(last + (CELLS - 1) * s, fine[last + (CELLS - 1) * s], ONE) for s in range(1, SPLITS + 1)]
    cells = [
        f"{first} + CAST(FLOOR(GREATEST(units - {low + 1}e0, 0e0) * {CELLS} / {high - low}e0) AS INTEGER)"
        for first, low, high in ranges
    ]
    ends = [*bounds[1:-1], *(low for _, low, _ in ranges[-SPLITS:])]
    cases = " ".join(f"WHEN units <= {end}e0 THEN {cell}" for end, cell in zip(ends, cells[:-1], strict=True))
    return f"CASE {cases} ELSE {cells[-1]} END"
