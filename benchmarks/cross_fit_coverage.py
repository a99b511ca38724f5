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

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from _simulation import Record, Values, means, passes, run_simulation
from torch import Tensor

from dualfocal.calibrators import compare_calibrators
from dualfocal.calibrators.registry import make_calibrator

SIZES, CLASSES, FRESH, GOAL = (200, 400, 1000), 5, 4000, (0.86, 1.0)
CHUNK = 10  # data sets that one process draws at a time
KINDS = ("calibrated", "sharp", "very sharp", "biased")
METHODS = ("temperature", "vector", "platt", "isotonic", "histogram")


class Setting(NamedTuple):
    """One setting of the simulation."""

    samples: int
    data: str


SETTINGS = [Setting(samples, kind) for samples, kind in product(SIZES, KINDS)]


def draw(kind: str, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return logits and the true probabilities."""
    logits = 2 * torch.randn(n, CLASSES, generator=generator, dtype=torch.float64)
    divisor = {"sharp": 1.3, "very sharp": 2.0}.get(kind, 1.0)
    shift = torch.linspace(-0.7, 0.7, CLASSES) if kind == "biased" else 0.0
    return logits, (logits / divisor + shift).softmax(1)


def expected_nll(logits: Tensor, p: Tensor) -> float:
    """Return the NLL of labels that are drawn from p."""
    return -float((p * logits.log_softmax(1)).sum(1).mean())


def simulate(setting: Setting, repeats: range) -> Iterator[dict[str, float]]:
    """Yield whether the interval of each method contains the truth, and whether that from the scores only does."""
    n, kind = setting
    for seed in repeats:
        generator = torch.Generator().manual_seed(10_000 * n + 1000 * KINDS.index(kind) + seed)
        logits, p = draw(kind, n, generator)
        target = torch.multinomial(p, 1, generator=generator)[:, 0]
        fresh, fresh_p = draw(kind, FRESH, generator)
        result, before = compare_calibrators(logits, target, METHODS, seed=seed), expected_nll(fresh, fresh_p)
        outcomes: dict[str, float] = {}
        for name in METHODS:
            truth = expected_nll(make_calibrator(name).fit(logits, target)(fresh), fresh_p) - before
            change, draws = result[name].changes["nll"], result[name].draws["nll"] - result["uncalibrated"].draws["nll"]
            outcomes[name] = change.low <= truth <= change.high
            low, high = np.quantile(draws, [0.05, 0.95])
            outcomes[f"{name}, scores only"] = bool(low <= truth <= high)
        yield outcomes


def summarize(setting: Setting, values: Values) -> list[Record]:
    """Return a line of the CSV file for each method."""
    rates = means(values)
    return [
        {
            **setting._asdict(),
            "method": name,
            "nominal": 0.9,
            "held": f"{rates[name]:.3f}",
            "scores only": f"{rates[f'{name}, scores only']:.3f}",
            "passed": passes(values[name], GOAL),
            "repeats": len(values[name]),
            "torch": torch.__version__,
        }
        for name in METHODS
    ]


if __name__ == "__main__":
    run_simulation(__doc__, SETTINGS, simulate, summarize, repeats=300, chunk=CHUNK)
