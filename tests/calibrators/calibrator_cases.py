"""Data and calibrators shared by several tests."""

from collections.abc import Iterable

import torch
from torch import Tensor

from dualfocal.calibrators import CALIBRATORS, Calibrator, Note, make_calibrator

NAMES = (*CALIBRATORS, "temperature+isotonic")
KEEPS_ARGMAX = tuple(name for name in CALIBRATORS if make_calibrator(name).keeps_argmax)
CHANGES_ARGMAX = tuple(name for name in NAMES if name not in KEEPS_ARGMAX)


def forced(name: str) -> Calibrator:
    """A calibrator by name that also fits fewer samples than parameters."""
    calibrator = make_calibrator(name)
    if hasattr(calibrator, "force"):
        calibrator.force = True
    return calibrator


def texts(notes: Iterable[Note]) -> list[str]:
    return [str(note) for note in notes]


def draw(probs: Tensor, generator: torch.Generator) -> Tensor:
    return torch.multinomial(probs, 1, generator=generator)[:, 0]


def sample(
    n: int = 400, num_classes: int = 4, *, sharp: float = 2.0, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Logits that are ``sharp`` times too large, and labels from slightly biased probabilities."""
    generator = torch.Generator().manual_seed(seed)
    logits = 1.5 * torch.randn(n, num_classes, generator=generator, dtype=torch.float64)
    target = draw((logits + torch.linspace(-0.4, 0.4, num_classes)).softmax(1), generator)
    return (sharp * logits).to(dtype), target
