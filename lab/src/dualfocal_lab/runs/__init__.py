"""Run folders: recipes, results, logs and weights of training runs on disk."""

from dualfocal_lab.runs import layout
from dualfocal_lab.runs.layout import RunBusyError, RunError
from dualfocal_lab.runs.listing import find_runs
from dualfocal_lab.runs.recipe import Recipe
from dualfocal_lab.runs.result import RunResult, Scaled
from dualfocal_lab.runs.run import Run, default_folder

__all__ = ["Recipe", "Run", "RunBusyError", "RunError", "RunResult", "Scaled", "default_folder", "find_runs", "layout"]
