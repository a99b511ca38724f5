"""Are the verdicts of `dualfocal.metrics` right? A simulation in which the truth is known.

    python benchmarks/inference_coverage.py [--csv FILE] [--repeats 2000] [--log FILE]

Each setting has a population of predictions with normal logits z; labels are drawn from softmax(z / tau). tau = 1 is
calibrated, above it the model is over-confident, below it under-confident. Kinds of populations:

  moderate      confidences spread over [1 / K, 1]
  sharp         most confidences are above .99
  imbalanced    the first class is 50 times as frequent as the last
  class shift   the probabilities of half of the classes are too large by a factor of 1.5, of the others too small

For each of many samples of N:

- coverage: how often the nominal 90 % interval of the debiased error contains the truth of the population, the root of
  sum_b P(b) (E[confidence | b] - E[correct | b])^2 over 15 bins;
- alarms: how often the joint test (confidence of the predicted class, and all classes) at 5 % rejects: the false-alarm
  rate where the model is calibrated, the power elsewhere; beside it each of the two tests on its own;
- on one sample in ten also: coverage of the published pivotal bootstrap of the ECE; coverage of the paired 90 %
  interval of `compare` for the debiased error, between the model and itself with tau divided out (where tau = 1: with
  1.2 divided out); and the power of the test of the confidence at 2.5 %, on fresh outcomes, against the uniform gap
  that was called detectable (80 % is promised; calibrated settings only).

Goals: coverage 86 to 94 %, joint false alarms 3 to 7 %. A setting passes if the 99 % binomial interval of its rate
meets the band. Alarms may be fewer where outcomes are few, and coverage higher. N above 5,000 or K above 100 has 300
samples if the others have 2,000.

Two further simulations: `compare` on two models that are equally good (each metric should differ in 10 % of the samples
at the nominal 90 %), and the power of the class-wise test, which is drawn beside the CSV.
"""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from _simulation import (
    NUM_BINS,
    Part,
    Record,
    Values,
    bin_of,
    binned_errors,
    means,
    passes,
    run_simulation,
    show_rates,
    softmax,
    split,
)

from dualfocal.metrics import Inference, compare, evaluate

SCALE, SHARP = {2: 2.0, 3: 2.5, 10: 3.0, 100: 4.0, 1000: 5.0}, 60.0  # of the logits
SHIFT = 1.5  # factor of "class shift"
POPULATION_VALUES, MOST_ROWS = 20_000_000, 200_000
LEVEL, SIGNIFICANCE = 0.9, 0.05
SLOW = 10  # one sample in so many also goes through what is slow
MANY_SAMPLES, MANY_CLASSES = 5_000, 100  # settings above these have fewer samples
SHARE_OF_LARGE, SHARE_OF_EQUAL, SHARE_OF_POWER, SHARE_OF_LARGE_POWER = 0.15, 0.25, 0.1, 0.03  # of --repeats
CHUNK = 20  # samples that one process draws at a time
COVERAGE_GOAL, ALARM_GOAL = (0.86, 0.94), (0.03, 0.07)

POWER_TAUS = (1.02, 1.05, 1.2)  # for the power curve of the test of the confidence, 10 classes
POWER_CLASSES, POWER_FACTORS = (3, 10, 100, 1000), (1.1, 1.25, 1.5, 2.0, 3.0)  # for the class-wise test, N = 5,000


class Setting(NamedTuple):
    """One setting of the simulation."""

    kind: str
    n: int
    num_classes: int
    tau: float = 1.0
    purpose: str = "rates"  # or "power", without what is slow; or "equal": compare two equally good models
    factor: float = 1.0  # by which probabilities are too large: half of the classes, or one if the kind is "one class"

    @property
    def calibrated(self) -> bool:
        """Whether the labels are drawn from the model's own probabilities."""
        return self.tau == 1 and self.kind not in ("class shift", "one class")

    def repeats(self, most: int) -> int:
        """Return the number of samples to draw."""
        large = self.n > MANY_SAMPLES or self.num_classes > MANY_CLASSES
        share = {
            "rates": SHARE_OF_LARGE if large else 1.0,
            "equal": SHARE_OF_EQUAL,
            "power": SHARE_OF_LARGE_POWER if self.num_classes > MANY_CLASSES else SHARE_OF_POWER,
        }
        return max(1, round(share[self.purpose] * most))


def settings() -> list[Setting]:
    """Return all settings."""
    rates = [
        *(("moderate", 300, k, tau) for k, tau in ((2, 1.0), (10, 1.0), (10, 1.1), (10, 1.4), (10, 0.8), (100, 1.0))),
        *(("sharp", 300, 10, tau) for tau in (1.0, 1.4, 4.0)),
        *(("imbalanced", 300, 10, tau) for tau in (1.0, 1.4)),
        ("class shift", 300, 10, 1.0),
        *(("moderate", 5_000, k, tau) for k, tau in ((2, 1.0), (10, 1.0), (10, 1.1), (10, 1.4), (10, 0.8), (100, 1.0))),
        *(("sharp", 5_000, 10, tau) for tau in (1.0, 1.4)),
        ("imbalanced", 5_000, 10, 1.0),
        ("class shift", 5_000, 10, 1.0),
        ("moderate", 5_000, 1000, 1.0),
        *(("moderate", 50_000, k, tau) for k, tau in ((10, 1.0), (10, 1.4), (100, 1.0))),
        *((kind, 50_000, 10, 1.0) for kind in ("sharp", "imbalanced")),
    ]
    chosen = [Setting(*rate, factor=SHIFT if rate[0] == "class shift" else 1.0) for rate in rates]
    chosen += [Setting("moderate", n, 10, tau, "power") for n in (300, 5_000, 50_000) for tau in POWER_TAUS]
    chosen += [
        Setting(kind, 5_000, k, 1.0, "power", factor)
        for k in POWER_CLASSES
        for kind in ("class shift", "one class")
        for factor in POWER_FACTORS
    ]
    chosen += [Setting("moderate", 300, k, 1.0, "equal") for k in (3, 10)]
    return sorted(chosen, key=lambda s: (s.purpose, s.n, s.num_classes, s.kind, not s.calibrated, s.tau, s.factor))


class Population:
    """Predictions, and the true probabilities of their classes."""

    def __init__(self, kind: str, num_classes: int, tau: float, factor: float) -> None:
        rng = np.random.default_rng(num_classes)
        rows = min(MOST_ROWS, POPULATION_VALUES // num_classes)
        scale = SHARP if kind == "sharp" else SCALE[num_classes]
        self.logits = scale * rng.standard_normal((rows, num_classes), dtype=np.float32)
        if kind == "imbalanced":
            self.logits -= np.linspace(0, np.log(50), num_classes, dtype=np.float32)
        raised = np.arange(num_classes) < (1 if kind == "one class" else num_classes / 2)
        self.truth = softmax(self.logits / tau - np.log(factor) * raised)
        model, row = softmax(self.logits), np.arange(rows)
        top = model.argmax(1)
        self.confidence, self.right = model[row, top], self.truth[row, top]
        self.rms, self.ece = binned_errors(self.confidence, self.right)
        # The same model with the miscalibration divided out; a calibrated one is made too soft instead.
        self.other = self.logits / np.float32(tau if tau != 1 else 1.2)
        self.other_rms = binned_errors(softmax(self.other).max(1), self.right)[0]
        self.cumulative = self.truth.cumsum(1).astype(np.float32)

    def draw(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows and their labels."""
        pick = rng.integers(len(self.logits), size=n)
        label = (self.cumulative[pick] <= rng.random((n, 1), dtype=np.float32)).sum(1)
        return pick, np.minimum(label, self.logits.shape[1] - 1)


@lru_cache(maxsize=1)
def population(kind: str, num_classes: int, tau: float, factor: float) -> Population:
    """Return the population of a setting; chunks of one setting mostly follow each other."""
    return Population(kind, num_classes, tau, factor)


def published_interval(confidence: np.ndarray, correct: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """Return the pivotal bootstrap interval of the ECE, with 1000 resamples, as published."""
    index, gap = bin_of(confidence), confidence - correct

    def error(pick: np.ndarray) -> float:
        return float(np.abs(np.bincount(index[pick], gap[pick], NUM_BINS)).sum() / len(gap))

    drawn = [error(rng.integers(len(gap), size=len(gap))) for _ in range(1000)]
    estimate = error(np.arange(len(gap)))
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return 2 * estimate - high, 2 * estimate - low


def simulate(setting: Setting, repeats: range) -> Iterator[dict[str, float]]:
    """Yield the numbers of each sample."""
    rng = np.random.default_rng([setting.n, setting.num_classes, round(1000 * setting.tau), repeats.start])
    people = population(setting.kind, setting.num_classes, setting.tau, setting.factor)
    for repeat in repeats:
        pick, label = people.draw(setting.n, rng)
        if setting.purpose == "equal":
            yield equal_models(people.logits[pick], label, rng, repeat)
            continue
        result = evaluate(people.logits[pick], label, inference=True, level=LEVEL, seed=repeat)
        inference = result.inference
        assert inference is not None
        assert inference.classwise is not None
        numbers = {
            "alarms": inference.joint_p_value <= SIGNIFICANCE,
            "confidence_alarms": inference.p_value <= SIGNIFICANCE,
            "class_alarms": inference.classwise.p_value <= SIGNIFICANCE,
            "coverage": inference.debiased_ece[0] <= people.rms <= inference.debiased_ece[1],
            "true_rms": people.rms,
            "true_ece": people.ece,
            "mean_ece": result.ece,
            "mean_floor": inference.floors["ece"].mean,
        }
        if repeat % SLOW == 0 and setting.purpose == "rates":
            numbers |= slow_rates(setting, people, pick, label, inference, rng, repeat)
        yield numbers


def slow_rates(
    setting: Setting,
    people: Population,
    pick: np.ndarray,
    label: np.ndarray,
    inference: Inference,
    rng: np.random.Generator,
    seed: int,
) -> dict[str, float]:
    """Return what is computed for one sample in ten."""
    logits, confidence = people.logits[pick], people.confidence[pick]
    low, high = published_interval(confidence, logits.argmax(1) == label, rng)
    rates = {"published": float(low <= people.ece <= high), "detectable": inference.detectable}
    if setting.calibrated and np.isfinite(inference.detectable):
        worse = rng.random(len(pick)) < np.clip(confidence - inference.detectable, 0, 1)
        # A label that is not the predicted one may be any other: only the test of the confidence is asked.
        fresh = np.where(worse, logits.argmax(1), (logits.argmax(1) + 1) % setting.num_classes)
        again = evaluate(logits, fresh, inference=True, seed=seed).inference
        assert again is not None
        rates["detected"] = float(again.p_value <= SIGNIFICANCE / 2)
    if setting.n <= MANY_SAMPLES and setting.num_classes <= MANY_CLASSES:
        difference = compare(logits, people.other[pick], label, level=LEVEL, seed=seed).differences["debiased_ece"]
        rates["difference"] = float(difference.low <= people.other_rms - people.rms <= difference.high)
    return rates


def equal_models(logits: np.ndarray, label: np.ndarray, rng: np.random.Generator, seed: int) -> dict[str, bool]:
    """Compare two models that are equally good: the calibrated one with noise of the same size on its logits."""
    a, b = (logits + rng.standard_normal(logits.shape, dtype=np.float32) for _ in range(2))
    return {name: d.significant for name, d in compare(a, b, label, level=LEVEL, seed=seed).differences.items()}


def parts(repeats: int) -> Iterator[Part]:
    """Split all settings into parts, slow ones first."""
    for setting in sorted(settings(), key=lambda setting: -setting.n * setting.num_classes):
        yield from split(setting, setting.repeats(repeats), CHUNK if setting.n <= MANY_SAMPLES else CHUNK // 2)


def summarize(setting: Setting, values: Values) -> list[Record]:
    """Return the line of the CSV file."""
    few = setting.n < 1000  # outcomes
    passed: bool | str = ""
    if setting.purpose == "rates":
        passed = passes(values["coverage"], (COVERAGE_GOAL[0], 1.0 if few else COVERAGE_GOAL[1]))
        if setting.calibrated:
            passed = passed and passes(values["alarms"], (0.0 if few else ALARM_GOAL[0], ALARM_GOAL[1]))
    numbers = means(values)
    if "detectable" in values:  # infinite for some samples
        numbers["detectable"] = float(np.median(values["detectable"]))
    return [{**setting._asdict(), "repeats": max(map(len, values.values())), "passed": passed, **numbers}]


def show(records: list[Record]) -> None:
    """Print a table for each purpose."""
    for purpose in ("rates", "power", "equal"):
        show_rates([record for record in records if record["purpose"] == purpose])


def draw(path: Path, records: list[Record]) -> None:
    """Draw the power of both tests."""
    from matplotlib.figure import Figure  # machines that only simulate need not have it

    figure = Figure(figsize=(15, 3.9), layout="constrained")
    axes = figure.subplots(1, 1 + len(POWER_CLASSES), sharey=True)
    for n, colour in zip((300, 5_000, 50_000), ("#56B4E9", "#E69F00", "#009E73"), strict=True):
        same = [r for r in records if (r["kind"], r["n"], r["num_classes"]) == ("moderate", n, 10)]
        over = [r for r in same if r["tau"] >= 1 and r["purpose"] != "equal"]
        points = sorted((100 * r["true_ece"], 100 * r["confidence_alarms"]) for r in over)
        axes[0].plot(*zip(*points, strict=True), "o-", color=colour, label=f"N = {n:,}")
    axes[0].set(title="confidence, 10 classes", xlabel="true ECE, points", ylim=(0, 102))
    axes[0].set_xscale("symlog", linthresh=0.5)
    axes[0].set_xlim(-0.05, 12)
    axes[0].set_xticks([0, 0.5, 1, 2, 5, 10], ["0", "0.5", "1", "2", "5", "10"])
    axes[0].set_ylabel("samples in which a test at 5 % rejects, %")
    lines = (
        ("class shift", "class_alarms", "half of the classes: class-wise test", "#0072B2", "o-"),
        ("class shift", "confidence_alarms", "half of the classes: test of the confidence", "#0072B2", "o:"),
        ("one class", "class_alarms", "one class: class-wise test", "#D55E00", "s-"),
        ("one class", "confidence_alarms", "one class: test of the confidence", "#D55E00", "s:"),
    )
    for axis, num_classes in zip(axes[1:], POWER_CLASSES, strict=True):
        for kind, rate, label, colour, style in lines:
            points = sorted(
                (r["factor"], 100 * r[rate])
                for r in records
                if (r["kind"], r["n"], r["num_classes"], r["purpose"]) == (kind, 5_000, num_classes, "power")
            )
            axis.plot(*zip(*points, strict=True), style, color=colour, label=label, markersize=4)
        axis.set(title=f"{num_classes:,} classes, N = 5,000", xlabel="odds too large by a factor of")
        axis.set_xscale("log")
        axis.minorticks_off()
        axis.set_xticks(POWER_FACTORS, [f"{factor:g}" for factor in POWER_FACTORS])
    for axis in axes:
        axis.axhline(5, color="black", linestyle="--", linewidth=0.8)
        axis.spines[["top", "right"]].set_visible(False)
    for axis, side in ((axes[0], "left"), (axes[1], "right")):
        lines_and_labels = axis.get_legend_handles_labels()
        figure.legend(*lines_and_labels, loc=f"outside lower {side}", ncols=4, frameon=False, fontsize=9)
    figure.suptitle("Power of the tests (dashed line: 5 %, false alarms of a calibrated model)", fontsize=11)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    records, file = run_simulation(__doc__, settings(), simulate, summarize, repeats=2000, parts=parts, show=show)
    if file:
        draw(file.with_suffix(".png"), records)
