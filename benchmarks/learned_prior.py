"""What a prior whose width the data choose is worth: NLL on fresh data of vector and matrix scaling.

    python benchmarks/learned_prior.py [--csv FILE]

Logits are normal, of deviation 3. Labels are drawn from softmax of
  calibrated   the logits themselves
  too sharp    logits / 2
  class shift  logits / 1.5, shifted by -1 to 1 from the first class to the last
  confusion    no linear map at all: 0.7 p + 0.3 p of the class before
  matrix       the logits times 0.7 I plus noise of deviation 0.3 / sqrt(C)
and 20,000 fresh samples are scored by fits on N. "truth" is the NLL of the probabilities the labels were drawn from.
Columns "prior ..." are MatrixScaling with that precision for all its parameters; "learned" is the default. Both start
from the best temperature. One seed for each row.
"""

import argparse
import math
from pathlib import Path

import torch
from _measure import show
from torch import Tensor

from dualfocal.calibrators import Calibrator, MatrixScaling, TemperatureScaling, VectorScaling
from dualfocal.metrics import nll

SIZES = [(10, 1000), (10, 5000), (100, 12_000)]  # classes, samples
KINDS = ("calibrated", "too sharp", "class shift", "confusion", "matrix")
PRIORS = (1.0, 100.0, 10_000.0)
FRESH = 20_000


def draw(kind: str, n: int, classes: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, labels, and the probabilities that the labels were drawn from."""
    z = 3 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    p = z.softmax(1)
    if kind == "too sharp":
        p = (z / 2).softmax(1)
    elif kind == "class shift":
        p = (z / 1.5 + torch.linspace(-1, 1, classes)).softmax(1)
    elif kind == "confusion":
        p = 0.7 * p + 0.3 * p.roll(1, 1)
    elif kind == "matrix":
        noise = torch.randn(classes, classes, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        p = (z @ (0.7 * torch.eye(classes, dtype=torch.float64) + 0.3 / math.sqrt(classes) * noise).T).softmax(1)
    return z, torch.multinomial(p, 1, generator=generator)[:, 0], p


def main() -> None:
    """Fit, score, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="write the records here")
    args = parser.parse_args()
    records = []
    for classes, n in SIZES:
        for kind in KINDS:
            generator = torch.Generator().manual_seed(1)
            z, y, _ = draw(kind, n, classes, generator)
            fresh, target, truth = draw(kind, FRESH, classes, generator)
            methods: dict[str, Calibrator] = {
                "temperature": TemperatureScaling(),
                "vector, learned": VectorScaling(),
                "matrix, learned": MatrixScaling(),
                **{f"matrix, prior {prior:g}": MatrixScaling(prior=prior) for prior in PRIORS},
            }
            scores = {"as it is": nll(fresh, target), "truth": nll(truth.log(), target)}
            scores |= {name: nll(method.fit(z, y)(fresh), target) for name, method in methods.items()}
            record = {"classes": classes, "samples": n, "labels": kind}
            record |= {name: f"{score:.4f}" for name, score in scores.items()}
            records.append(record | {"torch": torch.__version__})
            print(f"{classes} classes, {n} samples: {kind}", flush=True)
    show(f"NLL of {FRESH:,} fresh samples", records, args.csv)


if __name__ == "__main__":
    main()
