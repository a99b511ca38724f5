"""How often the nominal 90 % interval of a cross-validated calibrator contains the truth.

    python benchmarks/cross_fit_coverage.py [--csv FILE] [--repeats 300] [--log FILE]

The interval of `compare_calibrators` is about the change in NLL on new data by the calibrator fitted to all N samples.
The truth is that of this fit, over 4,000 fresh samples with their true probabilities. "scores only" is the interval
without the variation of the fits, which is what resampling the cross-validated scores gives. Logits are normal, of
deviation 2, 5 classes; 5 folds, twice. Labels are drawn from softmax of

  calibrated    the logits
  sharp         the logits / 1.3
  very sharp    the logits / 2
  biased        the logits, shifted by -0.7 to 0.7 from the first class to the last

Goal: 86 % or more. A rate passes if its 99 % binomial interval reaches the goal.
"""

import argparse
import os
from collections import defaultdict
from pathlib import Path

import torch
from _measure import in_parts, show
from scipy.stats import binomtest
from torch import Tensor

from dualfocal.calibrators import compare_calibrators
from dualfocal.calibrators.registry import make_calibrator

SIZES, CLASSES, FRESH, GOAL = (200, 400, 1000), 5, 4000, 0.86
KINDS = ("calibrated", "sharp", "very sharp", "biased")
METHODS = ("temperature", "vector", "platt", "isotonic", "histogram")


def draw(kind: str, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return logits and the true probabilities."""
    logits = 2 * torch.randn(n, CLASSES, generator=generator, dtype=torch.float64)
    divisor = {"sharp": 1.3, "very sharp": 2.0}.get(kind, 1.0)
    shift = torch.linspace(-0.7, 0.7, CLASSES) if kind == "biased" else 0.0
    return logits, (logits / divisor + shift).softmax(1)


def expected_nll(logits: Tensor, p: Tensor) -> float:
    """Of labels drawn from p."""
    return -float((p * logits.log_softmax(1)).sum(1).mean())


def simulate(job: tuple[int, str, int]) -> dict[str, tuple[bool, bool]]:
    """Whether the interval of each method contains the truth, and that from the scores only."""
    torch.set_num_threads(1)
    n, kind, seed = job
    generator = torch.Generator().manual_seed(10_000 * n + 1000 * KINDS.index(kind) + seed)
    logits, p = draw(kind, n, generator)
    target = torch.multinomial(p, 1, generator=generator)[:, 0]
    fresh, fresh_p = draw(kind, FRESH, generator)
    result, before = compare_calibrators(logits, target, METHODS, seed=seed), expected_nll(fresh, fresh_p)
    outcomes = {}
    for name in METHODS:
        truth = expected_nll(make_calibrator(name).fit(logits, target)(fresh), fresh_p) - before
        change, draws = result[name].changes["nll"], result[name].draws["nll"] - result["uncalibrated"].draws["nll"]
        low, high = draws.quantile(0.05), draws.quantile(0.95)
        outcomes[name] = bool(change.low <= truth <= change.high), bool(low <= truth <= high)
    return outcomes


def main() -> None:
    """Simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="write the records here")
    parser.add_argument("--repeats", type=int, default=300, help="samples drawn for each row (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: %(default)s)")
    parser.add_argument("--log", type=Path, help="append every part of the work to this file, and resume from it")
    args = parser.parse_args()
    jobs = [(n, kind, seed) for n in SIZES for kind in KINDS for seed in range(args.repeats)]
    held = defaultdict[tuple[int, str, str], list[int]](lambda: [0, 0])
    for (n, kind, _), outcomes in in_parts(simulate, jobs, args.jobs, args.log):
        for name, (widened, plain) in outcomes.items():
            held[n, kind, name][0] += widened
            held[n, kind, name][1] += plain
    records = []
    for n, kind, name in ((n, kind, name) for n in SIZES for kind in KINDS for name in METHODS):
        widened, plain = held[n, kind, name]
        record = {"samples": n, "data": kind, "method": name, "nominal": 0.9, "held": f"{widened / args.repeats:.3f}"}
        passed = bool(binomtest(widened, args.repeats).proportion_ci(0.99).high >= GOAL)
        record |= {"scores only": f"{plain / args.repeats:.3f}", "passed": passed}
        records.append(record | {"repeats": args.repeats, "torch": torch.__version__})
    show("cross-validation: how often the interval of the change in NLL contains the truth", records, args.csv)


if __name__ == "__main__":
    main()
