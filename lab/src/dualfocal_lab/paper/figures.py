"""The figures of the paper, drawn from run folders.

``FIGURES`` lists them by name. :func:`~dualfocal_lab.plots.run_groups.group_runs` groups the runs first: runs of one
data set and model form a *setting*, and runs of a setting that differ only in their seed form an *entry*, such as a
loss.
"""

import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from matplotlib.figure import Figure

from dualfocal.metrics import corp
from dualfocal.plots import corp_figure, reliability_figure, save
from dualfocal.plots.style import one_axis
from dualfocal_lab.plots import MetricBar, ece_over_training, max_logit_histogram, metric_figure, rival_boxplot
from dualfocal_lab.plots.metric_bars import LEVEL, t_interval
from dualfocal_lab.plots.run_groups import Entry, Setting
from dualfocal_lab.plots.theory import phi_figure
from dualfocal_lab.runs import Run, RunError, RunResult
from dualfocal_lab.runs.layout import LOG, PREDICTIONS

METRICS = {"ece": "ECE", "adaptive_ece": "AdaECE", "classwise_ece": "classwise ECE"}


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper, and the function that draws it."""

    number: str
    shows: str
    draw: Callable[..., Figure]  # takes a Setting, or nothing
    needs_runs: bool = True


@dataclass(frozen=True)
class Drawing:
    """A figure that was drawn, or the reason why it was left out."""

    name: str  # key of FIGURES
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
    """Draw figures of the paper for each setting, and save them.

    Args:
        settings: the runs, grouped by :func:`~dualfocal_lab.plots.run_groups.group_runs`.
        names: keys of :data:`FIGURES`.
        out: an existing folder.
        formats: file formats: ``"pdf"``, ``"png"``, ``"svg"``.
        dpi: dots per inch of a PNG.
        progress: called with the numbers of finished figures and of all figures.

    Returns:
        One drawing per figure and setting; those that could not be drawn say why.
    """
    no_setting: list[Setting | None] = [None]
    jobs = [
        (name, setting) for name in names for setting in (settings if FIGURES[name].needs_runs else ()) or no_setting
    ]
    drawings = []
    for done, (name, setting) in enumerate(jobs):
        if progress is not None:
            progress(done, len(jobs))
        figure = FIGURES[name]
        title, stem = (None, name) if setting is None else (setting.title, f"{setting.stem}-{name}")
        files, why_not = [out / f"{stem}.{ending}" for ending in formats], ""
        try:
            if figure.needs_runs and setting is None:
                raise RunError("no finished runs were given")
            drawn = figure.draw(setting) if figure.needs_runs else figure.draw()
            for file in files:
                save(drawn, file, dpi=dpi)
        except RunError as error:  # the runs do not have what the figure needs
            files, why_not = [], str(error)
        drawings.append(Drawing(name, figure, title, files, why_not))
    return drawings


def _reliability(setting: Setting) -> Figure:
    evaluations = {entry.label: entry.first.require_result().evaluation() for entry in setting.entries}
    remark = f"Test split, uncalibrated; {setting.seeds}."
    return reliability_figure(evaluations, title=setting.title, remark=remark)


def _corp(setting: Setting) -> Figure:
    curves = {label: corp(*run.predictions()) for label, run in _with_predictions(setting).items()}
    remark = f"Test split, uncalibrated; {setting.seeds}. Brier score of the predicted class = MCB - DSC + UNC."
    return corp_figure(curves, title=setting.title, remark=remark)


def _metrics(setting: Setting) -> Figure:
    results = {entry.label: entry.results for entry in setting.entries}
    panels: dict[str, dict[str, MetricBar]] = {name: {} for name in METRICS.values()}
    for (metric, name), (label, seeds) in product(METRICS.items(), results.items()):
        values = tuple(getattr(result.evaluation(), metric) for result in seeds)
        panels[name][label] = MetricBar(values, t_interval(values), _mean_floor(seeds, metric))
    interval = f"{100 * LEVEL:.0f} % confidence interval of the mean over seeds"
    single = [label for label, seeds in results.items() if len(seeds) == 1]
    remark = f"Test split, uncalibrated; {setting.numbers_of_seeds}."
    if single:
        remark += f" No interval for a single run: {', '.join(single)}."
    if len(single) == len(results):
        # For a single run, only the debiased error has an interval with correct coverage.
        evaluations = {label: seeds[0].evaluation() for label, seeds in results.items()}
        inferences = {label: result.inference for label, result in evaluations.items() if result.inference is not None}
        panels["debiased RMS error"] = {
            label: MetricBar((evaluations[label].debiased_ece,), inference.debiased_ece)
            for label, inference in inferences.items()
        }
        level = min(inference.level for inference in inferences.values())
        interval = f"{100 * level:.0f} % confidence interval of the debiased RMS error"
        remark = f"Test split, uncalibrated; {setting.seeds}: no interval over seeds."
    return metric_figure(panels, setting.looks, interval=interval, title=setting.title, remark=remark)


def _training(setting: Setting) -> Figure:
    logged = {
        part: {entry.label: _logged(entry, f"{part}_ece") for entry in setting.entries} for part in ("test", "val")
    }
    part = "test" if any(logged["test"].values()) else "val"
    curves = {label: seeds for label, seeds in logged[part].items() if seeds}
    if not curves:
        raise RunError(f"no run has test_ece or val_ece for every epoch in its {LOG}")
    results = [entry.results for entry in setting.entries if entry.label in curves]
    floors = [
        _mean_floor(seeds, "ece", part)
        for seeds in results
        if all(result.evaluation(part).inference for result in seeds)
    ]
    remark = "Smoothed: s(1) = x(1), s(t) = 0.5 s(t-1) + 0.5 x(t)."
    if any(len(seeds) > 1 for seeds in curves.values()):
        remark += " Lines: means over seeds; bands: lowest to highest seed."
    if part == "val":
        remark += "\nThe test split was not logged; train with test_each_epoch=true to log it."
    missing = {entry.label: len(entry.runs) - len(logged[part][entry.label]) for entry in setting.entries}
    runs = [f"{number} run{'s' * (number > 1)} of {label}" for label, number in missing.items() if number]
    if runs:
        remark += f"\nNot logged by {', '.join(runs)}."
    with one_axis(setting.title, remark, legend=True) as (figure, axis):
        name = "test" if part == "test" else "validation"
        ece_over_training(curves, looks=setting.looks, part=name, floors=floors, ax=axis)
    return figure


def _logits(setting: Setting) -> Figure:
    logits = {label: run.predictions()[0] for label, run in _with_predictions(setting).items()}
    remark = f"Test split, outputs before softmax; {setting.seeds}. All histograms have the same area; lines: medians."
    with one_axis(setting.title, remark, rows=len(logits)) as (figure, axis):
        max_logit_histogram(logits, looks=setting.looks, ax=axis)
    return figure


def _rival(setting: Setting) -> Figure:
    predictions = {label: run.predictions() for label, run in _with_predictions(setting).items()}
    remark = f"All samples of the test split; {setting.seeds}. Diamonds: means. Outliers are not shown."
    with one_axis(setting.title, remark, rows=len(predictions)) as (figure, axis):
        rival_boxplot(predictions, looks=setting.looks, ax=axis)
    return figure


def _logged(entry: Entry, name: str) -> tuple[tuple[float, ...], ...]:
    """Return a logged value per epoch for each seed whose log has it for every epoch."""
    logged = [tuple(line[name] for line in run.log if name in line) for run in entry.runs.values()]
    return tuple(values for values in logged if len(values) == entry.recipe.epochs)


def _with_predictions(setting: Setting) -> dict[str, Run]:
    runs = {entry.label: entry.first for entry in setting.entries}
    for run in runs.values():
        if not run.has_predictions:
            raise RunError(f"{run.path} has no {PREDICTIONS}")
    return runs


def _mean_floor(results: Sequence[RunResult], metric: str, part: str = "test") -> float:
    """Return the noise floor of a metric, averaged over seeds."""
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
