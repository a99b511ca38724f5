"""Summary of a study: means over seeds, paired differences to the first entry, and a conclusion in words."""

import html
import math
import statistics
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from dualfocal.metrics import METRICS, Metric
from dualfocal.metrics.result import finite
from dualfocal.runs import RunResult
from dualfocal.study.differences import LEVEL, Interval, paired_difference, sampling_noise
from dualfocal.study.plan import Study
from dualfocal.tables import Table

SCHEMA = 1


@dataclass(frozen=True)
class Column:
    """A metric of the test split, before or after temperature scaling."""

    key: str
    metric: Metric
    scaled_by: str | None = None

    @property
    def name(self) -> str:
        """The column's name in JSON and CSV."""
        return f"{self.key}_t" if self.scaled_by else self.key

    @property
    def heading(self) -> str:
        """The column's name in tables."""
        return self.metric.label + (" %" if self.metric.unit == "%" else "") + (", T" if self.scaled_by else "")

    @property
    def words(self) -> str:
        """The column's name in sentences."""
        return self.metric.label + (" after temperature scaling" if self.scaled_by else "")

    def value(self, result: RunResult) -> float:
        """Return the metric of a run, or NaN if it is not finite."""
        value = getattr(result.evaluation(scaled_by=self.scaled_by), self.key)
        return value if math.isfinite(value) else math.nan


def _column(key: str, label: str | None = None, scaled_by: str | None = None) -> Column:
    """Make a column; means over seeds have one decimal less than the metrics of one run."""
    metric = METRICS[key]
    return Column(key, replace(metric, label=label or metric.label, decimals=metric.decimals - 1), scaled_by)


COMPARED = (  # columns that the difference table has, too
    _column("error"),
    _column("nll"),
    _column("nll", scaled_by="temperature"),
    _column("ece"),
    _column("ece", scaled_by="temperature"),
)
OTHERS = (_column("adaptive_ece", "AdaECE"), _column("classwise_ece", "cw ECE"), _column("mce"))
COLUMNS = {column.name: column for column in (*COMPARED, *OTHERS)}
NAMES = (*COLUMNS, "temperature")
LOWEST = ("nll", "nll_t", "ece")  # columns whose lowest mean is named


def with_temperature(cells: list[str], temperature: str) -> list[str]:
    """Insert the temperature into a row, behind the compared columns."""
    return [*cells[: len(COMPARED)], temperature, *cells[len(COMPARED) :]]


@dataclass(frozen=True)
class Summary:
    """Result of :func:`summarize`: the table of a study. ``print`` it, or see :meth:`to_dict`.

    Attributes:
        study: The recipes.
        scores: Entry -> column -> a value per seed (NaN: the run failed).
        floors: Calibration error -> entry -> noise floor, mean over seeds.
        differences: Entry, except the first -> column -> paired difference to the first entry.
        behind_best: NLL, NLL after temperature scaling, and ECE -> entry -> paired difference to the lowest.
        failed: Entry and seed -> why the run failed.
        data: The splits of the data with their sizes; empty if no run is finished.
    """

    study: Study
    scores: dict[str, dict[str, list[float]]]
    floors: dict[str, dict[str, float]]
    differences: dict[str, dict[str, Interval]]
    behind_best: dict[str, dict[str, Interval]]
    failed: dict[tuple[str, int], str]
    data: str = ""

    @property
    def complete(self) -> list[str]:
        """The entries whose runs are all finished; only these are compared."""
        return [entry for entry, scores in self.scores.items() if all(map(math.isfinite, scores["ece"]))]

    def mean(self, entry: str, column: str) -> float:
        """Return the mean over the finished seeds."""
        values = [value for value in self.scores[entry][column] if math.isfinite(value)]
        return statistics.mean(values) if values else math.nan

    def mean_floor(self, column: str) -> float | None:
        """Return the noise floor of a column, the mean over the entries; None if it has none."""
        floors = self.floors.get(column)
        return None if floors is None else statistics.mean(floors.values())

    def best(self, column: str) -> str | None:
        """Return the entry with the lowest mean, among those whose values are all finite; None if there is none."""
        return min(self._finite(column), key=lambda entry: self.mean(entry, column), default=None)

    def _finite(self, column: str) -> list[str]:
        """Return the complete entries whose values of a column are all finite."""
        return [entry for entry in self.complete if all(map(math.isfinite, self.scores[entry][column]))]

    def better(self, entry: str, name: str) -> bool:
        """Whether the mean of an entry is significantly below that of the first; never with one seed."""
        return name in self.differences.get(entry, {}) and self._sign(entry, name) < 0

    def table(self, better: str = "{}") -> Table:
        """Return the noise floors and the mean of each entry; ``better`` formats those below the first entry's."""
        columns, seeds = COLUMNS.items(), len(self.study.seeds)
        floors = [column.metric.text(self.mean_floor(name)) for name, column in columns]
        rows = [["floor", *with_temperature(floors, "")]]
        for entry in self.study.entries:
            cells = [
                (better if self.better(entry, name) else "{}").format(_text(self.mean(entry, name), column.metric))
                for name, column in columns
            ]
            temperature = _text(self.mean(entry, "temperature"), Metric("T", ""))
            finished = sum(map(math.isfinite, self.scores[entry]["ece"]))
            name = entry if finished == seeds else f"{entry} ({finished} of {seeds})"
            rows.append([name, *with_temperature(cells, temperature)])
        return Table(["", *with_temperature([column.heading for column in COLUMNS.values()], "T")], rows)

    def difference_table(self) -> Table:
        """Return the paired differences of each entry to the first, with confidence intervals."""
        headings = [f"minus {self.study.entries[0]}", *(column.heading for column in COMPARED)]
        rows = [
            [entry, *(_text(differences[column.name], column.metric) for column in COMPARED)]
            for entry, differences in self.differences.items()
        ]
        return Table(headings, rows)

    def reading(self) -> str:
        """Return the conclusion in words: the lowest NLL and ECE of all entries, and all significant differences."""
        first, *others = self.study.entries
        if not others:
            return f"No comparison: {first} is the only entry; list all losses that are to be compared."
        if len(self.complete) < 2 or first not in self.complete:
            return f"No comparison: it needs all runs of {first}, the first entry, and of another entry to be finished."
        if len(self.study.seeds) == 1:
            return (
                "No conclusion: with one seed, the differences do not include the noise of the training. "
                "Add seeds, for example --seeds 0,1,2."
            )
        nll, scaled_nll, ece = map(self._lowest, LOWEST)
        intervals = f"({100 * LEVEL:.0f} % intervals, not adjusted for the number of comparisons.)"
        return f"{nll} {scaled_nll} {self._against_first()} {ece} {intervals}"

    def _lowest(self, name: str) -> str:
        """Name the entry with the lowest mean of a column, and those that are not significantly different."""
        column, best = COLUMNS[name], self.best(name)
        if best is None:
            return f"No {column.words} is finite."
        value = f"{column.metric.text(self.mean(best, name))} {column.metric.unit}"
        floor = self.mean_floor(name)
        chance = "" if floor is None else f" (noise floor {column.metric.text(floor)} %)"
        behind = self.behind_best[name]
        unknown = [entry for entry, interval in behind.items() if interval.half_width is None]
        similar = [entry for entry, interval in behind.items() if not interval.significant and entry not in unknown]
        clauses = [
            *([f"not significantly different: {', '.join(similar)}"] if similar else []),
            *([f"confidence interval unknown: {', '.join(unknown)}"] if unknown else []),
        ]
        return (
            f"Lowest {column.words}: {best}, {value}{chance}; {'; '.join(clauses) or 'significantly below all others'}."
        )

    def _against_first(self) -> str:
        """Name all significant differences from the first entry."""
        first, *others = self.study.entries
        sentences = []
        for word, sign in (("better", -1), ("worse", 1)):
            where = {entry: [c.words for c in COMPARED if self._sign(entry, c.name) == sign] for entry in others}
            clauses = [f"{entry} in {_enumerated(words)}" for entry, words in where.items() if words]
            if clauses:
                sentences.append(f"Significantly {word} than {first}: {'; '.join(clauses)}.")
        return " ".join(sentences) or f"Nothing is significantly different from {first}."

    def _sign(self, entry: str, name: str) -> int:
        """Return -1 or 1 if an entry is significantly below or above the first in a column, else 0."""
        if len(self.study.seeds) == 1 or not {entry, self.study.entries[0]} <= set(self._finite(name)):
            return 0
        difference = self.differences[entry][name]
        if not difference.significant:
            return 0
        return -1 if difference.mean < 0 else 1

    def to_dict(self) -> dict[str, Any]:
        """Return the content for JSON; metrics are fractions, not percent."""
        return {
            "schema": SCHEMA,
            "title": self.study.title,
            "recipe": self.study.recipe,
            "data": self.data,
            "seeds": self.study.seeds,
            "level": LEVEL,
            "floors": self.floors,
            "entries": {
                entry: {
                    "recipe": next(iter(self.study.recipes[entry].values())).to_dict(),
                    "mean": {name: finite(self.mean(entry, name)) for name in NAMES},
                    "by_seed": {name: [finite(value) for value in self.scores[entry][name]] for name in NAMES},
                    "less_first": {
                        name: {"mean": finite(d.mean), "half_width": d.half_width}
                        for name, d in self.differences.get(entry, {}).items()
                    },
                }
                for entry in self.study.entries
            },
            "failed": {f"{entry}, seed {seed}": problem for (entry, seed), problem in self.failed.items()},
            "reading": self.reading(),
        }

    def to_markdown(self) -> str:
        """Return both tables, with significantly better values in bold, and the reading as Markdown."""
        title, *heading = self._heading()
        parts = [f"# {title}", *heading, self.table("**{}**").markdown(), self.explanation()]
        if self.differences:
            parts.append(self.difference_table().markdown())
        return "\n\n".join([*parts, self.reading()]) + "\n"

    def to_csv(self) -> str:
        """Return one line of CSV per run."""
        rows = [
            [entry, str(seed), *(str(self.scores[entry][name][place]) for name in NAMES)]
            for entry in self.study.entries
            for place, seed in enumerate(self.study.seeds)
        ]
        return Table(["entry", "seed", *NAMES], rows).csv()

    def __str__(self) -> str:
        differences = [self.difference_table().text()] if self.differences else []
        texts = [*self._heading(), self.table("{}*").text(), self.explanation("*"), *differences, self.reading()]
        return "\n\n".join(texts)

    def _repr_html_(self) -> str:
        heading, reading = "<br>".join(map(html.escape, self._heading())), html.escape(self.reading())
        differences = self.difference_table().html() if self.differences else ""
        tables = f"{self.table('{}*').html()}<p>{html.escape(self.explanation('*'))}</p>{differences}"
        return f"<p>{heading}</p>{tables}<p><b>{reading}</b></p>"

    def _heading(self) -> list[str]:
        """Return title, recipe and data, each as a line."""
        return [self.study.title, f"Recipe: {self.study.recipe}.", *([f"Data: {self.data}."] if self.data else [])]

    def explanation(self, better: str = "Bold") -> str:
        """Explain the numbers of the tables; ``better`` says how significantly better values are marked."""
        means = f"Means over {len(self.study.seeds)} seeds" if len(self.study.seeds) > 1 else "One seed"
        interval = ""
        if self.differences and len(self.study.seeds) > 1:
            interval = (
                f" {better}: significantly below {self.study.entries[0]}. ±: half-width of the {100 * LEVEL:.0f} % "
                "confidence interval."
            )
        elif self.differences:
            interval = " ±: noise of the test samples only, not of the training."
        return (
            f"{means}, test split. T: after temperature scaling, fitted on the validation split by NLL. "
            f"Floor: noise floor, the error that a perfectly calibrated model shows by chance.{interval}"
        )


def summarize(study: Study, out: Path, failed: dict[tuple[str, int], str] | None = None) -> Summary:
    """Summarize the finished runs of a study.

    Args:
        study: the recipes.
        out: the folder of the study.
        failed: the runs that diverged, as :func:`run_study` returns them.

    Returns:
        The tables and the conclusion; ``print`` shows them.

    Raises:
        RunError: a result is damaged, or has no test split or no temperature.
    """
    results = study.results(out)
    scores: dict[str, dict[str, list[float]]] = {}
    floors: dict[str, dict[str, float]] = {}
    for entry in study.entries:
        runs = [results.get((entry, seed)) for seed in study.seeds]
        finished = [result for result in runs if result is not None]
        scores[entry] = {
            name: [math.nan if result is None else column.value(result) for result in runs]
            for name, column in COLUMNS.items()
        }
        scores[entry]["temperature"] = [math.nan if result is None else result.temperature() for result in runs]
        for name, column in COLUMNS.items():
            if finished and METRICS[column.key].has_floor:
                values = [result.floor(column.key, scaled_by=column.scaled_by) for result in finished]
                floors.setdefault(name, {})[entry] = statistics.mean(values)

    noise = cache(partial(sampling_noise, study, out, results))

    def difference(entry: str, other: str, name: str) -> Interval:
        return paired_difference(scores[entry][name], scores[other][name], noise(entry, other).get(name))

    first, *others = study.entries
    differences = {
        entry: {column.name: difference(first, entry, column.name) for column in COMPARED} for entry in others
    }
    data = next((result.data for result in results.values()), "")
    summary = Summary(study, scores, floors, differences, {}, failed or {}, data)
    for name in LOWEST:
        if (best := summary.best(name)) is not None:
            rivals = [entry for entry in summary._finite(name) if entry != best]
            summary.behind_best[name] = {entry: difference(best, entry, name) for entry in rivals}
    return summary


def _enumerated(words: list[str]) -> str:
    """Return "a", "a and b", or "a, b and c"."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def _text(value: float | Interval, metric: Metric) -> str:
    """Format a mean, or a difference with its sign and half-width."""
    if math.isnan(value.mean if isinstance(value, Interval) else value):
        return "failed"
    if not isinstance(value, Interval):
        return metric.text(value)
    half_width = "" if value.half_width is None else f" ± {metric.text(value.half_width)}"
    return metric.text(value.mean, sign=True) + half_width
