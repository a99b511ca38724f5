"""A run folder, to read and to write."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from filelock import FileLock, Timeout
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dualfocal._files import atomic_path, leftovers
from dualfocal.predictions import load_predictions
from dualfocal.runs.layout import (
    CHECKPOINT,
    FAILURE,
    LOCK,
    LOG,
    MODEL,
    PREDICTIONS,
    RECIPE,
    RESULT,
    SCHEMA,
    SHIFT,
    RunError,
    check_schema,
    read_json,
)
from dualfocal.runs.recipe import Recipe, load_recipe
from dualfocal.runs.result import RunResult
from dualfocal.runs.source import predictions_file


class Run:
    """A run folder, to read. Nothing is kept in memory: each look is at the disk.

    >>> run = Run("runs/never-started")
    >>> run.state
    'absent'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def recipe(self) -> Recipe:
        """What was asked for."""
        return load_recipe(self.path / RECIPE)

    @property
    def log(self) -> list[dict[str, Any]]:
        """A dict per finished epoch."""
        return [line for line, _ in self._lines()]

    @property
    def num_epochs(self) -> int:
        """Number of lines of the log, which are not read."""
        return (self.path / LOG).read_bytes().count(b"\n") if (self.path / LOG).exists() else 0

    @property
    def result(self) -> RunResult | None:
        """Metrics as fractions, versions, device; None: not finished."""
        path = self.path / RESULT
        return RunResult.from_dict(read_json(path), str(path)) if path.exists() else None

    def require_result(self) -> RunResult:
        """The result of a finished run.

        Raises:
            RunError: the run is not finished, or its result is damaged.
        """
        if (result := self.result) is None:
            raise RunError(f"{self.path}: is {self.state}, a model and a result are there once it is finished")
        return result

    @property
    def failure(self) -> dict[str, Any] | None:
        """Why it stopped, if its loss did not stay finite."""
        return read_json(self.path / FAILURE) if (self.path / FAILURE).exists() else None

    @property
    def exists(self) -> bool:
        """Whether the folder is a run folder."""
        return (self.path / RECIPE).is_file()

    @property
    def state(self) -> str:
        """``"finished"``, ``"running"``, ``"failed"``, ``"stopped"`` (run it again to go on), or ``"absent"``."""
        if not self.exists:
            return "absent"
        if (self.path / RESULT).exists():
            return "finished"
        if self._is_locked():
            return "running"
        return "failed" if (self.path / FAILURE).exists() else "stopped"

    @property
    def has_predictions(self) -> bool:
        """Whether the predictions have been written, and kept."""
        return (self.path / PREDICTIONS).exists()

    def predictions(self, part: str = "test") -> tuple[Tensor, Tensor]:
        """Logits and labels of a part, ``"val"`` or ``"test"``."""
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
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise RunError(f"{path}: severity {severity} cannot be read: {error}") from error

    def model(self) -> nn.Module:
        """The trained model, on the CPU, in evaluation mode."""
        from dualfocal.models import make_model

        result = self.require_result()
        model = make_model(self.recipe.model, num_classes=result.num_classes, in_channels=result.in_channels)
        if self.recipe.precision == "float64":
            model = model.double()
        model.load_state_dict(load_file(self.path / MODEL))
        return model.eval()

    # Writing, by the one process that trains.

    @contextmanager
    def claimed(self, recipe: Recipe) -> Iterator[None]:
        """Have the folder to oneself: made if need be, with this recipe in it.

        Raises:
            RunError: another process has it, it holds another recipe or something else, or cannot be written to.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path}: must be a folder, but is a file")
        with _writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self.check_recipe(recipe)  # not even a lock goes into a folder of something else
        lock = FileLock(self.path / LOCK)
        with _writing(self.path / LOCK), suppress(Timeout):
            lock.acquire(timeout=0.1)  # a process that only looks whether it is taken is gone by then
        if not lock.is_locked:
            raise RunError(f"{self.path}: another process is training there")
        try:
            self.check_recipe(recipe)  # two may have come at once
            if (self.path / LOG).exists():
                with _writing(self.path / LOG):  # known before an epoch is trained
                    (self.path / LOG).open("ab").close()
            for path in leftovers(self.path):
                path.unlink()
            if not (self.path / RECIPE).exists():
                self.write_json(RECIPE, recipe.to_dict())
            yield
        finally:
            # The next process finds a finished run; while there is work left, two could lock two files of this name.
            if (self.path / RESULT).exists():
                (self.path / LOCK).unlink(missing_ok=True)
            lock.release()

    def tidy(self) -> None:
        """Remove what a process has left that was killed with everything written."""
        if (self.path / RESULT).exists() and (self.path / CHECKPOINT).exists():
            with suppress(OSError), FileLock(self.path / LOCK, timeout=0):
                for path in (self.path / CHECKPOINT, *leftovers(self.path), self.path / LOCK):
                    path.unlink(missing_ok=True)

    def check_recipe(self, recipe: Recipe) -> None:
        """Raise a RunError if the folder is another recipe's, or no run folder."""
        if not self.path.is_dir():
            return
        if (self.path / RECIPE).exists():
            if different := self.recipe.differences(recipe):
                raise RunError(
                    f"{self.path}: was made by another recipe ({'; '.join(different)}): choose another folder"
                )
            return
        ours = {LOCK, *(path.name for path in leftovers(self.path))}
        if strange := sorted(path.name for path in self.path.iterdir() if path.name not in ours):
            raise RunError(
                f"{self.path}: is no run folder, it holds {', '.join(strange[:3])} but no {RECIPE}: "
                "choose another folder"
            )

    def append(self, line: dict[str, Any]) -> None:
        """Add a line to the log."""
        text = json.dumps({"schema": SCHEMA, **line}, allow_nan=False) + "\n"
        with _writing(self.path / LOG), (self.path / LOG).open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def cut_log(self, epochs: int) -> None:
        """Keep the lines of the first epochs."""
        path, lines = self.path / LOG, self._lines()
        if len(lines) < epochs:
            raise RunError(f"{path}: has {len(lines)} epochs, the checkpoint is of epoch {epochs}")
        if path.exists():
            os.truncate(path, lines[epochs - 1][1] if epochs else 0)

    def write_predictions(self, predictions: Mapping[str, tuple[Tensor, Tensor]], class_names: Sequence[str]) -> None:
        """Write logits and labels of each part."""
        tensors = {
            f"{part}_{name}": tensor
            for part, pair in predictions.items()
            for name, tensor in zip(("logits", "target"), pair, strict=True)
        }
        self.write_tensors(PREDICTIONS, tensors, {"class_names": json.dumps(class_names)})

    def write_result(self, result: RunResult) -> None:
        """Write the result, which makes the run finished, and remove the checkpoint."""
        self.write_json(RESULT, result.to_dict())
        (self.path / CHECKPOINT).unlink(missing_ok=True)

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write one of the JSON files."""
        text = json.dumps(content, indent=2, allow_nan=False) + "\n"
        self.write(name, lambda path: path.write_text(text, encoding="utf-8"))

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
        """Write one of the safetensors files."""
        self.write(name, lambda path: save_file(storable(tensors), path, metadata))

    def write(self, name: str, write: Callable[[Path], object]) -> None:
        """Write a file aside, see it onto the disk, then give it its name."""
        path = self.path / name
        with _writing(path), atomic_path(path) as temporary:
            write(temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())

    def _lines(self) -> list[tuple[dict[str, Any], int]]:
        """The lines of the log that are whole, and in order, each with the place where it ends."""
        path = self.path / LOG
        found: list[tuple[dict[str, Any], int]] = []
        end = 0
        for text in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
            end += len(text)
            try:
                line = json.loads(text)
            except ValueError:
                break
            is_whole = text.endswith(b"\n") and isinstance(line, dict)  # not so if a process was killed
            if not is_whole or check_schema(f"{path}:", line).get("epoch") != len(found) + 1:
                break
            found.append((line, end))
        return found

    def _is_locked(self) -> bool:
        if not (self.path / LOCK).exists():
            return False
        try:
            with FileLock(self.path / LOCK, timeout=0):
                return False
        except OSError as error:  # another one: a folder that may only be read
            return isinstance(error, Timeout)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn whatever is raised while a file is written into a RunError that names it."""
    try:
        yield
    except Exception as error:  # a full disk makes each library raise something of its own
        reason = getattr(error, "strerror", None) or (str(error).splitlines() or [type(error).__name__])[0]
        known = f"{path}: cannot be written: "
        raise RunError(f"{known}{reason.removeprefix(known)}") from error


def storable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as safetensors needs them: on the CPU, contiguous, and no two in the same memory."""
    taken: set[int] = set()
    stored = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        if plain.numel() and (
            plain.untyped_storage().data_ptr() in taken or plain.untyped_storage().nbytes() > plain.nbytes
        ):
            plain = plain.clone()  # tied weights, or a part of something larger
        taken.add(plain.untyped_storage().data_ptr())
        stored[name] = plain
    return stored


def default_folder(recipe: Recipe) -> Path:
    """Where a run goes if nobody says: the same recipe always to the same place."""
    data, model = Path(recipe.data).stem, recipe.model.rpartition(":")[2]
    return Path("runs", f"{data}-{model}-{recipe.loss}-seed{recipe.seed}-{recipe.digest}")


def find_runs(folder: Path, depth: int = 3) -> list[Run]:
    """The run folders in a folder, itself included, sorted by path."""
    if Run(folder).exists:
        return [Run(folder)]
    if depth == 0 or not folder.is_dir():
        return []
    inner = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    return [run for path in inner for run in find_runs(path, depth - 1)]
