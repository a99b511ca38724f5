"""The evidence of a monitor over time."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dualfocal.metrics import CalibrationMonitor
from dualfocal.plots.style import BLUE, DARK_GREY, GREY, VERMILION, NotebookFigure, axes_or_new, plain, styled, tidy
from dualfocal.tables import quantity

TICKS = 8  # labels of the axis of time
LONGEST, DATE = 16, 10  # characters of a label; of the date in it


def evidence_diagram(monitor: CalibrationMonitor, *, ax: Axes | None = None) -> Axes:
    """Draw the evidence against calibration after each period, on a logarithmic scale, and the limit of the alarm.

    Args:
        monitor: the monitor, which must have seen at least one period.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.

    Raises:
        ValueError: the monitor has seen no samples.

    >>> from matplotlib.figure import Figure
    >>> monitor = CalibrationMonitor()
    >>> monitor.update([[0.7, 0.3]], [0], input="probs", time="Monday")
    >>> ax = evidence_diagram(monitor, ax=Figure().subplots())
    >>> ax.get_ylabel(), [text.get_text() for text in ax.get_xticklabels()]
    ('evidence', ['Monday'])
    """
    if not monitor.history:
        raise ValueError("the monitor has seen no samples: there is nothing to draw")
    with axes_or_new(ax, (6.2, 3.0), legend=3) as axis:
        last = np.array([period.last for period in monitor.history])
        exponents = np.array([period.log_evidence for period in monitor.history]) / math.log(10)
        limit = -math.log10(monitor.alpha)
        axis.plot(last, exponents, color=BLUE, linewidth=1.4, marker=".", markersize=3, label="evidence")
        axis.axhline(
            limit, color=VERMILION, linestyle=(0, (5, 1.5)), linewidth=1.1, label=f"alarm at {1 / monitor.alpha:.4g}"
        )
        if monitor.alarm is not None:
            place = (monitor.alarm.num_periods - 1, monitor.alarm.log_evidence / math.log(10))
            axis.plot(*place, marker="o", color=VERMILION, markersize=6, linestyle="none", label="first alarm")
        low, high = min(-1.0, float(exponents.min())), max(2.0, float(exponents.max()))
        step = max(1, math.ceil((high - low) / 6))
        ticks = range(math.floor(low), math.ceil(high) + 1, step)
        axis.set_yticks(ticks, [{0: "1", 1: "10"}.get(k, f"$10^{{{k}}}$") for k in ticks])
        axis.set(ylabel="evidence", ylim=(low - 0.1, 1.04 * high + 0.1))
        _label_time(axis, monitor)
        return tidy(axis, grid="y")


def evidence_figure(monitor: CalibrationMonitor) -> Figure:
    """Draw the evidence over time, and below it the gap between mean confidence and accuracy of each period.

    Bars are two standard errors of a calibrated model. The evidence also sees gaps of single bins, and of classes,
    which cancel out in this gap.

    Raises:
        ValueError: the monitor has seen no samples.
    """
    with styled():
        figure = NotebookFigure(figsize=(6.6, 4.4), layout="constrained")
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
        evidence_diagram(monitor, ax=top)
        top.legend(loc="upper left", frameon=False)
        top.tick_params(axis="x", labelbottom=False)
        place = [(period.first + period.last) / 2 for period in monitor.history]
        gap = [100 * period.gap for period in monitor.history]
        error = [100 * period.standard_error for period in monitor.history]
        bottom.axhline(0, color=DARK_GREY, linewidth=0.8)
        if monitor.tolerance:
            bottom.axhspan(-100 * monitor.tolerance, 100 * monitor.tolerance, color=GREY, alpha=0.4, label="tolerance")
            bottom.legend(loc="upper left", frameon=False)
        bottom.errorbar(place, gap, 2 * np.array(error), color=BLUE, fmt=".", markersize=4, elinewidth=0.7)
        positive = monitor.binary == "positive"
        bottom.set_ylabel("probability - frequency\n[points]" if positive else "confidence - accuracy\n[points]")
        _label_time(bottom, monitor)
        tidy(bottom, grid="y")
        state = "no alarm" if monitor.alarm is None else f"alarm at {monitor.alarm.time}"
        size = f"{quantity(monitor.num_samples, 'sample')} in {quantity(monitor.num_periods, 'period')}"
        top.set_title(plain(f"{size}: {state}"))
    return figure


def _label_time(axis: Axes, monitor: CalibrationMonitor) -> None:
    history = monitor.history
    chosen = sorted({round(i) for i in np.linspace(0, len(history) - 1, min(TICKS, len(history)))})
    times = [history[i].time for i in chosen]
    days = [time[:DATE] for time in times]
    if all(time[DATE : DATE + 1] in (" ", "T") for time in times) and len({*days}) == len(days):  # 2026-01-31 04:00
        times = days
    labels = [plain(time[:LONGEST]) for time in times]
    axis.set_xticks([history[i].last for i in chosen], labels, rotation=30, ha="right")
