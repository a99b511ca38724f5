"""Diagrams of accuracy over confidence, side by side, with the share of samples below each."""

import textwrap
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dualfocal.metrics import Evaluation
from dualfocal.metrics.corp import Corp
from dualfocal.plots.style import GREY, NotebookFigure, check_named, legend_below, plain, styled, tidy

__all__ = ["density_strip", "panels", "unit_square"]

COLUMNS = 4
SIZE = (4.6, 5.0)  # of a figure with one diagram, in inches
TOP, TOP_ALONE = 1.24, 1.15  # upper end of the axis: accuracies end at 1, text stands above

HALVES, FIFTHS = np.linspace(0, 1, 3), np.linspace(0, 1, 6)  # ticks

Floats = NDArray[np.float64]
Density = tuple[Floats, Floats]  # bin edges, and number, or weight, of the samples per bin
Diagram = TypeVar("Diagram", Evaluation, Corp)


def axis_names(diagram: Evaluation | Corp) -> tuple[str, str]:
    """Return what the axes show: the probability of class 1 and its frequency with ``binary="positive"``."""
    return ("probability", "frequency") if diagram.positive else ("confidence", "accuracy")


def axis_end(highest: float) -> float:
    """Return where both axes end, so that values that are all small, such as those of a rare event, fill the diagram.

    >>> axis_end(0.07), axis_end(0.7)
    (0.08, 1.0)
    """
    ends = [digit * 10.0**power for power in (-4, -3, -2, -1) for digit in (1, 1.5, 2, 3, 4, 5, 6, 8)]
    return round(next((end for end in ends if highest <= end <= 0.5), 1.0), 5)


def histogram(confidence: Floats, weight: NDArray[Any] | None, end: float) -> Density:
    """Return the number of samples in 40 bars of equal width up to the end of the axis, and in one bar above."""
    edges = np.append(np.linspace(0, end, 41), [1.0] if end < 1 else [])
    return edges, np.histogram(confidence, edges, weights=weight)[0]


def unit_square(axis: Axes, ylabel: str = "accuracy", end: float = 1.0) -> Axes:
    """Set both axes to the range 0 to 1, or to a lower end, with space above."""
    axis.set(xlim=(0, end), ylim=(0, TOP * end), xticks=end * HALVES, yticks=end * FIFTHS, ylabel=ylabel)
    axis.spines.left.set_bounds(0, end)
    return tidy(axis)


def density_strip(axis: Axes, edges: Floats, count: Floats, xlabel: str = "confidence", end: float = 1.0) -> Axes:
    """Draw the share of samples in each bin of confidence, in percent; samples beyond the end of the axis are named."""
    shares = 100 * count / max(float(count.sum()), 1.0)
    axis.bar(edges[:-1], shares, np.diff(edges), align="edge", color=GREY, edgecolor="white", linewidth=0.6)
    if beyond := float(shares[edges[:-1] >= end].sum()):
        axis.text(0.99, 0.9, f"{beyond:.2g} % above {end:g}", transform=axis.transAxes, ha="right", va="top")
    axis.set(xlim=(0, end), xticks=end * HALVES, xlabel=xlabel, ylabel="% of samples")
    return tidy(axis)


@styled()
def panels(
    diagrams: Mapping[str, Diagram],
    kind: type[Diagram],
    draw: Callable[[Axes, Diagram, float], Axes],
    density: Callable[[Diagram, float], Density],
    axis_end_of: Callable[[Diagram], float],
    title: str,
    remark: str,
    *,
    lines_of_text: int = 2,
    highlight: Collection[str] = (),
) -> Figure:
    """Draw diagrams in rows of four with the same axes, each with a strip below it, and one legend for all.

    ``lines_of_text`` is the number of lines above the diagonal; the titles of diagrams in ``highlight`` are bold.
    """
    check_named(diagrams, kind, f"name -> {kind.__name__}")
    if not diagrams:
        raise ValueError("a reliability diagram needs at least one set of predictions")
    alone, columns = len(diagrams) == 1, min(len(diagrams), COLUMNS)
    lines, end = -(-len(diagrams) // columns), max(map(axis_end_of, diagrams.values()))
    width = 4.2 if alone else 2.65
    figure = NotebookFigure(figsize=(width * columns + 0.4, (width + 1.2) * lines + 0.6), layout="constrained")
    axes = figure.subplots(2 * lines, columns, squeeze=False, height_ratios=[4, 1] * lines)
    for axis in axes.flat:
        axis.set_visible(False)
    if title:
        figure.suptitle(plain(title), fontsize=10)
    for place, (name, diagram) in enumerate(diagrams.items()):
        line, column = divmod(place, columns)
        top, strip = axes[2 * line : 2 * line + 2, column]
        draw(top, diagram, end)
        density_strip(strip, *density(diagram, end), axis_names(diagram)[0], end)
        # No-break spaces keep the number of samples in one line.
        number = f"N\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{diagram.num_samples:,}"
        text = "\n".join(textwrap.wrap(f"{name}, {number}", 56 if alone else 34))
        weight = "bold" if name in highlight else "normal"
        top.set_title(plain(text.replace("\N{NO-BREAK SPACE}", " ")), fontweight=weight)
        above = (TOP_ALONE if alone else TOP) - 1  # a single diagram is larger and needs less space for its text
        top.set_ylim(top=end * (1 + above * (lines_of_text + 0.4) / 2.4))
        top.tick_params(labelbottom=False)
        for axis in (top, strip):
            axis.set_visible(True)
            axis.set_ylabel(axis.get_ylabel() if column == 0 else "")
    legend_below(figure, *axes[0, 0].get_legend_handles_labels(), columns=4, remark=remark)
    return figure
