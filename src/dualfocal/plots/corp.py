"""Reliability diagrams without bins (CORP): an isotonic fit of accuracy over confidence."""

from collections.abc import Mapping
from typing import Unpack

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dualfocal.metrics.arrays import Array
from dualfocal.metrics.corp import Corp, corp
from dualfocal.metrics.samples import SampleOptions, Samples
from dualfocal.plots.panels import SIZE, Density, axis_end, axis_names, histogram, panels, unit_square
from dualfocal.plots.style import BLUE, GREY, axes_or_new

SHARE = 0.99  # of the samples that the axes show at least
TOP = 1.2  # upper end of the axis, above three lines of text


def corp_diagram(
    data: Corp | Samples | Array,
    target: Array | None = None,
    *,
    draws: int = 500,
    seed: int = 0,
    ax: Axes | None = None,
    **options: Unpack[SampleOptions],
) -> Axes:
    """Draw accuracy over confidence without bins (CORP): an isotonic fit, and the band of fits of calibrated models.

    Args:
        data: the result of :func:`~dualfocal.metrics.corp.corp`; or predictions, or
            :class:`~dualfocal.metrics.Samples`.
        target: class indices; only with predictions.
        draws: number of draws of the band, at least 100; not with a result.
        seed: seed of the draws; not with a result.
        ax: axes to draw on; None: those of a new figure.
        **options: see :func:`~dualfocal.metrics.corp.corp`.

    Returns:
        The axes.

    >>> import torch
    >>> logits, target = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)), torch.arange(200) % 3
    >>> ax = corp_diagram(logits, target, draws=100, ax=Figure().subplots())
    >>> [line.get_label() for line in ax.lines][1]
    'accuracy by isotonic fit'
    """
    if not isinstance(data, Corp):
        data = corp(data, target, draws=draws, seed=seed, **options)
    elif target is not None:
        raise TypeError("a Corp has its own target; pass axes as ax=")
    with axes_or_new(ax, SIZE, legend=1) as axis:
        draw_corp(axis, data, curve_end(data)).set_xlabel(axis_names(data)[0])
    return axis


def draw_corp(axis: Axes, curve: Corp, end: float = 1.0) -> Axes:
    """Draw the isotonic fit of accuracy over confidence, and the band of fits of calibrated models.

    The text shows the Brier score of the predicted class and its decomposition. Both axes end at ``end``.
    """
    _, outcome = axis_names(curve)
    band = axis.fill_between(
        curve.band_at,
        curve.low,
        curve.high,
        color=GREY,
        alpha=0.6,
        linewidth=0,
        label=f"{100 * curve.level:.0f} % range of the fits of calibrated models, pointwise",
    )
    axis.plot([0, 1], [0, 1], "--", color="black", linewidth=0.8)
    (fit,) = axis.plot(
        curve.confidence,
        curve.recalibrated,
        color=BLUE,
        linewidth=1.6,
        label=f"{outcome} by isotonic fit",
        marker="o" if len(curve.confidence) == 1 else "",  # a line of one point is invisible
    )
    text = (
        f"MCB {curve.mcb:.4f} (noise floor {curve.mcb_floor.mean:.4f})\n"
        f"DSC {curve.dsc:.4f}, UNC {curve.unc:.4f}\nBrier {curve.score:.4f}"
    )
    axis.text(0.02 * end, 1.04 * end, text, va="bottom", linespacing=1.3)
    unit_square(axis, outcome, end).set_ylim(top=TOP * end)
    if end < 1:  # no line crosses the text above
        for artist in (band, fit):
            artist.set_clip_path(Rectangle((0, 0), end, end, transform=axis.transData))
    return axis


def curve_end(curve: Corp) -> float:
    """Return where the axes of a diagram end: at 1, or above the curve of nearly all samples."""
    most = np.repeat(curve.confidence, curve.count)[int(SHARE * (curve.num_samples - 1))]
    fit, band = curve.recalibrated[curve.confidence <= most], curve.high[curve.band_at <= most]
    return axis_end(max(most, *fit[-1:], *band[-1:]))


def corp_figure(curves: Mapping[str, Corp], *, title: str = "", remark: str = "") -> Figure:
    """Draw a reliability diagram without bins (CORP) for each set of predictions, with the share of samples below it.

    Args:
        curves: name of the predictions -> CORP curve.
        title: title of the figure.
        remark: text below the figure.

    >>> import torch
    >>> logits, target = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)), torch.arange(200) % 3
    >>> figure = corp_figure({"random": corp(logits, target, draws=100)})
    >>> figure.axes[0].get_title()
    'random, N = 200'
    """

    def density(curve: Corp, end: float) -> Density:
        return histogram(curve.confidence, curve.count, end)

    return panels(curves, Corp, draw_corp, density, curve_end, title, remark, lines_of_text=3)
