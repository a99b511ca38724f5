"""Pictures of what-ece-hides.md and temperature-or-training-loss.md, drawn by figures.py."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from figure_data import (
    calibrated_model,
    cifar10_run,
    class_gaps,
    day_and_night,
    digits_networks,
    floor_of,
    scaled_run,
    severity_errors,
)
from figures_of_ideas import compact
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from dualfocal import TemperatureScaling, evaluate
from dualfocal.metrics import debiased_ece, ece, mce
from dualfocal.plots import LOOKS, reliability_figure, styled
from dualfocal.plots.style import BLACK, BLUE, DARK_GREY, GREEN, GREY, VERMILION, legend_below, tidy
from dualfocal_lab.plots import MetricBar, metric_figure

SEEDS = {"cross_entropy": (1,), "flsd": (1, 2), "dual_focal": (1, 2, 3, 4)}  # bfloat16 runs in lab/results/cifar10
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def one_axis(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure with one axis."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def log_scale(axis: Axes, ticks: Sequence[int]) -> None:
    """Make the horizontal axis logarithmic, with these ticks."""
    axis.set_xscale("log")
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.minorticks_off()


# What ECE hides


@styled()
def ece_bins() -> Figure:
    """ECE of one network over the number of bins, with noise floors."""
    logits, target = scaled_run(cifar10_run("cross_entropy"))
    numbers = (2, 3, 5, 8, 10, 15, 20, 30, 50, 75, 100)
    results = [evaluate(logits, target, num_bins=number, inference=True) for number in numbers]
    figure, axis = one_axis(6, 3.3)
    axis.plot(numbers, [100 * each.ece for each in results], "o-", color=BLUE, label="ECE of the same predictions")
    axis.plot(numbers, [100 * floor_of(each) for each in results], "s--", color=DARK_GREY, label="noise floor")
    axis.set(xlabel="number of bins", ylabel="%", ylim=(0, None))
    log_scale(axis, (2, 5, 10, 15, 30, 50, 100))
    axis.legend(frameon=False)
    tidy(axis, grid="y")
    return figure


def repeated(metric: Callable[[Tensor, Tensor], float], size: int, repeats: int) -> np.ndarray:
    """Return a metric of many samples of one calibrated model."""
    logits, target = calibrated_model(size * repeats, seed=1)
    return np.array([metric(a, b) for a, b in zip(logits.split(size), target.split(size), strict=True)])


@styled()
def ece_noise() -> Figure:
    """ECE and debiased RMS error of a calibrated model over the number of samples."""
    sizes = (100, 300, 1_000, 3_000, 10_000, 30_000)
    figure, axis = one_axis(6, 3.5)
    for metric, colour, line, name in ((ece, BLUE, "o-", "ECE"), (debiased_ece, GREEN, "s--", "debiased RMS error")):
        values = 100 * np.stack([repeated(metric, size, 60) for size in sizes])
        axis.plot(sizes, np.median(values, 1), line, color=colour, label=f"{name}, median of 60 samples")
        low, high = np.quantile(values, (0.05, 0.95), axis=1)
        axis.fill_between(sizes, low, high, color=colour, alpha=0.15, linewidth=0, label="its middle 90 %")
    axis.set(xlabel="number of samples", ylabel="%", ylim=(-0.3, None))
    log_scale(axis, sizes)
    axis.legend(frameon=False)
    axis.set_title("a perfectly calibrated model")
    tidy(axis, grid="y")
    return figure


@styled()
def ece_classes() -> Figure:
    """Predicted share and frequency of each class, where the confidence of the predicted class looks fine."""
    odds = torch.tensor([1.5, 1.0] * 5)
    logits, target = calibrated_model(5_000, odds=odds)
    figure, axis = one_axis(6.4, 3.2)
    mean = 100 * logits.softmax(1).mean(0).numpy()
    frequency = 100 * np.bincount(target.numpy(), minlength=10) / len(target)
    axis.bar(np.arange(10) - 0.2, mean, 0.38, color=GREY, label="mean predicted probability")
    axis.bar(
        np.arange(10) + 0.2,
        frequency,
        0.38,
        color=VERMILION,
        hatch="//",
        edgecolor="white",
        label="how often it occurs",
    )
    axis.set(xlabel="class", ylabel="%", xticks=range(10), ylim=(0, 15.5))
    axis.legend(frameon=False, ncols=2, loc="upper center")
    axis.set_title(f"ECE of the predicted class: {100 * ece(logits, target):.1f} %")
    tidy(axis, grid="y")
    return figure


def ece_groups() -> Figure:
    """A model that is over-confident by day and under-confident by night, and looks calibrated on both."""
    confidence, right, group = day_and_night()
    parts = {"all": group >= 0, "day": group == 0, "night": group == 1}
    return compact(
        reliability_figure(
            {k: evaluate(confidence[m], right[m], input="confidence", inference=True) for k, m in parts.items()}
        )
    )


@styled()
def ece_maximum() -> Figure:
    """ECE and MCE of 500 samples of one calibrated model."""
    figure, axis = one_axis(6.4, 3.2)
    for metric, colour, name in ((ece, BLUE, "ECE"), (mce, VERMILION, "MCE")):
        values = 100 * repeated(metric, 1_000, 500)
        axis.hist(values, bins=np.arange(0, 101, 1.0), color=colour, alpha=0.6, label=f"{name}: {quantiles(values)}")
    axis.set(
        xlim=(0, 100),
        xlabel="%",
        ylabel="number of samples",
        title="500 samples of 1,000 predictions, one calibrated model",
    )
    axis.legend(frameon=False)
    tidy(axis, grid="y")
    return figure


def quantiles(values: np.ndarray) -> str:
    """Describe the middle 90 %."""
    low, high = np.quantile(values, (0.05, 0.95))
    return f"90 % between {low:.0f} and {high:.0f} %"


# Temperature or training loss


def temperature_cifar10() -> Figure:
    """ECE of the three losses on CIFAR-10, as trained and after temperature scaling."""
    runs = {loss: [cifar10_run(loss, seed) for seed in seeds] for loss, seeds in SEEDS.items()}
    panels = {
        "ECE as trained": {
            k: [evaluate(*run.predictions("test"), inference=True) for run in v] for k, v in runs.items()
        },
        "ECE after temperature scaling": {
            k: [evaluate(*scaled_run(run), inference=True) for run in v] for k, v in runs.items()
        },
    }
    bars = {title: {k: MetricBar.from_evaluations(v) for k, v in panel.items()} for title, panel in panels.items()}
    figure = metric_figure(bars, interval="90 % confidence interval of the mean over seeds")
    for axis in figure.axes:
        axis.set_xlim(0, 4.6)
    return figure


@styled()
def temperature_samples() -> Figure:
    """ECE after temperature scaling over the number of validation samples."""
    run = cifar10_run("cross_entropy")
    (val_logits, val_target), (logits, target) = run.predictions("val"), run.predictions("test")
    generator = torch.Generator().manual_seed(0)
    sizes = (50, 100, 200, 500, 1_000, 2_000)
    values = np.empty((len(sizes), 60))
    for row, size in enumerate(sizes):
        for column in range(values.shape[1]):
            chosen = torch.randperm(len(val_target), generator=generator)[:size]
            scaling = TemperatureScaling().fit(val_logits[chosen], val_target[chosen])
            values[row, column] = 100 * ece(scaling(logits), target)
    figure, axis = one_axis(6.4, 3.5)
    low, high = np.quantile(values, (0.05, 0.95), axis=1)
    axis.plot(sizes, np.median(values, 1), "o-", color=BLACK, label="cross-entropy and temperature, median of 60 draws")
    axis.fill_between(sizes, low, high, color=GREY, alpha=0.5, linewidth=0, label="90 % of the draws")
    dual = 100 * ece(*cifar10_run("dual_focal").predictions("test"))
    axis.axhline(dual, color=VERMILION, linestyle="--", label="dual focal, no validation samples")
    axis.axhline(100 * ece(logits, target), color=BLACK, linestyle=":", label="cross-entropy, no temperature")
    axis.set(xlabel="number of validation samples", ylabel="test ECE [%]", ylim=(0, 5.8))
    log_scale(axis, sizes)
    axis.legend(frameon=False, ncols=2, loc="upper center")
    tidy(axis, grid="y")
    return figure


@styled()
def temperature_shift() -> Figure:
    """ECE under noise that neither training nor validation data had."""
    figure = Figure(figsize=(7, 3.7), layout="constrained")
    left, right = figure.subplots(1, 2)
    noises = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    for loss, name in (("cross_entropy", "cross-entropy"), ("dual_focal", "dual focal")):
        networks = [digits_networks(loss, seed, noises) for seed in range(5)]
        for scaled in (False, True):
            means = [
                np.mean([100 * ece(data[s][0] / (t if scaled else 1), data[s][1]) for t, data in networks])
                for s in noises
            ]
            line, marker = ("--", "o") if scaled else ("-", "X")
            label = f"{name}, with temperature" if scaled else name
            left.plot(noises, means, line, marker=marker, markersize=4, color=LOOKS[loss].colour, label=label)
    left.axvline(0.5, color=GREY, linewidth=1, zorder=0)
    left.text(0.51, 55, "noise of the training images", va="top", fontsize=8, color=DARK_GREY)
    left.set(title="digits, means of five seeds", xlabel="noise of the test images", ylabel="ECE [%]")
    for loss, seeds, name in (("flsd", (1, 2), "FLSD-53"), ("dual_focal", (3, 4), "dual focal")):
        means = np.mean([severity_errors(cifar10_run(loss, seed)) for seed in seeds], 0)
        line = "-" if loss == "dual_focal" else "-."
        right.plot(
            range(6), means, line, marker="X", markersize=4, color=LOOKS[loss].colour, label=f"{name}, with temperature"
        )
    right.set(title="CIFAR-10, means of two seeds", xlabel="severity of the Gaussian noise")
    right.legend(frameon=False)
    for axis in (left, right):
        axis.set_ylim(bottom=0)
        tidy(axis, grid="y")
    legend_below(figure, *left.get_legend_handles_labels(), columns=2)
    return figure


@styled()
def temperature_classes() -> Figure:
    """Gap between confidence and accuracy of the samples predicted as each class."""
    figure, axis = one_axis(7, 3.5)
    cross_entropy, dual = cifar10_run("cross_entropy"), cifar10_run("dual_focal")
    methods = (
        ("cross-entropy", cross_entropy.predictions("test"), GREY, "o"),
        ("cross-entropy with temperature", scaled_run(cross_entropy), BLACK, "s"),
        ("dual focal", dual.predictions("test"), VERMILION, "X"),
    )
    for place, (name, (logits, target), colour, marker) in enumerate(methods):
        gaps, errors = class_gaps(logits, target)
        x = np.arange(10) + 0.22 * (place - 1)
        axis.errorbar(x, 100 * gaps, 164.5 * errors, fmt=marker, color=colour, markersize=5, elinewidth=1, label=name)
    axis.axhline(0, color=BLACK, linewidth=0.8)
    axis.set_xticks(range(10), CLASSES, rotation=25)
    axis.set_ylabel("confidence minus accuracy [points]")
    legend_below(figure, *axis.get_legend_handles_labels(), columns=3)
    tidy(axis, grid="y")
    return figure
