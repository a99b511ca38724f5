"""Draw every picture of docs/concepts, from the runs in results/ and from generated, seeded data.

python docs/tools/figures.py                 # all pictures
python docs/tools/figures.py ece-classes     # some of them
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor, nn

from dualfocal import LOSSES, Evaluation, TemperatureScaling, evaluate
from dualfocal.metrics import debiased_ece, ece, mce
from dualfocal.plots import LOOKS, MetricBar, metric_figure, reliability_figure, save, styled
from dualfocal.plots.style import BLACK, BLUE, DARK_GREY, GREEN, GREY, VERMILION, legend_below, tidy
from dualfocal.runs import Run
from dualfocal.theory import dual_focal_minimisers, focal_minimisers

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "concepts"
SEEDS = {"cross_entropy": (1,), "flsd": (1, 2), "dual_focal": (1, 2, 3, 4)}  # bfloat16 runs in results/cifar10
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


# Data


def cifar10_run(loss: str, seed: int = 1) -> Run:
    """Return a ResNet-50 of results/cifar10."""
    return Run(ROOT / "results" / "cifar10" / f"resnet50-{loss}-seed{seed}")


def scaled_run(run: Run) -> tuple[Tensor, Tensor]:
    """Return test logits divided by the temperature of the validation split, and the test labels."""
    logits, target = run.predictions("test")
    return TemperatureScaling().fit(*run.predictions("val"))(logits), target


def calibrated_model(num_samples: int, seed: int = 0, odds: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Draw logits of ten classes, and labels from their softmax, whose odds are multiplied by ``odds``."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(num_samples, 10, generator=generator)
    probs = logits.softmax(1) if odds is None else logits.softmax(1) * odds
    return logits, torch.multinomial(probs, 1, generator=generator)[:, 0]


def day_and_night(num_samples: int = 20_000, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Draw confidences, whether each prediction is right, and its group: 0 is over-confident, 1 under-confident."""
    generator = torch.Generator().manual_seed(seed)
    confidence = 0.5 + 0.5 * torch.rand(num_samples, generator=generator)
    group = torch.arange(num_samples) % 2
    gap = 0.6 * torch.minimum(confidence - 0.5, 1 - confidence)  # opposite gaps, which cancel
    accuracy = confidence + torch.where(group == 0, -gap, gap)
    return confidence, (torch.rand(num_samples, generator=generator) < accuracy).long(), group


def digits_networks(
    loss: str, seed: int, noises: tuple[float, ...]
) -> tuple[float, dict[float, tuple[Tensor, Tensor]]]:
    """Train a small network on 400 digits with noise 0.5.

    Returns:
        The temperature of 400 validation digits, and logits and labels of 997 test digits at each noise.
    """
    pixels, labels = load_digits(return_X_y=True)
    generator = torch.Generator().manual_seed(0)
    clean, unit = torch.tensor(pixels).float() / 16, torch.randn(1797, 64, generator=generator)
    y, order = torch.tensor(labels), torch.randperm(1797, generator=generator)
    train, val, test = order[:400], order[400:800], order[800:]
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer, criterion = torch.optim.Adam(model.parameters(), lr=0.01), LOSSES[loss]()
    x = clean + 0.5 * unit
    for _ in range(25):
        for batch in train[torch.randperm(400)].split(100):
            optimizer.zero_grad()
            criterion(model(x[batch]), y[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        temperature = TemperatureScaling().fit(model(x[val]), y[val]).temperature
        return float(temperature), {s: (model(clean[test] + s * unit[test]), y[test]) for s in noises}


def class_gaps(logits: Tensor, target: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return confidence minus accuracy of the samples predicted as each class, and its standard error."""
    confidence, predicted = logits.softmax(1).max(1)
    gaps, errors = [], []
    for label in range(logits.shape[1]):
        chosen = confidence[predicted == label].double()
        right = (target[predicted == label] == label).double()
        gaps.append(float((chosen - right).mean()))
        errors.append(float((right.var() / len(right)) ** 0.5))
    return np.array(gaps), np.array(errors)


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


# What ECE hides


@styled()
def ece_bins() -> Figure:
    """ECE of one network over the number of bins, with noise floors."""
    logits, target = scaled_run(cifar10_run("cross_entropy"))
    numbers = (2, 3, 5, 8, 10, 15, 20, 30, 50, 75, 100)
    results = [evaluate(logits, target, num_bins=number, inference=True) for number in numbers]
    figure = Figure(figsize=(6, 3.3), layout="constrained")
    axis = figure.subplots()
    axis.plot(numbers, [100 * each.ece for each in results], "o-", color=BLUE, label="ECE of the same predictions")
    axis.plot(numbers, [100 * floor_of(each) for each in results], "s--", color=DARK_GREY, label="noise floor")
    axis.set(xscale="log", xlabel="number of bins", ylabel="%", ylim=(0, None))
    axis.set_xticks((2, 5, 10, 15, 30, 50, 100), ("2", "5", "10", "15", "30", "50", "100"))
    axis.minorticks_off()
    axis.legend(frameon=False)
    tidy(axis, grid="y")
    return figure


def floor_of(evaluation: Evaluation) -> float:
    """Return the noise floor of the ECE."""
    assert evaluation.inference is not None
    return evaluation.inference.floors["ece"].mean


def repeated(metric: Callable[[Tensor, Tensor], float], size: int, repeats: int) -> np.ndarray:
    """Return a metric of many samples of one calibrated model."""
    logits, target = calibrated_model(size * repeats, seed=1)
    return np.array([metric(a, b) for a, b in zip(logits.split(size), target.split(size), strict=True)])


@styled()
def ece_noise() -> Figure:
    """ECE and debiased error of a calibrated model over the number of samples."""
    sizes = (100, 300, 1_000, 3_000, 10_000, 30_000)
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axis = figure.subplots()
    for metric, colour, line, name in ((ece, BLUE, "o-", "ECE"), (debiased_ece, GREEN, "s--", "debiased RMS error")):
        values = 100 * np.stack([repeated(metric, size, 60) for size in sizes])
        axis.plot(sizes, np.median(values, 1), line, color=colour, label=f"{name}, median of 60 samples")
        low, high = np.quantile(values, (0.05, 0.95), axis=1)
        axis.fill_between(sizes, low, high, color=colour, alpha=0.15, linewidth=0, label="its middle 90 %")
    axis.set(xscale="log", xlabel="number of samples", ylabel="%", ylim=(-0.3, None))
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axis.minorticks_off()
    axis.legend(frameon=False)
    axis.set_title("a perfectly calibrated model")
    tidy(axis, grid="y")
    return figure


@styled()
def ece_classes() -> Figure:
    """Predicted share and frequency of each class, where the confidence of the predicted class looks fine."""
    odds = torch.tensor([1.5, 1.0] * 5)
    logits, target = calibrated_model(5_000, odds=odds)
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axis = figure.subplots()
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
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axis = figure.subplots()
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
    figure = Figure(figsize=(6.4, 3.5), layout="constrained")
    axis = figure.subplots()
    low, high = np.quantile(values, (0.05, 0.95), axis=1)
    axis.plot(sizes, np.median(values, 1), "o-", color=BLACK, label="cross-entropy and temperature, median of 60 draws")
    axis.fill_between(sizes, low, high, color=GREY, alpha=0.5, linewidth=0, label="90 % of the draws")
    dual = 100 * ece(*cifar10_run("dual_focal").predictions("test"))
    axis.axhline(dual, color=VERMILION, linestyle="--", label="dual focal, no validation samples")
    axis.axhline(100 * ece(logits, target), color=BLACK, linestyle=":", label="cross-entropy, no temperature")
    axis.set(xscale="log", xlabel="number of validation samples", ylabel="test ECE [%]", ylim=(0, 5.8))
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axis.minorticks_off()
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


def severity_errors(run: Run) -> list[float]:
    """Return the ECE in percent after temperature scaling on clean and on noisy test images of severity 1 to 5."""
    scaling, (logits, target) = TemperatureScaling().fit(*run.predictions("val")), run.predictions("test")
    noisy = [run.shifted_logits(severity) for severity in range(1, 6)]
    return [100 * ece(scaling(each.float()), target) for each in (logits, *noisy) if each is not None]


@styled()
def temperature_classes() -> Figure:
    """Gap between confidence and accuracy of the samples predicted as each class."""
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axis = figure.subplots()
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


FIGURES: dict[str, Callable[[], Figure]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        five_meaning,
        five_reliability,
        five_directions,
        five_noise,
        five_temperature,
        why_rival,
        why_rewarded,
        why_two_classes,
        why_cifar10,
        ece_bins,
        ece_noise,
        ece_classes,
        ece_groups,
        ece_maximum,
        temperature_cifar10,
        temperature_samples,
        temperature_shift,
        temperature_classes,
    )
}


def main(names: list[str]) -> None:
    """Draw the pictures of these names, or all."""
    unknown = sorted(set(names) - FIGURES.keys())
    if unknown:
        raise SystemExit(f"no picture {', '.join(unknown)}; there are {', '.join(FIGURES)}")
    for name in names or FIGURES:
        save(FIGURES[name](), FOLDER / f"{name}.png", dpi=160)
        print(f"docs/concepts/{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
