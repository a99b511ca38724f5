"""Reliability diagrams: accuracy over confidence in bins, and the range of a calibrated model."""

from collections.abc import Collection, Mapping
from typing import Unpack

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dualfocal.checks import check_choice
from dualfocal.metrics import Evaluation, evaluate
from dualfocal.metrics.arrays import Array
from dualfocal.metrics.registry import METRICS
from dualfocal.metrics.samples import SampleOptions, Samples, as_samples
from dualfocal.plots.panels import (
    SIZE,
    Density,
    Floats,
    axis_end,
    axis_names,
    histogram,
    panels,
    unit_square,
)
from dualfocal.plots.quantiles import Outcomes, QuantileEvaluation
from dualfocal.plots.style import BLUE, DARK_GREY, VERMILION, axes_or_new

__all__ = ["LEVEL", "chance_range", "draw_reliability", "reliability_diagram", "reliability_figure"]

LEVEL = 0.9


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


def reliability_diagram(
    data: Evaluation | Samples | Array,
    target: Array | None = None,
    *,
    num_bins: int = 15,
    strategy: str = "uniform",
    ax: Axes | None = None,
    **options: Unpack[SampleOptions],
) -> Axes:
    """Draw accuracy over confidence, in bins: accuracy, its gap to the confidence, and the range of a calibrated model.

    Args:
        data: an :class:`~dualfocal.Evaluation`, whose noise floor is shown if it has one; or predictions, or
            :class:`~dualfocal.metrics.Samples`.
        target: class indices; only with predictions.
        num_bins: number of bins; not with an evaluation.
        strategy: ``"uniform"`` for bins of equal width, or ``"quantile"`` for bins with equally many samples, those of
            the adaptive ECE, which is then shown; not with an evaluation. With quantile bins, the axes end below 1 if
            all confidences are small, such as the probabilities of a rare event.
        ax: axes to draw on; None: those of a new figure.
        **options: what predictions and targets mean, see :meth:`~dualfocal.metrics.Samples.from_arrays`.

    Returns:
        The axes.

    >>> import torch
    >>> logits, target = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)), torch.arange(200) % 3
    >>> ax = reliability_diagram(logits, target, num_bins=10, ax=Figure().subplots())
    >>> ax.get_xlabel(), ax.get_ylabel(), ax.texts[0].get_text()
    ('confidence', 'accuracy', 'ECE 23.9 %')
    """
    check_choice("strategy", strategy, ("uniform", "quantile"))
    if not isinstance(data, Evaluation):
        samples = as_samples(data, target, options)
        evaluation = evaluate(samples, num_bins=num_bins)
        if strategy == "quantile":
            evaluation = QuantileEvaluation.of(evaluation, Outcomes.from_samples(samples))
    elif target is not None:
        raise TypeError("an Evaluation has its own target; pass axes as ax=")
    elif strategy == "quantile" and not isinstance(data, QuantileEvaluation):
        raise ValueError(
            "strategy='quantile' needs the samples, which an Evaluation does not keep: pass logits and target"
        )
    else:
        evaluation = data
    with axes_or_new(ax, SIZE, legend=2) as axis:
        draw_reliability(axis, evaluation, quantile_end(evaluation)).set_xlabel(axis_names(evaluation)[0])
    return axis


def bin_range(evaluation: Evaluation) -> tuple[Floats, Floats]:
    """Return the range of accuracies of each bin if the model is calibrated; NaN for empty bins."""
    bins = evaluation.bins
    clusters = None if evaluation.inference is None else evaluation.inference.clusters
    # As many independent samples as carry the information of weighted ones, or of those in clusters.
    number = bins.effective_count() / (1.0 if clusters is None else max(clusters.design_effect, 1.0))
    count = np.maximum(np.rint(number), bins.count > 0).astype(np.int64)
    return chance_range(count, bins.mean_confidence)


def draw_reliability(axis: Axes, evaluation: Evaluation, end: float = 1.0) -> Axes:
    """Draw bars of accuracy, the hatched gap to the mean confidence, and whiskers for a calibrated model.

    Both axes end at ``end``.
    """
    _, outcome = axis_names(evaluation)
    bins, in_quantiles = evaluation.bins, isinstance(evaluation, QuantileEvaluation)
    edges, count = bins.edges, bins.count
    confidence, accuracy = bins.mean_confidence, bins.accuracy
    width, full = np.diff(edges), count > 0
    low, high = bin_range(evaluation)
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
        label=outcome,
    )
    centre = confidence[full]
    axis.errorbar(
        (confidence if in_quantiles else edges[:-1] + width / 2)[full],
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
            edges[:-1],
            np.where(mask, confidence - accuracy, np.nan),  # never an empty list, which the legend cannot show
            width,
            bottom=accuracy,
            align="edge",
            facecolor="none",
            edgecolor=colour,
            hatch=hatch,
            linewidth=0.6,
            label=text,
        )
    metric = "adaptive_ece" if in_quantiles else "ece"
    text = f"{METRICS[metric].label} {100 * getattr(evaluation, metric):.1f} %"
    if evaluation.inference is not None:
        text += f"\nnoise floor {100 * evaluation.inference.floors[metric].mean:.1f} %"
    axis.text(0.02 * end, 1.05 * end, text, va="bottom", linespacing=1.35)
    return unit_square(axis, outcome, end)


def reliability_figure(
    evaluations: Mapping[str, Evaluation], *, title: str = "", remark: str = "", highlight: Collection[str] = ()
) -> Figure:
    """Draw a reliability diagram for each set of predictions, with the share of samples below it.

    Args:
        evaluations: name of the predictions -> evaluation.
        title: title of the figure.
        remark: text below the figure.
        highlight: names of predictions whose titles are bold.

    >>> import torch
    >>> logits, target = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)), torch.arange(200) % 3
    >>> evaluations = {"before": evaluate(logits, target), "after": evaluate(logits / 5, target)}
    >>> figure = reliability_figure(evaluations, title="temperature scaling")
    >>> [axis.get_title() for axis in figure.axes][:2]
    ['before, N = 200', 'after, N = 200']
    """

    def density(evaluation: Evaluation, end: float) -> Density:
        if isinstance(evaluation, QuantileEvaluation):
            return histogram(evaluation.outcomes.confidence, evaluation.outcomes.weight, end)
        return evaluation.bins.edges, evaluation.bins.count

    return panels(evaluations, Evaluation, draw_reliability, density, quantile_end, title, remark, highlight=highlight)


def quantile_end(evaluation: Evaluation) -> float:
    """Return where the axes of a diagram end: at 1, or with bins of equal mass above all that is drawn of them."""
    if not isinstance(evaluation, QuantileEvaluation):
        return 1.0
    drawn = (evaluation.bins.mean_confidence, evaluation.bins.accuracy, bin_range(evaluation)[1])
    return axis_end(float(np.nanmax(drawn)))
