"""Reliability diagrams with and without bins: accuracy over confidence, and the range of a calibrated model."""

import textwrap
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dualfocal.metrics import Evaluation
from dualfocal.metrics.corp import Corp
from dualfocal.plots.style import BLUE, DARK_GREY, GREY, VERMILION, legend_below, plain, styled, tidy

Floats = NDArray[np.float64]

LEVEL = 0.9
COLUMNS = 4
TOP, TOP_ALONE = 1.24, 1.15  # upper end of the axis: accuracies end at 1, text stands above
CORP_STRIP = np.linspace(0, 1, 41)  # edges of the bars below a diagram without bins


Diagram = TypeVar("Diagram", Evaluation, Corp)
Density = tuple[Floats, NDArray[np.int64]]  # bin edges, and number of samples per bin


def chance_range(count: NDArray[np.int64], confidence: Floats, level: float = LEVEL) -> tuple[Floats, Floats]:
    """Return the range of accuracies of a calibrated bin, by binomial quantiles; NaN for empty bins.

    At least a share of ``level`` of calibrated bins lies in the range.

    >>> low, high = chance_range(np.array([100]), np.array([0.5]))
    >>> print(low, high)
    [0.42] [0.58]
    """
    from scipy.stats import binom  # takes a second to import

    full = count > 0
    p = np.clip(np.where(full, confidence, np.nan), 0.0, 1.0)  # a mean of ones may be slightly above 1
    number = np.where(full, count, 1)
    low, high = (binom.ppf(share, number, p) / number for share in ((1 - level) / 2, (1 + level) / 2))
    return low, high


def reliability_diagram(axis: Axes, evaluation: Evaluation) -> Axes:
    """Draw bars of accuracy, the hatched gap to the mean confidence, and whiskers for a calibrated model."""
    bins = evaluation.bins.to("cpu")
    edges, count = bins.edges.numpy(), bins.count.numpy()
    confidence, accuracy = bins.mean_confidence.numpy(), bins.accuracy.numpy()
    width, full = np.diff(edges), count > 0
    low, high = chance_range(count, confidence)
    tiny = 1e-12  # rounding errors
    outside = (accuracy < low - tiny) | (accuracy > high + tiny)
    axis.plot([0, 1], [0, 1], "--", color="black", linewidth=0.8, zorder=2.5)
    axis.bar(
        edges[:-1],
        np.where(full, accuracy, 0.0),
        width,
        align="edge",
        color=BLUE,
        alpha=0.35,
        edgecolor="white",
        linewidth=0.6,
        label="accuracy",
    )
    centre = confidence[full]
    axis.errorbar(
        (edges[:-1] + width / 2)[full],
        centre,
        yerr=[np.maximum(centre - low[full], 0.0), np.maximum(high[full] - centre, 0.0)],
        fmt="none",
        ecolor="black",
        elinewidth=1.1,
        capsize=2,
        label=f"{100 * LEVEL:.0f} % range of a calibrated model, per bin",
        zorder=3,
    )
    for mask, colour, hatch, text in (
        (full & outside, VERMILION, "////", "gap beyond this range"),
        (full & ~outside, DARK_GREY, "....", "gap within this range"),
    ):
        axis.bar(
            edges[:-1][mask],
            (confidence - accuracy)[mask],
            width[mask],
            bottom=accuracy[mask],
            align="edge",
            facecolor="none",
            edgecolor=colour,
            hatch=hatch,
            linewidth=0.6,
            label=text,
        )
    text = f"ECE {100 * evaluation.ece:.1f} %"
    if evaluation.inference is not None:
        text += f"\nnoise floor {100 * evaluation.inference.floors['ece'].mean:.1f} %"
    axis.text(0.02, 1.05, text, va="bottom", linespacing=1.35)
    return unit_square(axis)


def unit_square(axis: Axes) -> Axes:
    """Set both axes to the range 0 to 1, with space above."""
    axis.set(xlim=(0, 1), ylim=(0, TOP), xticks=(0, 0.5, 1), yticks=(0, 0.2, 0.4, 0.6, 0.8, 1), ylabel="accuracy")
    axis.spines.left.set_bounds(0, 1)
    return tidy(axis)


def corp_diagram(axis: Axes, curve: Corp) -> Axes:
    """Draw the isotonic fit of accuracy over confidence, and the band of fits of calibrated models.

    The text shows the Brier score of the predicted class and its decomposition.
    """
    axis.fill_between(
        curve.band_at,
        curve.low,
        curve.high,
        color=GREY,
        alpha=0.6,
        linewidth=0,
        label=f"{100 * curve.level:.0f} % range of the fits of calibrated models, pointwise",
    )
    axis.plot([0, 1], [0, 1], "--", color="black", linewidth=0.8)
    axis.plot(
        curve.confidence,
        curve.recalibrated,
        color=BLUE,
        linewidth=1.6,
        label="accuracy by isotonic fit",
        marker="o" if len(curve.confidence) == 1 else "",  # a line of one point is invisible
    )
    text = (
        f"MCB {curve.mcb:.4f} (noise floor {curve.mcb_floor.mean:.4f})\n"
        f"DSC {curve.dsc:.4f}, UNC {curve.unc:.4f}, Brier {curve.score:.4f}"
    )
    axis.text(0.02, 1.05, text, va="bottom", fontsize=7, linespacing=1.4)
    return unit_square(axis)


def density_strip(axis: Axes, edges: Floats, count: NDArray[np.int64]) -> Axes:
    """Draw the share of samples in each bin of confidence, in percent."""
    shares = 100 * count / max(int(count.sum()), 1)
    axis.bar(edges[:-1], shares, np.diff(edges), align="edge", color=GREY, edgecolor="white", linewidth=0.6)
    axis.set(xlim=(0, 1), xticks=(0, 0.5, 1), xlabel="confidence", ylabel="% of samples")
    return tidy(axis)


def reliability_figure(evaluations: Mapping[str, Evaluation], *, title: str = "", remark: str = "") -> Figure:
    """Draw a reliability diagram for each set of predictions, with the share of samples below it.

    Args:
        evaluations: name of the predictions -> evaluation.
        title: title of the figure.
        remark: text below the figure.
    """

    def density(evaluation: Evaluation) -> Density:
        return evaluation.bins.edges.cpu().numpy(), evaluation.bins.count.cpu().numpy()

    return _panels(evaluations, reliability_diagram, density, title, remark)


def corp_panels(curves: Mapping[str, Corp], *, title: str = "", remark: str = "") -> Figure:
    """Draw a reliability diagram without bins (CORP) for each set of predictions, with the share of samples below it.

    Args:
        curves: name of the predictions -> CORP curve.
        title: title of the figure.
        remark: text below the figure.
    """

    def density(curve: Corp) -> Density:
        return CORP_STRIP, np.histogram(curve.confidence, CORP_STRIP, weights=curve.count)[0].astype(np.int64)

    return _panels(curves, corp_diagram, density, title, remark)


@styled()
def _panels(
    diagrams: Mapping[str, Diagram],
    draw: Callable[[Axes, Diagram], Axes],
    density: Callable[[Diagram], Density],
    title: str,
    remark: str,
) -> Figure:
    """Draw diagrams in rows of four, each with a strip below it, and one legend for all."""
    if not diagrams:
        raise ValueError("a reliability diagram needs at least one set of predictions")
    alone, columns = len(diagrams) == 1, min(len(diagrams), COLUMNS)
    lines = -(-len(diagrams) // columns)
    width = 4.2 if alone else 2.65
    figure = Figure(figsize=(width * columns + 0.4, (width + 1.2) * lines + 0.6), layout="constrained")
    axes = figure.subplots(2 * lines, columns, squeeze=False, height_ratios=[4, 1] * lines)
    for axis in axes.flat:
        axis.set_visible(False)
    if title:
        figure.suptitle(plain(title), fontsize=10)
    for place, (name, diagram) in enumerate(diagrams.items()):
        line, column = divmod(place, columns)
        top, strip = axes[2 * line : 2 * line + 2, column]
        draw(top, diagram)
        density_strip(strip, *density(diagram))
        # No-break spaces keep the number of samples in one line.
        number = f"N\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{diagram.num_samples:,}"
        text = "\n".join(textwrap.wrap(f"{name}, {number}", 56 if alone else 34))
        top.set_title(plain(text.replace("\N{NO-BREAK SPACE}", " ")))
        top.set_ylim(top=TOP_ALONE if alone else TOP)  # a single diagram is larger and needs less space for its text
        top.tick_params(labelbottom=False)
        for axis in (top, strip):
            axis.set_visible(True)
            axis.set_ylabel(axis.get_ylabel() if column == 0 else "")
    legend_below(figure, *axes[0, 0].get_legend_handles_labels(), columns=4, remark=remark)
    return figure
