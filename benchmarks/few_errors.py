"""Few errors: how often is a calibrated model called worse than one that states too few errors?

    python benchmarks/few_errors.py [--csv FILE] [--repeats 200] [--log FILE]

A bootstrap cannot draw errors that were not observed, so the intervals of `compare` and `compare_calibrators` are also
at least as long as the noise of labels that are drawn from the stated probabilities. Each data set has N samples; the
error rate of a sample is log-uniform between two rates, and labels are drawn from the probabilities p of a calibrated
model.

  held-out   `compare_calibrators` with all calibrators, fitted on N other samples
  crossed    `compare_calibrators` with all calibrators, cross-validated
  sharper    `compare` of the calibrated model (A) with the model whose logits are multiplied by 1.5 (B)

`wrong` is the share of data sets with a recommended calibrator that raises the NLL on 4,000 new samples with known
probabilities, or in which B is significantly better than A. Goal: at most 10 %. ECE, adaptive and classwise ECE of
`sharper` are left out: their expected values at these N are often truly lower for B, because its noise floor is lower.

In other settings, the model has the logits of the calibrated one times a factor. They show the power that is left:

  fixed      `compare_calibrators` with temperature, vector and isotonic, cross-validated; `right` is the share of
             data sets in which temperature, or any calibrator, is recommended
  flatter    `compare` of the model (A) with the calibrated one (B); `right` is the share in which B is significantly
             better
"""

from collections.abc import Iterator
from itertools import product
from math import log
from typing import NamedTuple

import torch
from _simulation import Record, Values, means, passes, run_simulation
from torch import Tensor

from dualfocal.calibrators import compare_calibrators
from dualfocal.calibrators.registry import make_calibrator
from dualfocal.metrics import compare

FRESH, GOAL = 4000, (0.0, 0.1)
CHUNK = 10  # data sets that one process draws at a time
METRICS = ("nll", "brier", "debiased_ece")


class Setting(NamedTuple):
    """One setting of the simulation."""

    kind: str
    samples: int
    classes: int
    low: float  # error rates
    high: float
    factor: float = 1.0  # of the logits of the model


RARE, SPREAD, FEWER, MANY = (1e-3, 2e-2), (1e-7, 1e-1), (3e-4, 1e-2), (5e-2, 3e-1)  # error rates
POWER = [(500, 10, *MANY, 1.15), (2000, 10, *MANY, 1.5), (1000, 10, *RARE, 1.5)]
SETTINGS = [
    *(Setting("held-out", n, classes, *RARE) for n, classes in ((100, 2), (100, 10), (300, 10))),
    *(Setting("sharper", n, classes, *FEWER, 1.5) for n, classes in product((100, 200, 1000), (2, 10))),
    *(Setting(kind, *setting) for kind, setting in product(("flatter", "fixed"), POWER)),
    Setting("crossed", 100, 10, *RARE),
    Setting("held-out", 100, 10, *SPREAD),
    Setting("crossed", 100, 2, *SPREAD),
    Setting("crossed", 300, 10, *SPREAD),
    Setting("held-out", 1000, 10, *SPREAD),
]


def draw(setting: Setting, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return calibrated log-probabilities, (n, classes), and labels."""
    low, high = log(setting.low), log(setting.high)
    error = (low + (high - low) * torch.rand(n, generator=generator, dtype=torch.float64)).exp()
    rest = (2 * torch.randn(n, setting.classes - 1, generator=generator, dtype=torch.float64)).softmax(1)
    p = torch.cat([1 - error[:, None], error[:, None] * rest], 1)
    place = torch.rand(p.shape, generator=generator).argsort(1)  # any class can be the predicted one
    p = p.gather(1, place)
    return p.log(), torch.multinomial(p, 1, generator=generator)[:, 0]


def expected_nll(logits: Tensor, p: Tensor) -> float:
    """Return the NLL of labels that are drawn from p."""
    return -float((p * logits.log_softmax(1)).sum(1).mean())


def simulate(setting: Setting, repeats: range) -> Iterator[dict[str, float]]:
    """Yield whether the result is wrong, or right in the settings of power."""
    n = setting.samples
    for seed in repeats:
        generator = torch.Generator().manual_seed(10_000 * (1 + SETTINGS.index(setting)) + seed)
        true, target = draw(setting, n, generator)
        logits = setting.factor * true
        if setting.kind in ("sharper", "flatter"):
            models = (true, logits) if setting.kind == "sharper" else (logits, true)
            differences = compare(*models, target, seed=seed).differences
            yield {name: differences[name].better() == "B" for name in METRICS}
        elif setting.kind == "fixed":
            chosen = compare_calibrators(logits, target, ["temperature", "vector", "isotonic"], seed=seed).recommended
            yield {"temperature": chosen == "temperature", "any calibrator": chosen != "uncalibrated"}
        else:
            fit, labels = draw(setting, n, generator) if setting.kind == "held-out" else (logits, target)
            validation = (fit, labels) if setting.kind == "held-out" else None
            chosen = compare_calibrators(logits, target, validation=validation, seed=seed).recommended
            fresh, _ = draw(setting, FRESH, generator)
            calibrated = fresh if chosen == "uncalibrated" else make_calibrator(chosen).fit(fit, labels)(fresh)
            yield {"recommendation": expected_nll(calibrated, fresh.exp()) > expected_nll(fresh, fresh.exp())}


def summarize(setting: Setting, values: Values) -> list[Record]:
    """Return a line of the CSV file for each outcome."""
    power = setting.kind in ("fixed", "flatter")
    return [
        {
            **setting._asdict(),
            "outcome": name,
            "repeats": len(values[name]),
            "wrong": "" if power else f"{rate:.3f}",
            "right": f"{rate:.3f}" if power else "",
            "passed": "" if power else passes(values[name], GOAL),
        }
        for name, rate in means(values).items()
    ]


if __name__ == "__main__":
    run_simulation(__doc__, SETTINGS, simulate, summarize, repeats=200, chunk=CHUNK)
