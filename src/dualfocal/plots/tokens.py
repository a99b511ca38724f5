"""Calibration of next-token predictions: reliability diagram, and groups by token frequency and by position."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dualfocal.metrics.groups import GroupEvaluation
from dualfocal.metrics.inference_result import SIGNIFICANCE
from dualfocal.metrics.tokens import TokenEvaluation
from dualfocal.plots.panels import density_strip
from dualfocal.plots.reliability import draw_reliability
from dualfocal.plots.style import (
    BLACK,
    BLUE,
    DARK_GREY,
    VERMILION,
    NotebookFigure,
    axes_or_new,
    legend_below,
    plain,
    styled,
    tidy,
)
from dualfocal.tables import quantity

AXES = {"by_frequency": "count of the predicted token", "by_position": "position in the sequence"}
WIDTH = 0.7  # of a bar


def token_groups_diagram(groups: Sequence[GroupEvaluation], *, ax: Axes | None = None) -> Axes:
    """Draw the debiased RMS error of each group with its interval; groups that are significantly off are filled.

    The error is the debiased RMS gap between confidence and accuracy. Triangles point up where the model is
    over-confident and down where it is under-confident.

    Args:
        groups: groups in order, such as ``by_position`` of a
            :class:`~dualfocal.metrics.TokenEvaluation`.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.

    Raises:
        ValueError: there are no groups.
    """
    if not groups:
        raise ValueError("there are no groups to draw: groups by frequency need token_counts")
    with axes_or_new(ax, (4.6, 2.6), legend=2) as axis:
        value = np.array([group.evaluation.debiased_ece for group in groups])
        low, high = np.array([group.inference.debiased_ece for group in groups]).T
        over = np.array([group.evaluation.overconfidence > 0 for group in groups])
        bad = np.array([group.p_adjusted <= SIGNIFICANCE for group in groups])
        value = np.clip(value, low, high)
        place = np.arange(len(groups))
        level = f"{100 * groups[0].inference.level:.4g} % interval"
        axis.errorbar(
            place,
            100 * value,
            100 * np.stack([value - low, high - value]),
            fmt="none",
            ecolor=BLACK,
            capsize=2,
            label=level,
        )
        for up, colour, marker, text in (
            (True, VERMILION, "^", "over-confident"),
            (False, BLUE, "v", "under-confident"),
        ):
            for filled in (True, False):
                here = (over == up) & (bad == filled)
                if not here.any():
                    continue
                axis.plot(
                    place[here],
                    100 * value[here],
                    marker=marker,
                    linestyle="none",
                    color=colour,
                    markerfacecolor=colour if filled else "white",
                    markersize=6,
                    label=text if filled else f"{text}, not significant",
                )
        _name_groups(axis, groups)
        axis.set(ylabel="debiased RMS error [%]", ylim=(0, 105 * max(float(high.max()), 0.01)))
        return tidy(axis, grid="y")


def token_figure(result: TokenEvaluation, *, title: str = "") -> Figure:
    """Draw the reliability diagram of all tokens, and accuracy, confidence and debiased RMS error of the groups.

    Args:
        result: the evaluation.
        title: text in front of the numbers of tokens and sequences.
    """
    kinds = [name for name in AXES if getattr(result, name)]
    with styled():
        figure = NotebookFigure(figsize=(3.6 + 3.2 * len(kinds), 5.8), layout="constrained")
        axes = figure.subplots(2, 1 + len(kinds), squeeze=False, height_ratios=[3, 2])
        draw_reliability(axes[0, 0], result.evaluation)
        bins = result.evaluation.bins
        density_strip(axes[1, 0], bins.edges, bins.count).set_ylabel("% of tokens")
        for column, name in enumerate(kinds, start=1):
            groups, (top, bottom) = getattr(result, name), axes[:, column]
            _draw_means(top, groups)
            token_groups_diagram(groups, ax=bottom)
            bottom.set_xlabel(AXES[name])
            top.tick_params(labelbottom=False)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        for axis in axes[:, 1:].flat:
            more = axis.get_legend_handles_labels()
            handles, labels = handles + more[0], labels + more[1]
        unique = dict(zip(labels, handles, strict=True))
        legend_below(figure, list(unique.values()), list(unique), columns=4)
        size = f"{quantity(result.num_tokens, 'token')} in {quantity(result.num_sequences, 'sequence')}"
        size += f", perplexity {result.perplexity:.4g}"
        figure.suptitle(plain(f"{title}: {size}" if title else size), fontsize=10)
    return figure


def _draw_means(axis: Axes, groups: Sequence[GroupEvaluation]) -> None:
    """Draw the accuracy of each group as a bar, and its mean confidence as a line."""
    place = np.arange(len(groups))
    accuracy, confidence = (
        np.array([100 * getattr(group.evaluation, name) for group in groups]) for name in ("accuracy", "confidence")
    )
    axis.bar(place, accuracy, WIDTH, color=BLUE, alpha=0.35, edgecolor="white", linewidth=0.6, label="accuracy")
    axis.hlines(
        confidence, place - WIDTH / 2, place + WIDTH / 2, color=DARK_GREY, linewidth=1.8, label="mean confidence"
    )
    _name_groups(axis, groups)
    axis.set(ylabel="accuracy and confidence [%]", ylim=(0, 100))
    tidy(axis, grid="y")


def _name_groups(axis: Axes, groups: Sequence[GroupEvaluation]) -> None:
    axis.set_xticks(range(len(groups)), [plain(group.name) for group in groups], rotation=40, ha="right")
    axis.set_xlim(-0.6, len(groups) - 0.4)
