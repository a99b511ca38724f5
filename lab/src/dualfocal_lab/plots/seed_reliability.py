"""Reliability diagrams of several runs of each method: a line per run, and the range of a calibrated model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dualfocal.metrics import Evaluation
from dualfocal.plots.panels import density_strip, unit_square
from dualfocal.plots.reliability import LEVEL, chance_range
from dualfocal.plots.style import BLACK, GREY, ORANGE, NotebookFigure, legend_below, plain, styled

Floats = NDArray[np.float64]
LEAST = 10  # samples of a bin that is shown


@dataclass(frozen=True)
class SeedEvaluations:
    """Evaluations of one method, with bins of the same edges.

    Attributes:
        runs: One evaluation per run.
        colour: Colour of the runs.
        published: Evaluation of a published network (None: there is none).
        text: Text above the diagonal.
    """

    runs: Sequence[Evaluation]
    colour: str
    published: Evaluation | None = None
    text: str = ""

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError("a diagram needs at least one run")

    def mean_bins(self) -> tuple[Floats, Floats, Floats]:
        """Return bin edges, mean number of samples and mean confidence of each bin, over runs."""
        bins = [run.bins for run in self.runs]
        counts = np.array([each.count for each in bins])  # (runs, bins)
        confidences = np.array([each.mean_confidence for each in bins])
        total = counts.sum(0)
        sums = np.where(counts > 0, counts * confidences, 0.0).sum(0)
        return bins[0].edges, counts.mean(0), np.where(total > 0, sums / np.maximum(total, 1), np.nan)


def draw_seed_reliability(axis: Axes, method: SeedEvaluations) -> Axes:
    """Draw accuracy over confidence: a line per run, the published network, and the range of a calibrated model."""
    _, count, confidence = method.mean_bins()
    number = np.maximum(np.rint(count), count > 0).astype(np.int64)
    low, high = chance_range(number, confidence)
    full = number >= LEAST
    label = f"{100 * LEVEL:.0f} % range of a calibrated model, per bin"
    axis.fill_between(confidence[full], low[full], high[full], color=GREY, alpha=0.4, linewidth=0, label=label)
    axis.plot([0, 1], [0, 1], "--", color=BLACK, linewidth=0.8)
    for place, run in enumerate(method.runs):
        label = "one run of ours" if place == 0 else ""
        _draw_line(axis, run, "o-", color=method.colour, markersize=3, linewidth=1, alpha=0.75, label=label)
    if method.published is not None:
        edge = {"markeredgecolor": BLACK, "markeredgewidth": 0.6}
        label = "the paper's own network"
        _draw_line(axis, method.published, "D--", color=ORANGE, markersize=4, linewidth=1.4, label=label, **edge)
    axis.text(0.02, 1.05, plain(method.text), va="bottom", linespacing=1.35)
    return unit_square(axis)


def _draw_line(axis: Axes, evaluation: Evaluation, style: str, **look: Any) -> None:
    bins = evaluation.bins
    full = bins.count >= LEAST
    axis.plot(bins.mean_confidence[full], bins.accuracy[full], style, **look)


@styled()
def seed_reliability_figure(methods: Mapping[str, SeedEvaluations], *, remark: str = "") -> Figure:
    """Draw a diagram for each method, side by side, with the mean share of samples below it.

    Args:
        methods: name of the method -> its evaluations.
        remark: text below the figure.

    >>> import torch
    >>> from dualfocal.metrics import evaluate
    >>> logits, target = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)), torch.arange(200) % 3
    >>> runs = [evaluate(logits, target), evaluate(logits / 2, target)]
    >>> figure = seed_reliability_figure({"focal": SeedEvaluations(runs, "#0072B2")})
    >>> figure.axes[0].get_title(), len(figure.axes[0].lines)
    ('focal, 2 runs', 3)
    """
    figure = NotebookFigure(figsize=(2.45 * len(methods) + 0.3, 4.5), layout="constrained")
    axes = figure.subplots(2, len(methods), squeeze=False, height_ratios=[4, 1])
    for place, (name, method) in enumerate(methods.items()):
        top, strip = axes[:, place]
        draw_seed_reliability(top, method)
        edges, count, _ = method.mean_bins()
        density_strip(strip, edges, np.rint(count).astype(np.int64)).set_yscale("log")
        strip.set(ylim=(0.05, 100), yticks=(0.1, 1, 10, 100), yticklabels=("0.1", "1", "10", "100"))
        strip.minorticks_off()
        top.set_title(plain(f"{name}, {len(method.runs)} run{'s' * (len(method.runs) > 1)}"))
        top.tick_params(labelbottom=False)
        for axis in (top, strip):
            axis.set_ylabel(axis.get_ylabel() if place == 0 else "")
    by_label: dict[str, Any] = {}
    for axis in axes[0]:
        handles, labels = axis.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            by_label.setdefault(label, handle)
    legend_below(figure, list(by_label.values()), list(by_label), columns=3, remark=remark)
    return figure
