"""Figures, drawn from what has been computed; matplotlib only, no global state."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from dualfocal.metrics import Evaluation

if TYPE_CHECKING:
    from dualfocal.study import Summary

BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#BBBBBB"  # Okabe-Ito: told apart with any colour vision
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


def study_figure(summary: "Summary") -> Figure:
    """ECE and NLL of each entry of a study, as trained and after temperature scaling: a small dot is a seed.

    The grey mark is the floor of the ECE: what a perfectly calibrated model with such confidences would show by chance.
    """
    entries = summary.study.entries
    figure = Figure(figsize=(9.5, 0.45 * len(entries) + 1.9), layout="constrained")
    places = np.arange(len(entries))[::-1]
    for axis, (column, label, factor) in zip(
        figure.subplots(1, 2, sharey=True), (("ece", "test ECE [%]", 100), ("nll", "test NLL [nats]", 1)), strict=True
    ):
        for name, colour, shift, text in (
            (column, VERMILION, 0.16, "as trained"),
            (f"{column}_t", BLUE, -0.16, "after temperature scaling"),
        ):
            for place, entry in zip(places, entries, strict=True):
                values = factor * np.array(summary.scores[entry][name])
                axis.plot(values, np.full(len(values), place + shift), "o", color=colour, markersize=3.5, alpha=0.5)
            means = [factor * summary.mean(entry, name) for entry in entries]
            axis.plot(means, places + shift, "|", color=colour, markersize=13, markeredgewidth=2.5, label=text)
        if column == "ece":
            floors = [100 * summary.floors.get("ece", {}).get(entry, np.nan) for entry in entries]
            tick = {"color": GREY, "markersize": 20, "markeredgewidth": 4}
            axis.plot(floors, places + 0.16, "|", **tick, label="its floor", zorder=0)
            axis.set_xlim(left=0)
        axis.set_yticks(places, entries)
        axis.set_xlabel(label)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="x", alpha=0.3)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(summary.study.title, fontsize=10)
    return figure


def sample_sheet(blocks: Mapping[str, Sequence[Tensor]], row_names: Sequence[str]) -> Figure:
    """Images in rows by class, in one block or several side by side.

    A block has a tensor (N, C, H, W) for each row, of any N. Its darkest value is drawn black, its brightest white.
    """
    columns = max(len(images) for rows in blocks.values() for images in rows)
    figure = Figure(figsize=(0.55 * columns * len(blocks) + 1.6, 0.55 * len(row_names) + 0.5), layout="constrained")
    for axis, (title, rows) in zip(figure.subplots(1, len(blocks), squeeze=False)[0], blocks.items(), strict=True):
        channels, height, width = rows[0].shape[1:]
        sheet = np.ones((len(rows), height + 2, columns, width + 2, channels))  # with a white rim around each
        low, high = min(float(of.min()) for of in rows if len(of)), max(float(of.max()) for of in rows if len(of))
        for row, images in enumerate(rows):
            pixels = (images.double().numpy() - low) / max(high - low, 1e-9)
            sheet[row, 1:-1, : len(images), 1:-1] = pixels.transpose(2, 0, 3, 1)
        axis.imshow(sheet.reshape(len(rows) * (height + 2), -1, channels).squeeze(), cmap="gray", vmin=0, vmax=1)
        axis.set(
            xticks=[],
            yticks=(np.arange(len(rows)) + 0.5) * (height + 2) if axis.get_subplotspec().is_first_col() else [],
        )
        axis.set_title(title, fontsize=10)
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    figure.axes[0].set_yticklabels([name.replace("$", r"\$") for name in row_names], fontsize=9)
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
