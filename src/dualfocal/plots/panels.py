"""Diagrams of accuracy over confidence, side by side, with the share of samples below each."""

import textwrap
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dualfocal.metrics import Evaluation
from dualfocal.metrics.arrays import Array
from dualfocal.metrics.corp import Corp
from dualfocal.plots.style import GREY, NotebookFigure, check_named, legend_below, plain, styled, tidy

__all__ = ["density_strip", "panels", "unit_square"]

COLUMNS = 4
SIZE = (4.6, 5.0)  # of a figure with one diagram, in inches
TOP, TOP_ALONE = 1.24, 1.15  # upper end of the axis: accuracies end at 1, text stands above

Floats = NDArray[np.float64]
Density = tuple[Floats, NDArray[np.int64]]  # bin edges, and number of samples per bin
Diagram = TypeVar("Diagram", Evaluation, Corp)


def required(target: Array | None) -> Array:
    """Return the target, or raise a TypeError if there is none."""
    if target is None:
        raise TypeError("a diagram of logits needs target")
    return target


def axis_names(diagram: Evaluation | Corp) -> tuple[str, str]:
    """Return what the axes show: the probability of class 1 and its frequency with ``binary="positive"``."""
    return ("probability", "frequency") if diagram.positive else ("confidence", "accuracy")


def unit_square(axis: Axes, ylabel: str = "accuracy") -> Axes:
    """Set both axes to the range 0 to 1, with space above."""
    axis.set(xlim=(0, 1), ylim=(0, TOP), xticks=(0, 0.5, 1), yticks=(0, 0.2, 0.4, 0.6, 0.8, 1), ylabel=ylabel)
    axis.spines.left.set_bounds(0, 1)
    return tidy(axis)


def density_strip(axis: Axes, edges: Floats, count: NDArray[np.int64], xlabel: str = "confidence") -> Axes:
    """Draw the share of samples in each bin of confidence, in percent."""
    shares = 100 * count / max(float(count.sum()), 1.0)
    axis.bar(edges[:-1], shares, np.diff(edges), align="edge", color=GREY, edgecolor="white", linewidth=0.6)
    axis.set(xlim=(0, 1), xticks=(0, 0.5, 1), xlabel=xlabel, ylabel="% of samples")
    return tidy(axis)


@styled()
def panels(
    diagrams: Mapping[str, Diagram],
    kind: type[Diagram],
    draw: Callable[[Axes, Diagram], Axes],
    density: Callable[[Diagram], Density],
    title: str,
    remark: str,
    *,
    lines_of_text: int = 2,
    highlight: Collection[str] = (),
) -> Figure:
    """Draw diagrams in rows of four, each with a strip below it, and one legend for all.

    ``lines_of_text`` is the number of lines above the diagonal; the titles of diagrams in ``highlight`` are bold.
    """
    check_named(diagrams, kind, f"name -> {kind.__name__}")
    if not diagrams:
        raise ValueError("a reliability diagram needs at least one set of predictions")
    alone, columns = len(diagrams) == 1, min(len(diagrams), COLUMNS)
    lines = -(-len(diagrams) // columns)
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
        draw(top, diagram)
        density_strip(strip, *density(diagram), axis_names(diagram)[0])
        # No-break spaces keep the number of samples in one line.
        number = f"N\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{diagram.num_samples:,}"
        text = "\n".join(textwrap.wrap(f"{name}, {number}", 56 if alone else 34))
        weight = "bold" if name in highlight else "normal"
        top.set_title(plain(text.replace("\N{NO-BREAK SPACE}", " ")), fontweight=weight)
        above = (TOP_ALONE if alone else TOP) - 1  # a single diagram is larger and needs less space for its text
        top.set_ylim(top=1 + above * (lines_of_text + 0.4) / 2.4)
        top.tick_params(labelbottom=False)
        for axis in (top, strip):
            axis.set_visible(True)
            axis.set_ylabel(axis.get_ylabel() if column == 0 else "")
    legend_below(figure, *axes[0, 0].get_legend_handles_labels(), columns=4, remark=remark)
    return figure
