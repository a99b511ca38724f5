"""Summary of a study: means over seeds, paired differences to the first entry, and a conclusion in one sentence."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from scipy.stats import t as student

from dualfocal._table import Table
from dualfocal.metrics import compare
from dualfocal.metrics.evaluation import finite
from dualfocal.metrics.registry import FLOORS, METRICS, Metric
from dualfocal.runs import Run, RunResult
from dualfocal.study.plan import Study

SCHEMA = 1
LEVEL = 0.9


@dataclass(frozen=True)
class Column:
    """A metric of the test part, as trained or after temperature scaling."""

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
        """The metric of a run; NaN where it is not finite."""
        value = getattr(result.evaluation(scaled_by=self.scaled_by), self.key)
        return value if math.isfinite(value) else math.nan


def _column(key: str, label: str | None = None, scaled_by: str | None = None) -> Column:
    """Means over seeds are shown with a decimal less than the metrics of one run."""
    metric = METRICS[key]
    return Column(key, replace(metric, label=label or metric.label, decimals=metric.decimals - 1), scaled_by)


COMPARED = (  # columns whose differences are shown, too
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
    """A row with the temperature beside the columns that it changes."""
    return [*cells[: len(COMPARED)], temperature, *cells[len(COMPARED) :]]


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with the half-width of its interval; None: the half-width is unknown."""

    mean: float
    half_width: float | None

    @property
    def significant(self) -> bool:
        """Whether 0 is outside."""
        return self.half_width is not None and abs(self.mean) > self.half_width


@dataclass(frozen=True)
class Summary:
    """The table of a study.

    Attributes:
        scores: Entry -> column -> a number for each seed; NaN: that run failed.
        floors: Calibration error -> entry -> noise floor of a perfectly calibrated model, mean over seeds.
        differences: Entry but the first -> column -> paired difference to the first.
        behind_best: Entry -> how far its ECE is above the lowest, paired; of those with all their runs.
    """

    study: Study
    scores: dict[str, dict[str, list[float]]]
    floors: dict[str, dict[str, float]]
    differences: dict[str, dict[str, Interval]]
    behind_best: dict[str, Interval]
    failed: dict[tuple[str, int], str]

    @property
    def complete(self) -> list[str]:
        """The entries that have all their runs: only they can be compared."""
        return [entry for entry, scores in self.scores.items() if all(map(math.isfinite, scores["ece"]))]

    def mean(self, entry: str, column: str) -> float:
        """Mean over the seeds that are finished."""
        values = [value for value in self.scores[entry][column] if math.isfinite(value)]
        return statistics.mean(values) if values else math.nan

    def best(self, name: str) -> set[str]:
        """The entries with the lowest mean, as it is printed."""
        metric = COLUMNS[name].metric
        means = {entry: round(metric.factor * self.mean(entry, name), metric.decimals) for entry in self.complete}
        return {entry for entry, mean in means.items() if mean == min(means.values())} if len(means) > 1 else set()

    def table(self, best: str = "{}") -> Table:
        """Means of each entry, below the floors; ``best`` is the format of the lowest mean of a column."""
        columns, seeds = COLUMNS.items(), len(self.study.seeds)
        lowest = {name: self.best(name) for name in COLUMNS}
        floors = {name: statistics.mean(values.values()) for name, values in self.floors.items()}
        rows = [["floor", *with_temperature([column.metric.text(floors.get(name)) for name, column in columns], "")]]
        for entry in self.study.entries:
            cells = [
                (best if entry in lowest[name] else "{}").format(_shown(self.mean(entry, name), column.metric))
                for name, column in columns
            ]
            temperature = _shown(self.mean(entry, "temperature"), Metric("T", ""))
            finished = sum(map(math.isfinite, self.scores[entry]["ece"]))
            name = entry if finished == seeds else f"{entry} ({finished} of {seeds})"
            rows.append([name, *with_temperature(cells, temperature)])
        return Table(["", *with_temperature([column.heading for column in COLUMNS.values()], "T")], rows)

    def difference_table(self) -> Table:
        """Paired differences of each entry to the first, with their intervals."""
        headings = [f"less {self.study.entries[0]}", *(column.heading for column in COMPARED)]
        rows = [
            [entry, *(_shown(differences[column.name], column.metric) for column in COMPARED)]
            for entry, differences in self.differences.items()
        ]
        return Table(headings, rows)

    def reading(self) -> str:
        """The conclusion, in one sentence; the first entry is what the others are compared with."""
        first = self.study.entries[0]
        if len(self.complete) < 2 or first not in self.complete:
            return "There is nothing to compare: that takes two entries with all their runs, the first being one."
        best, *others = sorted(self.complete, key=lambda entry: self.mean(entry, "ece"))
        own = f"{100 * self.mean(best, 'ece'):.1f} % with a floor of {100 * self.floors['ece'][best]:.1f}"
        sentence = f"As trained, {best} has the lowest ECE, {own}"
        alike = [entry for entry in others if not self.behind_best[entry].significant]
        unknown = all(self.behind_best[entry].half_width is None for entry in others)
        if alike and not unknown:
            sentence += f", not told apart from {', '.join(alike)}"
        against = best if best != first else others[0]
        if best != first and first not in alike:
            sentence += f", {self._compared(best, 'ece')} {first}"
        return (
            f"{sentence}; after temperature scaling the NLL of {against} is {self._compared(against, 'nll_t')} "
            f"{first}'s, its ECE {self._compared(against, 'ece_t')} {first}'s; "
            f"its error is {self._compared(against, 'error')} {first}'s."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain content for JSON: fractions."""
        return {
            "schema": SCHEMA,
            "title": self.study.title,
            "recipe": self.study.recipe,
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
        """Both tables, the best in bold, and the reading."""
        title, recipe = f"# {self.study.title}", f"Recipe: {self.study.recipe}."
        parts = [title, recipe, self.table("**{}**").markdown(), self.explanation()]
        if self.differences:
            parts.append(self.difference_table().markdown())
        return "\n\n".join([*parts, self.reading()]) + "\n"

    def to_csv(self) -> str:
        """A line for each run."""
        rows = [
            [entry, str(seed), *(str(self.scores[entry][name][place]) for name in NAMES)]
            for entry in self.study.entries
            for place, seed in enumerate(self.study.seeds)
        ]
        return Table(["entry", "seed", *NAMES], rows).csv()

    def explanation(self) -> str:
        """What the numbers of the table are."""
        means = f"Means over {len(self.study.seeds)} seeds" if len(self.study.seeds) > 1 else "One seed"
        return (
            f"{means}, test part. T: after temperature scaling, fitted to the validation part by NLL. "
            "The floor is what perfectly calibrated models of this size would show by chance."
        )

    def _compared(self, entry: str, name: str) -> str:
        d, metric = self.differences[entry][name], COLUMNS[name].metric
        unit = " points" if metric.unit == "%" else " nats"
        if d.half_width is None:
            return f"{metric.text(d.mean, sign=True)}{unit} (noise unknown) from"
        if metric.factor * abs(d.mean) < 0.5 * 10**-metric.decimals:
            metric = replace(metric, decimals=metric.decimals + 2)  # a significant difference is not shown as 0
        half_width = f"{metric.text(d.half_width)}{unit}"
        if not d.significant:
            return f"not told apart ({metric.text(d.mean, sign=True)} ± {half_width}) from"
        return f"{metric.text(abs(d.mean))} ± {half_width} {'below' if d.mean < 0 else 'above'}"


def summarize(study: Study, out: Path, failed: dict[tuple[str, int], str] | None = None) -> Summary:
    """Summarize the finished runs of a study.

    Raises:
        RunError: a result is damaged, or has no test part or no temperature.
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
        noise = _sampling_noise(study, out, results, entry, other)
        return {name: _interval(scores[entry][name], scores[other][name], noise.get(name)) for name in names}

    first, *others = study.entries
    differences = {entry: difference(first, entry, [column.name for column in COMPARED]) for entry in others}
    summary = Summary(study, scores, floors, differences, {}, failed or {})
    if len(summary.complete) > 1:
        best = min(summary.complete, key=lambda entry: summary.mean(entry, "ece"))
        behind = {entry: difference(best, entry, ["ece"])["ece"] for entry in summary.complete if entry != best}
        summary.behind_best.update(behind)
    return summary


def _interval(first: list[float], other: list[float], noise: float | None) -> Interval:
    """Student's interval of the difference, paired over seeds, in quadrature with the noise of the test samples.

    With one seed there is only the noise of the test samples.
    """
    pairs = [b - a for a, b in zip(first, other, strict=True) if math.isfinite(b - a)]
    if not pairs:
        return Interval(math.nan, None)
    mean = statistics.mean(pairs)
    if len(pairs) == 1:
        return Interval(mean, noise)
    quantile = float(student.ppf((1 + LEVEL) / 2, len(pairs) - 1))
    over_seeds = quantile * statistics.stdev(pairs) / math.sqrt(len(pairs))
    return Interval(mean, math.hypot(over_seeds, noise or 0.0))


def _sampling_noise(
    study: Study, out: Path, results: dict[tuple[str, int], RunResult], first: str, entry: str
) -> dict[str, float]:
    """Half-width of the interval due to the test samples, for one seed of a comparison; empty if seeds differ in them.

    Where each seed has other test samples, their noise is in the spread over seeds.
    """
    folders = study.folders(out)
    seeds = [seed for seed in study.seeds if (first, seed) in results and (entry, seed) in results]
    targets = [Run(folders[entry, seed]).predictions()[1] for seed in seeds]
    if not seeds or any(not torch.equal(target, targets[0]) for target in targets):
        return {}
    keys = [(name, seeds[0]) for name in (first, entry)]
    logits = [Run(folders[key]).predictions()[0] for key in keys]
    scaled = [values / results[key].temperature() for key, values in zip(keys, logits, strict=True)]
    return {
        name + suffix: (difference.high - difference.low) / 2
        for suffix, (a, b) in (("", logits), ("_t", scaled))
        for name, difference in compare(a, b, targets[0], level=LEVEL).differences.items()
    }


def _shown(value: float | Interval, metric: Metric) -> str:
    """A mean, or a difference with its sign and half-width."""
    if math.isnan(value.mean if isinstance(value, Interval) else value):
        return "failed"
    if not isinstance(value, Interval):
        return metric.text(value)
    half_width = "" if value.half_width is None else f" ± {metric.text(value.half_width)}"
    return metric.text(value.mean, sign=True) + half_width
