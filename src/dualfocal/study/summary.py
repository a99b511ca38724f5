"""Summary of a study: means over seeds, paired differences to the first entry, and a conclusion in words."""

import html
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dualfocal._table import Table
from dualfocal.metrics.registry import FLOORS, METRICS, Metric
from dualfocal.metrics.result import finite
from dualfocal.runs import RunResult
from dualfocal.study.differences import LEVEL, Interval, paired_difference, sampling_noise
from dualfocal.study.plan import Study

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
        behind_best: Entry with all its runs -> paired difference of its ECE to the lowest ECE.
        failed: Entry and seed -> why the run failed.
        data: The splits of the data with their sizes; empty if no run is finished.
    """

    study: Study
    scores: dict[str, dict[str, list[float]]]
    floors: dict[str, dict[str, float]]
    differences: dict[str, dict[str, Interval]]
    behind_best: dict[str, Interval]
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

    def better(self, entry: str, name: str) -> bool:
        """Whether the mean of an entry is significantly below that of the first; never with one seed."""
        difference = self.differences.get(entry, {}).get(name)
        several = len(self.study.seeds) > 1 and entry in self.complete
        return several and difference is not None and difference.significant and difference.mean < 0

    def table(self, better: str = "{}") -> Table:
        """Return the noise floors and the mean of each entry; ``better`` formats those below the first entry's."""
        columns, seeds = COLUMNS.items(), len(self.study.seeds)
        floors = {name: statistics.mean(values.values()) for name, values in self.floors.items()}
        rows = [["floor", *with_temperature([column.metric.text(floors.get(name)) for name, column in columns], "")]]
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
        """Return the conclusion in words: the lowest ECE, and the best entry compared with the first."""
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
        best, *others = sorted(self.complete, key=lambda entry: self.mean(entry, "ece"))
        ece, floor = 100 * self.mean(best, "ece"), 100 * self.floors["ece"][best]
        sentence = f"Before temperature scaling, {best} has the lowest ECE, {ece:.1f} % (noise floor {floor:.1f} %)"
        similar = [entry for entry in others if not self.behind_best[entry].significant]
        unknown = all(self.behind_best[entry].half_width is None for entry in others)
        if similar and not unknown:
            sentence += f", not significantly different from {', '.join(similar)}"
        entry, theirs = best if best != first else others[0], f"{first}'s"
        if best != first and first not in similar:
            sentence += f", {self._compared(best, 'ece', first)}"
        return (
            f"{sentence}. After temperature scaling, the NLL of {entry} is {self._compared(entry, 'nll_t', theirs)} "
            f"and its ECE is {self._compared(entry, 'ece_t', theirs)}. "
            f"Its error is {self._compared(entry, 'error', theirs)}."
        )

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

    def _compared(self, entry: str, name: str, other: str) -> str:
        d, metric = self.differences[entry][name], COLUMNS[name].metric
        unit = " points" if metric.unit == "%" else " nats"
        if d.half_width is None:
            return f"{metric.text(d.mean, sign=True)}{unit} relative to {other} (confidence interval unknown)"
        if metric.factor * abs(d.mean) < 0.5 * 10**-metric.decimals:
            metric = replace(metric, decimals=metric.decimals + 2)  # a significant difference is not shown as 0
        half_width = f"{metric.text(d.half_width)}{unit}"
        if not d.significant:
            return f"not significantly different from {other} ({metric.text(d.mean, sign=True)} ± {half_width})"
        return f"{metric.text(abs(d.mean))} ± {half_width} {'below' if d.mean < 0 else 'above'} {other}"


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
            if finished and column.key in FLOORS:
                values = [result.floor(column.key, scaled_by=column.scaled_by) for result in finished]
                floors.setdefault(name, {})[entry] = statistics.mean(values)

    def difference(entry: str, other: str, names: Sequence[str]) -> dict[str, Interval]:
        noise = sampling_noise(study, out, results, entry, other)
        return {name: paired_difference(scores[entry][name], scores[other][name], noise.get(name)) for name in names}

    first, *others = study.entries
    differences = {entry: difference(first, entry, [column.name for column in COMPARED]) for entry in others}
    data = next((result.data for result in results.values()), "")
    summary = Summary(study, scores, floors, differences, {}, failed or {}, data)
    if len(summary.complete) > 1:
        best = min(summary.complete, key=lambda entry: summary.mean(entry, "ece"))
        behind = {entry: difference(best, entry, ["ece"])["ece"] for entry in summary.complete if entry != best}
        summary.behind_best.update(behind)
    return summary


def _text(value: float | Interval, metric: Metric) -> str:
    """Format a mean, or a difference with its sign and half-width."""
    if math.isnan(value.mean if isinstance(value, Interval) else value):
        return "failed"
    if not isinstance(value, Interval):
        return metric.text(value)
    half_width = "" if value.half_width is None else f" ± {metric.text(value.half_width)}"
    return metric.text(value.mean, sign=True) + half_width
