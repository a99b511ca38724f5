"""Tables and the picture of the replication on 20 Newsgroups, from the runs in lab/results/20newsgroups."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from replication_tables import RESULTS, ROOT, markdown, mean_and_range, percent

from dualfocal.metrics import Evaluation
from dualfocal.plots import save
from dualfocal.plots.style import BLACK, DARK_GREY, LOOKS, NotebookFigure, legend_below, styled
from dualfocal.tables import Table
from dualfocal_lab.paper.measurements import MEASUREMENTS, MeasuredRun
from dualfocal_lab.paper.replication import Replication, decide_claims
from dualfocal_lab.paper.replication_forest import group_name
from dualfocal_lab.paper.replication_plan import Sample, replication_plan, sort_runs
from dualfocal_lab.runs import find_runs

PLAN = "20newsgroups"
PICTURE = ROOT / "lab" / "replication" / "20newsgroups.png"
Line = Mapping[str, Any]  # of a log
METRICS = ("error", "ece", "ece_temperature", "nll", "nll_temperature")


@cache
def decided() -> Replication:
    """The claims, decided."""
    return decide_claims(find_runs(RESULTS / PLAN), PLAN)


@cache
def groups() -> dict[str, dict[int, MeasuredRun]]:
    """The runs by group and seed; of the gammas that were not chosen, only the first seed was planned."""
    return Sample.of(sort_runs(find_runs(RESULTS / PLAN), PLAN), draws=0).runs


def claims_table() -> str:
    """Claims, rules and verdicts."""
    rows = [[claim.id, claim.claim, claim.rule, f"**{claim.verdict}**"] for claim in decided().claims]
    return markdown(Table(["", "claim of the paper", "reproduced if", "verdict"], rows, left=range(4)))


def row_table() -> str:
    """The row of the paper's table 1, and beside it the mean of our runs, with the lowest and the highest."""
    headings = [
        "",
        "runs",
        "error [%]",
        "ECE [%]",
        "its floor",
        "ECE, T by ECE [%]",
        "T by ECE",
        "NLL",
        "NLL, T by NLL",
    ]
    rows = []
    for group, by_seed in groups().items():
        theirs, runs = replication_plan(PLAN)["published"].get(group, {}), list(by_seed.values())
        error, ece, ece_after, nll, nll_after = (
            _beside(theirs.get(metric), metric, [float(run.measure(metric) or 0) for run in runs]) for metric in METRICS
        )
        floor = percent(statistics.fmean(run.result.floor("ece") for run in runs))
        fitted = [f"{run.result.temperature('temperature_ece'):.1f}" for run in runs]
        temperatures = mean_and_range(fitted, f"{statistics.fmean(map(float, fitted)):.1f}")
        temperature = f"{theirs['temperature']} / {temperatures}" if theirs else temperatures
        cells = [str(len(runs)), error, ece, floor, ece_after, temperature, nll, nll_after]
        rows.append([group_name(group), *cells])
    return markdown(Table(headings, rows))


def headline() -> str:
    """For README.md: the ECE of the paper's row, ours, and ours by another epoch of the same trainings."""
    published = replication_plan(PLAN)["published"]
    rows = [["published"], ["ours, mean"], ["lowest to highest run"], ["floor"], ["epoch of lowest validation NLL"]]
    for loss, theirs in published.items():
        runs = list(groups()[loss].values())
        eces = [float(run.measure("ece") or 0) for run in runs]
        other = [RULES["lowest validation NLL"](run.run.log)["test_ece"] for run in runs]
        cells = [*map(percent, (theirs["ece"], statistics.fmean(eces)))]
        cells.append(f"{percent(min(eces), 1)} to {percent(max(eces), 1)}")
        cells += map(percent, (statistics.fmean(run.result.floor("ece") for run in runs), statistics.fmean(other)))
        for row, cell in zip(rows, cells, strict=True):
            row.append(cell)
    return markdown(Table(["ECE [%]", *map(group_name, published)], rows))


def _beside(theirs: float | None, metric: str, ours: Sequence[float]) -> str:
    """A published number, if there is one, beside mean and range of ours."""
    shown = MEASUREMENTS[metric].shown
    text = mean_and_range([shown.text(value) for value in ours], shown.text(statistics.fmean(ours)))
    return text if theirs is None else f"{shown.text(theirs)} / {text}"


def numbers_table() -> str:
    """Every quantity of every claim."""
    table = decided().table()
    return markdown(
        Table(table.headings, [[cell.replace("_", r"\_") for cell in row] for row in table.rows], left=(0, 1, 6))
    )


def controls_table() -> str:
    """The float32 runs."""
    return markdown(decided().controls_table())


# The choice of the epoch


def kept_epoch(log: Sequence[Line]) -> Line:
    """The epoch that the published recipe keeps: the first with the lowest validation error."""
    return min(log, key=lambda line: line["val_error"])


def within_one_error(log: Sequence[Line], num_val: int) -> list[Line]:
    """Epochs whose validation error is within one binomial standard error of the lowest."""
    best = kept_epoch(log)["val_error"]
    return [line for line in log if line["val_error"] <= best + math.sqrt(best * (1 - best) / num_val)]


RULES: dict[str, Callable[[Sequence[Line]], Line]] = {
    "lowest validation error (published)": kept_epoch,
    "lowest validation NLL": lambda log: min(log, key=lambda line: line["val_nll"]),
    "last": lambda log: log[-1],
}


def rules_table() -> str:
    """Test ECE and error if another epoch of the same trainings had been kept, means over seeds."""
    headings = ["", "runs"]
    headings += [f"{rule}: {what}" for rule in RULES for what in ("epochs", "ECE [%]", "error [%]")]
    rows = []
    for group, by_seed in groups().items():
        cells = [str(len(by_seed))]
        for rule in RULES.values():
            lines = [rule(run.run.log) for run in by_seed.values()]
            epochs = sorted(line["epoch"] for line in lines)
            cells.append(f"{epochs[0]} to {epochs[-1]}" if epochs[0] < epochs[-1] else str(epochs[0]))
            cells += [percent(statistics.fmean(line[f"test_{name}"] for line in lines)) for name in ("ece", "error")]
        rows.append([group_name(group), *cells])
    return markdown(Table(headings, rows))


def spread_table() -> str:
    """How much the test ECE varies over the epochs that validation cannot tell from the kept one, means over seeds."""
    rows = []
    for group, by_seed in groups().items():
        near = [within_one_error(run.run.log, _num_val(run.result.evaluation("val"))) for run in by_seed.values()]
        eces = [[line["test_ece"] for line in lines] for lines in near]
        means = [statistics.fmean(map(of, eces)) for of in (min, max)]
        spread = statistics.fmean(max(each) - min(each) for each in eces)
        rows.append([group_name(group), f"{statistics.fmean(map(len, near)):.1f}", *map(percent, [*means, spread])])
    return markdown(Table(["", "such epochs", "lowest ECE [%]", "highest ECE [%]", "spread [points]"], rows))


def _num_val(evaluation: Evaluation) -> int:
    return evaluation.num_samples


def draw(path: Path = PICTURE) -> Path:
    """Draw the test ECE of all runs over the epochs, with the kept ones."""
    published = replication_plan(PLAN)["published"]
    shown = [group for group in groups() if group in published or len(groups()[group]) > 1]
    with styled():
        figure = NotebookFigure(figsize=(7.6, 4.4), layout="constrained")
        axes = figure.subplots(2, 4, sharex=True, sharey=True)
        for group, ax in zip(shown, axes.flat, strict=True):
            colour = LOOKS[group.partition(" ")[0]].colour
            for run in groups()[group].values():
                log, kept = run.run.log, kept_epoch(run.run.log)
                ax.plot([line["epoch"] for line in log], [100 * line["test_ece"] for line in log], color=colour, lw=0.8)
                ax.plot(kept["epoch"], 100 * kept["test_ece"], "o", color=colour, markersize=5, markeredgecolor=BLACK)
            floors = [run.result.floor("ece") for run in groups()[group].values()]
            ax.axhline(100 * statistics.fmean(floors), color=DARK_GREY, lw=0.8, ls=":")
            if group in published:
                ax.axhline(100 * published[group]["ece"], color=DARK_GREY, lw=1, ls="--")
            ax.set(title=group_name(group), ylim=(0, 25), xlim=(0, 51))
        for ax in axes[-1]:
            ax.set_xlabel("epoch")
        for ax in axes[:, 0]:
            ax.set_ylabel("test ECE [%]")
        handles = [
            axes[0, 0].plot([], [], color=DARK_GREY, lw=0.8)[0],
            axes[0, 0].plot([], [], "o", color=DARK_GREY, markersize=5, markeredgecolor=BLACK)[0],
            axes[0, 0].plot([], [], color=DARK_GREY, lw=1, ls="--")[0],
            axes[0, 0].plot([], [], color=DARK_GREY, lw=0.8, ls=":")[0],
        ]
        labels = ["a run", "its kept epoch", "published", "noise floor"]
        legend_below(figure, handles, labels, columns=4)
        save(figure, path, dpi=160)
    return path
