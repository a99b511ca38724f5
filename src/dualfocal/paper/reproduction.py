"""Our numbers beside the published ones: what runs say of the cells of a table."""

import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from scipy.stats import t as student

from dualfocal._files import atomic_path
from dualfocal.data import load_data
from dualfocal.data.places import Root
from dualfocal.metrics import evaluate, kde_ece, ood_auroc
from dualfocal.paper.published import Cell, Table
from dualfocal.paper.trainings import TRAINED_BY, Training
from dualfocal.train import Run

LEVEL = 0.9
FOREIGN: dict[str, dict[str, Any]] = {"svhn": {"only_test": True}, "cifar10c": {}}
SEVERITIES = (1, 2, 3, 4, 5)
BATCH = 500


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
        number = len(self.ours)
        quantile = float(student.ppf((1 + LEVEL) / 2, number - 1))
        half = quantile * statistics.stdev(self.ours) * math.sqrt(1 + 1 / number)
        return max(self.mean - half, 0.0), self.mean + half  # no number of the tables is negative

    @property
    def agrees(self) -> bool | None:
        """Whether the published run could be one of ours; None: unknown, or it is a mean of several."""
        if self.published is None or self.interval is None or self.published_error is not None:
            return None
        low, high = self.interval
        return low <= self.published.value <= high


def rows_of(
    table: Table, found: dict[str, Training], runs: dict[tuple[str, int], Path], data_root: Root = None
) -> list[Row]:
    """A row for each number of the table whose training was asked for, and for each extra training.

    Args:
        table: with misplaced cells where they belong.
        found: the trainings, by name.
        runs: their folders, by name and seed; those that are not finished are left out of the means.
        data_root: of the data that models are foreign to.
    """
    rows = []
    for training in found.values():
        folders = [path for (name, _), path in runs.items() if name == training.name]
        finished = [run for run in map(Run, folders) if run.result is not None]
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
            values = [value_of(run, metric, stage, variant, data_root) for run in finished]
            temperatures = [_temperature(run) for run in finished] if stage == "after" else []
            error = None
            if variant == "mean" and cell is not None:
                same = {"method": cell.method, "metric": metric, "stage": stage, "variant": "standard_error"}
                error = table.find(data=cell.data, model=cell.model, **same)[0]
            rows.append(Row(training, metric, stage, variant, cell, values, temperatures, error))
    return rows


def value_of(run: Run, metric: str, stage: str | None, variant: str | None = None, data_root: Root = None) -> float:
    """A number of a finished run; after scaling, by the temperature with the least validation ECE, as published."""
    result = run.result
    assert result is not None
    if metric.startswith("ood_auroc"):
        assert variant is not None
        score = "max_prob" if metric.endswith("max_prob") else "entropy"
        return float(foreign_scores(run, variant, data_root)["auroc"][stage or "before"][score])
    if metric == "kde_ece":
        logits, target = run.predictions()
        return float(kde_ece(logits / _temperature(run) if stage == "after" else logits, target))
    part = result["calibrated"]["temperature_ece"]["test"] if stage == "after" else result["test"]
    return 1 - float(part["error"]) if metric == "accuracy" else float(part[metric])


@torch.no_grad()
def foreign_scores(run: Run, name: str, data_root: Root = None) -> dict[str, Any]:
    """How a model tells foreign images from its own, by entropy and by confidence, before and after scaling; kept.

    For CIFAR-10-C, whose images have labels, also its error, ECE and NLL at each severity.
    """
    path = run.path / f"foreign-{name}.json"
    if path.exists():
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return kept
    encoder = load_data(run.recipe.data, data_root, **run.recipe.data_options).encoder_of("test")
    model, temperature = run.model(), _temperature(run)
    known, _ = run.predictions()

    def logits_of(images: torch.Tensor) -> torch.Tensor:
        return torch.cat([model(encoder(part)).float() for part in torch.split(images, BATCH)])

    images, _ = load_data(name, data_root, **FOREIGN[name]).part("test")
    foreign = logits_of(images)
    scores = {
        stage: {score: ood_auroc(known / t, foreign / t, score=score) for score in ("entropy", "max_prob")}
        for stage, t in (("before", 1.0), ("after", temperature))
    }
    content: dict[str, Any] = {"schema": 1, "foreign": name, "auroc": scores}
    if name == "cifar10c":
        content["severities"] = {}
        for severity in SEVERITIES:
            images, target = load_data(name, data_root, severity=severity).part("test")
            logits = logits_of(images)
            content["severities"][severity] = {
                stage: {key: getattr(evaluate(logits / t, target), key) for key in ("error", "ece", "nll")}
                for stage, t in (("before", 1.0), ("after", temperature))
            }
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return content


def _temperature(run: Run) -> float:
    result = run.result
    assert result is not None
    return float(result["calibrated"]["temperature_ece"]["temperature"])
