"""What there is to see while training: bars on a terminal, a line per epoch elsewhere; TensorBoard on request."""

import time
from types import TracebackType
from typing import Any, Self

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
    """Nobody reading it any more is no reason to stop training, or to say no more on stdout, as rich has it."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class Silent:
    """Shows nothing: what the others inherit."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def say(self, text: str) -> None:
        """Something to know, in one line."""

    def begin(self, recipe: Recipe, at: Position, num_samples: int, log: list[Line]) -> None:
        """Before the first step, with what the log holds already."""

    def step(self, num_samples: int, loss: Tensor, share: int) -> None:
        """After each step of all processes; ``loss`` is summed over this one's share of the samples."""

    def epoch(self, line: Line) -> None:
        """After each epoch, with its line of the log."""


class Lines(Silent):
    """A line per epoch."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def begin(self, recipe: Recipe, at: Position, num_samples: int, log: list[Line]) -> None:
        """Say where it goes on, if it does."""
        self.epochs = recipe.epochs
        if at.epoch or at.step:
            where = f" + {at.step} steps" if at.step else ""
            self.say(f"going on after epoch {at.epoch}{where} of {recipe.epochs}")

    def epoch(self, line: Line) -> None:
        """One line."""
        self.say(describe(line, self.epochs))

    def say(self, text: str) -> None:
        """As it is."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


class Bars(Lines):
    """A bar for all of the training and one for the present epoch, below a line per epoch of what came out."""

    def __enter__(self) -> Self:
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        rest = (TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
        # The long memory bridges the pauses in which nothing is trained but validated.
        self.progress = Progress(*columns, *rest, console=self.console, transient=True, speed_estimate_period=120)
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def begin(self, recipe: Recipe, at: Position, num_samples: int, log: list[Line]) -> None:
        """Set the bars to where it goes on."""
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


class WithTensorBoard(Silent):
    """Another display, and scalars in the run folder; after an interruption they are written anew from the log."""

    def __init__(self, shown: Silent, run: Run) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(f'TensorBoard is not installed: pip install "dualfocal[tensorboard]" ({error})') from error
        self.shown, self.folder, self.make = shown, run.path / FOLDER, SummaryWriter

    def __enter__(self) -> Self:
        self.shown.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if hasattr(self, "writer"):
            self.writer.close()
        self.shown.__exit__(kind, error, trace)

    def say(self, text: str) -> None:
        """Nothing of its own."""
        self.shown.say(text)

    def begin(self, recipe: Recipe, at: Position, num_samples: int, log: list[Line]) -> None:
        """Start anew."""
        for file in self.folder.rglob("events.out.tfevents.*"):
            file.unlink()
        self.writer = self.make(str(self.folder))
        for line in log:
            self.write(line)
        self.shown.begin(recipe, at, num_samples, log)

    def step(self, num_samples: int, loss: Tensor, share: int) -> None:
        """Nothing of its own."""
        self.shown.step(num_samples, loss, share)

    def epoch(self, line: Line) -> None:
        """Every number of the line."""
        self.write(line)
        self.shown.epoch(line)

    def write(self, line: Line) -> None:
        """``val_ece`` becomes ``val/ece``."""
        for name, value in line.items():
            part, _, rest = name.partition("_")
            tag = f"{part}/{rest}" if part in ("train", "val", "val2", "test") else f"run/{name}"
            if isinstance(value, int | float) and name not in ("schema", "epoch"):
                self.writer.add_scalar(tag, value, line["epoch"])
            elif isinstance(value, list):
                self.writer.add_scalars(tag, {f"{i:02}": number for i, number in enumerate(value)}, line["epoch"])
        self.writer.flush()


def make_display(run: Run, tensorboard: bool, progress: bool) -> Silent:
    """Bars on a terminal, lines elsewhere, nothing if so wished."""
    console = _Console(stderr=True, emoji=False)
    shown = Silent() if not progress else Bars(console) if console.is_terminal else Lines(console)
    return WithTensorBoard(shown, run) if tensorboard else shown


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
