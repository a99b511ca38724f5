"""NLL on new data of vector, matrix and Dirichlet scaling, whose prior is learned from the data of the fit.

    python benchmarks/learned_prior.py [--csv FILE]

The yardstick, "cross-validated", is the same method with one precision for all its parameters, chosen among 1, 10^0.5,
10, ..., 10^5 by 5-fold cross-validation on the data of the fit (56 fits instead of one). "gap" is the learned NLL minus
the cross-validated one: below 0, the learned prior is the better one.

Real predictions: every run in results/cifar10, fitted on the first N samples of its validation split and scored on its
test split of 10,000. Simulated predictions: normal logits with a standard deviation of 3, fitted on N samples and
scored on 20,000 new ones; the labels are drawn from softmax of
  calibrated   the logits themselves
  too sharp    logits / 2
  class shift  logits / 1.5, shifted by -1 to 1 from the first class to the last
  confusion    no linear map: 0.7 p + 0.3 p of the class before
  matrix       the logits times 0.7 I plus noise of deviation 0.3 / sqrt(C)
One seed for each row.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from _measure import Record, show
from torch import Tensor

from dualfocal.calibrators import DirichletCalibration, MatrixScaling, TemperatureScaling, VectorScaling
from dualfocal.metrics import nll
from dualfocal_lab.runs import Run

RUNS = Path(__file__).parents[1] / "lab" / "results" / "cifar10"
REAL_SIZES = (500, 1000, 5000)  # samples of the fit
SIZES = [(10, 1000), (10, 5000), (100, 12_000)]  # classes, samples of the fit
KINDS = ("calibrated", "too sharp", "class shift", "confusion", "matrix")
FRESH = 20_000
METHODS = {"vector": VectorScaling, "matrix": MatrixScaling, "dirichlet": DirichletCalibration}
FOLDS, PRIORS = 5, [10 ** (k / 2) for k in range(11)]

Labelled = tuple[Tensor, Tensor]  # logits and labels


def draw(kind: str, n: int, classes: int, generator: torch.Generator) -> Labelled:
    """Simulated logits and labels."""
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
    return z, torch.multinomial(p, 1, generator=generator)[:, 0]


def settings() -> Iterator[tuple[str, Labelled, Labelled]]:
    """Name of the data, samples of the fit, samples of the score."""
    for folder in sorted(RUNS.iterdir()):
        run = Run(folder)
        (z, y), test = run.predictions("val"), run.predictions("test")
        for n in REAL_SIZES:
            yield folder.name, (z[:n], y[:n]), test
    for classes, n in SIZES:
        for kind in KINDS:
            generator = torch.Generator().manual_seed(1)
            yield kind, draw(kind, n, classes, generator), draw(kind, FRESH, classes, generator)


def choose_prior(method: str, z: Tensor, y: Tensor) -> float:
    """The precision with the lowest cross-validated NLL."""
    fold = torch.randperm(len(y), generator=torch.Generator().manual_seed(0)) % FOLDS

    def held_out_nll(prior: float) -> float:
        total = 0.0
        for k in range(FOLDS):
            inside, outside = fold != k, fold == k
            calibrator = METHODS[method](prior=prior, **options(method)).fit(z[inside], y[inside])
            total += nll(calibrator(z[outside]), y[outside]) * int(outside.sum())
        return total

    return min(PRIORS, key=held_out_nll)


def options(method: str) -> dict[str, bool]:
    """A fold may have fewer samples than a matrix has parameters."""
    return {} if method == "vector" else {"force": True}


def measure(data: str, fit: Labelled, fresh: Labelled) -> Record:
    """Scores of all methods on one setting."""
    record: Record = {"data": data, "classes": fit[0].shape[1], "samples": len(fit[1])}
    record["uncalibrated"] = f"{nll(*fresh):.4f}"
    record["temperature"] = f"{nll(TemperatureScaling().fit(*fit)(fresh[0]), fresh[1]):.4f}"
    for name, make in METHODS.items():
        learned = nll(make(**options(name)).fit(*fit)(fresh[0]), fresh[1])
        prior = choose_prior(name, *fit)
        chosen = nll(make(prior=prior, **options(name)).fit(*fit)(fresh[0]), fresh[1])
        record |= {f"{name}, learned": f"{learned:.4f}", f"{name}, cross-validated": f"{chosen:.4f}"}
        record |= {f"{name}, gap": f"{learned - chosen:+.4f}"}
    return record | {"torch": torch.__version__}


def main() -> None:
    """Fit, score, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="write the records here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    records = []
    for data, fit, fresh in settings():
        records.append(measure(data, fit, fresh))
        print(*records[-1].values(), flush=True)
    show("NLL on new data", records, args.csv)


if __name__ == "__main__":
    main()
