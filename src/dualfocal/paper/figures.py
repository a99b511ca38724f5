"""The figures of the paper, from run folders.

``FIGURES`` has each by name. Runs are put together first, by :func:`~dualfocal.plots.entries.gather`: those of
one data set and model make a *setting*, and those of it that differ in their seed only an *entry*, such as a loss.
"""

import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from matplotlib.figure import Figure

from dualfocal.metrics import Evaluation
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
from dualfocal.plots.entries import Entry, Setting
from dualfocal.plots.metric_bars import LEVEL
from dualfocal.plots.style import one_axis
from dualfocal.plots.theory import phi_figure
from dualfocal.runs import Run
from dualfocal.runs.layout import LOG, PREDICTIONS

METRICS = {"ece": "ECE", "adaptive_ece": "AdaECE", "classwise_ece": "classwise ECE"}


class CannotDrawError(ValueError):
    """The runs lack what a figure needs."""


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
        settings: the runs, as :func:`~dualfocal.plots.entries.gather` finds them.
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
        title = None if setting is None else setting.title
        try:
            if figure.needs_runs and setting is None:
                raise CannotDrawError("it needs finished runs")
            drawn = figure.draw(setting) if figure.needs_runs else figure.draw()
        except CannotDrawError as error:
            drawings.append(Drawing(name, figure, title, [], str(error)))
            continue
        stem = name if setting is None else f"{setting.stem}-{name}"
        files = [out / f"{stem}.{ending}" for ending in formats]
        for file in files:
            save(drawn, file, dpi=dpi)
        drawings.append(Drawing(name, figure, title, files))
    return drawings


def _reliability(setting: Setting) -> Figure:
    evaluations = {entry.label: entry.evaluations("test")[0] for entry in setting.entries}
    remark = f"Test part, before temperature scaling; {setting.seeds}."
    return reliability_figure(evaluations, title=setting.title, remark=remark)


def _corp(setting: Setting) -> Figure:
    found = {label: corp(*run.predictions()) for label, run in _with_predictions(setting).items()}
    remark = (
        f"Test part, before temperature scaling; {setting.seeds}. Brier score of the predicted class = MCB - DSC + UNC."
    )
    return corp_panels(found, title=setting.title, remark=remark)


def _metrics(setting: Setting) -> Figure:
    records = {entry.label: entry.evaluations("test") for entry in setting.entries}
    for entry in setting.entries:
        for run, record in zip(entry.runs.values(), records[entry.label], strict=True):
            if record.inference is None:
                raise CannotDrawError(f"the result of {run.path} has no floors")
    panels: dict[str, dict[str, MetricBar]] = {name: {} for name in METRICS.values()}
    for (metric, name), (label, of) in product(METRICS.items(), records.items()):
        values = tuple(getattr(record, metric) for record in of)
        panels[name][label] = MetricBar(values, t_interval(values), _mean_floor(of, metric))
    interval = f"{100 * LEVEL:.0f} % t-interval of the mean"
    single = [label for label, of in records.items() if len(of) == 1]
    remark = f"Test part, before temperature scaling; {setting.numbers_of_seeds}. Intervals are over seeds."
    if single:
        remark += f" No interval of a single run: {', '.join(single)}."
    if len(single) == len(records):
        # Of a single run there is an honest interval of one error only, which is not the ECE.
        inferences = {label: of[0].inference for label, of in records.items() if of[0].inference is not None}
        panels["debiased RMS error"] = {
            label: MetricBar((of[0].debiased_ece,), inferences[label].debiased_ece) for label, of in records.items()
        }
        level = min(inference.level for inference in inferences.values())
        interval = f"{100 * level:.0f} % interval of the debiased RMS error"
        remark = f"Test part, before temperature scaling; {setting.seeds}: no interval over seeds."
    return metric_figure(panels, setting.looks, interval=interval, title=setting.title, remark=remark)


def _training(setting: Setting) -> Figure:
    for part in ("test", "val"):
        curves = {entry.label: Curve(seeds) for entry in setting.entries if (seeds := _logged(entry, f"{part}_ece"))}
        if curves:
            break
    else:
        raise CannotDrawError(f"no run has test_ece or val_ece of each epoch in its {LOG}")
    drawn = [entry for entry in setting.entries if entry.label in curves]
    records = [entry.evaluations(part) for entry in drawn]
    floors = [_mean_floor(of, "ece") for of in records if all(record.inference for record in of)]
    remark = "Smoothed: s(1) = x(1), s(t) = 0.5 s(t-1) + 0.5 x(t)."
    if any(len(curve.seeds) > 1 for curve in curves.values()):
        remark += " Lines: means over seeds; bands: lowest to highest seed."
    if part == "val":
        remark += "\nThe test part was not logged (test_each_epoch=true does that)."
    missing = {entry.label: len(entry.runs) - len(_logged(entry, f"{part}_ece")) for entry in setting.entries}
    if any(missing.values()):
        runs = [f"{number} run{'s' * (number > 1)} of {label}" for label, number in missing.items() if number]
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
    logs = [run.log for run in entry.runs.values()]
    found = [tuple(line[name] for line in log if name in line) for log in logs]
    return tuple(values for values in found if len(values) == entry.recipe.epochs)


def _with_predictions(setting: Setting) -> dict[str, Run]:
    """The first run of each entry."""
    runs = {entry.label: entry.first for entry in setting.entries}
    for run in runs.values():
        if not run.has_predictions:
            raise CannotDrawError(f"{run.path} has no {PREDICTIONS}")
    return runs


def _mean_floor(records: Sequence[Evaluation], metric: str) -> float:
    """The noise floor of a metric, its mean over the seeds."""
    return statistics.fmean(record.inference.floors[metric].mean for record in records if record.inference)


FIGURES: dict[str, PaperFigure] = {
    "phi": PaperFigure("figure 1", "phi of focal and dual focal loss", phi_figure, needs_runs=False),
    "reliability": PaperFigure("figure 2", "reliability diagrams", _reliability),
    "corp": PaperFigure("figure 2", "reliability diagrams without bins (CORP)", _corp),
    "metrics": PaperFigure("figure 3", "ECE, AdaECE and classwise ECE with intervals", _metrics),
    "training": PaperFigure("figure 4a", "ECE over training", _training),
    "logits": PaperFigure("figure 4b", "histograms of maximum logits", _logits),
    "rival": PaperFigure("figure 4c", "box plot of q_j(x)", _rival),
}
