"""Read and write a run folder."""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn

from dualfocal._files import atomic_path, flush_folder, leftovers
from dualfocal._sealed import load_sealed, save_sealed
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
    SHIFT,
    RunError,
    read_json,
    seal,
)
from dualfocal.runs.log import log_line, read_log
from dualfocal.runs.recipe import Recipe, recipe_of_run
from dualfocal.runs.result import RunResult
from dualfocal.runs.source import predictions_file


class Run:
    """A run folder. Nothing is cached: every property reads the disk.

    Args:
        path: the folder, which need not exist.

    >>> run = Run("runs/never-started")
    >>> run.state
    'absent'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock_file: tuple[int, int] | None = None  # identity of the lock that this process holds

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
        if self._is_locked():
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
        from dualfocal.models import make_model

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

    # Methods of the training process, which writes.

    @contextmanager
    def claimed(self, recipe: Recipe) -> Iterator[None]:
        """Lock the folder for one training process; create it, with the recipe, if it does not exist.

        Raises:
            RunError: another process holds the lock, the folder is of another recipe or not a run folder, or it is not
                writable.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path}: must be a folder, but is a file")
        with _writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self.check_recipe(recipe)  # before the lock is written into the folder
        lock = FileLock(self.path / LOCK)
        with _writing(self.path / LOCK), suppress(Timeout):
            lock.acquire(timeout=0.1)  # a process that only checks the lock releases it within that time
        if not lock.is_locked:
            raise RunError(f"{self.path}: another process is training there")
        self._lock_file = _identity(self.path / LOCK)
        try:
            self.check_recipe(recipe)  # again: another process may have written its recipe in the meantime
            if (self.path / LOG).exists():
                with _writing(self.path / LOG):  # check that it is writable before training
                    (self.path / LOG).open("ab").close()
            for path in leftovers(self.path):
                path.unlink()
            if not (self.path / RECIPE).exists():
                self.write_json(RECIPE, recipe.to_dict())
            yield
        finally:
            self._lock_file = None
            # Delete the lock file of finished runs only: otherwise two processes could lock two files of this name.
            if (self.path / RESULT).exists():
                (self.path / LOCK).unlink(missing_ok=True)
            lock.release()

    def tidy(self) -> None:
        """Remove what a process left that was killed after writing the result."""
        if not (self.path / RESULT).exists():
            return
        rest = [path for path in (self.path / CHECKPOINT, self.path / LOCK) if path.exists()]
        if rest := [*rest, *leftovers(self.path)]:
            with suppress(OSError), FileLock(self.path / LOCK, timeout=0):
                for path in (*rest, self.path / LOCK):
                    path.unlink(missing_ok=True)

    def check_recipe(self, recipe: Recipe) -> None:
        """Raise a RunError if the folder has another recipe, or is not a run folder."""
        if not self.path.is_dir():
            return
        if (self.path / RECIPE).exists():
            if different := self.recipe.differences(recipe):
                raise RunError(
                    f"{self.path}: was made by another recipe ({'; '.join(different)}): choose another folder"
                )
            return
        allowed = {LOCK, *(path.name for path in leftovers(self.path))}
        if others := sorted(path.name for path in self.path.iterdir() if path.name not in allowed):
            raise RunError(
                f"{self.path}: is not a run folder, it holds {', '.join(others[:3])} but no {RECIPE}: "
                "choose another folder"
            )

    def append(self, line: dict[str, Any]) -> None:
        """Add a line to the log.

        Raises:
            RunError: the log cannot be written, or see :meth:`check_lock`.
        """
        self.check_lock()
        with _writing(self.path / LOG), (self.path / LOG).open("a", encoding="utf-8") as file:
            file.write(log_line(line))
            file.flush()
            os.fsync(file.fileno())

    def write_log(self, lines: Sequence[dict[str, Any]]) -> None:
        """Replace the log by these lines."""
        self.write(LOG, lambda path: path.write_text("".join(map(log_line, lines)), encoding="utf-8"))

    def check_lock(self) -> None:
        """Raise a RunError if the lock that this process holds was deleted: another process could train here, too."""
        if self._lock_file is not None and _identity(self.path / LOCK) != self._lock_file:
            raise RunError(
                f"{self.path / LOCK}: was deleted during the training, so that another process could train there, too; "
                "run the same command again to continue"
            )

    @property
    def damaged_checkpoint(self) -> Path:
        """Where :meth:`set_aside` puts a damaged checkpoint."""
        return (self.path / CHECKPOINT).with_stem("checkpoint.damaged")

    def set_aside(self) -> list[Path]:
        """Rename a damaged checkpoint, and the log that belongs to it. Returns their new paths."""
        renamed = []
        for name in (LOG, CHECKPOINT):  # without the checkpoint, the next process would cut the log
            path = self.path / name
            if path.exists():
                with _writing(path):
                    renamed.append(path.replace(path.with_stem(f"{path.stem}.damaged")))
        flush_folder(self.path)
        return renamed

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
        (self.path / CHECKPOINT).unlink(missing_ok=True)

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write one of the JSON files."""
        text = json.dumps(seal(content), indent=2, allow_nan=False) + "\n"
        self.write(name, lambda path: path.write_text(text, encoding="utf-8"))

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
        """Write one of the safetensors files."""
        self.write(name, lambda path: save_sealed(storable(tensors), path, metadata))

    def write(self, name: str, write: Callable[[Path], object]) -> None:
        """Write a temporary file, flush it to disk, and rename it.

        Raises:
            RunError: the file cannot be written, or see :meth:`check_lock`.
        """
        self.check_lock()
        path = self.path / name
        with _writing(path), atomic_path(path) as temporary:
            write(temporary)

    def _is_locked(self) -> bool:
        if not (self.path / LOCK).exists():
            return False
        try:
            with FileLock(self.path / LOCK, timeout=0):
                return False
        except OSError as error:  # other OSErrors: a read-only folder
            return isinstance(error, Timeout)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what distinguishes a file from another one of the same name, or None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn any exception while a file is written into a RunError that names the file."""
    try:
        yield
    except Exception as error:  # each library raises its own errors if the disk is full
        reason = getattr(error, "strerror", None) or (str(error).splitlines() or [type(error).__name__])[0]
        prefix = f"{path}: cannot be written: "
        raise RunError(f"{prefix}{reason.removeprefix(prefix)}") from error


def storable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors in the form that safetensors needs: on the CPU, contiguous, and without shared memory."""
    storages: set[int] = set()
    stored = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        if plain.numel() and (
            plain.untyped_storage().data_ptr() in storages or plain.untyped_storage().nbytes() > plain.nbytes
        ):
            plain = plain.clone()  # tied weights, or a view of a larger tensor
        storages.add(plain.untyped_storage().data_ptr())
        stored[name] = plain
    return stored


def default_folder(recipe: Recipe) -> Path:
    """Return the default folder of a run; the same recipe always has the same folder."""
    names = (Path(recipe.data).stem, recipe.model, recipe.loss)
    data, model, loss = (name.rpartition(":")[2] for name in names)  # without the module of a custom object
    return Path("runs", f"{data}-{model}-{loss}-seed{recipe.seed}-{recipe.digest}")


def find_runs(folder: Path, depth: int = 3) -> list[Run]:
    """Return the run folders in a folder, or the folder itself, sorted by path.

    Args:
        folder: where to search.
        depth: how many levels of subfolders to search.
    """
    if Run(folder).exists:
        return [Run(folder)]
    if depth == 0 or not folder.is_dir():
        return []
    inner = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    return [run for path in inner for run in find_runs(path, depth - 1)]
