"""Training: a recipe in, a run folder out, whatever happens in between."""

from dualfocal.train.engine import train
from dualfocal.train.failure import DivergedError

__all__ = ["DivergedError", "train"]
