"""Reliability diagrams without bins."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dualfocal.metrics.corp import Corp
from dualfocal.plots.reliability import density_strip, finish_panels, panel_grid, panel_title, unit_square
from dualfocal.plots.style import BLUE, GREY, styled

STRIP = np.linspace(0, 1, 41)


def corp_diagram(axis: Axes, of: Corp) -> Axes:
    """The isotonic fit of correctness over confidence, within the band where a calibrated model's fit would lie.

    In the corner the Brier score of the predicted class, taken apart.
    """
    axis.fill_between(
        of.band_at,
        of.low,
        of.high,
        color=GREY,
        alpha=0.6,
        linewidth=0,
        label=f"{100 * of.level:.0f} % of calibrated models' fits, at each point",
    )
    axis.plot([0, 1], [0, 1], "--", color="black", linewidth=0.8)
    marker = "o" if len(of.confidence) == 1 else ""  # a line of one point is not seen
    axis.plot(
        of.confidence, of.recalibrated, color=BLUE, linewidth=1.6, label="accuracy by isotonic fit", marker=marker
    )
    text = (
        f"MCB {of.mcb:.4f} (a calibrated model: {of.mcb_floor.mean:.4f})\n"
        f"DSC {of.dsc:.4f}, UNC {of.unc:.4f}, Brier {of.score:.4f}"
    )
    axis.text(0.02, 1.05, text, va="bottom", fontsize=7, linespacing=1.4)
    unit_square(axis)
    return axis


def corp_panels(found: Mapping[str, Corp], *, title: str = "", remark: str = "") -> Figure:
    """A diagram for each set of predictions, with the share of samples below it."""
    if not found:
        raise ValueError("corp_panels needs at least one set of predictions")
    with styled():
        figure, panels = panel_grid(len(found), title=title)
        for (top, strip), (name, of) in zip(panels, found.items(), strict=True):
            corp_diagram(top, of)
            count, _ = np.histogram(of.confidence, STRIP, weights=of.count)
            density_strip(strip, STRIP, count.astype(np.int64))
            top.set_title(panel_title(name, of.num_samples, len(found)))
        finish_panels(figure, panels, remark)
    return figure
