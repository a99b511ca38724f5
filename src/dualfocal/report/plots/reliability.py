"""Reliability diagrams."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dualfocal.metrics import Evaluation
from dualfocal.report.plots.style import BLUE, GREY, VERMILION

LEVEL, DRAWS = 0.9, 4000


def reliability_figure(evaluations: Mapping[str, Evaluation]) -> Figure:
    """One reliability diagram for each set of predictions, side by side.

    A dot is a bin: its accuracy over its mean confidence. The grey bar is where 90 % of the dots of a calibrated model
    with as many samples would lie; a dot outside is orange. Below, the share of samples in each bin.
    """
    if not evaluations:
        raise ValueError("reliability_figure needs at least one evaluation")
    columns = min(len(evaluations), 4)
    lines = -(-len(evaluations) // columns)
    figure = Figure(figsize=(4.4 * columns + 0.9, 5.4 * lines + 0.4), layout="constrained")
    ratios = [4, 1] * lines
    axes = figure.subplots(2 * lines, columns, squeeze=False, height_ratios=ratios)
    for axis in axes.flat:
        axis.set_visible(False)
    for i, (name, evaluation) in enumerate(evaluations.items()):
        top, strip = axes[2 * (i // columns), i % columns], axes[2 * (i // columns) + 1, i % columns]
        _diagram(top, strip, name, evaluation, first=i % columns == 0)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=3, frameon=False, columnspacing=1.0, handletextpad=0.4
    )
    return figure


def _diagram(top: Axes, strip: Axes, name: str, evaluation: Evaluation, *, first: bool) -> None:
    bins = evaluation.bins.to("cpu")
    count, edges = bins.count.numpy(), bins.edges.numpy()
    full = count > 0
    confidence, accuracy = bins.mean_confidence.numpy()[full], bins.accuracy.numpy()[full]
    chance = np.random.default_rng(0).binomial(count[full], np.clip(confidence, 0, 1), size=(DRAWS, int(full.sum())))
    low, high = np.quantile(chance / count[full], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    off = (accuracy < low) | (accuracy > high)

    top.set_visible(True)
    strip.set_visible(True)
    top.plot([0, 1], [0, 1], "--", color="black", linewidth=0.8)
    half = 0.3 * np.diff(edges)[full]
    width = np.minimum(2 * half, 0.04)
    label = f"{LEVEL:.0%} range of a calibrated model"
    top.bar(confidence, high - low, width, bottom=low, color=GREY, alpha=0.7, label=label)
    for mask, colour, text in ((~off, BLUE, "bin, within it"), (off, VERMILION, "bin, outside")):
        (dots,) = top.plot(confidence[mask], accuracy[mask], "o", color=colour, label=text, clip_on=False, zorder=3)
        # An empty plot that is not clipped has a place all the same, far away, and the layout would make room for it.
        dots.set_in_layout(bool(mask.any()))
    strip.bar(edges[:-1], 100 * count / count.sum(), np.diff(edges), align="edge", color=GREY, edgecolor="white")

    text = f"ECE {100 * evaluation.ece:.1f} %"
    if evaluation.inference is not None:
        text += f"\na calibrated model: {100 * evaluation.inference.floors['ece'].mean:.1f} %"
    box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1}  # a tall bar may stand behind it
    top.text(0.04, 0.96, text, va="top", fontsize=11, linespacing=1.4, bbox=box)
    top.set(title=f"{name}, N = {evaluation.num_samples:,}", xlim=(0, 1), ylim=(0, 1.02), xticks=(0, 0.5, 1))
    top.title.set_parse_math(False)  # a name is a name, with $ too
    top.tick_params(labelbottom=False)
    strip.set(xlim=(0, 1), xticks=(0, 0.5, 1), xlabel="confidence")
    if first:
        top.set_ylabel("accuracy")
        strip.set_ylabel("% of samples")
    for axis in (top, strip):
        axis.spines[["top", "right"]].set_visible(False)
