"""Training: a recipe in, a run folder out, whatever happens in between."""

from dualfocal.train.engine import train
from dualfocal.train.failure import DivergedError
from dualfocal.train.recipe import Recipe
from dualfocal.train.run import Run, RunError, find_runs

__all__ = ["DivergedError", "Recipe", "Run", "RunError", "find_runs", "train"]
