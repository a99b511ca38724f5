"""Train a model from a recipe into a run folder; an interrupted run can be resumed."""

from dualfocal_lab.train.callbacks import CallbackError, TensorBoard
from dualfocal_lab.train.engine import train
from dualfocal_lab.train.failure import DivergedError

__all__ = ["CallbackError", "DivergedError", "TensorBoard", "train"]
