"""Our numbers beside the published ones: a row for each cell of a table."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any

from dualfocal.metrics import kde_ece
from dualfocal.metrics.evaluation import finite
from dualfocal.metrics.registry import FLOORS
from dualfocal.paper.intervals import prediction_interval
from dualfocal.paper.ood import STAGES, OODScores
from dualfocal.paper.published import Cell, Table
from dualfocal.paper.trainings import TRAINED_BY, Training
from dualfocal.runs import Run, RunError

HEADINGS = ("training", "number", "published", "ours", "floor", "seeds", "one more run", "agrees")
LEVEL = 0.9
SCALED_BY = "temperature_ece"  # as published
# The largest value there is, of what is no share of samples or of probability.
LARGEST = {"nll": math.inf, "brier": 2.0, "rbs": math.sqrt(2), "kde_ece": 2.0}

Number = tuple[str, str | None, str | None, Cell | None]  # metric, stage, variant, and its cell


@dataclass(frozen=True)
class Row:
    """A cell of the paper, or one that it lacks, and the numbers of our finished runs."""

    training: Training
    metric: str
    stage: str | None
    variant: str | None
    published: Cell | None
    ours: list[float]  # one for each of the seeds
    temperatures: list[float]  # likewise, after scaling
    published_error: Cell | None = None  # the standard error of a published mean
    seeds: tuple[int, ...] = ()
    floors: list[float] = field(default_factory=list)  # expected of calibrated models with the same confidences

    def of_seeds(self, seeds: Collection[int]) -> "Row":
        """The same row with the runs of some seeds only."""
        kept = [seed in seeds for seed in self.seeds]
        return dataclasses.replace(
            self,
            ours=list(compress(self.ours, kept)),
            temperatures=list(compress(self.temperatures, kept)),
            seeds=tuple(compress(self.seeds, kept)),
            floors=list(compress(self.floors, kept)),
        )

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return statistics.mean(self.ours) if self.ours else math.nan

    @property
    def standard_error(self) -> float | None:
        """Of the mean, over the seeds; None: that takes two."""
        return statistics.stdev(self.ours) / math.sqrt(len(self.ours)) if len(self.ours) > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where one more run would fall, 90 % of the time; None: that takes two seeds."""
        if len(self.ours) < 2:
            return None
        low, high = prediction_interval(self.ours, LEVEL)
        return max(low, 0.0), min(high, LARGEST.get(self.metric, 1.0))

    @property
    def agrees(self) -> bool | None:
        """Whether the published run could be one of ours; None: unknown, as where any could, or a mean of several."""
        interval, anything = self.interval, (0.0, LARGEST.get(self.metric, 1.0))
        if self.published is None or self.published_error is not None or interval is None or interval == anything:
            return None
        return interval[0] <= self.published.value <= interval[1]

    def cells(self) -> list[str]:
        """The row as text, one cell for each of :data:`HEADINGS`, with numbers as the paper prints them."""
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
        """For JSON; numbers are fractions."""
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
    table: Table, trainings: dict[str, Training], runs: dict[tuple[str, int], Path], foreign: OODScores | None = None
) -> list[Row]:
    """Return a row for each number that the table has of these trainings, and for each extra training.

    Args:
        table: with misplaced cells where they belong, see :meth:`~dualfocal.paper.published.Table.as_meant`.
        trainings: by name.
        runs: folders by name, as in ``trainings``, and seed; runs that are not finished are left out of the means.
        foreign: scores the images of other data sets, where the scores have not been kept.
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
                    ours=[value_of(folders[seed], metric, stage, variant, foreign) for seed in results],
                    temperatures=[of.temperature(SCALED_BY) for of in results.values() if stage == "after"],
                    published_error=error,
                    seeds=tuple(results),
                    floors=[
                        of.floor(metric, scaled_by=SCALED_BY if stage == "after" else None)
                        for of in results.values()
                        if metric in FLOORS
                    ],
                )
            )
    return rows


def _numbers(table: Table, training: Training) -> list[Number]:
    """Metric, stage, variant and cell of each number that the table has of a training, or should have."""
    if training.extra and table.name != "kde_xe":
        return [(table.metric or "ece", stage, None, None) for stage in STAGES]
    cells = table.find(data=training.data, model=training.model, method=training.method)
    if table.variant in TRAINED_BY:
        cells = [cell for cell in cells if cell.variant == training.variant]
    # A standard error stands beside its mean.
    numbers: list[Number] = [
        (cell.metric, cell.stage, cell.variant, cell) for cell in cells if cell.variant != "standard_error"
    ]
    if table.name == "ablation":  # the columns that the text promises
        return [
            *numbers,
            ("ece", "after", training.variant, None),
            ("classwise_ece", "before", training.variant, None),
        ]
    # RBS in both readings; images out of distribution by the other score, too.
    other = {"rbs": "rbs", "ood_auroc": "ood_auroc_max_prob"}
    return numbers + [(other[table.name], cell.stage, cell.variant, None) for cell in cells if table.name in other]


def value_of(
    run: Run, metric: str, stage: str | None, variant: str | None = None, foreign: OODScores | None = None
) -> float:
    """A number of a finished run; after scaling, by the temperature with the least validation ECE, as published."""
    if metric.startswith("ood_auroc"):
        score = "max_prob" if metric.endswith("max_prob") else "entropy"
        return float((foreign or OODScores()).scores(run, str(variant))["auroc"][stage or "before"][score])
    result = run.require_result()
    if metric == "kde_ece":
        logits, target = run.predictions()
        return float(kde_ece(logits / result.temperature(SCALED_BY) if stage == "after" else logits, target))
    evaluation = result.evaluation(scaled_by=SCALED_BY if stage == "after" else None)
    value = 1 - evaluation.error if metric == "accuracy" else float(getattr(evaluation, metric))
    if not math.isfinite(value):
        raise RunError(f"{result.source}: has no finite {metric} of the test part")
    return value
