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

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from _simulation import (
    Part,
    Record,
    Values,
    draw_labels,
    means,
    passes,
    run_simulation,
    show_rates,
    softmax,
    split,
    true_rms_error,
)

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
    """Return all settings."""
    chosen = [Setting(kind, c, weights, 200) for kind in SCALE for c in (3, 10) for weights in WEIGHTS]
    chosen += [Setting(kind, 10, weights, 1000) for kind in SCALE for weights in WEIGHTS]
    chosen += [
        Setting(kind, 10, weights, 1000, 1.3) for kind in SCALE for weights in ("random.5", "covariate", "label")
    ]
    return sorted(chosen)


def logits_of(kind: str, num_classes: int, number: int, rng: np.random.Generator) -> np.ndarray:
    """Draw logits of the target population."""
    return SCALE[kind][num_classes] * rng.standard_normal((number, num_classes))


@lru_cache(maxsize=16)
def true_error(kind: str, num_classes: int, tau: float) -> float:
    """Return the root of the squared calibration error of the target population."""
    return true_rms_error(logits_of(kind, num_classes, 200_000, np.random.default_rng(0)), tau)


def selection(setting: Setting, logits: np.ndarray, label: np.ndarray) -> np.ndarray:
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
    label = draw_labels(softmax(logits / setting.tau), rng.random(number))
    if share:
        return logits, label, rng.lognormal(0.0, np.sqrt(-np.log(share)), number)
    probability = selection(setting, logits, label)
    chosen = np.flatnonzero(rng.random(number) < probability)
    weight = 1 / probability[chosen]
    reached = weight.cumsum() ** 2 / (weight**2).cumsum() >= setting.effective
    last = int(reached.argmax()) + 1 if reached.any() else len(chosen)
    return logits[chosen[:last]], label[chosen[:last]], weight[:last]


def simulate(setting: Setting, repeats: range) -> Iterator[dict[str, float]]:
    """Yield the numbers of each data set."""
    truth = true_error(setting.kind, setting.num_classes, setting.tau)
    key = [setting.num_classes, setting.effective, round(100 * setting.tau), *map(ord, setting.kind + setting.weights)]
    rng = np.random.default_rng([SERIES, *key, repeats.start])
    for repeat in repeats:
        logits, label, weight = draw(setting, rng)
        options = {"input": "logits", "inference": True, "level": LEVEL, "seed": repeat}
        result = evaluate(logits, label, sample_weight=weight, **options)
        inference, without = result.inference, evaluate(logits, label, **options).inference
        assert inference is not None
        assert inference.classwise is not None
        assert without is not None
        assert result.weights is not None
        yield {
            "num_samples": result.num_samples,
            "effective_samples": result.weights.effective,
            "alarms": inference.joint_p_value <= SIGNIFICANCE,
            "confidence_alarms": inference.p_value <= SIGNIFICANCE,
            "class_alarms": inference.classwise.p_value <= SIGNIFICANCE,
            "coverage": inference.debiased_ece[0] <= truth <= inference.debiased_ece[1],
            "width": inference.debiased_ece[1] - inference.debiased_ece[0],
            "ignored_alarms": without.joint_p_value <= SIGNIFICANCE,
            "as_counts_alarms": result.ece > without.floors["ece"].q95,
            "ece": result.ece,
            "ece_floor": inference.floors["ece"].mean,
            "classwise_ece": result.classwise_ece,
            "classwise_ece_floor": inference.floors["classwise_ece"].mean,
        }


def parts(repeats: int) -> Iterator[Part]:
    """Split all settings into parts, slow ones first."""
    for setting in sorted(settings(), key=lambda setting: -setting.effective):
        few = max(1, round(SHARE_OF_LARGE * repeats))
        yield from split(setting, repeats if setting.effective < LARGE else few, CHUNK)


def summarize(setting: Setting, values: Values) -> list[Record]:
    """Return the line of the CSV file."""
    passed = passes(values["coverage"], COVERAGE_GOAL)
    if setting.tau == 1:
        passed = passed and passes(values["alarms"], ALARM_GOAL)
    return [{**setting._asdict(), "repeats": len(values["alarms"]), "passed": passed, **means(values)}]


def show(records: list[Record]) -> None:
    """Print the rates of every setting, and their means over all calibrated settings."""
    show_rates(records, plain=("num_samples", "effective_samples"))
    calibrated = [record for record in records if record["tau"] == 1]
    for name in ("alarms", "confidence_alarms", "class_alarms", "coverage", "as_counts_alarms"):
        print(f"{name}, all calibrated settings: {100 * np.mean([record[name] for record in calibrated]):.1f} %")


if __name__ == "__main__":
    run_simulation(__doc__, settings(), simulate, summarize, repeats=200, parts=parts, show=show)
