"""How often the nominal 90 % interval of a cross-fit holds the truth: the change in NLL of the fits that were made.

    python benchmarks/cross_fit_coverage.py [--csv FILE] [--repeats 200]

Logits are normal, of deviation 2, labels drawn from softmax(logits / 1.3), 5 classes; 5 folds, twice. The truth is the
mean over all ten fits of the change in expected NLL, over 5,000 fresh samples with their true probabilities. The
resampling behind the interval takes samples for independent, which scores of fits that share data are not quite.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from _measure import show
from rich.progress import track
from torch import Tensor

from dualfocal.calibrators import (
    Calibrator,
    IsotonicCalibration,
    TemperatureScaling,
    VectorScaling,
    compare_calibrators,
)

SIZES, CLASSES, SHARPNESS, FRESH = (200, 1000), 5, 1.3, 5000
METHODS: dict[str, type[Calibrator]] = {
    "temperature": TemperatureScaling,
    "vector": VectorScaling,
    "isotonic": IsotonicCalibration,
}


def recorded(cls: type[Calibrator], fits: list[Calibrator]) -> Calibrator:
    """A calibrator whose copies leave their fits in a list."""

    class Recorded(cls):  # type: ignore[misc, valid-type]
        def fit(self, *args: Any, **options: Any) -> "Recorded":
            fits.append(super().fit(*args, **options))
            return self

    return Recorded()


def expected_nll(logits: Tensor, p: Tensor) -> float:
    """Of labels drawn from p."""
    return -float((p * logits.log_softmax(1)).sum(1).mean())


def main() -> None:
    """Simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="write the records here")
    parser.add_argument("--repeats", type=int, default=200, help="samples drawn for each row (default 200)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    records = []
    for n in SIZES:
        held = dict.fromkeys(METHODS, 0)
        for seed in track(range(args.repeats), f"N = {n}"):
            generator = torch.Generator().manual_seed(seed)
            logits = 2 * torch.randn(n, CLASSES, generator=generator)
            target = torch.multinomial((logits / SHARPNESS).softmax(1), 1, generator=generator)[:, 0]
            fresh = 2 * torch.randn(FRESH, CLASSES, generator=generator)
            p = (fresh / SHARPNESS).softmax(1)
            fits: dict[str, list[Calibrator]] = {name: [] for name in METHODS}
            made = {name: recorded(cls, fits[name]) for name, cls in METHODS.items()}
            result = compare_calibrators(logits, target, made, seed=seed)
            for name in METHODS:
                after = sum(expected_nll(fitted(fresh), p) for fitted in fits[name]) / len(fits[name])
                change = result[name].changes["nll"]
                held[name] += change.low <= after - expected_nll(fresh, p) <= change.high
        for name, count in held.items():
            record = {"samples": n, "method": name, "nominal": 0.9, "held": f"{count / args.repeats:.3f}"}
            records.append(record | {"repeats": args.repeats, "torch": torch.__version__})
    show("cross-fit: how often the interval of the NLL change holds the truth", records, args.csv)


if __name__ == "__main__":
    main()
