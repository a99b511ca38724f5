"""Progress of a training: bars on a terminal, and one line per epoch."""

import time
from contextlib import ExitStack
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from torch import Tensor

from dualfocal.tables import quantity
from dualfocal_lab.runs import Recipe
from dualfocal_lab.train.checkpoint import Position

EVERY = 0.5  # seconds between updates of the loss: reading it waits for the GPU

Line = dict[str, Any]


class _Console(Console):
    """A closed pipe must not stop the training, nor silence stdout, as rich would."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class Display:
    """Show progress bars on a terminal and one line per epoch.

    Args:
        progress: whether to show anything.
    """

    def __init__(self, progress: bool) -> None:
        self.console = _Console(stderr=True, emoji=False)
        self.console.quiet = not progress
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        rest = (TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
        self.has_bars = progress and self.console.is_terminal
        # A long estimation period bridges the pauses for validation.
        self.progress = Progress(*columns, *rest, console=self.console, transient=True, speed_estimate_period=120)
        self.resources = ExitStack()

    def say(self, text: str) -> None:
        """Show one line."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def begin(self, recipe: Recipe, at: Position, num_samples: int, log: list[Line]) -> None:
        """Start the bars at the given position, and show a line if an earlier session is resumed."""
        if self.has_bars:
            self.resources.enter_context(self.progress)
        if at.epoch or at.step:
            where = f" + {quantity(at.step, 'step')}" if at.step else ""
            self.say(f"resuming after epoch {at.epoch}{where} of {recipe.epochs}")
        self.epochs, self.num_samples = recipe.epochs, num_samples
        self.before, self.done = at.epoch * num_samples, at.step * recipe.batch_size
        self.updated_at, self.counted = time.monotonic(), self.done
        total, note = recipe.epochs * num_samples, short(log[-1]) if log else ""
        self.all = self.progress.add_task(f"{recipe.epochs} epochs", total=total, completed=self.before, note=note)
        self.this = self.progress.add_task(f"epoch {at.epoch + 1}", total=num_samples, completed=self.done, note="")

    def step(self, num_samples: int, loss: Tensor, share: int) -> None:
        """Advance the bars by one step; ``loss`` is the sum over this process's ``share`` samples."""
        self.done += num_samples
        if self.has_bars and (passed := time.monotonic() - self.updated_at) > EVERY:
            note = f"loss {float(loss) / share:.4f}  {(self.done - self.counted) / passed:,.0f} samples/s"
            self.progress.update(self.all, completed=self.before + self.done)
            self.progress.update(self.this, completed=self.done, note=note)
            self.updated_at, self.counted = time.monotonic(), self.done

    def epoch(self, line: Line) -> None:
        """Show the log line of a finished epoch above the bars, and start the bar of the next one."""
        self.say(describe(line, self.epochs))
        self.before, self.done, self.counted = line["epoch"] * self.num_samples, 0, 0
        self.updated_at = time.monotonic()
        self.progress.update(self.all, completed=self.before, note=short(line))
        last = line["epoch"] == self.epochs
        self.progress.reset(self.this, description="evaluating" if last else f"epoch {line['epoch'] + 1}", note="")

    def close(self) -> None:
        """Remove the bars."""
        self.resources.close()


def describe(line: Line, epochs: int) -> str:
    """Describe an epoch in one line of text."""
    speed = "" if line["images_per_second"] is None else f"{line['images_per_second']:,.0f} samples/s  "
    start = f"epoch {line['epoch']:{len(str(epochs))}}/{epochs}  lr {line['lr']:.4g}  loss {line['train_loss']:.4f}"
    return "  ".join(part for part in (start, short(line), f"{speed}{line['seconds']:.1f} s") if part)


def short(line: Line) -> str:
    """Describe the validation metrics of an epoch; empty if there are none."""
    if "val_error" not in line:
        return ""
    error, ece = 100 * line["val_error"], 100 * line["val_ece"]
    return f"val error {error:.2f} %  ECE {ece:.2f} %  NLL {line['val_nll']:.4f}"
