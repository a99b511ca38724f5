"""Reliability diagrams by bins: accuracy, its gap to the confidence, and what chance alone would show."""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import binom

from dualfocal.metrics import Evaluation
from dualfocal.plots.style import BLUE, DARK_GREY, GREY, VERMILION, legend_below, plain, styled, tidy

Floats = NDArray[np.float64]

LEVEL = 0.9
COLUMNS = 4
TOP, TOP_ALONE = 1.24, 1.15  # of the axis: accuracies end at 1, above is room for text in the corner


@dataclass(frozen=True, eq=False)
class Reliability:
    """What a reliability diagram shows: fractions, an entry per bin, NaN where a bin is empty."""

    edges: Floats  # (B + 1,)
    count: NDArray[np.int64]
    confidence: Floats
    accuracy: Floats
    low: Floats
    """Of a calibrated model with as many samples: its accuracy lies below this in at most 5 % of samples,"""
    high: Floats
    """and above this in at most 5 %."""
    ece: float
    floor: float | None  # the ECE of a calibrated model, by chance

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Reliability":
        """From ``Evaluation.to_dict()``, which is also what a run's ``result.json`` has for each part."""
        bins = record["bins"]
        count = np.array(bins["count"], dtype=np.int64)
        confidence, accuracy = (np.array(bins[name], dtype=np.float64) for name in ("confidence", "accuracy"))
        low, high = chance_range(count, confidence)
        inference = record.get("inference")
        floor = None if inference is None else float(inference["floors"]["ece"]["mean"])
        edges = np.array(bins["edges"], dtype=np.float64)
        return cls(edges, count, confidence, accuracy, low, high, float(record["ece"]), floor)

    @property
    def outside(self) -> NDArray[np.bool_]:
        """Whether a bin's accuracy is more than chance away from its confidence."""
        tiny = 1e-12  # of rounding
        return (self.accuracy < self.low - tiny) | (self.accuracy > self.high + tiny)

    @property
    def num_samples(self) -> int:
        """In all bins."""
        return int(self.count.sum())


def chance_range(count: NDArray[np.int64], confidence: Floats, level: float = LEVEL) -> tuple[Floats, Floats]:
    """Between which accuracies ``level`` of all calibrated bins lie, at least: binomial quantiles; NaN for empty bins.

    >>> low, high = chance_range(np.array([100]), np.array([0.5]))
    >>> print(low, high)
    [0.42] [0.58]
    """
    full = count > 0
    low, high = np.full(len(count), np.nan), np.full(len(count), np.nan)
    p = np.clip(confidence[full], 0.0, 1.0)  # a mean of ones may come out a bit above
    for ends, share in ((low, (1 - level) / 2), (high, (1 + level) / 2)):
        ends[full] = binom.ppf(share, count[full], p) / count[full]
    return low, high


def reliability_diagram(axis: Axes, of: Reliability) -> Axes:
    """Bars of accuracy; hatched, the gap to mean confidence; whiskers where a calibrated model's bars would end."""
    width, full = np.diff(of.edges), of.count > 0
    axis.plot([0, 1], [0, 1], "--", color="black", linewidth=0.8, zorder=2.5)
    axis.bar(
        of.edges[:-1],
        np.where(full, of.accuracy, 0.0),
        width,
        align="edge",
        color=BLUE,
        alpha=0.35,
        edgecolor="white",
        linewidth=0.6,
        label="accuracy",
    )
    middle = (of.edges[:-1] + width / 2)[full]
    about = of.confidence[full]
    axis.errorbar(
        middle,
        about,
        yerr=[np.maximum(about - of.low[full], 0.0), np.maximum(of.high[full] - about, 0.0)],
        fmt="none",
        ecolor="black",
        elinewidth=1.1,
        capsize=2,
        label=f"{100 * LEVEL:.0f} % range of a calibrated model, bin by bin",
        zorder=3,
    )
    for mask, colour, hatch, text in (
        (full & of.outside, VERMILION, "////", "gap beyond it"),
        (full & ~of.outside, DARK_GREY, "....", "gap within it"),
    ):
        axis.bar(
            of.edges[:-1][mask],
            (of.confidence - of.accuracy)[mask],
            width[mask],
            bottom=of.accuracy[mask],
            align="edge",
            facecolor="none",
            edgecolor=colour,
            hatch=hatch,
            linewidth=0.6,
            label=text,
        )
    text = f"ECE {100 * of.ece:.1f} %"
    if of.floor is not None:
        text += f"\na calibrated model: {100 * of.floor:.1f} %"
    axis.text(0.02, 1.05, text, va="bottom", linespacing=1.35)
    unit_square(axis)
    return axis


def unit_square(axis: Axes) -> None:
    """Confidence and accuracy from 0 to 1, with room above."""
    axis.set(xlim=(0, 1), ylim=(0, TOP), xticks=(0, 0.5, 1), yticks=(0, 0.2, 0.4, 0.6, 0.8, 1), ylabel="accuracy")
    tidy(axis)
    axis.spines.left.set_bounds(0, 1)


def density_strip(axis: Axes, edges: Floats, count: NDArray[np.int64]) -> Axes:
    """The share of samples in each bin of confidence, in percent."""
    shares = 100 * count / max(int(count.sum()), 1)
    axis.bar(edges[:-1], shares, np.diff(edges), align="edge", color=GREY, edgecolor="white", linewidth=0.6)
    axis.set(xlim=(0, 1), xticks=(0, 0.5, 1), xlabel="confidence", ylabel="% of samples")
    tidy(axis)
    return axis


def reliability_figure(evaluations: Mapping[str, Evaluation]) -> Figure:
    """A reliability diagram for each set of predictions, side by side, with the share of samples below each."""
    return reliability_panels({name: Reliability.of(of.to_dict()) for name, of in evaluations.items()})


def reliability_panels(found: Mapping[str, Reliability], *, title: str = "", remark: str = "") -> Figure:
    """The same from what has been computed, with a title and a remark below."""
    if not found:
        raise ValueError("reliability_figure needs at least one evaluation")
    with styled():
        figure, panels = panel_grid(len(found), title=title)
        for (top, strip), (name, of) in zip(panels, found.items(), strict=True):
            reliability_diagram(top, of)
            density_strip(strip, of.edges, of.count)
            top.set_title(panel_title(name, of.num_samples, len(found)))
        finish_panels(figure, panels, remark)
    return figure


def panel_grid(number: int, *, title: str = "") -> tuple[Figure, list[tuple[Axes, Axes]]]:
    """A figure of diagrams in rows of four, each with a strip below it."""
    columns = min(number, COLUMNS)
    lines = -(-number // columns)
    width = 4.2 if number == 1 else 2.65
    figure = Figure(figsize=(width * columns + 0.4, (width + 1.2) * lines + 0.6), layout="constrained")
    axes = figure.subplots(2 * lines, columns, squeeze=False, height_ratios=[4, 1] * lines)
    panels = [(axes[2 * (i // columns), i % columns], axes[2 * (i // columns) + 1, i % columns]) for i in range(number)]
    for axis in set(axes.flat) - {axis for panel in panels for axis in panel}:
        axis.set_visible(False)
    if title:
        figure.suptitle(plain(title), fontsize=10)
    return figure, panels


def panel_title(name: str, num_samples: int, panels: int) -> str:
    """In lines that fit above a panel."""
    number = f"N\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{num_samples:,}"
    lines = textwrap.wrap(f"{name}, {number}", 34 if panels > 1 else 56)
    return plain("\n".join(lines).replace("\N{NO-BREAK SPACE}", " "))


def finish_panels(figure: Figure, panels: list[tuple[Axes, Axes]], remark: str = "") -> None:
    """Labels where they are needed only, room for the text, and one legend for all."""
    if len(panels) == 1:  # which is larger
        panels[0][0].set_ylim(top=TOP_ALONE)
    for i, (top, strip) in enumerate(panels):
        top.tick_params(labelbottom=False)
        if i % COLUMNS:
            top.set_ylabel("")
            strip.set_ylabel("")
    handles, labels = panels[0][0].get_legend_handles_labels()
    legend_below(figure, handles, labels, 4, remark)
