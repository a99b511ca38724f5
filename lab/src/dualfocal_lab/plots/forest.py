"""Forest plots: the runs of each method as dots, their mean with an interval, and a published value beside them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from dualfocal.plots.style import BLACK, DARK_GREY, GREY, ORANGE, plain, tidy

MARGIN = 0.06  # space beside the outermost points, as a share of their range
REACH = 0.2  # how far intervals may extend that range, as a share of it
SPREAD = 0.4  # height over which the runs of a row are spread
CLAIMED = "#EAEAEA"  # where a claim holds
STEPS = ((1, 2, 5), (1, 1.5, 2, 3, 4, 6, 8))  # ticks of a logarithmic axis, in each decade: few, or more if needed


@dataclass(frozen=True, kw_only=True)
class ForestRow:
    """A row of a forest plot; numbers that are None are not drawn.

    Attributes:
        label: Name of the row.
        colour: Colour of the runs.
        values: One value per run.
        hollow: Which of the values are drawn as hollow dots (empty: none).
        mean: Mean over runs, or difference of means.
        interval: Its interval.
        published: Published value.
        floor: Noise floor: mean value of a perfectly calibrated model.
        claimed: Range of values for which a claim holds; its ends may be infinite.
        note: Text at the right.
        is_heading: Whether the row has only a label, which is drawn inside the panel.
    """

    label: str
    colour: str = BLACK
    values: tuple[float, ...] = ()
    hollow: tuple[bool, ...] = ()
    mean: float | None = None
    interval: tuple[float, float] | None = None
    published: float | None = None
    floor: float | None = None
    claimed: tuple[float, float] | None = None
    note: str = ""
    is_heading: bool = False

    def points(self) -> list[float]:
        """Return what must be visible: all numbers but the ends of the interval."""
        bounds = [end for end in self.claimed or () if math.isfinite(end)]
        numbers = [self.mean, self.published, self.floor, *self.values, *bounds]
        return [number for number in numbers if number is not None]


def axis_limits(rows: Sequence[ForestRow], *, log: bool = False) -> tuple[float, float]:
    """Return limits that show all points, and as much of the intervals as leaves the points readable.

    >>> rows = [ForestRow(label="a", values=(1.0, 2.0), mean=1.5, interval=(1.4, 99.0), published=1.0)]
    >>> [round(end, 2) for end in axis_limits(rows)]
    [0.94, 2.26]
    """
    points = np.array([point for row in rows for point in row.points()] or [1.0, 2.0])
    ends = np.array([end for row in rows for end in row.interval or ()] or [points[0]])
    if log:
        points, ends = np.log(points), np.log(np.maximum(ends, 1e-300))
    width = float(np.ptp(points)) or abs(float(points[0])) or 1.0
    low = max(min(points.min(), ends.min()), points.min() - REACH * width) - MARGIN * width
    high = min(max(points.max(), ends.max()), points.max() + REACH * width) + MARGIN * width
    return (math.exp(low), math.exp(high)) if log else (float(low), float(high))


def forest_panel(rows: Sequence[ForestRow | None], *, log: bool = False, ax: Axes) -> Axes:
    """Draw one row below the other.

    Intervals that leave the axis end in an arrow. The range in which the claim of a row holds is grey.

    Args:
        rows: the rows from above; None leaves a row empty.
        log: whether the axis is logarithmic; all points must then be positive.
        ax: axes to draw on.

    Returns:
        The axes.

    >>> from matplotlib.figure import Figure
    >>> row = ForestRow(label="focal", values=(1.0, 2.0), mean=1.5, interval=(0.5, 2.5), published=1.2)
    >>> ax = forest_panel([row, None], ax=Figure().subplots())
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['focal', '']
    """
    limits = axis_limits([row for row in rows if row is not None], log=log)
    if log:
        _log_axis(ax, *limits)
    ax.set(xlim=limits, ylim=(-0.6, len(rows) - 0.4))
    places = range(len(rows) - 1, -1, -1)
    for place, row in zip(places, rows, strict=True):
        if row is not None and row.is_heading:
            text = ax.text(0.01, place, plain(row.label), va="center", fontweight="bold", fontsize=8)
            text.set_transform(ax.get_yaxis_transform())
        elif row is not None:
            _draw_row(ax, row, place, limits)
    ax.set_yticks(list(places), ["" if row is None or row.is_heading else plain(row.label) for row in rows])
    return tidy(ax, grid="x", rows=True)


def _log_axis(axis: Axes, low: float, high: float) -> None:
    """Use a logarithmic axis with at least three ticks, which are plain numbers."""
    axis.set_xscale("log")
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in STEPS:
        ticks = [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
        if len(ticks) > 2:
            break
    axis.xaxis.set_major_locator(FixedLocator(ticks))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _draw_row(axis: Axes, row: ForestRow, place: int, limits: tuple[float, float]) -> None:
    if row.claimed is not None:
        _draw_claimed(axis, row.claimed, place, limits)
    number = len(row.values)
    spread = np.linspace(SPREAD / 2, -SPREAD / 2, number) if number > 1 else np.zeros(number)
    for value, shift, hollow in zip(row.values, spread, row.hollow or (False,) * number, strict=True):
        face = "white" if hollow else row.colour
        axis.plot(value, place + shift, "o", color=face, markeredgecolor=row.colour, markersize=4, zorder=3)
    if row.floor is not None:
        axis.plot(row.floor, place, "|", color=GREY, markersize=11, markeredgewidth=3.5, zorder=2)
    if row.interval is not None:
        _draw_interval(axis, row.interval, place, limits)
    if row.mean is not None:
        axis.plot(row.mean, place, "|", color=BLACK, markersize=11, markeredgewidth=2, zorder=2.6)
    if row.published is not None:
        axis.plot(row.published, place, "D", color=ORANGE, markeredgecolor=BLACK, markersize=5, zorder=2.8)
    if row.note:
        axis.text(1.03, place, plain(row.note), transform=axis.get_yaxis_transform(), va="center", fontsize=7)


def _draw_claimed(axis: Axes, claimed: tuple[float, float], place: int, limits: tuple[float, float]) -> None:
    low, high = max(claimed[0], limits[0]), min(claimed[1], limits[1])
    axis.add_patch(Rectangle((low, place - 0.5), high - low, 1, color=CLAIMED, linewidth=0, zorder=0))
    for bound in claimed:
        if math.isfinite(bound):
            axis.plot([bound, bound], [place - 0.5, place + 0.5], color=DARK_GREY, linewidth=0.9, zorder=2)


def _draw_interval(axis: Axes, interval: tuple[float, float], place: int, limits: tuple[float, float]) -> None:
    """Draw an interval; an arrow at the edge of the axis marks an end that lies outside."""
    low, high = max(interval[0], limits[0]), min(interval[1], limits[1])
    axis.plot([low, high], [place, place], color=BLACK, linewidth=1.2, zorder=2.5)
    for shown, end, arrow in ((low, interval[0], "<"), (high, interval[1], ">")):
        marker, size = ("|", 6) if shown == end else (arrow, 4)
        axis.plot(shown, place, marker, color=BLACK, markersize=size, clip_on=False, zorder=2.5)


def forest_legend(
    *, hollow: str = "", interval: str = "", claimed: str = "", floor: str = ""
) -> tuple[list[Line2D | Patch], list[str]]:
    """Return handles and labels of the marks of a forest plot; marks without a label are left out."""

    def mark(marker: str, size: float, face: str, edge: str, width: float = 1.0, *, line: bool = False) -> Line2D:
        drawn = Line2D(
            [], [], marker=marker, markersize=size, color=face, linestyle="-" if line else "none", linewidth=1.2
        )
        drawn.set(markeredgecolor=edge, markeredgewidth=width)
        return drawn

    marks: list[tuple[Line2D | Patch, str]] = [
        (mark("D", 5, ORANGE, BLACK), "published"),
        (mark("o", 4, DARK_GREY, DARK_GREY), "one run of ours"),
        (mark("o", 4, "white", DARK_GREY), hollow),
        (mark("|", 10, BLACK, BLACK, 2), "our mean"),
        (mark("|", 6, BLACK, BLACK, line=True), interval),
        (mark("|", 11, GREY, GREY, 3.5), floor),
        (Patch(facecolor=CLAIMED, edgecolor=GREY, linewidth=0.5), claimed),
    ]
    shown = [(handle, label) for handle, label in marks if label]
    return [handle for handle, _ in shown], [label for _, label in shown]
