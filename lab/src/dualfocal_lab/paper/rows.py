"""Rows that compare our numbers with the published ones, one for each cell of a table."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any

from dualfocal.metrics import METRICS, kde_ece
from dualfocal_lab.checks import finite
from dualfocal_lab.paper.intervals import prediction_interval
from dualfocal_lab.paper.ood import STAGES, OODScores
from dualfocal_lab.paper.published import Cell, Table
from dualfocal_lab.paper.trainings import TRAINED_BY, Training
from dualfocal_lab.runs import Run, RunError

HEADINGS = ("training", "number", "published", "ours", "floor", "seeds", "one more run", "agrees")
LEVEL = 0.9
SCALED_BY = "temperature_ece"  # as published
# The largest possible value of metrics that are not bounded by 1.
LARGEST = {"nll": math.inf, "brier": 2.0, "rbs": math.sqrt(2), "kde_ece": 2.0}

Number = tuple[str, str | None, str | None, Cell | None]  # metric, stage, variant and cell


@dataclass(frozen=True)
class Row:
    """A cell of a published table, or a cell that the paper does not have, with the numbers of our finished runs."""

    training: Training
    metric: str
    stage: str | None
    variant: str | None
    published: Cell | None
    ours: list[float]  # one per seed
    temperatures: list[float]  # one per seed, if the stage is after scaling
    published_error: Cell | None = None  # the standard error of a published mean
    seeds: tuple[int, ...] = ()
    floors: list[float] = field(default_factory=list)  # noise floors, one per seed

    def of_seeds(self, seeds: Collection[int]) -> "Row":
        """Return the row with only the runs of the given seeds."""
        selected = [seed in seeds for seed in self.seeds]
        return dataclasses.replace(
            self,
            ours=list(compress(self.ours, selected)),
            temperatures=list(compress(self.temperatures, selected)),
            seeds=tuple(compress(self.seeds, selected)),
            floors=list(compress(self.floors, selected)),
        )

    @property
    def mean(self) -> float:
        """Mean of our numbers over the seeds; NaN if there are none."""
        return statistics.mean(self.ours) if self.ours else math.nan

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean over seeds (None with fewer than two seeds)."""
        return statistics.stdev(self.ours) / math.sqrt(len(self.ours)) if len(self.ours) > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """90 % prediction interval of one more run (None with fewer than two seeds)."""
        if len(self.ours) < 2:
            return None
        low, high = prediction_interval(self.ours, LEVEL)
        return max(low, 0.0), min(high, LARGEST.get(self.metric, 1.0))

    @property
    def agrees(self) -> bool | None:
        """Whether the published value lies in the prediction interval.

        None if that is unknown: with fewer than two seeds, if the interval holds every possible value, or if the
        published value is a mean of several runs.
        """
        interval, whole_range = self.interval, (0.0, LARGEST.get(self.metric, 1.0))
        if self.published is None or self.published_error is not None or interval is None or interval == whole_range:
            return None
        return interval[0] <= self.published.value <= interval[1]

    def cells(self) -> list[str]:
        """Return the row as text, one cell per heading of :data:`HEADINGS`, with numbers as the paper prints them."""
        variant = None if self.variant == self.training.variant else self.variant
        number = " ".join(part for part in (self.metric, self.stage and f"{self.stage} T", variant) if part)
        theirs = "" if self.published is None else self.published.printed
        plain = self.metric == "rbs" if self.published is None else self.published.unit == "number"
        text: Callable[[float], str] = "{:.4f}".format if plain else lambda value: f"{100 * value:.2f}"
        ours = "" if math.isnan(self.mean) else text(self.mean)
        if self.published_error is not None:
            theirs += f" ± {self.published_error.printed}"
            ours += "" if self.standard_error is None else f" ± {text(self.standard_error)}"
        if self.published is not None and self.published.temperature is not None:
            theirs += f" ({self.published.temperature:.1f})"
        if self.temperatures:
            ours += f" ({' to '.join(f'{t:.1f}' for t in sorted({min(self.temperatures), max(self.temperatures)}))})"
        floor = text(statistics.mean(self.floors)) if self.floors else ""
        one_more = "" if self.interval is None else " to ".join(map(text, self.interval))
        agrees = {True: "yes", False: "no", None: ""}[self.agrees]
        return [self.training.label, number, theirs, ours, floor, str(len(self.ours)), one_more, agrees]

    def to_dict(self) -> dict[str, Any]:
        """Return the content for JSON; metrics are fractions, not percent."""
        return {
            "training": self.training.label,
            "metric": self.metric,
            "stage": self.stage,
            "variant": self.variant,
            "published": None if self.published is None else self.published.value,
            "erratum": None if self.published is None else self.published.erratum,
            "seeds": list(self.seeds),
            "ours": [finite(value) for value in self.ours],
            "floors": self.floors,
            "standard_error": self.standard_error,
            "published_standard_error": None if self.published_error is None else self.published_error.value,
            "temperatures": self.temperatures,
            "published_temperature": None if self.published is None else self.published.temperature,
            "interval": None if self.interval is None else list(self.interval),
            "agrees": self.agrees,
        }


def rows_of(
    table: Table, trainings: dict[str, Training], runs: dict[tuple[str, int], Path], ood_scores: OODScores | None = None
) -> list[Row]:
    """Return a row for each number that the table has for these trainings, and for each extra training.

    Args:
        table: a table with misplaced cells corrected, see :meth:`~dualfocal_lab.paper.published.Table.as_meant`.
        trainings: name -> training.
        runs: name and seed -> run folder; unfinished runs are ignored.
        ood_scores: computes the scores of out-of-distribution images that are not saved yet.
    """
    rows = []
    for name, training in trainings.items():
        folders = {seed: Run(path) for (key, seed), path in sorted(runs.items()) if key == name}
        results = {seed: result for seed, run in folders.items() if (result := run.result) is not None}
        for metric, stage, variant, cell in _numbers(table, training):
            error = None
            if variant == "mean" and cell is not None:
                same = {"method": cell.method, "metric": metric, "stage": stage, "variant": "standard_error"}
                error = table.find(data=cell.data, model=cell.model, **same)[0]
            rows.append(
                Row(
                    training,
                    metric,
                    stage,
                    variant,
                    cell,
                    ours=[value_of(folders[seed], metric, stage, variant, ood_scores) for seed in results],
                    temperatures=[result.temperature(SCALED_BY) for result in results.values() if stage == "after"],
                    published_error=error,
                    seeds=tuple(results),
                    floors=[
                        result.floor(metric, scaled_by=SCALED_BY if stage == "after" else None)
                        for result in results.values()
                        if metric in METRICS and METRICS[metric].has_floor
                    ],
                )
            )
    return rows


def _numbers(table: Table, training: Training) -> list[Number]:
    """Return metric, stage, variant and cell of each number of a training that the table has or should have."""
    if training.extra and table.name != "kde_xe":
        return [(table.metric or "ece", stage, None, None) for stage in STAGES]
    cells = table.find(data=training.data, model=training.model, method=training.method)
    if table.variant in TRAINED_BY:
        cells = [cell for cell in cells if cell.variant == training.variant]
    # A standard error is shown beside its mean.
    numbers: list[Number] = [
        (cell.metric, cell.stage, cell.variant, cell) for cell in cells if cell.variant != "standard_error"
    ]
    if table.name == "ablation":  # the columns that the text announces
        return [
            *numbers,
            ("ece", "after", training.variant, None),
            ("classwise_ece", "before", training.variant, None),
        ]
    # RBS as score and as root; out-of-distribution detection by the other score, too.
    second_metric = {"rbs": "rbs", "ood_auroc": "ood_auroc_max_prob"}
    return numbers + [
        (second_metric[table.name], cell.stage, cell.variant, None) for cell in cells if table.name in second_metric
    ]


def value_of(
    run: Run, metric: str, stage: str | None, variant: str | None = None, ood_scores: OODScores | None = None
) -> float:
    """Return a metric of a finished run; the temperature is that of the lowest validation ECE, as published."""
    if metric.startswith("ood_auroc"):
        score = "max_prob" if metric.endswith("max_prob") else "entropy"
        return float((ood_scores or OODScores()).scores(run, str(variant))["auroc"][stage or "before"][score])
    result = run.require_result()
    if metric == "kde_ece":
        logits, target = run.predictions()
        return float(kde_ece(logits / result.temperature(SCALED_BY) if stage == "after" else logits, target))
    evaluation = result.evaluation(scaled_by=SCALED_BY if stage == "after" else None)
    value = 1 - evaluation.error if metric == "accuracy" else float(getattr(evaluation, metric))
    if not math.isfinite(value):
        raise RunError(f"{result.source}: the {metric} of the test split is not finite")
    return value
