"""Bar plots of calibration errors with seeds, confidence intervals and noise floors."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from scipy.special import stdtrit

from dualfocal.checks import check_known
from dualfocal.metrics import METRICS, Evaluation
from dualfocal.plots.style import (
    BLACK,
    DARK_GREY,
    GREY,
    Look,
    NotebookFigure,
    axes_or_new,
    check_named,
    legend_below,
    look_of,
    plain,
    styled,
    tidy,
)

LEVEL = 0.9


@dataclass(frozen=True)
class MetricBar:
    """A metric of a method.

    Attributes:
        values: A value per seed, as a fraction.
        interval: Confidence interval.
        floor: Noise floor: mean value of a perfectly calibrated model.
    """

    values: tuple[float, ...]
    interval: tuple[float, float] | None = None
    floor: float | None = None

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("a bar needs at least one value")

    @classmethod
    def from_evaluations(cls, evaluations: Sequence[Evaluation], metric: str = "ece") -> Self:
        """Return the bar of one method: a value per seed, Student's t interval of their mean, and the mean floor.

        Args:
            evaluations: one evaluation per seed; the bar has a floor if all were made with ``inference=True``.
            metric: a key of :data:`~dualfocal.metrics.registry.METRICS`.

        Raises:
            TypeError: ``evaluations`` is no list of evaluations.
            ValueError: the metric is unknown.
        """
        check_known("metric", metric, METRICS)
        if not isinstance(evaluations, Sequence) or not all(isinstance(each, Evaluation) for each in evaluations):
            raise TypeError(f"expected a list of evaluations, one per seed, got {type(evaluations).__name__}")
        values = tuple(getattr(evaluation, metric) for evaluation in evaluations)
        floors = [each.inference.floors.get(metric) for each in evaluations if each.inference is not None]
        means = [floor.mean for floor in floors if floor is not None]
        return cls(values, t_interval(values), statistics.fmean(means) if len(means) == len(values) > 0 else None)


def t_interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float] | None:
    """Return Student's t interval of the mean over seeds (None for a single seed).

    >>> low, high = t_interval([0.01, 0.02, 0.03])
    >>> round(low, 4), round(high, 4)
    (0.0031, 0.0369)
    """
    if len(values) < 2:
        return None
    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    reach = float(stdtrit(len(values) - 1, (1 + level) / 2)) * error
    return mean - reach, mean + reach


def metric_bars(
    bars: Mapping[str, MetricBar], *, looks: Mapping[str, Look] | None = None, ax: Axes | None = None
) -> Axes:
    """Draw a bar per method in percent, with dots for seeds, whiskers for the interval and a noise floor mark.

    Args:
        bars: method -> bar.
        looks: method -> colour and hatch; by default those of the loss of this name, see ``LOOKS``.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.

    >>> from matplotlib.figure import Figure
    >>> bars = {"focal": MetricBar((0.02, 0.03), floor=0.01), "cross_entropy": MetricBar((0.05,))}
    >>> ax = metric_bars(bars, ax=Figure().subplots())
    >>> ax.set_xlabel("ECE [%]").get_text(), [label.get_text() for label in ax.get_yticklabels()]
    ('ECE [%]', ['focal', 'cross_entropy'])
    """
    check_named(bars, MetricBar, "method -> MetricBar")
    with axes_or_new(ax, (4.2, 0.42 * len(bars) + 0.8)) as axis:
        places = np.arange(len(bars))[::-1]
        for i, (name, bar) in enumerate(bars.items()):
            _draw_bar(axis, places[i], bar, look_of(name, i, looks))
        axis.set_yticks(places, [plain(name) for name in bars])
        axis.set(ylim=(-0.6, len(bars) - 0.4), xlim=(0, None))
        return tidy(axis, grid="x", rows=True)


def _draw_bar(axis: Axes, place: float, bar: MetricBar, look: Look) -> None:
    mean = 100 * statistics.fmean(bar.values)
    axis.barh(place, mean, 0.66, facecolor=look.colour, alpha=0.4, hatch=look.hatch, edgecolor=look.colour)
    axis.barh(place, mean, 0.66, facecolor="none", edgecolor=BLACK, linewidth=0.7)
    if len(bar.values) > 1:
        spread = place + np.linspace(-0.18, 0.18, len(bar.values))
        axis.plot(
            100 * np.array(bar.values), spread, "o", color="white", markeredgecolor=BLACK, markersize=3.2, zorder=3
        )
    if bar.interval is not None:
        low, high = (100 * end for end in bar.interval)
        axis.plot([max(low, 0.0), high], [place, place], "|-", color=BLACK, linewidth=1.2, markersize=7, zorder=2.5)
        if low < 0:  # errors are not negative: an arrow marks an interval that extends below 0
            axis.plot([0], [place], "<", color=BLACK, markersize=5, zorder=2.6, clip_on=False)
    if bar.floor is not None:
        for colour, width in (("white", 3.4), (DARK_GREY, 2)):  # a mark with a white border
            axis.plot(
                [100 * bar.floor] * 2,
                [place - 0.42, place + 0.42],
                color=colour,
                linewidth=width,
                solid_capstyle="butt",
            )


@styled()
def metric_figure(
    panels: Mapping[str, Mapping[str, MetricBar]],
    looks: Mapping[str, Look] | None = None,
    *,
    interval: str = "",
    title: str = "",
    remark: str = "",
) -> Figure:
    """Draw a panel of bars for each metric, side by side.

    Args:
        panels: name of the metric -> method -> bar.
        looks: method -> look.
        interval: description of the whiskers in the legend; required if a bar has an interval.
        title: title of the figure.
        remark: text below the figure.

    >>> bar = MetricBar((0.02, 0.03), t_interval((0.02, 0.03)))
    >>> figure = metric_figure({"ECE": {"focal": bar}}, interval="90 % confidence interval")
    >>> [text.get_text() for text in figure.legends[0].get_texts()]
    ['mean over seeds', 'single seed', '90 % confidence interval']
    """
    bars = [bar for panel in panels.values() for bar in panel.values()]
    if not bars:
        raise ValueError("metric_figure needs at least one metric of one method")
    several = any(len(bar.values) > 1 for bar in bars)
    intervals = any(bar.interval is not None for bar in bars)
    if intervals and not interval:
        raise ValueError("bars have intervals, but interval is empty: describe them for the legend")
    rows = max(len(panel) for panel in panels.values())
    figure = NotebookFigure(figsize=(2.5 * len(panels) + 1.2, 0.3 * rows + 1.5), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (metric, panel) in zip(axes, panels.items(), strict=True):
        metric_bars(panel, looks=looks, ax=axis)
        axis.set_xlabel(plain(f"{metric} [%]"))
    seed = Line2D([], [], marker="o", color="white", markeredgecolor=BLACK, markersize=3.2, linestyle="none")
    floor = Line2D([], [], marker="|", color=DARK_GREY, markersize=9, markeredgewidth=2, linestyle="none")
    legend: dict[str, Artist] = {
        "mean over seeds" if several else "one run": Patch(facecolor=GREY, edgecolor=BLACK, linewidth=0.7)
    }
    if several:
        legend["single seed"] = seed
    if intervals:
        legend[interval] = Line2D([], [], marker="|", color=BLACK, linewidth=1.2)
    if any(bar.floor is not None for bar in bars):
        legend["noise floor"] = floor
    legend_below(figure, list(legend.values()), list(legend), columns=len(legend), remark=remark)
    if title:
        figure.suptitle(plain(title), fontsize=10)
    return figure
