"""The figures of the paper, from run folders.

``FIGURES`` has each by name. Runs are put together first, by :func:`~dualfocal.plots.run_groups.group_runs`: those of
one data set and model make a *setting*, and those of it that differ in their seed only an *entry*, such as a loss.
"""

import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from matplotlib.figure import Figure

from dualfocal.metrics.corp import corp
from dualfocal.plots import (
    Curve,
    MetricBar,
    corp_panels,
    ece_over_training,
    max_logit_histogram,
    maximum_logits,
    metric_figure,
    reliability_figure,
    rival_boxplot,
    rival_probabilities,
    save,
    t_interval,
)
from dualfocal.plots.metric_bars import LEVEL
from dualfocal.plots.run_groups import Entry, Setting
from dualfocal.plots.style import one_axis
from dualfocal.plots.theory import phi_figure
from dualfocal.runs import Run, RunError, RunResult
from dualfocal.runs.layout import LOG, PREDICTIONS

METRICS = {"ece": "ECE", "adaptive_ece": "AdaECE", "classwise_ece": "classwise ECE"}


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper, and the function that draws it."""

    number: str
    shows: str
    draw: Callable[..., Figure]  # of a Setting, or of nothing
    needs_runs: bool = True


@dataclass(frozen=True)
class Drawing:
    """A figure that was drawn, or the reason why it was not."""

    name: str  # in FIGURES
    figure: PaperFigure
    setting: str | None  # data set and model
    files: list[Path]
    why_not: str = ""


def draw_figures(
    settings: Sequence[Setting],
    names: Iterable[str],
    out: Path,
    *,
    formats: Collection[str] = ("pdf", "png"),
    dpi: float = 200,
    progress: Callable[[int, int], None] | None = None,
) -> list[Drawing]:
    """Draw figures of the paper, each once for each setting, and write them.

    Args:
        settings: the runs, as :func:`~dualfocal.plots.run_groups.group_runs` finds them.
        names: of :data:`FIGURES`.
        out: an existing folder.
        formats: endings of the files, ``"pdf"``, ``"png"``, ``"svg"``.
        dpi: dots per inch of a PNG.
        progress: called with how many are done, and of how many.
    """
    once: list[Setting | None] = [None]
    wanted = [(name, setting) for name in names for setting in (settings if FIGURES[name].needs_runs else ()) or once]
    drawings = []
    for done, (name, setting) in enumerate(wanted):
        if progress is not None:
            progress(done, len(wanted))
        figure = FIGURES[name]
        title, stem = (None, name) if setting is None else (setting.title, f"{setting.stem}-{name}")
        files, why_not = [out / f"{stem}.{ending}" for ending in formats], ""
        try:
            if figure.needs_runs and setting is None:
                raise RunError("it needs finished runs")
            drawn = figure.draw(setting) if figure.needs_runs else figure.draw()
            for file in files:
                save(drawn, file, dpi=dpi)
        except RunError as error:  # the runs lack what it needs
            files, why_not = [], str(error)
        drawings.append(Drawing(name, figure, title, files, why_not))
    return drawings


def _reliability(setting: Setting) -> Figure:
    evaluations = {entry.label: entry.first.require_result().evaluation() for entry in setting.entries}
    remark = f"Test part, before temperature scaling; {setting.seeds}."
    return reliability_figure(evaluations, title=setting.title, remark=remark)


def _corp(setting: Setting) -> Figure:
    found = {label: corp(*run.predictions()) for label, run in _with_predictions(setting).items()}
    remark = (
        f"Test part, before temperature scaling; {setting.seeds}. Brier score of the predicted class = MCB - DSC + UNC."
    )
    return corp_panels(found, title=setting.title, remark=remark)


def _metrics(setting: Setting) -> Figure:
    results = {entry.label: entry.results for entry in setting.entries}
    panels: dict[str, dict[str, MetricBar]] = {name: {} for name in METRICS.values()}
    for (metric, name), (label, of) in product(METRICS.items(), results.items()):
        values = tuple(getattr(result.evaluation(), metric) for result in of)
        panels[name][label] = MetricBar(values, t_interval(values), _mean_floor(of, metric))
    interval = f"{100 * LEVEL:.0f} % t-interval of the mean"
    single = [label for label, of in results.items() if len(of) == 1]
    remark = f"Test part, before temperature scaling; {setting.numbers_of_seeds}. Intervals are over seeds."
    if single:
        remark += f" No interval of a single run: {', '.join(single)}."
    if len(single) == len(results):
        # Of a single run there is an honest interval of one error only, which is not the ECE.
        alone = {label: of[0].evaluation() for label, of in results.items()}
        inferences = {label: one.inference for label, one in alone.items() if one.inference is not None}
        panels["debiased RMS error"] = {
            label: MetricBar((alone[label].debiased_ece,), of.debiased_ece) for label, of in inferences.items()
        }
        interval = f"{100 * min(of.level for of in inferences.values()):.0f} % interval of the debiased RMS error"
        remark = f"Test part, before temperature scaling; {setting.seeds}: no interval over seeds."
    return metric_figure(panels, setting.looks, interval=interval, title=setting.title, remark=remark)


def _training(setting: Setting) -> Figure:
    logged = {
        part: {entry.label: _logged(entry, f"{part}_ece") for entry in setting.entries} for part in ("test", "val")
    }
    part = "test" if any(logged["test"].values()) else "val"
    curves = {label: Curve(seeds) for label, seeds in logged[part].items() if seeds}
    if not curves:
        raise RunError(f"no run has test_ece or val_ece of each epoch in its {LOG}")
    results = [entry.results for entry in setting.entries if entry.label in curves]
    floors = [_mean_floor(of, "ece", part) for of in results if all(one.evaluation(part).inference for one in of)]
    remark = "Smoothed: s(1) = x(1), s(t) = 0.5 s(t-1) + 0.5 x(t)."
    if any(len(curve.seeds) > 1 for curve in curves.values()):
        remark += " Lines: means over seeds; bands: lowest to highest seed."
    if part == "val":
        remark += "\nThe test part was not logged (test_each_epoch=true does that)."
    missing = {entry.label: len(entry.runs) - len(logged[part][entry.label]) for entry in setting.entries}
    runs = [f"{number} run{'s' * (number > 1)} of {label}" for label, number in missing.items() if number]
    if runs:
        remark += f"\nNot logged by {', '.join(runs)}."
    with one_axis(setting.title, remark, legend=True) as (figure, axis):
        ece_over_training(axis, curves, setting.looks, part="test" if part == "test" else "validation", floors=floors)
    return figure


def _logits(setting: Setting) -> Figure:
    found = {label: maximum_logits(run.predictions()[0]) for label, run in _with_predictions(setting).items()}
    remark = f"Test part, outputs before softmax; {setting.seeds}. Equal areas; a stroke at the median."
    with one_axis(setting.title, remark, rows=len(found)) as (figure, axis):
        max_logit_histogram(axis, found, setting.looks)
    return figure


def _rival(setting: Setting) -> Figure:
    found = {label: rival_probabilities(*run.predictions()) for label, run in _with_predictions(setting).items()}
    remark = f"All samples of the test part; {setting.seeds}. Diamond: mean. Outliers are not shown."
    with one_axis(setting.title, remark, rows=len(found)) as (figure, axis):
        rival_boxplot(axis, found, setting.looks)
    return figure


def _logged(entry: Entry, name: str) -> tuple[tuple[float, ...], ...]:
    """A number of each epoch, for the seeds whose log has it for all of them."""
    found = [tuple(line[name] for line in run.log if name in line) for run in entry.runs.values()]
    return tuple(values for values in found if len(values) == entry.recipe.epochs)


def _with_predictions(setting: Setting) -> dict[str, Run]:
    runs = {entry.label: entry.first for entry in setting.entries}
    for run in runs.values():
        if not run.has_predictions:
            raise RunError(f"{run.path} has no {PREDICTIONS}")
    return runs


def _mean_floor(results: Sequence[RunResult], metric: str, part: str = "test") -> float:
    """The noise floor of a metric, its mean over the seeds."""
    return statistics.fmean(result.floor(metric, part) for result in results)


FIGURES: dict[str, PaperFigure] = {
    "phi": PaperFigure("figure 1", "phi of focal and dual focal loss", phi_figure, needs_runs=False),
    "reliability": PaperFigure("figure 2", "reliability diagrams", _reliability),
    "corp": PaperFigure("figure 2", "reliability diagrams without bins (CORP)", _corp),
    "metrics": PaperFigure("figure 3", "ECE, AdaECE and classwise ECE with intervals", _metrics),
    "training": PaperFigure("figure 4a", "ECE over training", _training),
    "logits": PaperFigure("figure 4b", "histograms of maximum logits", _logits),
    "rival": PaperFigure("figure 4c", "box plot of q_j(x)", _rival),
}
