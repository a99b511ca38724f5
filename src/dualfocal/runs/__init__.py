"""The run folder: what a training leaves on disk, and the only thing that tables and reports read."""

from dualfocal.runs import layout
from dualfocal.runs.layout import RunError
from dualfocal.runs.recipe import Recipe
from dualfocal.runs.result import RunResult, Scaled
from dualfocal.runs.run import Run, default_folder, find_runs

__all__ = ["Recipe", "Run", "RunError", "RunResult", "Scaled", "default_folder", "find_runs", "layout"]
