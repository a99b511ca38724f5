"""A run folder: its state, log, result, predictions and model."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dualfocal.predictions import load_predictions, predictions_file
from dualfocal_lab._sealed import load_sealed
from dualfocal_lab.runs.folder import RunFolder
from dualfocal_lab.runs.layout import (
    CHECKPOINT,
    FAILURE,
    LOG,
    MODEL,
    PREDICTIONS,
    RECIPE,
    RESULT,
    SHIFT,
    RunError,
    read_json,
)
from dualfocal_lab.runs.lease import find_owner
from dualfocal_lab.runs.log import read_log
from dualfocal_lab.runs.recipe import Recipe, recipe_of_run
from dualfocal_lab.runs.result import RunResult


class Run(RunFolder):
    """A run folder. Nothing is cached: every property reads the disk.

    Args:
        path: the folder, which need not exist.

    >>> run = Run("runs/never-started")
    >>> run.state
    'absent'
    """

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run."""
        return recipe_of_run(self.path)

    @property
    def log(self) -> list[dict[str, Any]]:
        """The log: one dict per finished epoch.

        Raises:
            RunError: the run is finished, but a line is damaged. The log of other runs ends before such a line: a
                process may have been killed while it was writing it.
        """
        lines = read_log(self.path / LOG)
        size = (self.path / LOG).stat().st_size if (self.path / LOG).exists() else 0
        if (self.path / RESULT).exists() and size > (lines[-1][1] if lines else 0):
            raise RunError(f"{self.path / LOG}: line {len(lines) + 1} is damaged")
        return [line for line, _ in lines]

    @property
    def num_epochs(self) -> int:
        """Number of lines of the log, without parsing them."""
        return (self.path / LOG).read_bytes().count(b"\n") if (self.path / LOG).exists() else 0

    @property
    def result(self) -> RunResult | None:
        """The result of the run, or None if it is not finished."""
        path = self.path / RESULT
        return RunResult.from_dict(read_json(path), str(path)) if path.exists() else None

    def require_result(self) -> RunResult:
        """Return the result of a finished run.

        Raises:
            RunError: the run is not finished, or its result is damaged.
        """
        if (result := self.result) is None:
            raise RunError(f"{self.path}: is {self.state}; model and result exist only when a run is finished")
        return result

    @property
    def failure(self) -> dict[str, Any] | None:
        """Why the run stopped, if its loss did not stay finite, else None."""
        return read_json(self.path / FAILURE) if (self.path / FAILURE).exists() else None

    @property
    def exists(self) -> bool:
        """Whether the folder is a run folder."""
        return (self.path / RECIPE).is_file()

    @property
    def state(self) -> str:
        """State: ``"finished"``, ``"running"``, ``"failed"``, ``"stopped"`` (can be resumed) or ``"absent"``."""
        if not self.exists:
            return "absent"
        if (self.path / RESULT).exists():
            return "finished"
        if (owner := find_owner(self.path)) is not None and owner.is_alive(time.time()):
            return "running"
        return "failed" if (self.path / FAILURE).exists() else "stopped"

    @property
    def has_predictions(self) -> bool:
        """Whether the predictions are on disk."""
        return (self.path / PREDICTIONS).exists()

    def predictions(self, part: str = "test") -> tuple[Tensor, Tensor]:
        """Return logits and labels of a split, ``"val"`` or ``"test"``.

        Raises:
            PredictionsError: the run has no predictions of the split.
        """
        data = load_predictions(predictions_file(self.path), split=part)
        return data.values, data.target

    def shifted_logits(self, severity: int) -> Tensor | None:
        """Logits of the test images with gaussian noise, as in CIFAR-10-C; None: they were not scored.

        Raises:
            RunError: the file is damaged, or lacks this severity.
        """
        path = self.path / SHIFT
        if not path.exists():
            return None
        try:
            with np.load(path) as arrays:
                return torch.from_numpy(arrays[f"severity{severity}"])
        except Exception as error:  # a damaged archive can raise anything
            reason = " ".join(str(error).split()) or type(error).__name__
            raise RunError(f"{path}: severity {severity} cannot be read: {reason}") from error

    def model(self) -> nn.Module:
        """Return the trained model, on the CPU, in evaluation mode.

        Raises:
            RunError: the run is not finished, or a file is damaged.
        """
        from dualfocal_lab.models import make_model

        result = self.require_result()
        model = make_model(self.recipe.model, num_classes=result.num_classes, in_channels=result.in_channels)
        if self.recipe.precision == "float64":
            model = model.double()
        try:
            model.load_state_dict(load_sealed(self.path / MODEL)[0])
        except ValueError as error:
            raise RunError(str(error)) from error
        except RuntimeError as error:  # other names or shapes
            raise RunError(f"{self.path / MODEL}: does not fit: {' '.join(str(error).split())}") from error
        return model.eval()

    def write_predictions(self, predictions: Mapping[str, tuple[Tensor, Tensor]], class_names: Sequence[str]) -> None:
        """Write logits and labels of each split."""
        tensors = {
            f"{part}_{name}": tensor
            for part, pair in predictions.items()
            for name, tensor in zip(("logits", "target"), pair, strict=True)
        }
        self.write_tensors(PREDICTIONS, tensors, {"class_names": json.dumps(class_names)})

    def write_result(self, result: RunResult) -> None:
        """Write the result, which marks the run as finished, and remove the checkpoint."""
        self.write_json(RESULT, result.to_dict())
        self.remove(CHECKPOINT)


def default_folder(recipe: Recipe) -> Path:
    """Return the default folder of a run; the same recipe always has the same folder."""
    names = (Path(recipe.data).stem, recipe.model, recipe.loss)
    data, model, loss = (name.rpartition(":")[2] for name in names)  # without the module of a custom object
    return Path("runs", f"{data}-{model}-{loss}-seed{recipe.seed}-{recipe.digest}")
