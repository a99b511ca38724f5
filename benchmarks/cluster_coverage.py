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
    """Return all settings, slow ones first."""
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
    return sorted(chosen, key=lambda setting: -setting.clusters)


@lru_cache(maxsize=8)
def true_error(kind: str, tau: float) -> float:
    """Return the root of the squared calibration error of the population."""
    rng = np.random.default_rng(0)
    logits = SCALE[kind] * rng.standard_normal((200_000, NUM_CLASSES))
    model, truth = softmax(logits), softmax(logits / tau)
    top = model.argmax(1)
    row = np.arange(len(top))
    return binned_errors(model[row, top], truth[row, top])[0]


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
    label = (softmax(logits / setting.tau).cumsum(1) <= ndtr(normal)[:, None]).sum(1)
    return logits, np.minimum(label, NUM_CLASSES - 1), cluster


class Chunk(NamedTuple):
    """Consecutive data sets of a setting."""

    setting: Setting
    first: int
    count: int


def simulate(chunk: Chunk) -> dict[str, list[float]]:
    """Return one value per data set of each rate."""
    torch.set_num_threads(1)
    setting = Setting(*chunk.setting)
    truth = true_error(setting.kind, setting.tau)
    key = [
        setting.clusters,
        round(100 * setting.rho),
        round(100 * setting.tau),
        *map(ord, setting.kind + setting.sizes),
    ]
    rng = np.random.default_rng([*key, chunk.first])
    values = defaultdict[str, list[float]](list)
    for repeat in range(chunk.first, chunk.first + chunk.count):
        logits, label, cluster = draw(setting, rng)
        for name, codes in (("", cluster), ("naive_", None)):
            result = evaluate(logits, label, input="logits", inference=True, level=LEVEL, seed=repeat, clusters=codes)
            inference = result.inference
            assert inference is not None
            assert inference.classwise is not None
            values[f"{name}alarms"].append(inference.joint_p_value <= SIGNIFICANCE)
            values[f"{name}confidence_alarms"].append(inference.p_value <= SIGNIFICANCE)
            values[f"{name}class_alarms"].append(inference.classwise.p_value <= SIGNIFICANCE)
            values[f"{name}coverage"].append(inference.debiased_ece[0] <= truth <= inference.debiased_ece[1])
            values[f"{name}floor"].append(inference.floors["ece"].mean)
            if inference.clusters is not None:
                values["effective"].append(inference.clusters.effective)
                values["design_effect"].append(inference.clusters.design_effect)
                values["ece"].append(result.ece)
    return {name: [float(value) for value in numbers] for name, numbers in values.items()}


def chunks(repeats: int) -> Iterator[Chunk]:
    """Split all settings into parts of similar size."""
    for setting in settings():
        count = repeats if setting.clusters <= MANY_CLUSTERS else max(1, round(SHARE_OF_MANY * repeats))
        yield from (Chunk(setting, first, min(CHUNK, count - first)) for first in range(0, count, CHUNK))


def record(setting: Setting, values: dict[str, list[float]]) -> dict[str, Any]:
    """Return one line of the CSV file."""
    effective = float(np.median(values["effective"]))
    passed: bool | str = ""
    if effective >= 40:
        passed = passes(values["coverage"], COVERAGE_GOAL)
        if setting.tau == 1:
            passed = passed and passes(values["alarms"], ALARM_GOAL if effective >= 100 else FEW_ALARM_GOAL)
    means = {name: float(np.mean(numbers)) for name, numbers in values.items()} | {"effective": effective}
    return {**setting._asdict(), "repeats": len(values["alarms"]), "passed": passed, **means}


def show(records: list[dict[str, Any]]) -> None:
    """Print the rates of every setting; those that miss a goal in red."""
    shown = ("alarms", "confidence_alarms", "class_alarms", "naive_alarms", "coverage", "naive_coverage")
    shown += ("ece", "floor", "naive_floor")
    table = Table(title="all in %, except effective clusters and design effect")
    for heading in (*Setting._fields, "repeats", "effective", "design_effect", *shown):
        table.add_column(heading.replace("_", " "), justify="right")
    for r in records:
        numbers = [str(r[name]) for name in (*Setting._fields, "repeats")]
        numbers += [f"{r['effective']:.0f}", f"{r['design_effect']:.2f}", *(f"{100 * r[name]:.1f}" for name in shown)]
        table.add_row(*numbers, style="bold red" if r["passed"] is False else "dim" if r["passed"] == "" else "")
    console = Console(width=170)
    console.print(table)
    judged = [r for r in records if r["passed"] != ""]
    console.print(f"{sum(r['passed'] for r in judged)} of {len(judged)} settings with 40 effective clusters pass")


if __name__ == "__main__":
    run_simulation("cluster_coverage.py", __doc__, simulate, chunks, record, show, repeats=400)
