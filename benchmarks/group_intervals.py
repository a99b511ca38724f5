"""Do the intervals of over-confidence of small groups cover the truth? A simulation in which the truth is known.

    python benchmarks/group_intervals.py [--csv FILE] [--repeats 4000]

A report shows mean confidence minus accuracy of each group with an interval (`report/groups.py`). Here groups of 20 to
5,000 samples are drawn, with confidences that are moderate (uniform in [0.3, 1]) or sharp (85 % are above 0.9). A
prediction is right with its confidence minus a gap of 0 or 0.1. Coverage is how often the nominal 90 % interval
contains the mean of confidence minus probability of the group. Goal: at least 88 %. In small groups, the half sample at
both ends makes the intervals wider than needed. `plain` is the coverage of mean ± 1.645 standard errors.
"""

import argparse
import csv
import platform
from pathlib import Path

import numpy as np
import torch

from dualfocal.metrics.bins import BinStats
from dualfocal.report.groups import gap_interval

LEVEL, QUANTILE, GOAL = 0.9, 1.6449, 0.88
HEADINGS = ["kind", "samples", "gap", "repeats", "coverage", "plain", "mean_width", "passed"]


def draw(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return confidences."""
    return rng.uniform(0.3, 1.0, n) if kind == "moderate" else 1 - rng.beta(0.5, 10.0, n)


def measure(kind: str, n: int, gap: float, repeats: int) -> list[object]:
    """Return one row of the table."""
    rng = np.random.default_rng([n, round(100 * gap), kind == "sharp"])
    covered, plain, widths = 0, 0, []
    for _ in range(repeats):
        confidence = draw(kind, n, rng)
        p = np.clip(confidence - gap, 0, 1)
        truth, right = float((confidence - p).mean()), rng.random(n) < p
        bins = BinStats.from_confidence(torch.from_numpy(confidence), torch.from_numpy(right))
        low, high = gap_interval(bins, LEVEL)
        covered += low <= truth <= high
        residual = confidence - right
        plain += abs(residual.mean() - truth) <= QUANTILE * residual.std(ddof=1) / np.sqrt(n)
        widths.append(high - low)
    coverage = covered / repeats
    return [kind, n, gap, repeats, coverage, plain / repeats, round(float(np.mean(widths)), 5), coverage >= GOAL]


def main() -> None:
    """Print the table, and write it to a file if asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--repeats", type=int, default=4000)
    options = parser.parse_args()
    rows = [
        measure(kind, n, gap, options.repeats)
        for kind in ("moderate", "sharp")
        for gap in (0.0, 0.1)
        for n in (20, 50, 200, 1000, 5000)
    ]
    print(*HEADINGS, sep="\t")
    for row in rows:
        print(*row, sep="\t")
    if options.csv:
        versions = f"python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}"
        with options.csv.open("w", newline="") as file:
            file.write(f"# benchmarks/group_intervals.py --repeats {options.repeats}; {versions}\n")
            csv.writer(file, lineterminator="\n").writerows([HEADINGS, *rows])


if __name__ == "__main__":
    main()
