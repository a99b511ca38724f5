"""Run folders: recipes, results, logs and weights of training runs on disk."""

from dualfocal.runs import layout
from dualfocal.runs.layout import RunBusyError, RunError
from dualfocal.runs.listing import find_runs
from dualfocal.runs.recipe import Recipe
from dualfocal.runs.result import RunResult, Scaled
from dualfocal.runs.run import Run, default_folder

__all__ = ["Recipe", "Run", "RunBusyError", "RunError", "RunResult", "Scaled", "default_folder", "find_runs", "layout"]
