"""What there is to see while training: bars on a terminal, a line per epoch elsewhere; TensorBoard on request."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

from dualfocal.runs import Recipe
from dualfocal.train.checkpoint import Position

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

EVERY = 0.5  # seconds between looks at the loss, which a GPU has to be waited for
SCALARS = "tensorboard"  # the folder of them

Line = dict[str, Any]


class _Console(Console):
    """A closed pipe must not stop the training, nor silence stdout, as rich would."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class Display:
    """Bars for the training and its present epoch, on a terminal; a line per epoch, everywhere; TensorBoard's scalars.

    Args:
        progress: whether to show anything.
        scalars: folder for TensorBoard; None: none are written.
    """

    def __init__(self, progress: bool, scalars: Path | None) -> None:
        self.console = _Console(stderr=True, emoji=False)
        self.console.quiet = not progress
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        rest = (TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
        self.has_bars = progress and self.console.is_terminal
        # The long memory bridges the pauses in which nothing is trained but validated.
        self.progress = Progress(*columns, *rest, console=self.console, transient=True, speed_estimate_period=120)
        self.scalars = None if scalars is None else Scalars(scalars)
        self.under_way = ExitStack()

    def say(self, text: str) -> None:
        """Show one line."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def begin(self, recipe: Recipe, at: Position, num_samples: int, log: list[Line]) -> None:
        """Before the first step: say where it goes on, if it does, and set the bars to it."""
        if self.has_bars:
            self.under_way.enter_context(self.progress)
        if self.scalars is not None:
            self.under_way.enter_context(self.scalars.begin(log))
        if at.epoch or at.step:
            where = f" + {at.step} steps" if at.step else ""
            self.say(f"going on after epoch {at.epoch}{where} of {recipe.epochs}")
        self.epochs, self.num_samples = recipe.epochs, num_samples
        self.before, self.done = at.epoch * num_samples, at.step * recipe.batch_size
        self.looked, self.counted = time.monotonic(), self.done
        all_of_it, note = recipe.epochs * num_samples, short(log[-1]) if log else ""
        self.all = self.progress.add_task(f"{recipe.epochs} epochs", total=all_of_it, completed=self.before, note=note)
        self.this = self.progress.add_task(f"epoch {at.epoch + 1}", total=num_samples, completed=self.done, note="")

    def step(self, num_samples: int, loss: Tensor, share: int) -> None:
        """After each step of all processes; ``loss``, summed over this one's share, is looked at only now and then."""
        self.done += num_samples
        if self.has_bars and (passed := time.monotonic() - self.looked) > EVERY:
            note = f"loss {float(loss) / share:.4f}  {(self.done - self.counted) / passed:,.0f} samples/s"
            self.progress.update(self.all, completed=self.before + self.done)
            self.progress.update(self.this, completed=self.done, note=note)
            self.looked, self.counted = time.monotonic(), self.done

    def epoch(self, line: Line) -> None:
        """After each epoch, with its line of the log: a line above the bars, and the next epoch."""
        if self.scalars is not None:
            self.scalars.write(line)
        self.say(describe(line, self.epochs))
        self.before, self.done, self.counted = line["epoch"] * self.num_samples, 0, 0
        self.looked = time.monotonic()
        self.progress.update(self.all, completed=self.before, note=short(line))
        last = line["epoch"] == self.epochs
        self.progress.reset(self.this, description="evaluating" if last else f"epoch {line['epoch'] + 1}", note="")

    def close(self) -> None:
        """After the last epoch, or an error."""
        self.under_way.close()


class Scalars:
    """TensorBoard's scalars in the run folder; after an interruption they are written anew from the log."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(f'TensorBoard is not installed: pip install "dualfocal[tensorboard]" ({error})') from error
        self.folder, self.make = folder, SummaryWriter

    def begin(self, log: list[Line]) -> "SummaryWriter":
        """Replace what an earlier session wrote. Returns what is to be closed."""
        for file in self.folder.rglob("events.out.tfevents.*"):
            file.unlink()
        self.writer = self.make(str(self.folder))
        for line in log:
            self.write(line)
        return self.writer

    def write(self, line: Line) -> None:
        """Write every number of a line; ``val_ece`` becomes ``val/ece``."""
        for name, value in line.items():
            part, _, rest = name.partition("_")
            tag = f"{part}/{rest}" if part in ("train", "val", "val2", "test") else f"run/{name}"
            if isinstance(value, int | float) and name not in ("schema", "epoch"):
                self.writer.add_scalar(tag, value, line["epoch"])
            elif isinstance(value, list):
                self.writer.add_scalars(tag, {f"{i:02}": number for i, number in enumerate(value)}, line["epoch"])
        self.writer.flush()


def describe(line: Line, epochs: int) -> str:
    """An epoch in one line."""
    speed = "" if line["images_per_second"] is None else f"{line['images_per_second']:,.0f} samples/s  "
    start = f"epoch {line['epoch']:{len(str(epochs))}}/{epochs}  lr {line['lr']:.4g}  loss {line['train_loss']:.4f}"
    return "  ".join(part for part in (start, short(line), f"{speed}{line['seconds']:.1f} s") if part)


def short(line: Line) -> str:
    """What the validation part says."""
    if "val_error" not in line:
        return ""
    error, ece = 100 * line["val_error"], 100 * line["val_ece"]
    return f"val error {error:.2f} %  ECE {ece:.2f} %  NLL {line['val_nll']:.4f}"
