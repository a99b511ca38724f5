"""The pictures of the replication report, drawn from the runs of the plan.

runs = find_runs(RESULTS / "cifar10")
draw_replication(runs, decide_claims(runs), Path("figures"))
"""

import csv
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from dualfocal.metrics import Evaluation, evaluate
from dualfocal.plots import save
from dualfocal.plots.style import BLACK, DARK_GREY, GREEN, LOOKS, ORANGE, Look, NotebookFigure, legend_below, styled
from dualfocal.predictions import load_predictions
from dualfocal_lab import RESULTS
from dualfocal_lab.paper.measurements import MeasuredRun
from dualfocal_lab.paper.published import published
from dualfocal_lab.paper.replication import Replication
from dualfocal_lab.paper.replication_forest import LOSSES, claims_figure, group_name, in_unit
from dualfocal_lab.paper.replication_plan import Sample, replication_plan, sort_runs
from dualfocal_lab.plots.forest import ForestRow, forest_legend, forest_panel
from dualfocal_lab.plots.seed_reliability import LEAST, SeedEvaluations, seed_reliability_figure
from dualfocal_lab.plots.training import ece_over_training
from dualfocal_lab.runs import Run

LOGS = RESULTS / "published_logs/cifar10.csv"
LOGITS = RESULTS / "published_logits"
AUTHORS_RUN = "resnet50_dual_focal_gamma6"  # in LOGS
AUTHORS_LABEL = "gamma 6, the authors' log"
TRAINING_REMARK = (
    "Smoothed: s(1) = x(1), s(t) = 0.5 s(t-1) + 0.5 x(t). Lines: means over runs; bands: lowest to highest run. "
    "Dots at the end: last epoch of each run, not smoothed."
)
DPI = 160
LAST_RATE = 250  # epoch after which the learning rate stays
# What is drawn in the rows of temperature.png: metric of each panel, key of RunResult.calibrated, published stage.
STAGES: dict[str, tuple[tuple[str, str], str | None, str | None]] = {
    "as trained": (("ece", "nll"), None, "before"),
    "T by ECE": (("ece_temperature", "nll_temperature_by_ece"), "temperature_ece", "after"),
    "T by NLL": (("ece_temperature_by_nll", "nll_temperature"), "temperature", None),
}


@dataclass(frozen=True)
class ReplicationRuns:
    """Finished runs of the plan by group and seed, and the controls by name."""

    groups: dict[str, dict[int, MeasuredRun]]
    controls: dict[str, MeasuredRun]

    @classmethod
    def of(cls, runs: Iterable[Run]) -> "ReplicationRuns":
        """Sort runs into the plan."""
        places = sort_runs(runs)
        groups = Sample.of(places, draws=0).runs
        controls = {control.name: Run(control.run) for control in places.controls}
        measured = {name: MeasuredRun(run, run.require_result()) for name, run in controls.items()}
        return cls({group: by_seed for group, by_seed in groups.items() if by_seed}, measured)


def draw_replication(
    runs: Iterable[Run], decided: Replication, out: Path, *, logs: Path = LOGS, logits: Path = LOGITS
) -> list[Path]:
    """Draw the pictures of the report, ``claims.png``, ``training.png``, ``temperature.png`` and ``reliability.png``.

    Args:
        runs: the runs that ``decided`` was computed from.
        decided: the claims.
        out: folder of the pictures; created if necessary.
        logs: the authors' training logs; left out of the picture if the file does not exist.
        logits: folder of the published logits; networks without a file are left out of the picture.

    Returns:
        The files. A picture is not drawn if no run has what it shows.
    """
    measured = ReplicationRuns.of(runs)
    figures: dict[str, Callable[[], Figure | None]] = {
        "claims": lambda: claims_figure(decided),
        "training": lambda: training_figure(measured, read_log(logs) if logs.exists() else ()),
        "temperature": lambda: temperature_figure(measured),
        "reliability": lambda: reliability_figure(measured, logits),
    }
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for name, draw in figures.items():
        if (figure := draw()) is not None:
            files.append(out / f"{name}.png")
            save(figure, files[-1], dpi=DPI)
    return files


# Test ECE over training


def read_log(path: Path, run: str = AUTHORS_RUN, column: str = "test_ece") -> list[float]:
    """Return a column of a training log of the authors, epoch by epoch."""
    with path.open(encoding="utf-8", newline="") as file:
        return [float(line[column]) for line in csv.DictReader(file) if line["run"] == run]


def training_curves(runs: ReplicationRuns) -> dict[str, dict[int, list[float]]]:
    """Return the test ECE of each epoch, by group and seed, of the runs that have logged it for all epochs."""
    curves: dict[str, dict[int, list[float]]] = {}
    for group, by_seed in runs.groups.items():
        for seed, run in by_seed.items():
            logged = [line["test_ece"] for line in run.run.log if line.get("test_ece") is not None]
            if len(logged) == run.result.epochs:
                curves.setdefault(group, {})[seed] = logged
    return curves


def training_figure(runs: ReplicationRuns, authors: Sequence[float]) -> Figure | None:
    """Draw the test ECE over all epochs, and over those of the last learning rate; None: no run has logged it."""
    curves: dict[str, list[list[float]]] = {}
    looks: dict[str, Look] = {}
    for group, by_seed in training_curves(runs).items():
        loss, _, gamma = group.partition(" ")
        label = f"{group_name(group)}, {len(by_seed)} run{'s' * (len(by_seed) > 1)}"
        curves[label], looks[label] = list(by_seed.values()), Look(GREEN, "-", "s", "") if gamma else LOOKS[loss]
    if not curves:
        return None
    if authors:
        curves[AUTHORS_LABEL], looks[AUTHORS_LABEL] = [list(authors)], Look(ORANGE, (0, (4, 1.5)), "D", "")
    compared = {label: seeds for label, seeds in curves.items() if not label.startswith(LOSSES["cross_entropy"])}
    others = [run for group, members in runs.groups.items() if group != "cross_entropy" for run in members.values()]
    floors = [run.result.floor("ece") for run in others]
    with styled():
        figure = NotebookFigure(figsize=(7.6, 3.9), layout="constrained")
        whole, last = figure.subplots(1, 2, width_ratios=[1.1, 1])
        ece_over_training(curves, looks=looks, floors=floors, ax=whole)
        ece_over_training(compared, looks=looks, floors=floors, ax=last)
        epochs = max(len(seed) for seeds in compared.values() for seed in seeds)
        for label, seeds in compared.items():  # not smoothed: the numbers of the tables
            ends = [100 * seed[-1] for seed in seeds]
            last.plot([epochs] * len(ends), ends, "o", color=looks[label].colour, clip_on=False, markersize=5)
        theirs = 100 * replication_plan()["published"]["dual_focal"]["ece"]
        (mark,) = last.plot(epochs, theirs, "D", color=ORANGE, markeredgecolor=BLACK, clip_on=False)
        highest = max(value for seeds in compared.values() for seed in seeds for value in seed[LAST_RATE:])
        last.set(
            xlim=(LAST_RATE, epochs), ylim=(0, 105 * highest), ylabel="", title=f"epochs {LAST_RATE + 1} to {epochs}"
        )
        most = np.quantile([value for seeds in curves.values() for seed in seeds for value in seed], 0.99)
        whole.set(xlim=(0, epochs), ylim=(0, 100 * most), title="whole training")
        handles, labels = whole.get_legend_handles_labels()
        handles, labels = [*handles, mark], [*labels, "published, dual focal"]
        legend_below(figure, handles, labels, columns=3, remark=TRAINING_REMARK)
    return figure


# Before and after temperature scaling


def temperature_figure(runs: ReplicationRuns) -> Figure:
    """Draw ECE and NLL of all runs, as trained and after temperature scaling."""
    groups = {group_name(group): (group, list(by_seed.values())) for group, by_seed in runs.groups.items()}
    groups |= {f"control: {name}": ("", [run]) for name, run in runs.controls.items()}
    columns: list[list[ForestRow | None]] = [[], []]
    for name, (group, group_runs) in groups.items():
        for column, rows in enumerate(columns):
            rows.append(ForestRow(label="" if column else name, is_heading=True))
            rows += [_temperature_row(group, group_runs, stage, column) for stage in STAGES]
    with styled():
        figure = NotebookFigure(figsize=(7.6, 0.165 * len(columns[0]) + 1.2), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for axis, rows, label in zip(axes, columns, ("ECE [%]", "NLL [nats]"), strict=True):
            forest_panel(rows, log=True, ax=axis).set_xlabel(label)
        handles, labels = forest_legend(floor="noise floor of the ECE")
        legend_below(figure, handles, labels, columns=4)
    return figure


def _temperature_row(group: str, runs: Sequence[MeasuredRun], stage: str, column: int) -> ForestRow:
    """A row of the panel of the ECE (column 0) or of the NLL (1)."""
    metrics, scaled_by, published_stage = STAGES[stage]
    values = tuple(value for run in runs if (value := run.measure(metrics[column])) is not None)
    theirs = None
    if group in LOSSES and published_stage is not None:
        setting = replication_plan()["setting"]
        cell = {"data": setting["dataset"], "model": setting["model"], "method": group, "stage": published_stage}
        theirs = published(("ece", "nll")[column]).value(**cell)
    row = ForestRow(
        label=stage,
        colour=LOOKS[group.partition(" ")[0]].colour if group else DARK_GREY,
        values=values,
        mean=statistics.fmean(values) if len(values) > 1 else None,
        published=theirs,
        floor=statistics.fmean(run.result.floor("ece", scaled_by=scaled_by) for run in runs) if column == 0 else None,
    )
    return in_unit(metrics[column], row)


# Reliability


def reliability_figure(runs: ReplicationRuns, logits: Path) -> Figure | None:
    """Draw reliability diagrams of all runs of the three losses; None: there are no runs."""
    methods = {}
    for loss, name in LOSSES.items():
        if by_seed := runs.groups.get(loss):
            evaluations = [run.result.evaluation("test") for run in by_seed.values()]
            theirs = _published_network(loss, logits)
            methods[name] = SeedEvaluations(evaluations, LOOKS[loss].colour, theirs, _ece_text(loss, evaluations))
    remark = (
        f"Test split, as trained. Bins with fewer than {LEAST} samples are not shown. "
        "Below: share of samples, mean over runs."
    )
    return seed_reliability_figure(methods, remark=remark) if methods else None


def _published_network(loss: str, logits: Path) -> Evaluation | None:
    setting = replication_plan()["setting"]
    file = logits / f"{setting['model']}-{setting['dataset']}-{loss}.npz"
    if not file.exists():
        return None
    test = load_predictions(file, split="test")
    return evaluate(test.values, test.target)


def _ece_text(loss: str, evaluations: Sequence[Evaluation]) -> str:
    ours = sorted(100 * evaluation.ece for evaluation in evaluations)
    text = f"{ours[0]:.2f}" if len(ours) == 1 else f"{ours[0]:.2f} to {ours[-1]:.2f}"
    return f"ECE {text} %\npublished {100 * replication_plan()['published'][loss]['ece']:.2f} %"
