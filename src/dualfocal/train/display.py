"""What there is to see while training: bars on a terminal, a line per epoch elsewhere; TensorBoard on request."""

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from torch import Tensor

from dualfocal.runs.recipe import Recipe
from dualfocal.runs.run import Run
from dualfocal.train.checkpoint import Position

EVERY = 0.5  # seconds between looks at the loss, which a GPU has to be waited for
FOLDER = "tensorboard"

Line = dict[str, Any]


class _Console(Console):
    """A closed pipe must not stop the training, nor silence stdout, as rich would."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class Display:
    """Shows nothing, but writes TensorBoard's scalars where there is a writer for them."""

    def __init__(self, scalars: "Scalars | None" = None) -> None:
        self.scalars = scalars

    def say(self, text: str) -> None:
        """Show one line."""

    def begin(self, recipe: Recipe, at: Position, num_samples: int, log: list[Line]) -> None:
        """Before the first step, with what the log holds already."""
        if self.scalars is not None:
            self.scalars.begin(log)

    def step(self, num_samples: int, loss: Tensor, share: int) -> None:
        """After each step of all processes; ``loss`` is summed over this one's share of the samples."""

    def epoch(self, line: Line) -> None:
        """After each epoch, with its line of the log."""
        if self.scalars is not None:
            self.scalars.write(line)

    def close(self) -> None:
        """After the last epoch, or an error."""
        if self.scalars is not None:
            self.scalars.close()


class Lines(Display):
    """A line per epoch."""

    def __init__(self, console: Console, scalars: "Scalars | None" = None) -> None:
        super().__init__(scalars)
        self.console = console

    def begin(self, recipe: Recipe, at: Position, num_samples: int, log: list[Line]) -> None:
        """Say where it goes on, if it does."""
        super().begin(recipe, at, num_samples, log)
        self.epochs = recipe.epochs
        if at.epoch or at.step:
            where = f" + {at.step} steps" if at.step else ""
            self.say(f"going on after epoch {at.epoch}{where} of {recipe.epochs}")

    def epoch(self, line: Line) -> None:
        """Show the epoch in one line."""
        super().epoch(line)
        self.say(describe(line, self.epochs))

    def say(self, text: str) -> None:
        """Show one line."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


class Bars(Lines):
    """A bar for all of the training and one for the present epoch, below a line per epoch of what came out."""

    def __init__(self, console: Console, scalars: "Scalars | None" = None) -> None:
        super().__init__(console, scalars)
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        rest = (TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
        # The long memory bridges the pauses in which nothing is trained but validated.
        self.progress = Progress(*columns, *rest, console=console, transient=True, speed_estimate_period=120)

    def begin(self, recipe: Recipe, at: Position, num_samples: int, log: list[Line]) -> None:
        """Set the bars to where it goes on."""
        self.progress.start()
        super().begin(recipe, at, num_samples, log)
        self.num_samples, self.before, self.done = num_samples, at.epoch * num_samples, at.step * recipe.batch_size
        self.looked, self.counted = time.monotonic(), self.done
        note = short(log[-1]) if log else ""
        self.all: TaskID = self.progress.add_task(
            f"{recipe.epochs} epochs", total=recipe.epochs * num_samples, completed=self.before, note=note
        )
        self.this: TaskID = self.progress.add_task(
            f"epoch {at.epoch + 1}", total=num_samples, completed=self.done, note=""
        )

    def step(self, num_samples: int, loss: Tensor, share: int) -> None:
        """Move the bars, and look at the loss, only now and then."""
        self.done += num_samples
        if (passed := time.monotonic() - self.looked) > EVERY:
            note = f"loss {float(loss) / share:.4f}  {(self.done - self.counted) / passed:,.0f} samples/s"
            self.progress.update(self.all, completed=self.before + self.done)
            self.progress.update(self.this, completed=self.done, note=note)
            self.looked, self.counted = time.monotonic(), self.done

    def epoch(self, line: Line) -> None:
        """A line above the bars, and the next epoch."""
        super().epoch(line)
        self.before, self.done, self.counted = line["epoch"] * self.num_samples, 0, 0
        self.looked = time.monotonic()
        self.progress.update(self.all, completed=self.before, note=short(line))
        last = line["epoch"] == self.epochs
        self.progress.reset(self.this, description="evaluating" if last else f"epoch {line['epoch'] + 1}", note="")

    def close(self) -> None:
        """Remove the bars."""
        super().close()
        self.progress.stop()


class Scalars:
    """TensorBoard's scalars in the run folder; after an interruption they are written anew from the log."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(f'TensorBoard is not installed: pip install "dualfocal[tensorboard]" ({error})') from error
        self.folder, self.make = folder, SummaryWriter
        self.writer: SummaryWriter | None = None

    def begin(self, log: list[Line]) -> None:
        """Replace what an earlier session wrote."""
        for file in self.folder.rglob("events.out.tfevents.*"):
            file.unlink()
        self.writer = self.make(str(self.folder))
        for line in log:
            self.write(line)

    def write(self, line: Line) -> None:
        """Write every number of a line; ``val_ece`` becomes ``val/ece``."""
        assert self.writer is not None
        for name, value in line.items():
            part, _, rest = name.partition("_")
            tag = f"{part}/{rest}" if part in ("train", "val", "val2", "test") else f"run/{name}"
            if isinstance(value, int | float) and name not in ("schema", "epoch"):
                self.writer.add_scalar(tag, value, line["epoch"])
            elif isinstance(value, list):
                self.writer.add_scalars(tag, {f"{i:02}": number for i, number in enumerate(value)}, line["epoch"])
        self.writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self.writer is not None:
            self.writer.close()


def make_display(run: Run, tensorboard: bool, progress: bool) -> Display:
    """Bars on a terminal, lines elsewhere, nothing if so wished."""
    console = _Console(stderr=True, emoji=False)
    scalars = Scalars(run.path / FOLDER) if tensorboard else None
    if not progress:
        return Display(scalars)
    return Bars(console, scalars) if console.is_terminal else Lines(console, scalars)


def describe(line: Line, epochs: int) -> str:
    """An epoch in one line."""
    speed = "" if line["images_per_second"] is None else f"{line['images_per_second']:,.0f} samples/s  "
    took = f"{speed}{line['seconds']:.1f} s"
    start = f"epoch {line['epoch']:{len(str(epochs))}}/{epochs}  lr {line['lr']:.4g}  loss {line['train_loss']:.4f}"
    return "  ".join(part for part in (start, short(line), took) if part)


def short(line: Line) -> str:
    """What the validation part says."""
    if "val_error" not in line:
        return ""
    error, ece = 100 * line["val_error"], 100 * line["val_ece"]
    return f"val error {error:.2f} %  ECE {ece:.2f} %  NLL {line['val_nll']:.4f}"
