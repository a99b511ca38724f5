"""Callbacks of a training: objects that are called when it starts, after each epoch, and when it ends."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dualfocal_lab.runs import Run

METHODS = ("on_train_start", "on_epoch_end", "on_train_end")


class CallbackError(RuntimeError):
    """A callback failed. The training is saved: the same call continues it."""

    def __init__(self, callback: object, method: str, error: Exception) -> None:
        reason = " ".join(str(error).split())
        super().__init__(
            f"callback {type(callback).__name__} failed in {method}: {type(error).__name__}: {reason}; the training is "
            "saved: run it again, with the callback corrected or left out, to continue"
        )


class Callbacks:
    """The callbacks of a training.

    Args:
        callbacks: objects with any of the methods ``on_train_start(run)``, ``on_epoch_end(log)`` and
            ``on_train_end(run)``.

    Raises:
        TypeError: an object has none of the methods, or is a class.
    """

    def __init__(self, callbacks: Sequence[object]) -> None:
        for callback in callbacks:
            if isinstance(callback, type):
                raise TypeError(
                    f"callbacks must be objects, got the class {callback.__name__}: write {callback.__name__}()"
                )
            if not any(callable(getattr(callback, method, None)) for method in METHODS):
                raise TypeError(f"a callback must have one of {', '.join(METHODS)}, got {callback!r}")
        self.callbacks = callbacks
        self.started: list[object] = []

    def start(self, run: Run) -> None:
        """Call ``on_train_start(run)``; the log of the run has the epochs of earlier sessions."""
        for callback in self.callbacks:
            _call(callback, "on_train_start", run)
            self.started.append(callback)

    def end_epoch(self, line: dict[str, Any], save: Callable[[bool], None]) -> None:
        """Call ``on_epoch_end(log)`` with a copy of the line of the log; after a failure, call ``save(True)`` first."""
        for callback in self.callbacks:
            try:
                _call(callback, "on_epoch_end", dict(line))
            except CallbackError:
                save(True)
                raise

    @contextmanager
    def ending(self, run: Run) -> Iterator[None]:
        """At the end, call ``on_train_end(run)`` of each callback that was started, also after a failure.

        If several fail, the first is raised; after another failure they only warn.
        """
        try:
            yield
        except BaseException:
            for error in self._end(run):
                warnings.warn(str(error), stacklevel=2)
            raise
        for error in self._end(run):
            raise error

    def _end(self, run: Run) -> list[CallbackError]:
        errors = []
        for callback in self.started:
            try:
                _call(callback, "on_train_end", run)
            except CallbackError as error:
                errors.append(error)
        return errors


def _call(callback: object, method: str, argument: object) -> None:
    function: Callable[[object], object] | None = getattr(callback, method, None)
    if function is None:
        return
    try:
        function(argument)
    except Exception as error:  # any code of the user
        raise CallbackError(callback, method, error) from error


class TensorBoard:
    """Callback that writes the log as TensorBoard scalars, to ``tensorboard/`` in the run folder.

    A resumed run writes them again from the log.

    Raises:
        ValueError: TensorBoard is not installed.
    """

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(f"TensorBoard is not installed; run pip install tensorboard ({error})") from error
        self.make = SummaryWriter

    def on_train_start(self, run: Run) -> None:
        """Replace the files of earlier sessions."""
        folder = run.path / "tensorboard"
        for file in folder.rglob("events.out.tfevents.*"):
            file.unlink()
        self.writer = self.make(str(folder))
        for line in run.log:
            self.on_epoch_end(line)

    def on_epoch_end(self, log: dict[str, Any]) -> None:
        """Write every number of a log line; ``val_ece`` becomes ``val/ece``."""
        for name, value in log.items():
            part, _, rest = name.partition("_")
            tag = f"{part}/{rest}" if part in ("train", "val", "val2", "test") else f"run/{name}"
            if isinstance(value, int | float) and name not in ("schema", "epoch"):
                self.writer.add_scalar(tag, value, log["epoch"])
            elif isinstance(value, list):
                self.writer.add_scalars(tag, {f"{i:02}": number for i, number in enumerate(value)}, log["epoch"])
        self.writer.flush()

    def on_train_end(self, run: Run) -> None:
        """Close the files."""
        self.writer.close()
