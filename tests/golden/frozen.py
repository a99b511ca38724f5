"""The inference of 30 frozen data sets, to compare engines that draw other random numbers.

Nothing here needs to be equal to the bit. The rules: p-values within .05, floors within 2 %, the smallest detectable
gap within 5 %, ends of intervals within 5 % of their width. The noise of the default number of draws breaks these
rules, so every number is the mean of several seeds. The 95 % quantile of the MCE is left out: a nearly empty bin
decides it, and it jumps between a few values.
"""

import json
import math
import multiprocessing
import statistics
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri

from dualfocal.metrics import evaluate

SEEDS = 24  # evaluations of each data set, with other draws
RULES = {"p": 0.05, "floor": 0.02, "detectable": 0.05, "interval": 0.05}
Numbers = dict[str, float]


@dataclass(frozen=True)
class Frozen:
    """How a data set is made.

    Args:
        n: number of samples.
        num_classes: number of classes, or of labels of a multi-label problem.
        sharp: factor of the logits: 1 is calibrated, more is over-confident, less under-confident.
        bias: largest error of the logit of a class, which differs between classes.
        rare: logits of the last class are this much lower than those of the first one.
        size: mean number of samples of a cluster, whose samples share an error (0: no clusters).
        spread: coefficient of variation of the weights of the samples (0: no weights).
        multilabel: whether each class is a label of its own.
        positive: with two classes, whether the probability of class 1 is evaluated.
    """

    n: int
    num_classes: int
    sharp: float = 1.0
    bias: float = 0.0
    rare: float = 0.0
    size: int = 0
    spread: float = 0.0
    multilabel: bool = False
    positive: bool = False

    def make(self, seed: int) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        """Return logits, target and the options of `evaluate`."""
        rng = np.random.default_rng([2026, seed])
        n, k = self.n, self.num_classes
        logits = 1.5 * rng.standard_normal((n, k)) - np.linspace(0.0, self.rare, k)
        true = logits + self.bias * np.cos(np.arange(k))
        options: dict[str, Any] = {}
        if self.size:
            cluster = rng.integers(0, n // self.size, n)
            true = true + 0.6 * rng.standard_normal((n // self.size, k))[cluster]
            options["clusters"] = cluster
        if self.spread:
            shape = 1 / self.spread**2
            options["sample_weight"] = rng.gamma(shape, 1 / shape, n)
        if self.multilabel:
            options["task"] = "multilabel"
            target = (rng.random((n, k)) < 1 / (1 + np.exp(-true))).astype(np.int64)
        else:
            target = (true + rng.gumbel(size=true.shape)).argmax(1)
        if self.positive:
            options["binary"] = "positive"
        elif k == 2 and not self.multilabel:
            options["binary"] = "top_label"
        return self.sharp * logits, target, options


DATA = {
    "calibrated": Frozen(2000, 10),
    "over": Frozen(2000, 10, sharp=1.4),
    "under": Frozen(2000, 10, sharp=0.7),
    "slightly over": Frozen(2000, 10, sharp=1.08),
    "small calibrated": Frozen(200, 3),
    "small over": Frozen(200, 3, sharp=1.5),
    "small under": Frozen(200, 3, sharp=0.6),
    "large calibrated": Frozen(20_000, 10),
    "large over": Frozen(20_000, 10, sharp=1.05),
    "K = 2 calibrated": Frozen(1000, 2),
    "K = 2 over": Frozen(1000, 2, sharp=1.3),
    "K = 2 positive": Frozen(1000, 2, sharp=1.2, bias=0.2, positive=True),
    "K = 3": Frozen(1000, 3, sharp=1.15),
    "K = 100 calibrated": Frozen(2000, 100),
    "K = 100 over": Frozen(2000, 100, sharp=1.2),
    "K = 1000 calibrated": Frozen(1500, 1000),
    "K = 1000 over": Frozen(1500, 1000, sharp=1.2),
    "rare calibrated": Frozen(2000, 10, rare=5.0),
    "rare biased": Frozen(2000, 10, rare=5.0, bias=0.4),
    "K = 100 biased": Frozen(3000, 100, rare=4.0, bias=0.5),
    "clusters of 5": Frozen(1500, 5, size=5),
    "clusters of 5, over": Frozen(1500, 5, sharp=1.4, size=5),
    "clusters of 30": Frozen(1800, 4, size=30),
    "weights": Frozen(1500, 5, spread=0.7),
    "weights, over": Frozen(1500, 5, sharp=1.3, spread=0.7),
    "heavy weights": Frozen(2000, 5, sharp=1.1, spread=1.5),
    "clusters and weights": Frozen(1500, 5, size=6, spread=0.7),
    "clusters, weights, over": Frozen(1500, 5, sharp=1.4, size=6, spread=0.7),
    "multi-label calibrated": Frozen(500, 5, rare=2.0, multilabel=True),
    "multi-label over, clusters": Frozen(400, 8, sharp=1.3, rare=2.0, size=4, multilabel=True),
}


def infer(name: str, seed: int) -> Numbers:
    """Return p-values, floors, interval and detectable gap of a data set, for one seed of the draws."""
    torch.set_num_threads(1)
    logits, target, options = DATA[name].make(list(DATA).index(name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluation = evaluate(logits, target, inference=True, seed=seed, **options)
    if not DATA[name].multilabel:
        return numbers_of(evaluation)
    found = numbers_of(evaluation.micro)
    found["floor/macro mean"], found["floor/macro q95"] = evaluation.macro_floor.mean, evaluation.macro_floor.q95
    found["p/adjusted"] = evaluation.p_adjusted
    for label in evaluation.labels:
        found[f"p/label {label.index}"] = label.inference.p_value
    return found


def numbers_of(evaluation: Any) -> Numbers:
    """Return the numbers of one evaluation; names begin with the rule that applies."""
    inference = evaluation.inference
    content = evaluation.to_dict()["inference"]
    found = {"p/ece": inference.p_value, "p/joint": inference.joint_p_value, "detectable/gap": inference.detectable}
    for name, floor in content["floors"].items():
        found[f"floor/{name} mean"] = floor["mean"]
        if name != "mce":
            found[f"floor/{name} q95"] = floor["q95"]
    found["interval/low"], found["interval/high"] = content["debiased_ece"]["interval"]
    if content.get("classwise"):
        found["p/classwise"] = content["classwise"]["p_value"]
        for gap in content["classwise"]["gaps"]:
            found[f"p/class {gap['index']}{' predicted' if gap['among_predicted'] else ''}"] = gap["p_value"]
    return {name: value for name, value in found.items() if value is not None}


def mean_of(results: list[Numbers]) -> Numbers:
    """Return means over seeds; of classes, only those that all seeds name."""
    return {
        name: statistics.fmean(of[name] for of in results) for name in results[0] if all(name in of for of in results)
    }


def record(seed: int, jobs: int) -> dict[str, Numbers]:
    """Return the inference of all data sets, with seeds from ``seed * SEEDS`` on."""
    names = [name for name in DATA for _ in range(SEEDS)]
    seeds = [*range(seed * SEEDS, (seed + 1) * SEEDS)] * len(DATA)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        results = list(pool.map(infer, names, seeds, chunksize=4))
    return {name: mean_of([of for key, of in zip(names, results, strict=True) if key == name]) for name in DATA}


@dataclass(frozen=True)
class Deviation:
    """How far a number is from the recorded one."""

    name: str
    old: float
    new: float
    width: float  # of the interval

    @property
    def rule(self) -> str:
        """The rule that applies, a key of :data:`RULES`."""
        return self.name.partition("/")[0]

    @property
    def size(self) -> float:
        """The deviation in the unit of its rule."""
        if self.old == self.new or (math.isnan(self.old) and math.isnan(self.new)):
            return 0.0
        unit = {"p": 1.0, "interval": self.width}.get(self.rule, abs(self.old))
        distance = abs(self.new - self.old)
        return distance / unit if unit and not math.isnan(distance) else math.inf

    @property
    def z(self) -> float:
        """Difference of the normal quantiles of two p-values."""
        low = 1e-12
        return abs(float(ndtri(min(max(self.new, low), 1 - low)) - ndtri(min(max(self.old, low), 1 - low))))


def deviations(old: Numbers, new: Numbers) -> list[Deviation]:
    """Return the deviations of all numbers; classes that only one of the two names are left out."""
    width = old["interval/high"] - old["interval/low"]
    both = [name for name in old if name in new]
    missing = [name for name in old if name not in new and not name.startswith("p/class ")]
    return [Deviation(name, old[name], new.get(name, math.nan), width) for name in (*both, *missing)]


def compare(old: dict[str, Numbers], new: dict[str, Numbers]) -> bool:
    """Print the worst deviations of each data set; return whether no rule is broken."""
    print(f"{'data set':28}{'z of p':>8}" + "".join(f"{rule:>12}" for rule in RULES) + "  broken rules")
    broken_rules = 0
    for name, numbers in old.items():
        found = deviations(numbers, new[name])
        worst = {rule: max((d.size for d in found if d.rule == rule), default=0.0) for rule in RULES}
        z = max((d.z for d in found if d.rule == "p"), default=0.0)
        broken = [d for d in found if d.size > RULES[d.rule]]
        broken_rules += len(broken)
        text = "; ".join(f"{d.name} {d.old:.4g} -> {d.new:.4g}" for d in broken)
        print(f"{name:28}{z:8.2f}" + "".join(f"{size:12.4f}" for size in worst.values()) + f"  {text}")
    print(f"{'allowed':28}{'':8}" + "".join(f"{allowed:12.4f}" for allowed in RULES.values()))
    print(f"{broken_rules} rules broken. p: difference; floor, detectable: relative; interval: shares of its width.")
    return broken_rules == 0


def main(path: Path, *, check: bool, seed: int, jobs: int) -> int:
    """Record the inference to a file, or compare it with the file."""
    start = time.perf_counter()
    new = record(seed, jobs)
    print(f"{len(new)} data sets, {SEEDS} seeds each, {time.perf_counter() - start:.0f} s", file=sys.stderr)
    if not check:
        path.write_text(json.dumps(new, indent=1) + "\n", encoding="utf-8")
        return 0
    return 0 if compare(json.loads(path.read_text(encoding="utf-8")), new) else 1
