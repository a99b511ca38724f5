"""Differences between two entries of a study, paired by seed, with confidence intervals."""

import math
import statistics
from dataclasses import dataclass
from pathlib import Path

import torch
from scipy.special import stdtrit
from torch import Tensor

from dualfocal.metrics import compare
from dualfocal_lab.runs import Run, RunResult
from dualfocal_lab.study.plan import Study

LEVEL = 0.9


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with the half-width of its confidence interval (None: unknown)."""

    mean: float
    half_width: float | None

    @property
    def significant(self) -> bool:
        """Whether the interval excludes 0."""
        return self.half_width is not None and abs(self.mean) > self.half_width


def paired_difference(first: list[float], other: list[float], noise: float | None) -> Interval:
    """Return Student's t interval of the paired difference, with the sampling noise added in quadrature.

    With one seed, the half-width is the sampling noise alone.
    """
    pairs = [b - a for a, b in zip(first, other, strict=True) if math.isfinite(b - a)]
    if not pairs:
        return Interval(math.nan, None)
    mean = statistics.mean(pairs)
    if len(pairs) == 1:
        return Interval(mean, noise)
    quantile = float(stdtrit(len(pairs) - 1, (1 + LEVEL) / 2))
    over_seeds = quantile * statistics.stdev(pairs) / math.sqrt(len(pairs))
    return Interval(mean, math.hypot(over_seeds, noise or 0.0))


def sampling_noise(
    study: Study, out: Path, results: dict[tuple[str, int], RunResult], first: str, entry: str
) -> dict[str, float]:
    """Return column -> half-width of the interval due to the finite number of test samples, from the first seed.

    Empty if the seeds have different test samples: then the spread over seeds includes that noise.
    """
    folders = study.folders(out)
    seeds = [seed for seed in study.seeds if (first, seed) in results and (entry, seed) in results]
    targets = [Run(folders[entry, seed]).predictions()[1] for seed in seeds]
    if not seeds or any(not torch.equal(target, targets[0]) for target in targets):
        return {}
    noise = {}
    logits, scaled = [], []
    for key in ((first, seeds[0]), (entry, seeds[0])):
        logits.append(Run(folders[key]).predictions()[0])
        scaled.append(logits[-1] / results[key].temperature())
    for suffix, (a, b) in (("", logits), ("_t", scaled)):
        for name, half_width in half_widths(a, b, targets[0]).items():
            noise[name + suffix] = half_width
    return noise


def half_widths(logits_a: Tensor, logits_b: Tensor, target: Tensor) -> dict[str, float]:
    """Return the half-width of the confidence interval of the difference of each metric, due to the samples alone."""
    differences = compare(logits_a, logits_b, target, input="logits", level=LEVEL).differences
    return {name: (difference.high - difference.low) / 2 for name, difference in differences.items()}
