"""Fitting a temperature on the CPU beside scikit-learn, netcal and the usual scripts; and what every calibrator costs.

    python benchmarks/calibrators_cpu.py [--csv FILE] [--sizes 10000x100,50000x1000] [--seconds 5]
    python benchmarks/calibrators_cpu.py --methods [--csv FILE]    fit and forward of every calibrator of dualfocal
    python benchmarks/calibrators_cpu.py --robust [--csv FILE]     temperatures found on data that are hard

float32 logits, one thread, one process; benchmarks/peers.txt has the peers. Everybody gets the same logits, normal with
a standard deviation of 6, and targets drawn from softmax(logits / 2).

nll           T that minimises the NLL. "LBFGS" does as a widely copied script: torch.optim.LBFGS (lr 0.01, at most 50
              iterations) from T = 1.5, on the cross-entropy of all rows at once. scikit-learn is its
              CalibratedClassifierCV(method="temperature") on a frozen classifier whose logits are there already, in one
              fold: beside its search that copies the logits twice. netcal wants probabilities; it gets a float64
              softmax and pays for it, since float32 ones leave it where it starts, at T = 1 (see --robust).
ece_grid      T of 0.1, 0.2, ..., 10.0 with the least ECE, 15 bins, the first of equals. "published" is the usual loop:
              for each T a softmax, and a loop over bins in float32.

seconds       median; the contenders take turns, call by call in shuffled rounds, until the time is up, 3 rounds at
              least. Whoever takes more than 15 s is timed once, in the child that measures memory.
extra MiB     peak memory of one call beyond what was there before it (inputs, libraries). A forked child calls once on
              a few rows that name each class, returns free heap to the system (malloc_trim), resets its high-water mark
              ("5" into /proc/self/clear_refs) and reports how far VmHWM then rises above VmRSS. Linux only.
nll, ece      at the T found, from one float64 function for all.
nll less ours that NLL minus ours: below 0, the peer's T is the better one.
met           the peer takes so many times our time at least; and for nll, our NLL is at most 1e-9 above the peer's; for
              ece_grid, T is the same.

--methods     seconds and extra MiB of fit and of the map (its result included), by turns as above; NLL on the data of
              the fit, before and after. force=True where matrix and Dirichlet refuse to fit more parameters than
              there are samples.
              scikit-learn's isotonic regressions, one for each class, are timed from the same logits, softmax included.
--robust      T and its NLL beside the least NLL of any T from e^-25 to e^25 (float64; a grid of 500, then Brent's
              method); "usable" says that T is finite and above 0, not that it is good. Where all are correct ours is
              not after the least NLL, which is at T = 0: it counts labels as wrong with probability 1 / (N + 2).
"""

import os

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import argparse
import math
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _measure import Contender, Record, cpu_name, read_sizes, say_missing, show, take_turns
from torch import Tensor, nn

from dualfocal.calibrators import CALIBRATORS, Calibrator, TemperatureScaling

SIZES, METHOD_SIZES = [(10_000, 100), (50_000, 1000), (1_000_000, 10)], [(10_000, 100), (50_000, 10)]
BINS, SPREAD, TEMPERATURE = 15, 6.0, 2.0
ONCE = 15.0  # seconds: whoever takes longer is timed once
SLACK = 1e-9  # nats that count as none
# The least that (peer / ours) may be, by size.
GOALS = {
    ("nll", "scikit-learn"): {(50_000, 1000): 10.0},
    ("ece_grid", "published"): dict.fromkeys(SIZES, 10.0),
}
OWN_WORDS = ("LBFGS", "published")  # contenders that are no library, but this file


# The contenders; they return T. They import on call, so that a peer that is missing is found out one at a time.


def our_nll(logits: Tensor, target: Tensor) -> Tensor:
    """By likelihood."""
    return TemperatureScaling().fit(logits, target).temperature


def our_grid(logits: Tensor, target: Tensor) -> Tensor:
    """By ECE."""
    return TemperatureScaling("ece").fit(logits, target).temperature


def lbfgs(logits: Tensor, target: Tensor) -> float:
    """A learnable T, and all rows in each evaluation."""
    temperature = nn.Parameter(torch.full((1,), 1.5))
    optimizer = torch.optim.LBFGS([temperature], lr=0.01, max_iter=50)

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = nn.functional.cross_entropy(logits / temperature, target)
        value.backward()
        return value

    optimizer.step(loss)
    return temperature.item()


def fit_sklearn(method: str, x: np.ndarray, target: Tensor, read: Callable[[np.ndarray], np.ndarray]) -> Any:
    """scikit-learn's calibrator of a finished classifier: read(x) are its scores. One fold, of everything."""
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    class Finished(ClassifierMixin, BaseEstimator):
        """Has nothing to learn."""

        def __init__(self) -> None:
            self.classes_ = np.arange(int(target.max()) + 1)

        def fit(self, x: np.ndarray, y: np.ndarray) -> "Finished":
            """Is never called, but has to be there, as has predict."""
            return self

        predict = fit

        def decision_function(self, x: np.ndarray) -> np.ndarray:
            """Scores (N, C)."""
            return read(x)

    fold = (np.arange(1), np.arange(len(x)))  # a frozen classifier does not look at its training data
    model = CalibratedClassifierCV(FrozenEstimator(Finished()), method=method, cv=[fold])
    return model.fit(x, target.numpy())


def sklearn_temperature(logits: Tensor, target: Tensor) -> float:
    """Its classifier sees row numbers, and gives the logits: no copy of them is made on the way in."""
    model = fit_sklearn("temperature", np.arange(len(logits))[:, None], target, lambda _: logits.numpy())
    return 1 / float(model.calibrated_classifiers_[0].calibrators[0].beta_)


def netcal_temperature(logits: Tensor, target: Tensor, dtype: torch.dtype = torch.float64) -> float:
    """netcal multiplies by a weight, which it calls temperature."""
    from netcal.scaling import TemperatureScaling as Netcal

    probs = torch.softmax(logits.to(dtype), 1).numpy()
    return 1 / float(Netcal().fit(probs, target.numpy(), tensorboard=False).temperature[0])


def netcal_float32(logits: Tensor, target: Tensor) -> float:
    """On probabilities as most networks give them."""
    return netcal_temperature(logits, target, torch.float32)


def published_grid(logits: Tensor, target: Tensor) -> float:
    """The search as it is usually coded: everything again for each T."""
    best, least = 1.0, math.inf
    for step in range(1, 101):
        confidence, predicted = torch.softmax(logits / (step / 10), 1).max(1)
        correct = predicted == target
        error = torch.zeros(())
        for lo, hi in pairwise(torch.linspace(0, 1, BINS + 1)):
            inside = (confidence > lo) & (confidence <= hi)
            share = inside.float().mean()
            if share > 0:
                error += (confidence[inside].mean() - correct[inside].float().mean()).abs() * share
        if error < least:
            best, least = step / 10, float(error)
    return best


# Ours comes first: the others are divided by it.
TASKS: dict[str, dict[str, Contender]] = {
    "nll": {"dualfocal": our_nll, "scikit-learn": sklearn_temperature, "LBFGS": lbfgs, "netcal": netcal_temperature},
    "ece_grid": {"dualfocal": our_grid, "published": published_grid},
}
ROBUST = {**TASKS["nll"], "netcal (float32)": netcal_float32}


def draw(logits: Tensor, temperature: float) -> Tensor:
    """Targets from softmax(logits / temperature)."""
    generator = torch.Generator().manual_seed(1)
    parts = [torch.softmax(some / temperature, 1) for some in logits.split(10_000)]
    return torch.cat([torch.multinomial(p, 1, generator=generator)[:, 0] for p in parts])


def make_logits(rows: int, classes: int) -> tuple[Tensor, Tensor]:
    """Logits, and targets that follow them once they are divided by TEMPERATURE."""
    logits = torch.randn(rows, classes, generator=torch.Generator().manual_seed(0)).mul_(SPREAD)
    return logits, draw(logits, TEMPERATURE)


def make_hard() -> dict[str, tuple[Tensor, Tensor]]:
    """Data of 10,000 x 10 on which a search for T may go astray, after ordinary ones."""
    logits, target = make_logits(10_000, 10)
    generator = torch.Generator().manual_seed(2)
    clear = torch.randn(10_000, 10, generator=generator)
    label = torch.randint(10, (10_000,), generator=generator)
    clear[torch.arange(10_000), label] += 20
    one_wrong = label.clone()
    one_wrong[0] = (label[0] + 1) % 10
    return {
        "ordinary": (logits, target),
        "logits x 0.01": (logits * 0.01, target),
        "logits x 100": (logits * 100, target),
        "logits x 1e6": (logits * 1e6, target),
        "one in 10,000 wrong": (clear, one_wrong),
        "all correct": (clear, label),
        "labels at random": (logits, label),
        "worse than random": (logits, draw(logits, -TEMPERATURE)),
    }


def errors_at(temperature: float, logits: Tensor, target: Tensor) -> tuple[float, float]:
    """NLL and ECE of softmax(logits / temperature) in float64, a few rows at a time."""
    edges = np.linspace(0, 1, BINS + 1)[1:-1]
    nll, gap = 0.0, np.zeros(BINS)  # sums, the second over the bin (lo, hi] of confidence minus outcome
    for some, y in zip(logits.split(10_000), target.split(10_000), strict=True):
        log_p = torch.log_softmax(some.double() / temperature, 1)
        nll -= float(log_p.gather(1, y[:, None]).sum())
        top, predicted = log_p.max(1)
        confidence = top.exp().numpy()
        gap += np.bincount(np.searchsorted(edges, confidence), confidence - (predicted == y).numpy(), minlength=BINS)
    return nll / len(logits), float(np.abs(gap).sum() / len(logits))


def least_nll(logits: Tensor, target: Tensor) -> float:
    """The least NLL of any T from e^-25 to e^25."""
    from scipy.optimize import minimize_scalar

    def nll(log_t: float) -> float:
        return errors_at(math.exp(log_t), logits, target)[0]

    grid = np.linspace(-25, 25, 500)
    found = [nll(log_t) for log_t in grid]
    i = int(np.argmin(found))
    bounds = (grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)])
    return min(found[i], float(minimize_scalar(nll, bounds=bounds, options={"xatol": 1e-12}).fun))


def name_each(logits: Tensor) -> tuple[Tensor, Tensor]:
    """A few rows to warm up on, whose targets name each class: scikit-learn wants as many classes as scores."""
    few = logits[: max(256, logits.shape[1])]
    return few, torch.arange(len(few)) % logits.shape[1]


def contender_version(name: str) -> str:
    """Of the library, if it is one."""
    return "" if name in OWN_WORDS else version(name.split()[0])


def measure(sizes: list[tuple[int, ...]], seconds: float) -> list[Record]:
    """One record for each size, task and contender."""
    records = []
    for rows, classes in sizes:
        logits, target = make_logits(rows, classes)
        for task in TASKS:
            records += measure_task(task, logits, target, seconds)
    return records


def measure_task(task: str, logits: Tensor, target: Tensor, seconds: float) -> list[Record]:
    """One record for each contender."""
    rows, classes = logits.shape
    print(f"{rows} x {classes}: {task}", file=sys.stderr)
    found = take_turns(TASKS[task], logits, target, seconds, once=ONCE, few=name_each(logits))
    ours = found["dualfocal"]
    our_error, _ = errors_at(ours["value"], logits, target)
    records = []
    for name in TASKS[task]:
        record: Record = {"rows": rows, "classes": classes, "task": task, "contender": name}
        if result := found.get(name):
            peer = name != "dualfocal"
            ratio = result["seconds"] / ours["seconds"]
            goal = GOALS.get((task, name), {}).get((rows, classes))
            nll, ece = errors_at(result["value"], logits, target)
            same = abs(result["value"] - ours["value"]) < 1e-6
            agrees = our_error <= nll + SLACK if task == "nll" else same
            record |= {
                "version": contender_version(name),
                "seconds": f"{result['seconds']:.5f}",
                "calls": result["calls"],
                "peer_over_ours": f"{ratio:.3f}" if peer else "",
                "goal_at_least": goal or "",
                "met": ("met" if ratio >= goal and agrees else "missed") if goal else "",
                "extra_mib": f"{result['extra_mib']:.1f}",
                "temperature": f"{result['value']:.6f}",
                "nll": f"{nll:.9f}",
                "nll_less_ours": f"{nll - our_error:.1e}" if peer else "",
                "ece": f"{ece:.6f}",
                "same_t": ("yes" if same else "no") if peer and task == "ece_grid" else "",
            }
        else:
            record |= dict.fromkeys(records[0], "") | record | {"version": "not installed"}
        records.append(record | {"torch": torch.__version__, "cpu": cpu_name()})
    return records


class SklearnIsotonic:
    """Isotonic regression one-vs-rest of scikit-learn, from logits, with the methods of a calibrator."""

    def fit(self, logits: Tensor, target: Tensor) -> "SklearnIsotonic":
        """Of the softmax."""
        self.model = fit_sklearn("isotonic", logits.numpy(), target, lambda x: torch.from_numpy(x).softmax(1).numpy())
        return self

    def __call__(self, logits: Tensor) -> Tensor:
        """Logarithms of its probabilities, which may be 0."""
        return torch.from_numpy(self.model.predict_proba(logits.numpy())).log()


def make_method(name: str, rows: int, classes: int) -> tuple[Any, str]:
    """An unfitted calibrator, and what was asked of it beyond its name."""
    if name == "scikit-learn isotonic":
        return SklearnIsotonic(), ""
    calibrator: Calibrator = CALIBRATORS[name]()
    if hasattr(calibrator, "force") and rows < classes * (classes + 1):
        calibrator.force = True
        return calibrator, "force=True"
    return calibrator, ""


def measure_methods(sizes: list[tuple[int, ...]], seconds: float) -> list[Record]:
    """One record for each size and calibrator."""
    records = []
    for rows, classes in sizes:
        print(f"{rows} x {classes}: every method", file=sys.stderr)
        logits, target = make_logits(rows, classes)
        few = name_each(logits)
        fits: dict[str, Contender] = {}
        maps: dict[str, Contender] = {}
        after: dict[str, float] = {}
        before = nn.functional.cross_entropy(logits.double(), target).item()
        for name in (*CALIBRATORS, "scikit-learn isotonic"):

            def fit(x: Tensor, y: Tensor, name: str = name) -> int:
                make_method(name, *x.shape)[0].fit(x, y)
                return 0

            try:
                calibrator = make_method(name, rows, classes)[0].fit(logits, target)
            except ImportError as error:
                say_missing(name, error)
                continue
            fits[name], maps[name] = fit, lambda x, _, c=calibrator: c(x)[0, 0]
            after[name] = nn.functional.nll_loss(calibrator(logits).double().log_softmax(1), target).item()
        fitted = take_turns(fits, logits, target, seconds, once=ONCE, few=few)
        mapped = take_turns(maps, logits, target, seconds, once=ONCE, few=few)
        for name in fits:
            library, method = name.split() if " " in name else ("dualfocal", name)
            records.append(
                {
                    "rows": rows,
                    "classes": classes,
                    "method": method,
                    "contender": library,
                    "options": make_method(name, rows, classes)[1],
                    "version": contender_version(library),
                    "fit_s": f"{fitted[name]['seconds']:.5f}",
                    "fit_calls": fitted[name]["calls"],
                    "fit_mib": f"{fitted[name]['extra_mib']:.1f}",
                    "map_s": f"{mapped[name]['seconds']:.5f}",
                    "map_calls": mapped[name]["calls"],
                    "map_mib": f"{mapped[name]['extra_mib']:.1f}",
                    "nll_before": f"{before:.6f}",
                    "nll_after": f"{after[name]:.6f}",
                    "torch": torch.__version__,
                    "cpu": cpu_name(),
                }
            )
    return records


def measure_robust() -> list[Record]:
    """One record for each data set and contender."""
    records = []
    for data, (logits, target) in make_hard().items():
        least = least_nll(logits, target)
        for name, contender in ROBUST.items():
            record: Record = {"data": data, "contender": name, "version": "not installed"}
            record |= {"temperature": "", "nll": "", "least_nll": f"{least:.9f}", "above_least": "", "usable": ""}
            try:
                temperature = float(contender(logits, target))
                record["temperature"] = f"{temperature:.9g}"
                nll, _ = errors_at(temperature, logits, target)
                record |= {"nll": f"{nll:.9f}", "above_least": f"{nll - least:.1e}"}
                record["usable"] = "yes" if math.isfinite(temperature) and temperature > 0 else "no"
                record["version"] = contender_version(name)
            except ImportError as error:
                say_missing(name, error)
            except Exception as error:  # what it says is the result
                record["temperature"] = f"{type(error).__name__}: {error}"
                record |= {"usable": "no", "version": contender_version(name)}
            records.append(record | {"torch": torch.__version__, "cpu": cpu_name()})
    return records


def main() -> None:
    """Measure, print, and write the CSV if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="write the records here")
    parser.add_argument("--sizes", type=read_sizes, help="only these, as 10000x100,50000x1000")
    parser.add_argument("--seconds", type=float, default=5.0, help="time for each size and task (default 5)")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--methods", action="store_true", help="time every calibrator instead")
    mode.add_argument("--robust", action="store_true", help="fit temperatures to hard data instead")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of the peers; what they find is in the table
    if args.methods:
        records = measure_methods(args.sizes or METHOD_SIZES, args.seconds)
        show("calibrators, float32 logits, one thread", records, args.csv)
    elif args.robust:
        show("temperature by NLL on hard data, 10,000 x 10", measure_robust(), args.csv)
    else:
        records = measure(args.sizes or SIZES, args.seconds)
        show("temperature, float32 logits, one thread", records, args.csv)


if __name__ == "__main__":
    main()
