"""Are the verdicts right if samples depend on each other? A simulation in which the truth is known.

    python benchmarks/cluster_coverage.py [--csv FILE] [--repeats 400] [--log FILE]

Clusters have 10 samples each, or sizes with a log-normal distribution (1 to 200, half of them below 7). Labels are
drawn from softmax(z / tau), tau = 1 is calibrated. The uniform numbers behind the labels of a cluster come from normal
variables with correlation rho: the labels keep their probabilities, but the residuals of a cluster are correlated.
Kinds of predictions, 10 classes:

  moderate   confidences spread over [0.1, 1]
  sharp      nine of ten confidences are above .9
  similar    moderate, and the samples of a cluster have similar logits

For each of many data sets, once with `clusters=` and once without:

- alarms: how often the joint test at 5 % rejects: the false-alarm rate where tau = 1, the power elsewhere;
- coverage: how often the nominal 90 % interval of the debiased error contains the truth of the population.

Goals: false alarms 3 to 7 % from 100 effective clusters, at most 10 % from 40; coverage at least 86 %. A setting passes
if the 99 % binomial interval of its rate meets the goal. `effective` is the median of what `evaluate` reports; below 40
it warns, and nothing is promised.
"""

from collections.abc import Iterator
from functools import lru_cache, partial
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
from scipy.special import ndtr

from dualfocal.metrics import evaluate

NUM_CLASSES, LEVEL, SIGNIFICANCE = 10, 0.9, 0.05
SCALE = {"moderate": 3.0, "similar": 3.0, "sharp": 12.0}  # of the logits
MANY_CLUSTERS, SHARE_OF_MANY = 400, 0.25  # settings with more clusters have this share of the data sets
CHUNK = 20  # data sets that one process draws at a time
ALARM_GOAL, FEW_ALARM_GOAL, COVERAGE_GOAL = (0.03, 0.07), (0.0, 0.10), (0.86, 1.0)


class Setting(NamedTuple):
    """One setting of the simulation."""

    kind: str
    clusters: int
    sizes: str
    rho: float
    tau: float = 1.0


def settings() -> list[Setting]:
    """Return all settings."""
    chosen = [
        Setting("moderate", clusters, sizes, rho)
        for clusters in (20, 40, 100, 400)
        for sizes in ("equal", "unequal")
        for rho in (0.0, 0.1, 0.3, 0.9)
    ]
    chosen += [
        Setting(kind, n, "equal", rho) for kind in ("sharp", "similar") for n in (40, 100, 400) for rho in (0, 0.3, 0.9)
    ]
    chosen += [Setting(kind, 2000, "unequal", 0.3) for kind in SCALE]
    chosen += [
        Setting("moderate", n, "unequal", rho, tau) for n in (100, 400) for rho in (0.1, 0.9) for tau in (1.2, 1.6)
    ]
    return sorted(chosen)


@lru_cache(maxsize=8)
def true_error(kind: str, tau: float) -> float:
    """Return the root of the squared calibration error of the population."""
    logits = SCALE[kind] * np.random.default_rng(0).standard_normal((200_000, NUM_CLASSES))
    return true_rms_error(logits, tau)


def draw(setting: Setting, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw logits, labels and clusters."""
    sizes = np.full(setting.clusters, 10)
    if setting.sizes == "unequal":
        sizes = np.clip(rng.lognormal(1.9, 1.0, setting.clusters).astype(int), 1, 200)
    cluster = np.repeat(np.arange(setting.clusters), sizes)
    logits = rng.standard_normal((len(cluster), NUM_CLASSES))
    if setting.kind == "similar":
        common = rng.standard_normal((setting.clusters, NUM_CLASSES))[cluster]
        logits = np.sqrt(0.8) * common + np.sqrt(0.2) * logits
    logits *= SCALE[setting.kind]
    common = rng.standard_normal(setting.clusters)[cluster]
    normal = np.sqrt(setting.rho) * common + np.sqrt(1 - setting.rho) * rng.standard_normal(len(cluster))
    return logits, draw_labels(softmax(logits / setting.tau), ndtr(normal)), cluster


def simulate(setting: Setting, repeats: range) -> Iterator[dict[str, float]]:
    """Yield the numbers of each data set."""
    truth = true_error(setting.kind, setting.tau)
    names = map(ord, setting.kind + setting.sizes)
    key = [setting.clusters, round(100 * setting.rho), round(100 * setting.tau), *names]
    rng = np.random.default_rng([*key, repeats.start])
    for repeat in repeats:
        logits, label, cluster = draw(setting, rng)
        numbers: dict[str, float] = {}
        for name, codes in (("", cluster), ("naive_", None)):
            result = evaluate(logits, label, input="logits", inference=True, level=LEVEL, seed=repeat, clusters=codes)
            inference = result.inference
            assert inference is not None
            assert inference.classwise is not None
            numbers[f"{name}alarms"] = inference.joint_p_value <= SIGNIFICANCE
            numbers[f"{name}confidence_alarms"] = inference.p_value <= SIGNIFICANCE
            numbers[f"{name}class_alarms"] = inference.classwise.p_value <= SIGNIFICANCE
            numbers[f"{name}coverage"] = inference.debiased_ece[0] <= truth <= inference.debiased_ece[1]
            numbers[f"{name}floor"] = inference.floors["ece"].mean
            if inference.clusters is not None:
                numbers["effective"] = inference.clusters.effective
                numbers["design_effect"] = inference.clusters.design_effect
                numbers["ece"] = result.ece
        yield numbers


def parts(repeats: int) -> Iterator[Part]:
    """Split all settings into parts, slow ones first."""
    for setting in sorted(settings(), key=lambda setting: -setting.clusters):
        few = max(1, round(SHARE_OF_MANY * repeats))
        yield from split(setting, repeats if setting.clusters <= MANY_CLUSTERS else few, CHUNK)


def summarize(setting: Setting, values: Values) -> list[Record]:
    """Return the line of the CSV file."""
    effective = float(np.median(values["effective"]))
    passed: bool | str = ""
    if effective >= 40:
        passed = passes(values["coverage"], COVERAGE_GOAL)
        if setting.tau == 1:
            passed = passed and passes(values["alarms"], ALARM_GOAL if effective >= 100 else FEW_ALARM_GOAL)
    numbers = means(values) | {"effective": effective}
    return [{**setting._asdict(), "repeats": len(values["alarms"]), "passed": passed, **numbers}]


if __name__ == "__main__":
    show = partial(show_rates, plain=("effective", "design_effect"))
    run_simulation(__doc__, settings(), simulate, summarize, repeats=400, parts=parts, show=show)
