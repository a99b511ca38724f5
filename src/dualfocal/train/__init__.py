"""Train a model from a recipe into a run folder; an interrupted run can be resumed."""

from dualfocal.train.callbacks import CallbackError, TensorBoard
from dualfocal.train.engine import train
from dualfocal.train.failure import DivergedError

__all__ = ["CallbackError", "DivergedError", "TensorBoard", "train"]
