"""Do the intervals of AUROC, and of error, NLL and ECE under shift, contain the truth? A simulation.

    python benchmarks/shift_coverage.py [--csv FILE] [--repeats 2000] [--log FILE]

AUROC (`auroc`, `compare_auroc`), of m positive and n negative samples:

  normal     N(d, 1) against N(0, 1)
  wide       N(d, 3^2) against N(0, 1)
  ties       normal, rounded to multiples of 2/3
  clusters   normal; clusters of 4 samples with correlation 0.5, each of one class
  images     normal; every positive sample is the distorted copy of a negative one, correlation 0.7, clusters of two
  paired     the difference of two scores of AUROC a and 0.8, correlation 0.5; coverage of the difference

`plain` is DeLong's interval without transformation, with the normal quantile. Shift (`evaluate_shift`), n samples, 10
classes, labels from softmax(z / tau), tau = 1 is calibrated: coverage of error, NLL and ECE, where the truth of the ECE
is its expected value at this n.

Goal: coverage of the nominal 90 % intervals of at least 86 %. A setting passes if the 99 % binomial interval of its
rate meets the goal.
"""

import argparse
import csv
import os
import platform
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from _measure import in_parts
from inference_coverage import passes, softmax
from rich.console import Console
from rich.table import Table
from scipy.special import ndtri

from dualfocal.metrics import auroc, compare_auroc, ece
from dualfocal.metrics.auroc import placements
from dualfocal.metrics.shift.evaluation import evaluate_shift

LEVEL, GOAL, NUM_CLASSES = 0.9, (0.86, 1.0), 10
CHUNK = 100  # data sets that one process draws at a time
SHARE_OF_SHIFT = 0.2  # of the data sets: these settings are slow
WIDE, GRID, SECOND = 3.0, 1.5, 0.8


class Setting(NamedTuple):
    """One setting: for AUROC m, n and the true area; for shift n (as m) and tau (as area)."""

    kind: str
    m: int
    n: int
    area: float


def settings() -> list[Setting]:
    """Return all settings."""
    sizes = ((1, 100), (5, 50), (20, 20), (20, 200), (50, 50), (200, 200), (1000, 1000))
    areas = (0.5, 0.7, 0.9, 0.97, 0.99)
    chosen = [Setting(kind, m, n, a) for kind in ("normal", "wide", "ties") for m, n in sizes for a in areas]
    chosen += [Setting(kind, n, n, a) for kind in ("clusters", "images") for n in (40, 200, 1000) for a in areas]
    chosen += [Setting("paired", n, n, a) for n in (20, 100, 500) for a in (0.7, 0.8, 0.95)]
    chosen += [Setting("shift", n, n, tau) for n in (300, 2000) for tau in (1.0, 1.5, 3.0)]
    return chosen


@lru_cache(maxsize=4)
def true_area(kind: str, area: float) -> float:
    """Return the true AUROC; rounded scores have another one."""
    if kind != "ties":
        return area
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 1_000_000))
    scores = torch.from_numpy(np.round(GRID * np.concatenate([x + distance(kind, area), y])))
    rank = torch.unique(scores, return_inverse=True)[1]
    return placements(rank, torch.arange(2_000_000) < 1_000_000).value


def distance(kind: str, area: float) -> float:
    """Return the distance d of the two classes."""
    return float(ndtri(area)) * float(np.hypot(WIDE if kind == "wide" else 1.0, 1.0))


def draw(setting: Setting, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Draw scores, classes and clusters."""
    kind, m, n, area = setting
    positive = np.arange(m + n) < m
    cluster = None
    noise = rng.standard_normal(m + n)
    if kind == "clusters":
        cluster = np.arange(m + n) // 4
        noise = np.sqrt(0.5) * rng.standard_normal(len(cluster))[cluster] + np.sqrt(0.5) * noise
    elif kind == "images":
        cluster = np.arange(m + n) % m
        noise = np.sqrt(0.7) * rng.standard_normal(m)[cluster] + np.sqrt(0.3) * noise
    score = np.where(positive & (kind == "wide"), WIDE, 1.0) * noise + positive * distance(kind, area)
    return np.round(GRID * score) if kind == "ties" else score, positive, cluster


def plain_interval(score: np.ndarray, positive: np.ndarray) -> tuple[float, float]:
    """Return DeLong's interval without transformation."""
    placed = placements(torch.unique(torch.from_numpy(score), return_inverse=True)[1], torch.from_numpy(positive))
    with np.errstate(all="ignore"):
        variance = sum(np.var(side, ddof=1) / len(side) for side in (placed.positive, placed.negative))
    half = float(ndtri((1 + LEVEL) / 2)) * np.sqrt(variance)
    return placed.value - half, placed.value + half


def simulate_area(setting: Setting, rng: np.random.Generator) -> dict[str, float]:
    """Return coverage and width of one data set."""
    score, positive, cluster = draw(setting, rng)
    truth = true_area(setting.kind, setting.area)
    one = auroc(score, positive, level=LEVEL, clusters=cluster)
    low, high = plain_interval(score, positive) if setting.m > 1 else (np.nan, np.nan)
    values = {"coverage": one.low <= truth <= one.high, "width": one.high - one.low}
    return values | {"plain": low <= truth <= high, "perfect": one.value == 1}


def simulate_pair(setting: Setting, rng: np.random.Generator) -> dict[str, float]:
    """Return coverage and width of the difference of two scores."""
    positive = np.arange(setting.m + setting.n) < setting.m
    common, *noise = rng.standard_normal((3, len(positive)))
    areas = (SECOND, setting.area)
    a, b = (
        np.sqrt(0.5) * (common + one) + positive * distance("paired", area)
        for one, area in zip(noise, areas, strict=True)
    )
    result = compare_auroc(a, b, positive, level=LEVEL)
    truth = areas[1] - areas[0]
    return {"coverage": result.low <= truth <= result.high, "width": result.high - result.low}


def labelled(n: int, tau: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw logits, and labels from softmax(logits / tau)."""
    logits = 3 * rng.standard_normal((n, NUM_CLASSES))
    label = (softmax(logits / tau).cumsum(1) <= rng.random((n, 1))).sum(1)
    return logits, np.minimum(label, NUM_CLASSES - 1)


@lru_cache(maxsize=8)
def true_scores(n: int, tau: float) -> dict[str, float]:
    """Return error and NLL of the population, and the expected ECE of n samples."""
    rng = np.random.default_rng(1)
    logits = 3 * rng.standard_normal((400_000, NUM_CLASSES))
    model, truth = softmax(logits), softmax(logits / tau)
    error = 1 - float(truth[np.arange(len(truth)), model.argmax(1)].mean())
    nll = float(-(truth * np.log(model)).sum(1).mean())
    expected = float(np.mean([ece(*labelled(n, tau, rng), input="logits") for _ in range(2000)]))
    return {"error": error, "nll": nll, "ece": expected}


def simulate_shift(setting: Setting, rng: np.random.Generator) -> dict[str, float]:
    """Return the coverage of error, NLL and ECE."""
    truth = true_scores(setting.n, setting.area)
    data = labelled(setting.n, setting.area, rng)
    result = evaluate_shift(
        data, {"same": (data[0][:2], None)}, input="logits", level=LEVEL, seed=int(rng.integers(1e9))
    )
    ends = result.test.intervals
    return {f"{name}_coverage": ends[name][0] <= truth[name] <= ends[name][1] for name in truth}


class Chunk(NamedTuple):
    """Consecutive data sets of a setting."""

    setting: Setting
    first: int
    count: int


def simulate(chunk: Chunk) -> dict[str, list[float]]:
    """Return one value per data set of each rate."""
    torch.set_num_threads(1)
    setting = Setting(*chunk.setting)
    one = {"paired": simulate_pair, "shift": simulate_shift}.get(setting.kind, simulate_area)
    rng = np.random.default_rng([setting.m, setting.n, round(100 * setting.area), *map(ord, setting.kind), chunk.first])
    values = defaultdict[str, list[float]](list)
    for _ in range(chunk.count):
        for name, value in one(setting, rng).items():
            values[name].append(float(value))
    return dict(values)


def chunks(repeats: int) -> Iterator[Chunk]:
    """Split all settings into parts of similar size."""
    for setting in settings():
        count = round(SHARE_OF_SHIFT * repeats) if setting.kind == "shift" else repeats
        yield from (Chunk(setting, first, min(CHUNK, count - first)) for first in range(0, count, CHUNK))


def record(setting: Setting, values: dict[str, list[float]]) -> dict[str, Any]:
    """Return one line of the CSV file."""
    columns = ("coverage", "width", "plain", "perfect", "error_coverage", "nll_coverage", "ece_coverage")
    passed = all(passes(values[name], GOAL) for name in values if name.endswith("coverage"))
    means = {name: float(np.mean(values[name])) if name in values else "" for name in columns}
    return {**setting._asdict(), "repeats": max(map(len, values.values())), "passed": passed, **means}


def show(records: list[dict[str, Any]]) -> None:
    """Print the rates of every setting; those that miss the goal in red."""
    table = Table(title="coverage in %")
    for heading in records[0]:
        table.add_column(heading.replace("_", " "), justify="right")
    for r in records:
        cells = [f"{v:.4g}" if k in Setting._fields and isinstance(v, float) else v for k, v in r.items()]
        cells = [f"{100 * v:.1f}" if isinstance(v, float) else str(v) for v in cells]
        table.add_row(*cells, style="" if r["passed"] else "bold red")
    console = Console(width=150)
    console.print(table)
    console.print(f"{sum(r['passed'] for r in records)} of {len(records)} settings pass")


def main() -> None:
    """Simulate every setting, print the table, write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="write the rates here")
    parser.add_argument("--repeats", type=int, default=2000, help="data sets per setting (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: %(default)s)")
    parser.add_argument("--log", type=Path, help="append every part of the work to this file, and resume from it")
    args = parser.parse_args()
    values = defaultdict[Setting, dict[str, list[float]]](lambda: defaultdict(list))
    for chunk, some in in_parts(simulate, list(chunks(args.repeats)), args.jobs, args.log):
        for name, numbers in some.items():
            values[Setting(*chunk.setting)][name] += numbers
    records = [record(setting, values[setting]) for setting in settings()]
    show(records)
    if args.csv:
        with args.csv.open("w", newline="") as file:
            versions = f"python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}"
            file.write(f"# benchmarks/shift_coverage.py --repeats {args.repeats}; {versions}\n")
            writer = csv.DictWriter(file, list(records[0]))
            writer.writeheader()
            writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in r.items()} for r in records)


if __name__ == "__main__":
    main()
