"""Pictures of calibration-in-five-pictures.md and why-dual-focal.md, drawn by figures.py."""

import numpy as np
from figure_data import calibrated_model, cifar10_run, scaled_run
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dualfocal import evaluate
from dualfocal.plots import reliability_figure, styled
from dualfocal.plots.style import BLACK, BLUE, DARK_GREY, GREY, VERMILION, legend_below, tidy
from dualfocal_lab.theory import dual_focal_minimisers, focal_minimisers


def compact(figure: Figure, width: float = 7.0, height: float = 4.6) -> Figure:
    """Make a figure of several diagrams narrower, so that its text stays legible at the width of a page."""
    figure.set_size_inches(width, height)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legends[0].remove()
    with styled():
        legend_below(figure, handles, labels, columns=2)
    return figure


# Calibration in five pictures


def dots(axis: Axes, right: np.ndarray, title: str) -> None:
    """Draw 100 predictions as dots: filled if right, crosses if wrong."""
    place = np.arange(100)
    x, y = place % 10, 9 - place // 10
    order = np.sort(right)[::-1].astype(bool)
    axis.scatter(x[order], y[order], s=46, color=BLUE, label="right")
    axis.scatter(x[~order], y[~order], s=40, marker="x", color=VERMILION, linewidth=1.6, label="wrong")
    axis.set(xlim=(-0.7, 9.7), ylim=(-0.7, 9.7), aspect="equal", xticks=(), yticks=(), title=title)
    axis.spines[:].set_visible(False)


@styled()
def five_meaning() -> Figure:
    """100 predictions of about 80 % confidence: of a calibrated model, and of a CIFAR-10 network."""
    figure = Figure(figsize=(7, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    generated, network = calibrated_model(100_000), cifar10_run("cross_entropy").predictions("test")
    for axis, (logits, target), name in ((left, generated, "calibrated model"), (right, network, "CIFAR-10 network")):
        confidence, predicted = logits.softmax(1).max(1)
        nearest = (confidence - 0.8).abs().argsort()[:100]
        correct = (predicted == target)[nearest].numpy()
        dots(axis, correct, f"{name}: {correct.sum()} of 100 are right")
    figure.suptitle("100 predictions with a confidence of about 80 %")
    legend_below(figure, *left.get_legend_handles_labels(), columns=2)
    return figure


def five_reliability() -> Figure:
    """Reliability diagram of the cross-entropy network."""
    evaluation = evaluate(*cifar10_run("cross_entropy").predictions("test"), inference=True)
    return reliability_figure({"ResNet-50 on CIFAR-10, cross-entropy": evaluation})


def five_directions() -> Figure:
    """The same predictions with sharper, right and softer probabilities."""
    logits, target = calibrated_model(20_000)
    factors = {"over-confident": 2.0, "calibrated": 1.0, "under-confident": 0.5}
    return compact(
        reliability_figure({name: evaluate(a * logits, target, inference=True) for name, a in factors.items()})
    )


def five_noise() -> Figure:
    """One calibrated model, measured with 100, 1,000 and 10,000 samples."""
    logits, target = calibrated_model(10_000)
    sizes = {"few": 100, "more": 1_000, "many": 10_000}
    return compact(reliability_figure({k: evaluate(logits[:n], target[:n], inference=True) for k, n in sizes.items()}))


def five_temperature() -> Figure:
    """The cross-entropy network before and after temperature scaling."""
    run = cifar10_run("cross_entropy")
    pairs = {"before": run.predictions("test"), "after temperature scaling": scaled_run(run)}
    return reliability_figure({name: evaluate(*pair, inference=True) for name, pair in pairs.items()})


# Why dual focal


@styled()
def why_rival() -> Figure:
    """Two predictions with the same probability of the true class, and the factors of both losses."""
    figure = Figure(figsize=(7, 3.1), layout="constrained")
    predictions = {"one strong rival": (0.5, 0.45, 0.03, 0.02), "no strong rival": (0.5, 0.17, 0.17, 0.16)}
    for axis, (name, p) in zip(figure.subplots(1, 2, sharey=True), predictions.items(), strict=True):
        axis.bar(range(4), p, 0.7, color=[BLUE, VERMILION, GREY, GREY])
        axis.set_xticks(range(4), ["true class\n$p_k$", "rival\n$p_j$", "", ""])
        axis.set(ylim=(0, 0.62), title=name)
        focal, dual = (1 - p[0]) ** 5, (1 - p[0] + p[1]) ** 5
        text = f"focal: $(1 - p_k)^5$ = {focal:.2f}\ndual focal: $(1 - p_k + p_j)^5$ = {dual:.2f}"
        axis.text(3.4, 0.6, text, ha="right", va="top", linespacing=1.6)
        tidy(axis, grid="y")
    figure.axes[0].set_ylabel("predicted probability")
    return figure


def rewarded_confidence(axis: Axes, etas: np.ndarray, gamma: float, *, ties: bool) -> None:
    """Draw the confidence with the lowest risk over the true probability of the likeliest class."""
    posterior = etas.max(1)
    rows = [tuple(row) for row in etas]
    focal = [max(each.q) for each in focal_minimisers(rows, gamma)]
    dual = np.array([max(each.q) for each in dual_focal_minimisers(rows, gamma, ties=ties)])
    dual[1:][np.abs(np.diff(dual)) > 0.1] = np.nan  # no line across a jump
    axis.plot(posterior, posterior, color=BLACK, linewidth=1, label="cross-entropy: exactly calibrated")
    axis.plot(posterior, dual, color=VERMILION, linewidth=2, label="dual focal loss")
    axis.plot(posterior, focal, "--", color=BLUE, linewidth=2, label="focal loss")
    axis.set(xlabel="true probability of the likeliest class", xlim=(posterior.min(), 1), ylim=(0.3, 1.02))
    tidy(axis, grid="y")


@styled()
def why_rewarded() -> Figure:
    """Which confidence focal and dual focal loss reward, for three classes."""
    figure = Figure(figsize=(7, 3.7), layout="constrained")
    top = 1 - 0.6 * np.linspace(1, 0.03, 80) ** 2  # denser towards 1, where curves turn
    etas = np.stack([top, 0.6 * (1 - top), 0.4 * (1 - top)], 1)
    axes = figure.subplots(1, 2, sharey=True)
    for axis, gamma in zip(axes, (1.0, 5.0), strict=True):
        rewarded_confidence(axis, etas, gamma, ties=False)
        axis.set_title(rf"$\gamma = {gamma:g}$")
        axis.text(0.97, 0.06, "under-confident", transform=axis.transAxes, ha="right", color=DARK_GREY)
        axis.text(0.04, 0.52, "over-confident", transform=axis.transAxes, color=DARK_GREY)
    axes[0].set_ylabel("confidence with the lowest risk")
    legend_below(figure, *axes[0].get_legend_handles_labels(), columns=3)
    return figure


@styled()
def why_two_classes() -> Figure:
    """With two classes, the dual focal loss has its lowest risk at a tie."""
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    top = np.linspace(0.502, 0.998, 125)
    axes = figure.subplots(1, 2, sharey=True)
    for axis, gamma in zip(axes, (1.0, 5.0), strict=True):
        rewarded_confidence(axis, np.stack([top, 1 - top], 1), gamma, ties=True)
        axis.set(title=rf"two classes, $\gamma = {gamma:g}$", ylim=(0.45, 1.02))
    axes[0].set_ylabel("confidence with the lowest risk")
    legend_below(figure, *axes[0].get_legend_handles_labels(), columns=3)
    return figure


def why_cifar10() -> Figure:
    """Reliability diagrams of the three losses on CIFAR-10."""
    names = {"cross-entropy": "cross_entropy", "FLSD-53": "flsd", "dual focal": "dual_focal"}
    runs = {name: cifar10_run(loss).predictions("test") for name, loss in names.items()}
    return compact(reliability_figure({name: evaluate(*pair, inference=True) for name, pair in runs.items()}))
