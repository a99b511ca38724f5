"""The files of a run folder: which process may write them, and how."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from dualfocal.files import atomic_path, leftovers
from dualfocal_lab._sealed import save_sealed, storable
from dualfocal_lab.runs.layout import ATTEMPT, CHECKPOINT, LOG, RECIPE, RESULT, RunError, seal
from dualfocal_lab.runs.lease import EXPIRES, Lease, waste
from dualfocal_lab.runs.log import OpenLog, first_epochs, log_line
from dualfocal_lab.runs.recipe import Recipe, recipe_of_run


class RunFolder:
    """A run folder, as the training process writes it. :class:`~dualfocal_lab.runs.Run` adds what is read.

    Args:
        path: the folder, which need not exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lease: Lease | None = None  # while this process trains
        self._log: OpenLog | None = None

    @contextmanager
    def claimed(self, recipe: Recipe, *, lease_seconds: float = EXPIRES) -> Iterator[None]:
        """Claim the folder for one training process; create it, with the recipe, if it does not exist.

        Args:
            recipe: the recipe of the run.
            lease_seconds: time without a heartbeat of this process after which another one may take over.

        Raises:
            RunBusyError: another process owns the folder.
            RunError: another process has taken over the folder, it is of another recipe or not a run folder, or it is
                not writable.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path}: must be a folder, but is a file")
        with _writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self.check_recipe(recipe)  # before anything is written into the folder
        with self._leased(lease_seconds):
            try:
                self.check_recipe(recipe)  # again: another process may have written its recipe in the meantime
                self._remove_rest()
                if not (self.path / RECIPE).exists():
                    self.write_json(RECIPE, recipe.to_dict())
                yield
            except (RunError, OSError):
                self.check_lock()  # if another process has taken over, this is the reason
                raise
            self.check_lock()

    def tidy(self) -> None:
        """Remove what a process left that was killed after writing the result."""
        if not (self.path / RESULT).exists():
            return
        rest = [*leftovers(self.path), *waste(self.path), self.path / ATTEMPT, self.path / CHECKPOINT]
        if any(path.exists() for path in rest):
            with suppress(RunError), self._leased(EXPIRES):
                self._remove_rest()
                self.remove(CHECKPOINT)

    @contextmanager
    def _leased(self, seconds: float) -> Iterator[None]:
        lease = Lease(self.path, seconds)
        with _writing(self.path / ATTEMPT):
            lease.acquire()
        self._lease = lease
        try:
            yield
        finally:
            self._close_log()
            self._lease = None
            lease.release()

    def _remove_rest(self) -> None:
        for path in leftovers(self.path):
            self.remove(path.name)

    def check_recipe(self, recipe: Recipe) -> None:
        """Raise a RunError if the folder has another recipe, or is not a run folder."""
        if not self.path.is_dir():
            return
        if (self.path / RECIPE).exists():
            if different := recipe_of_run(self.path).differences(recipe):
                raise RunError(
                    f"{self.path}: was made by another recipe ({'; '.join(different)}): choose another folder"
                )
            return
        allowed = {ATTEMPT, *(path.name for path in [*leftovers(self.path), *waste(self.path)])}
        if others := sorted(path.name for path in self.path.iterdir() if path.name not in allowed):
            raise RunError(
                f"{self.path}: is not a run folder, it holds {', '.join(others[:3])} but no {RECIPE}: "
                "choose another folder"
            )

    def begin_log(self, epochs: int) -> None:
        """Write the first epochs of the log to a new file, which stays open for :meth:`append`.

        A process that had the folder before may still have the old file open; what it adds there is lost.

        Raises:
            RunError: the log has fewer epochs, cannot be written, or see :meth:`check_lock`.
        """
        with _writing(self.path / LOG):
            content = first_epochs(self.path / LOG, epochs)
        self._replace_log(content)

    @property
    def log_is_lost(self) -> bool:
        """Whether the log was deleted, or replaced by another file, since this process has begun it."""
        return self._log is not None and not self._log.has_its_name

    def append(self, line: dict[str, Any]) -> None:
        """Add a line to the log.

        Raises:
            RunError: the log cannot be written, or see :meth:`check_lock`.
        """
        self.check_lock()
        with _writing(self.path / LOG):
            if self._log is not None:
                self._log.append(line)
                return
            (self.path / LOG).touch()
            with closing(OpenLog(self.path / LOG)) as log:
                log.append(line)

    def write_log(self, lines: Sequence[dict[str, Any]]) -> None:
        """Replace the log by these lines."""
        self._replace_log("".join(map(log_line, lines)).encode())

    def _replace_log(self, content: bytes) -> None:
        self.write(LOG, lambda path: path.write_bytes(content))
        if self._lease is not None:
            self._close_log()
            with _writing(self.path / LOG):
                self._log = OpenLog(self.path / LOG)
            self.check_lock()  # only after it was opened: now the file cannot be that of a process that has taken over

    def _close_log(self) -> None:
        if self._log is not None:
            log, self._log = self._log, None
            log.close()

    def check_lock(self) -> None:
        """Raise a RunError if another process has taken over the folder that this process had claimed."""
        if self._lease is not None:
            self._lease.check()

    @property
    def damaged_checkpoint(self) -> Path:
        """Where :meth:`set_aside` puts a damaged checkpoint."""
        return (self.path / CHECKPOINT).with_stem("checkpoint.damaged")

    def set_aside(self) -> list[Path]:
        """Move a damaged checkpoint, and the log that belongs to it, to other names. Returns their new paths.

        They are copied and then removed: to rename them would rename those of a process that has taken over.
        """
        new_paths = []
        for name in (LOG, CHECKPOINT):  # without the checkpoint, the next process would cut the log
            path = self.path / name
            if path.exists():
                new_paths.append(path.with_stem(f"{path.stem}.damaged"))
                self.write(new_paths[-1].name, partial(shutil.copy2, path))
                self.remove(name)
        return new_paths

    def remove(self, name: str) -> None:
        """Delete a file, which may be missing.

        Raises:
            RunError: the file cannot be deleted, or see :meth:`check_lock`.
        """
        with _writing(self.path / name):
            if self._lease is None:
                (self.path / name).unlink(missing_ok=True)
            else:
                self._lease.remove(self.path / name)

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
        with _writing(path), atomic_path(path, None if self._lease is None else self._lease.folder) as temporary:
            write(temporary)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn any exception while a file is written into a RunError that names the file."""
    try:
        yield
    except RunError:
        raise
    except Exception as error:  # each library raises its own errors if the disk is full
        reason = getattr(error, "strerror", None) or (str(error).splitlines() or [type(error).__name__])[0]
        prefix = f"{path}: cannot be written: "
        raise RunError(f"{prefix}{reason.removeprefix(prefix)}") from error
