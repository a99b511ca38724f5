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

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from _simulation import Part, Record, Values, draw_labels, means, passes, run_simulation, softmax, split
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
    estimate = auroc(score, positive, level=LEVEL, clusters=cluster)
    low, high = plain_interval(score, positive) if setting.m > 1 else (np.nan, np.nan)
    return {
        "coverage": estimate.low <= truth <= estimate.high,
        "width": estimate.high - estimate.low,
        "plain": low <= truth <= high,
        "perfect": estimate.value == 1,
    }


def simulate_pair(setting: Setting, rng: np.random.Generator) -> dict[str, float]:
    """Return coverage and width of the difference of two scores."""
    positive = np.arange(setting.m + setting.n) < setting.m
    common, noise_a, noise_b = rng.standard_normal((3, len(positive)))
    a = np.sqrt(0.5) * (common + noise_a) + positive * distance("paired", SECOND)
    b = np.sqrt(0.5) * (common + noise_b) + positive * distance("paired", setting.area)
    result = compare_auroc(a, b, positive, level=LEVEL)
    truth = setting.area - SECOND
    return {"coverage": result.low <= truth <= result.high, "width": result.high - result.low}


def labelled(n: int, tau: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw logits, and labels from softmax(logits / tau)."""
    logits = 3 * rng.standard_normal((n, NUM_CLASSES))
    return logits, draw_labels(softmax(logits / tau), rng.random(n))


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


def simulate(setting: Setting, repeats: range) -> Iterator[dict[str, float]]:
    """Yield the numbers of each data set."""
    draw_numbers = {"paired": simulate_pair, "shift": simulate_shift}.get(setting.kind, simulate_area)
    key = [setting.m, setting.n, round(100 * setting.area), *map(ord, setting.kind)]
    rng = np.random.default_rng([*key, repeats.start])
    for _ in repeats:
        yield draw_numbers(setting, rng)


def parts(repeats: int) -> Iterator[Part]:
    """Split all settings into parts of similar size."""
    for setting in settings():
        yield from split(setting, round(SHARE_OF_SHIFT * repeats) if setting.kind == "shift" else repeats, CHUNK)


def summarize(setting: Setting, values: Values) -> list[Record]:
    """Return the line of the CSV file."""
    passed = all(passes(values[name], GOAL) for name in values if name.endswith("coverage"))
    return [{**setting._asdict(), "repeats": max(map(len, values.values())), "passed": passed, **means(values)}]


if __name__ == "__main__":
    run_simulation(__doc__, settings(), simulate, summarize, repeats=2000, parts=parts)
