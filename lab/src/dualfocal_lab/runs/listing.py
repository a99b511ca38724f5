"""Find and list run folders: the state of each run, and the metrics of finished runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dualfocal.metrics import METRICS
from dualfocal.predictions import find_run_folders
from dualfocal.tables import Table
from dualfocal_lab.checks import finite
from dualfocal_lab.runs.layout import FAILURE
from dualfocal_lab.runs.recipe import Recipe
from dualfocal_lab.runs.result import RunResult
from dualfocal_lab.runs.run import Run

HEADINGS = ("run", "state", "epoch", "error %", "ECE %", "floor %", "NLL", "T", "trained")


@dataclass
class Listed:
    """A run in the list. A damaged run has only the fields that could be read.

    Attributes:
        scores: Metrics of the test split, or else of the validation split, as fractions.
        problem: Why the run failed, or which file is damaged.
    """

    path: str
    state: str = "damaged"
    recipe: Recipe | None = None
    epoch: int = 0
    scores: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain content for JSON."""
        content: dict[str, Any] = {"run": self.path, "state": self.state}
        if self.recipe is not None:
            content |= {"epoch": self.epoch, "epochs": self.recipe.epochs}
            content |= {name: getattr(self.recipe, name) for name in ("data", "model", "loss", "loss_options", "seed")}
        return content | self.scores | ({} if self.problem is None else {"problem": self.problem})

    def cells(self) -> list[str]:
        """Return the row of the run in the table."""
        state = f"{self.state}, val part" if self.scores.get("part") == "val" else self.state
        epoch = "" if self.recipe is None else f"{self.epoch}/{self.recipe.epochs}"
        trained = "" if self.recipe is None else f"{self.recipe.data} {self.recipe.model} {self.recipe.loss}"
        kinds = {"error": "error", "ece": "ece", "floor": "ece", "nll": "nll"}
        numbers = [METRICS[kind].text(self.scores.get(name)) for name, kind in kinds.items()]
        temperature = f"{self.scores['temperature']:.3f}" if "temperature" in self.scores else ""
        return [self.path, state, epoch, *numbers, temperature, trained]


def find_runs(folder: Path, depth: int = 3) -> list[Run]:
    """Return the run folders in a folder, or the folder itself, sorted by path.

    Args:
        folder: where to search.
        depth: how many levels of subfolders to search.
    """
    return [run for path in find_run_folders(folder, depth) if (run := Run(path)).exists]


def list_run(run: Run) -> Listed:
    """Read a run folder. A damaged run raises no error, but has a ``problem``."""
    listed = Listed(str(run.path))
    try:
        listed.recipe, listed.epoch = run.recipe, len(run.log)
        if (result := run.result) is not None:
            listed.scores = _scores(result)
        elif (failure := run.failure) is not None:
            listed.problem = str(failure.get("what", f"{FAILURE} does not say why"))
        listed.state = run.state
    except (ValueError, OSError) as error:
        listed.problem = " ".join(str(error).removeprefix(f"{run.path}: ").split())
    return listed


def runs_table(runs: Sequence[Listed]) -> Table:
    """Return a table of state, progress and metrics of each run."""
    return Table(HEADINGS, [run.cells() for run in runs], left=(0, 1, len(HEADINGS) - 1))


def _scores(result: RunResult) -> dict[str, Any]:
    part = result.main_part
    if part is None:
        return {}
    metrics = {name: finite(getattr(result.parts[part], name)) for name in ("error", "ece", "nll")}
    temperature = {"temperature": result.temperature()} if result.calibrated else {}
    return {"part": part, **metrics, "floor": result.floor("ece", part), **temperature}
