"""Our numbers beside the published ones: what runs say of the cells of a table."""

import dataclasses
import math
import statistics
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from scipy.stats import t as student

from dualfocal.metrics import kde_ece
from dualfocal.paper.foreign import Foreign
from dualfocal.paper.published import Cell, Table
from dualfocal.paper.trainings import TRAINED_BY, Training
from dualfocal.runs import Run, RunError

LEVEL = 0.9
SCALED_BY = "temperature_ece"  # as published
FLOORS = ("ece", "adaptive_ece", "classwise_ece", "mce")  # metrics that have one
# The largest value there is, of what is no share of samples or of probability.
LARGEST = {"nll": math.inf, "brier": 2.0, "rbs": math.sqrt(2), "kde_ece": 2.0}


@dataclass(frozen=True)
class Row:
    """A cell of the paper, or one that it lacks, and what our runs have there."""

    training: Training
    metric: str
    stage: str | None
    variant: str | None
    published: Cell | None
    ours: list[float]
    """Of each seed that is finished."""
    temperatures: list[float]
    published_error: Cell | None = None
    """The standard error of a published mean."""
    seeds: tuple[int, ...] = ()
    """Of ``ours``."""
    floors: list[float] = field(default_factory=list)
    """What a calibrated model with the confidences of each of ``ours`` would show by chance; of calibration errors."""

    def of_seeds(self, seeds: Collection[int]) -> "Row":
        """What the runs of some seeds alone say."""
        places = [place for place, seed in enumerate(self.seeds) if seed in seeds]
        return dataclasses.replace(
            self,
            ours=[self.ours[place] for place in places],
            temperatures=[self.temperatures[place] for place in places] if self.temperatures else [],
            seeds=tuple(self.seeds[place] for place in places),
            floors=[self.floors[place] for place in places] if self.floors else [],
        )

    @property
    def largest(self) -> float:
        """What this number can be at most; at least it is 0."""
        return LARGEST.get(self.metric, 1.0)

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return statistics.mean(self.ours) if self.ours else math.nan

    @property
    def floor(self) -> float | None:
        """Over the seeds; None: the metric has none, or there is no run."""
        return statistics.mean(self.floors) if self.floors else None

    @property
    def standard_error(self) -> float | None:
        """Of the mean, over the seeds; None: that takes two."""
        return statistics.stdev(self.ours) / math.sqrt(len(self.ours)) if len(self.ours) > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where one more run would fall, 90 % of the time; None: that takes two seeds."""
        if len(self.ours) < 2:
            return None
        number = len(self.ours)
        quantile = float(student.ppf((1 + LEVEL) / 2, number - 1))
        half = quantile * statistics.stdev(self.ours) * math.sqrt(1 + 1 / number)
        return max(self.mean - half, 0.0), min(self.mean + half, self.largest)

    @property
    def agrees(self) -> bool | None:
        """Whether the published run could be one of ours; None: unknown, as where any could, or a mean of several."""
        if self.published is None or self.interval is None or self.published_error is not None:
            return None
        low, high = self.interval
        if (low, high) == (0.0, self.largest):
            return None
        return low <= self.published.value <= high


def runs_of(found: dict[str, Training], out: Path, suffix: str = "") -> dict[tuple[str, int], Path]:
    """The folders of trainings that are finished, or have failed, by name and seed; of other recipes none.

    Args:
        found: the trainings, by name.
        out: the folder of a study.
        suffix: of the trainings' names there, such as that of a shorter schedule.
    """
    names = {(name + suffix).replace(" ", "_"): name for name in found}
    runs: dict[tuple[str, int], Path] = {}
    for path in (out / "runs").glob("*-seed*"):
        folder, _, seed = path.name.rpartition("-seed")
        if folder not in names or not seed.isdecimal() or Run(path).state not in ("finished", "failed"):
            continue
        name = names[folder]
        if Run(path).recipe == dataclasses.replace(found[name].recipe, seed=int(seed)):
            runs[name, int(seed)] = path
    return runs


def rows_of(
    table: Table, found: dict[str, Training], runs: dict[tuple[str, int], Path], foreign: Foreign | None = None
) -> list[Row]:
    """A row for each number of the table whose training was asked for, and for each extra training.

    Args:
        table: with misplaced cells where they belong.
        found: the trainings, by name.
        runs: their folders, by name and seed; those that are not finished are left out of the means.
        foreign: how numbers on foreign images are come by, where they have not been kept.
    """
    rows = []
    for training in found.values():
        folders = {seed: Run(path) for (name, seed), path in sorted(runs.items()) if name == training.name}
        seeds = tuple(seed for seed, run in folders.items() if run.result is not None)
        finished = [folders[seed] for seed in seeds]
        if training.extra and table.name != "kde_xe":
            wanted: list[tuple[str, str | None, str | None, Cell | None]] = [
                (table.metric or "ece", stage, None, None) for stage in ("before", "after")
            ]
        else:
            cells = table.find(data=training.data, model=training.model, method=training.method)
            if table.variant in TRAINED_BY:
                cells = [cell for cell in cells if cell.variant == training.variant]
            wanted = [(cell.metric, cell.stage, cell.variant, cell) for cell in cells]
            if table.name == "rbs":  # in both readings
                wanted += [("rbs", cell.stage, cell.variant, None) for cell in cells]
            if table.name == "ablation":  # the columns that the text promises
                wanted += [
                    ("ece", "after", training.variant, None),
                    ("classwise_ece", "before", training.variant, None),
                ]
            if table.name == "ood_auroc":  # by the other score, too
                wanted += [("ood_auroc_max_prob", cell.stage, cell.variant, None) for cell in cells]
        for metric, stage, variant, cell in wanted:
            if variant == "standard_error":
                continue  # it stands beside its mean
            values = [value_of(run, metric, stage, variant, foreign) for run in finished]
            results = [run.require_result() for run in finished]
            temperatures = [result.temperature(SCALED_BY) for result in results] if stage == "after" else []
            error = None
            if variant == "mean" and cell is not None:
                same = {"method": cell.method, "metric": metric, "stage": stage, "variant": "standard_error"}
                error = table.find(data=cell.data, model=cell.model, **same)[0]
            has_floor = results if metric in FLOORS else []
            floors = [result.floor(metric, scaled_by=_scaled_by(stage)) for result in has_floor]
            rows.append(Row(training, metric, stage, variant, cell, values, temperatures, error, seeds, floors))
    return rows


def value_of(
    run: Run, metric: str, stage: str | None, variant: str | None = None, foreign: Foreign | None = None
) -> float:
    """A number of a finished run; after scaling, by the temperature with the least validation ECE, as published."""
    if metric.startswith("ood_auroc"):
        assert variant is not None
        score = "max_prob" if metric.endswith("max_prob") else "entropy"
        return float((foreign or Foreign()).scores(run, variant)["auroc"][stage or "before"][score])
    result = run.require_result()
    if metric == "kde_ece":
        logits, target = run.predictions()
        return float(kde_ece(logits / result.temperature(SCALED_BY) if stage == "after" else logits, target))
    evaluation = result.evaluation(scaled_by=_scaled_by(stage))
    value = 1 - evaluation.error if metric == "accuracy" else float(getattr(evaluation, metric))
    if not math.isfinite(value):
        raise RunError(f"{result.source}: has no finite {metric} of the test part")
    return value


def _scaled_by(stage: str | None) -> str | None:
    return SCALED_BY if stage == "after" else None
