"""Train a model from a recipe into a run folder; an interrupted run can be resumed."""

from dualfocal.train.engine import train
from dualfocal.train.failure import DivergedError

__all__ = ["DivergedError", "train"]
