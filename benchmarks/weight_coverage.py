"""Are the verdicts right if samples have weights? A simulation in which the truth is known.

    python benchmarks/weight_coverage.py [--csv FILE] [--repeats 200] [--log FILE]

Labels of the target population are drawn from softmax(z / tau), tau = 1 is calibrated. Kinds of predictions: moderate
(confidences spread over the whole range) and sharp (most confidences above .9), with 3 or 10 classes. Weights:

  random      log-normal and independent of everything; the effective share of the samples is .2, .5 or .9
  covariate   samples are selected with a probability that is a logistic function of their inputs (of one logit and of
              the confidence), and have its inverse as weight
  label       samples are selected with a probability that depends on their label, and have its inverse as weight
  both        the product of the last two, so that the weight is no function of the label alone

The number of samples is chosen so that the effective sample size is about the given one. For each of many data sets:

- alarms: how often the joint test at 5 % rejects: the false-alarm rate where tau = 1, the power elsewhere;
- coverage: how often the nominal 90 % interval of the debiased error contains the truth of the target population;
- ignored_alarms: the same test of the same samples without their weights;
- as_counts_alarms: how often the weighted ECE exceeds the 95 % quantile of the noise floor of unweighted samples.

Goals: false alarms 3 to 7 %, coverage at least 86 %. A setting passes if the 99 % binomial interval of its rate meets
the goal.
"""

from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from _measure import run_simulation
from inference_coverage import binned_errors, passes, softmax
from rich.console import Console
from rich.table import Table

from dualfocal.metrics import evaluate

LEVEL, SIGNIFICANCE = 0.9, 0.05
SCALE = {"moderate": {3: 1.5, 10: 3.0}, "sharp": {3: 6.0, 10: 12.0}}  # of the logits
LARGE, SHARE_OF_LARGE = 1000, 0.4  # settings with this effective sample size have this share of the data sets
SERIES = 2  # of random numbers: the test was designed with another one
CHUNK = 10  # data sets that one process draws at a time
ALARM_GOAL, COVERAGE_GOAL = (0.03, 0.07), (0.86, 1.0)


class Setting(NamedTuple):
    """One setting of the simulation."""

    kind: str
    num_classes: int
    weights: str
    effective: int
    tau: float = 1.0


WEIGHTS = ("random.2", "random.5", "random.9", "covariate", "label", "both")


def settings() -> list[Setting]:
    """Return all settings, slow ones first."""
    chosen = [Setting(kind, c, weights, 200) for kind in SCALE for c in (3, 10) for weights in WEIGHTS]
    chosen += [Setting(kind, 10, weights, 1000) for kind in SCALE for weights in WEIGHTS]
    chosen += [
        Setting(kind, 10, weights, 1000, 1.3) for kind in SCALE for weights in ("random.5", "covariate", "label")
    ]
    return sorted(chosen, key=lambda setting: -setting.effective)


def logits_of(kind: str, num_classes: int, number: int, rng: np.random.Generator) -> np.ndarray:
    """Draw logits of the target population."""
    return SCALE[kind][num_classes] * rng.standard_normal((number, num_classes))


@lru_cache(maxsize=16)
def true_error(kind: str, num_classes: int, tau: float) -> float:
    """Return the root of the squared calibration error of the target population."""
    logits = logits_of(kind, num_classes, 200_000, np.random.default_rng(0))
    model, truth = softmax(logits), softmax(logits / tau)
    top = model.argmax(1)
    row = np.arange(len(top))
    return binned_errors(model[row, top], truth[row, top])[0]


def selection(setting: Setting, logits: np.ndarray, label: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the probability with which each sample of the target population is selected."""
    probability = np.ones(len(label))
    if setting.weights in ("covariate", "both"):
        scaled = logits / SCALE[setting.kind][setting.num_classes]
        confidence = softmax(logits).max(1)
        probability *= 1 / (1 + np.exp(-(1.5 * scaled[:, 0] + 2 * (confidence - confidence.mean()))))
    if setting.weights in ("label", "both"):
        probability *= np.geomspace(1.0, 0.15, setting.num_classes)[label]
    return probability


def draw(setting: Setting, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw logits, labels and weights, until the effective sample size is reached."""
    share = float(setting.weights.removeprefix("random")) if setting.weights.startswith("random") else 0.0
    number = round(setting.effective / share) if share else 8 * setting.effective
    logits = logits_of(setting.kind, setting.num_classes, number, rng)
    uniform = rng.random((number, 1))
    label = np.minimum((softmax(logits / setting.tau).cumsum(1) <= uniform).sum(1), setting.num_classes - 1)
    if share:
        return logits, label, rng.lognormal(0.0, np.sqrt(-np.log(share)), number)
    probability = selection(setting, logits, label, rng)
    chosen = np.flatnonzero(rng.random(number) < probability)
    weight = 1 / probability[chosen]
    reached = weight.cumsum() ** 2 / (weight**2).cumsum() >= setting.effective
    last = int(reached.argmax()) + 1 if reached.any() else len(chosen)
    return logits[chosen[:last]], label[chosen[:last]], weight[:last]


class Chunk(NamedTuple):
    """Consecutive data sets of a setting."""

    setting: Setting
    first: int
    count: int


def simulate(chunk: Chunk) -> dict[str, list[float]]:
    """Return one value per data set of each rate."""
    torch.set_num_threads(1)
    setting = Setting(*chunk.setting)
    truth = true_error(setting.kind, setting.num_classes, setting.tau)
    key = [setting.num_classes, setting.effective, round(100 * setting.tau), *map(ord, setting.kind + setting.weights)]
    rng = np.random.default_rng([SERIES, *key, chunk.first])
    values = defaultdict[str, list[float]](list)
    for repeat in range(chunk.first, chunk.first + chunk.count):
        logits, label, weight = draw(setting, rng)
        options = {"input": "logits", "inference": True, "level": LEVEL, "seed": repeat}
        result = evaluate(logits, label, sample_weight=weight, **options)
        ignored = evaluate(logits, label, **options)
        inference, without = result.inference, ignored.inference
        assert inference is not None
        assert inference.classwise is not None
        assert without is not None
        assert result.weights is not None
        values["num_samples"].append(result.num_samples)
        values["effective_samples"].append(result.weights.effective)
        values["alarms"].append(inference.joint_p_value <= SIGNIFICANCE)
        values["confidence_alarms"].append(inference.p_value <= SIGNIFICANCE)
        values["class_alarms"].append(inference.classwise.p_value <= SIGNIFICANCE)
        values["coverage"].append(inference.debiased_ece[0] <= truth <= inference.debiased_ece[1])
        values["width"].append(inference.debiased_ece[1] - inference.debiased_ece[0])
        values["ignored_alarms"].append(without.joint_p_value <= SIGNIFICANCE)
        values["as_counts_alarms"].append(result.ece > without.floors["ece"].q95)
        for name in ("ece", "classwise_ece"):
            values[name].append(getattr(result, name))
            values[f"{name}_floor"].append(inference.floors[name].mean)
    return {name: [float(value) for value in numbers] for name, numbers in values.items()}


def chunks(repeats: int) -> Iterator[Chunk]:
    """Split all settings into parts of similar size."""
    for setting in settings():
        count = repeats if setting.effective < LARGE else max(1, round(SHARE_OF_LARGE * repeats))
        yield from (Chunk(setting, first, min(CHUNK, count - first)) for first in range(0, count, CHUNK))


def record(setting: Setting, values: dict[str, list[float]]) -> dict[str, Any]:
    """Return one line of the CSV file."""
    passed = passes(values["coverage"], COVERAGE_GOAL)
    if setting.tau == 1:
        passed = passed and passes(values["alarms"], ALARM_GOAL)
    means = {name: float(np.mean(numbers)) for name, numbers in values.items()}
    return {**setting._asdict(), "repeats": len(values["alarms"]), "passed": passed, **means}


def show(records: list[dict[str, Any]]) -> None:
    """Print the rates of every setting; those that miss a goal in red."""
    shown = ("alarms", "confidence_alarms", "class_alarms", "ignored_alarms", "as_counts_alarms", "coverage", "width")
    shown += ("ece", "ece_floor", "classwise_ece", "classwise_ece_floor")
    table = Table(title="all in %, except numbers of samples")
    for heading in (*Setting._fields, "N", *shown):
        table.add_column(heading.replace("_", " "), justify="right")
    for r in records:
        numbers = [str(r[name]) for name in Setting._fields] + [f"{r['num_samples']:.0f}"]
        numbers += [f"{100 * r[name]:.1f}" for name in shown]
        table.add_row(*numbers, style="" if r["passed"] else "bold red")
    console = Console(width=170)
    console.print(table)
    console.print(f"{sum(r['passed'] for r in records)} of {len(records)} settings pass")
    calibrated = [r for r in records if r["tau"] == 1]
    for name in ("alarms", "confidence_alarms", "class_alarms", "coverage", "as_counts_alarms"):
        console.print(f"{name}, all calibrated settings: {100 * np.mean([r[name] for r in calibrated]):.1f} %")


if __name__ == "__main__":
    run_simulation("weight_coverage.py", __doc__, simulate, chunks, record, show, repeats=200)
