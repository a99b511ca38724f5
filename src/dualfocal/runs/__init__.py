"""The run folder: what a training leaves on disk, and the only thing that tables and reports read."""

from dualfocal.runs.layout import RunError
from dualfocal.runs.recipe import Recipe
from dualfocal.runs.result import RunResult
from dualfocal.runs.run import Run, find_runs

__all__ = ["Recipe", "Run", "RunError", "RunResult", "find_runs"]
