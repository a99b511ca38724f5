"""Do the intervals of over-confidence of small groups cover the truth? A simulation in which the truth is known.

    python benchmarks/group_intervals.py [--csv FILE] [--repeats 4000]

A report shows mean confidence minus accuracy of each group with an interval (`report/groups.py`). Here groups of 20 to
5,000 samples are drawn, with confidences that are moderate (uniform in [0.3, 1]) or sharp (85 % are above 0.9). A
prediction is right with its confidence minus a gap of 0 or 0.1. Coverage is how often the nominal 90 % interval
contains the mean of confidence minus probability of the group. Goal: at least 88 %. In small groups, the half sample at
both ends makes the intervals wider than needed. `plain` is the coverage of mean ± 1.645 standard errors.
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from _simulation import Record, Values, means, run_simulation

from dualfocal.metrics import BinStats
from dualfocal.report.groups import gap_interval

LEVEL, QUANTILE, GOAL = 0.9, 1.6449, 0.88


class Setting(NamedTuple):
    """One setting of the simulation."""

    kind: str
    samples: int
    gap: float


SETTINGS = [
    Setting(kind, n, gap) for kind, gap, n in product(("moderate", "sharp"), (0.0, 0.1), (20, 50, 200, 1000, 5000))
]


def draw(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return confidences."""
    return rng.uniform(0.3, 1.0, n) if kind == "moderate" else 1 - rng.beta(0.5, 10.0, n)


def simulate(setting: Setting, repeats: range) -> Iterator[dict[str, float]]:
    """Yield the numbers of each group."""
    kind, n, gap = setting
    rng = np.random.default_rng([n, round(100 * gap), kind == "sharp"])
    for _ in repeats:
        confidence = draw(kind, n, rng)
        p = np.clip(confidence - gap, 0, 1)
        truth, right = float((confidence - p).mean()), rng.random(n) < p
        low, high = gap_interval(BinStats.from_confidence(torch.from_numpy(confidence), torch.from_numpy(right)), LEVEL)
        residual = confidence - right
        plain = abs(residual.mean() - truth) <= QUANTILE * residual.std(ddof=1) / np.sqrt(n)
        yield {"coverage": low <= truth <= high, "plain": plain, "mean_width": high - low}


def summarize(setting: Setting, values: Values) -> list[Record]:
    """Return the line of the CSV file."""
    numbers = means(values) | {"mean_width": round(float(np.mean(values["mean_width"])), 5)}
    passed = numbers["coverage"] >= GOAL
    return [{**setting._asdict(), "repeats": len(values["plain"]), **numbers, "passed": passed}]


if __name__ == "__main__":
    run_simulation(__doc__, SETTINGS, simulate, summarize, repeats=4000)
