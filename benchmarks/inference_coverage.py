"""Do the interval and the test of `dualfocal.metrics` keep their promise? A simulation, with the published bootstrap.

    python benchmarks/inference_coverage.py [--csv benchmarks/results/inference_coverage.csv] [--repeats 1000]

A population of 200,000 predictions with K classes has normal logits, of a scale that spreads confidences (K = 10 also
with one that puts most of them above .99: "sharp"); labels are drawn from the softmax of the logits
divided by tau. tau = 1 is calibrated, above it the model is over-confident, below it under-confident. The truth is that
of the population. For each of many samples of N:

- coverage: how often the nominal 90 % interval of the debiased error holds the truth, the root of
  sum_b P(b) (E[confidence | b] - E[correct | b])^2 over 15 bins;
- published: the same for the pivotal bootstrap of the ECE, sum_b P(b) |E[confidence | b] - E[correct | b]|, on one
  sample in ten;
- alarms: how often the test of "calibrated" at 5 % rejects: the false-alarm rate where tau = 1, the power elsewhere;
- difference: coverage of the paired 90 % interval of `compare` for the debiased error, between the model and itself
  with tau divided out (where tau = 1: with 1.2 divided out), on one sample in ten, N up to 5,000;
- found: power of the test, on fresh outcomes, against the uniform gap that was called detectable; 80 % is promised
  (one sample in ten of the calibrated ones).

Goals, from N = 500: coverage 86 to 94 %, false alarms 3 to 7 %. At N = 100 there are few outcomes to tell apart, and
exact coverage cannot be had. A rate p over R samples has a standard error of sqrt(p (1 - p) / R).
"""

import argparse
import csv
import multiprocessing
import os
import platform
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Table

from dualfocal.metrics import BinStats, Inference, compare
from dualfocal.metrics._sorting import SortedConfidences
from dualfocal.metrics.bins import equal_edges, to_units
from dualfocal.metrics.inference import infer

SIZES, CLASSES, TAUS = (500, 5_000, 50_000), (2, 10, 100), (1.0, 1.1, 1.4, 0.8)
POWER_TAUS = (1.02, 1.05, 1.2)  # for the power curve alone
SCALE, SHARP = {2: 2.0, 10: 3.0, 100: 4.0}, 60.0  # of the logits
POPULATION = 200_000
NUM_BINS, LEVEL = 15, 0.9
SLOW = 10  # one sample in so many also goes through what is slow
COVERAGE_GOAL, ALARM_GOAL = (0.86, 0.94), (0.03, 0.07)
COLUMNS = {
    "true_rms": "true RMS",
    "mean_ece": "ECE",
    "mean_floor": "floor",
    "coverage": "coverage",
    "published": "published",
    "alarms": "alarms",
    "difference": "difference",
    "detectable": "detectable",
    "found": "found",
}


class Cell(NamedTuple):
    """One setting of the simulation."""

    n: int
    num_classes: int
    tau: float
    repeats: int
    sharp: bool = False
    power_only: bool = False


class Population:
    """Predictions, and the probability that each is right."""

    def __init__(self, num_classes: int, tau: float, sharp: bool) -> None:
        rng = np.random.default_rng(num_classes)
        self.logits = (SHARP if sharp else SCALE[num_classes]) * rng.standard_normal(
            (POPULATION, num_classes), dtype=np.float32
        )
        self.truth = softmax(self.logits / tau)
        model, rows = softmax(self.logits), np.arange(POPULATION)
        self.top = model.argmax(1)
        self.confidence, self.right = model[rows, self.top], self.truth[rows, self.top]
        self.rms, self.ece = binned_errors(self.confidence, self.right)
        # The same model with the miscalibration divided out; a calibrated one is made too soft instead.
        self.other = self.logits / np.float32(tau if tau != 1 else 1.2)
        self.other_rms = binned_errors(softmax(self.other).max(1), self.right)[0]


def softmax(logits: np.ndarray) -> np.ndarray:
    """In float64."""
    e = np.exp((logits - logits.max(1, keepdims=True)).astype(np.float64))
    return e / e.sum(1, keepdims=True)


def bin_of(confidence: np.ndarray) -> np.ndarray:
    """Index of the bin (lo, hi]."""
    return np.clip(np.ceil(confidence * NUM_BINS).astype(int) - 1, 0, NUM_BINS - 1)


def binned_errors(confidence: np.ndarray, right: np.ndarray) -> tuple[float, float]:
    """(RMS error, ECE) of a population."""
    index = bin_of(confidence)
    count = np.maximum(np.bincount(index, minlength=NUM_BINS), 1)
    gap = np.bincount(index, confidence - right, NUM_BINS)
    return float(np.sqrt((gap**2 / count).sum() / len(index))), float(np.abs(gap).sum() / len(index))


def published_interval(confidence: np.ndarray, correct: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """Pivotal bootstrap of the ECE, 1000 resamples, as published."""
    index, gap = bin_of(confidence), confidence - correct

    def error(pick: np.ndarray) -> float:
        return float(np.abs(np.bincount(index[pick], gap[pick], NUM_BINS)).sum() / len(gap))

    drawn = [error(rng.integers(len(gap), size=len(gap))) for _ in range(1000)]
    estimate = error(np.arange(len(gap)))
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return 2 * estimate - high, 2 * estimate - low


def infer_from(confidence: np.ndarray, correct: np.ndarray, seed: int) -> tuple[Inference, BinStats]:
    """What `evaluate(..., inference=True)` finds from these confidences and outcomes."""
    units, outcome = to_units(torch.from_numpy(confidence)), torch.from_numpy(correct)
    ranked, bins = (
        SortedConfidences.from_units(units, outcome),
        BinStats.from_units(units, outcome, equal_edges(NUM_BINS)),
    )
    return infer(ranked, bins, ranked.adaptive_bins(NUM_BINS), level=LEVEL, seed=seed), bins


def simulate(cell: Cell) -> dict[str, object]:
    """Rates over the repeats of one cell."""
    torch.set_num_threads(1)
    rng = np.random.default_rng([cell.n, cell.num_classes, round(100 * cell.tau), cell.sharp])
    population = Population(cell.num_classes, cell.tau, cell.sharp)
    covered, alarms, published, differences, found, eces, floors, detectable = ([] for _ in range(8))
    for repeat in range(cell.repeats):
        pick = rng.integers(POPULATION, size=cell.n)
        confidence, right = population.confidence[pick], population.right[pick]
        correct = rng.random(cell.n) < right
        result, bins = infer_from(confidence, correct, repeat)
        alarms.append(result.p_value <= 0.05)
        eces.append(float(bins.ece()))
        floors.append(result.floors["ece"].mean)
        detectable.append(result.detectable)
        if cell.power_only:
            continue
        low, high = result.debiased_ece
        covered.append(low <= population.rms <= high)
        if repeat % SLOW:
            continue
        low, high = published_interval(confidence, correct, rng)
        published.append(low <= population.ece <= high)
        if cell.tau == 1:
            worse = rng.random(cell.n) < np.clip(confidence - result.detectable, 0, 1)
            found.append(infer_from(confidence, worse, repeat)[0].p_value <= 0.05)
        if cell.n <= 5_000:
            top = population.top[pick]
            target = np.where(correct, top, another_class(population.truth[pick], top, rng))
            both = compare(population.logits[pick], population.other[pick], target, level=LEVEL, seed=repeat)
            difference = both.differences["debiased_ece"]
            differences.append(difference.low <= population.other_rms - population.rms <= difference.high)
    rates = {"coverage": covered, "published": published, "alarms": alarms, "difference": differences, "found": found}
    return {
        "n": cell.n,
        "classes": cell.num_classes,
        "sharp": cell.sharp,
        "tau": cell.tau,
        "repeats": cell.repeats,
        "true_rms": population.rms,
        "true_ece": population.ece,
        "mean_ece": np.mean(eces),
        "mean_floor": np.mean(floors),
        "detectable": np.median(detectable),
        **{name: np.mean(values) if values else "" for name, values in rates.items()},
    }


def another_class(truth: np.ndarray, top: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A class other than the predicted one, drawn from the truth."""
    rest = truth.copy()
    rest[np.arange(len(top)), top] = 0
    total = rest.cumsum(1)
    return np.minimum((total <= rng.random((len(top), 1)) * total[:, -1:]).sum(1), truth.shape[1] - 1)


def draw(path: Path, records: list[dict[str, object]]) -> None:
    """Power of the test against the true ECE, one panel for each number of classes."""
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    axes = figure.subplots(1, len(CLASSES), sharey=True)
    colours = dict(zip(SIZES, ("#56B4E9", "#E69F00", "#009E73"), strict=True))
    for axis, num_classes in zip(axes, CLASSES, strict=True):
        for n in SIZES:
            points = sorted(
                (100 * float(r["true_ece"]), 100 * float(r["alarms"]))
                for r in records
                if (r["n"], r["classes"]) == (n, num_classes) and float(r["tau"]) >= 1 and not r["sharp"]
            )
            axis.plot(*zip(*points, strict=True), "o-", color=colours[n], label=f"N = {n:,}")
        axis.axhline(5, color="black", linestyle=":", linewidth=1)
        axis.set(title=f"{num_classes} classes", xlabel="true ECE, points", ylim=(0, 102))
        axis.set_xscale("symlog", linthresh=0.5)
        axis.set_xlim(0, 20)
        axis.set_xticks([0, 0.5, 1, 2, 5, 10, 20], ["0", "0.5", "1", "2", "5", "10", "20"])
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("samples in which the test at 5 % rejects, %")
    axes[0].legend(frameon=False)
    title = "How large a miscalibration the test sees: over-confident models, logits too large by tau"
    figure.suptitle(f"{title} (dotted: 5 %, its false alarms if there is none)", fontsize=11)
    figure.savefig(path, dpi=130)


def print_table(records: list[dict[str, object]], repeats: int) -> None:
    """Every row with its rates; those outside the goals in red."""
    table = Table(
        title=f"{repeats} samples per row; everything in %",
        caption="goals: coverage 86 to 94, alarms where tau = 1: 3 to 7",
    )
    for heading in ("N", "classes", "tau", *COLUMNS.values()):
        table.add_column(heading, justify="right")
    missed = 0
    for r in records:
        if r["coverage"] == "":
            continue
        good = COVERAGE_GOAL[0] <= float(r["coverage"]) <= COVERAGE_GOAL[1]
        if r["tau"] == 1:
            good &= ALARM_GOAL[0] <= float(r["alarms"]) <= ALARM_GOAL[1]
        good |= int(r["n"]) < min(SIZES)
        missed += not good
        percent = ["" if r[name] == "" else f"{100 * float(r[name]):.1f}" for name in COLUMNS]
        classes = f"{r['classes']}{' sharp' if r['sharp'] else ''}"
        table.add_row(f"{r['n']:,}", classes, f"{r['tau']}", *percent, style="" if good else "bold red")
    console = Console(width=130)
    console.print(table)
    console.print(f"{missed} rows outside the goals" if missed else "all rows within the goals")


def main() -> None:
    """Simulate every cell, print the table, write CSV and power curve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="write the rates here, and the power curve beside, as .png")
    parser.add_argument("--repeats", type=int, default=1000, help="samples per cell (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: %(default)s)")
    args = parser.parse_args()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # for the processes to come
    cells = [Cell(n, k, tau, args.repeats) for n, k, tau in product(reversed(SIZES), CLASSES, TAUS)]
    cells += [Cell(n, 10, tau, args.repeats, sharp=True) for n, tau in product((*SIZES, 100), TAUS)]
    cells += [Cell(100, k, tau, args.repeats) for k, tau in product(CLASSES, TAUS)]
    fewer = max(1, args.repeats // 4)
    cells += [Cell(n, k, tau, fewer, power_only=True) for n, k, tau in product(SIZES, CLASSES, POWER_TAUS)]
    records = []
    context = multiprocessing.get_context("spawn")
    with context.Pool(args.jobs) as pool, Progress(*Progress.get_default_columns(), TimeElapsedColumn()) as progress:
        bar = progress.add_task("simulating", total=len(cells))
        for record in pool.imap_unordered(simulate, cells):
            records.append(record)
            progress.advance(bar)
    records.sort(key=lambda r: (r["n"], r["classes"], r["sharp"], r["tau"] != 1, r["tau"]))
    print_table(records, args.repeats)
    if args.csv:
        args.csv.parent.mkdir(parents=True, exist_ok=True)
        with args.csv.open("w", newline="") as file:
            versions = f"python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}"
            file.write(f"# benchmarks/inference_coverage.py --repeats {args.repeats} --jobs {args.jobs}; {versions}\n")
            writer = csv.DictWriter(file, records[0])
            writer.writeheader()
            writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in r.items()} for r in records)
        draw(args.csv.with_suffix(".png"), records)


if __name__ == "__main__":
    main()
