"""What the commands share: options, names, tables, and bad input that ends in one line."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from dualfocal._checks import check_choice
from dualfocal._files import check_place
from dualfocal._table import Table

# Names of the registries, for help texts: the registries themselves import torch. Tests compare both.
CALIBRATORS = (
    "temperature",
    "temperature_ece",
    "ets",
    "vector",
    "platt",
    "beta",
    "histogram",
    "isotonic",
    "bbq",
    "dirichlet",
    "matrix",
)
LOSSES = (
    "cross_entropy",
    "label_smoothing",
    "brier",
    "mmce",
    "focal",
    "flsd",
    "inverse_focal",
    "dual_focal",
    "ada_focal",
    "ada_dual_focal",
    "kde_xe",
)
PAPER_LOSSES = ("cross_entropy", "brier", "mmce", "label_smoothing", "inverse_focal", "flsd", "dual_focal")
PRESETS = (
    "digits",
    "cifar10_resnet50",
    "cifar10_resnet110",
    "cifar10_wide_resnet26_10",
    "cifar10_densenet121",
    "cifar100_resnet50",
    "cifar100_resnet110",
    "cifar100_wide_resnet26_10",
    "cifar100_densenet121",
    "tiny_imagenet_resnet50",
    "20newsgroups_text_cnn",
)
FIGURES = ("phi", "reliability", "corp", "metrics", "training", "logits", "rival")
FIELDS = ("dataset", "model", "method", "variant")  # of the trainings of a table
FIGURE_1 = (1.0, 0.3)  # gamma and C of the paper's figure
Criterion = StrEnum("Criterion", ["nll", "ece"])  # of the choice of gamma
Binary = StrEnum("Binary", ["top_label", "positive"])  # which confidence a two-class problem is about

Logits = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Array, column or column prefix that holds logits; or columns, separated by commas, in the order of the "
        "classes.",
    ),
]
Probs = Annotated[str | None, typer.Option(metavar="NAME", help="The same for probabilities.")]
Target = Annotated[str | None, typer.Option(metavar="NAME", help="Array or column of labels.")]
Positive = Annotated[
    str | None,
    typer.Option(metavar="LABEL", help="One score a sample: the label of class 1, where labels are not 0 and 1."),
]
Split = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Of a file with `val_logits`, `test_logits`: which. "
        "Of a run folder test, unless given; `calibrate` takes val.",
    ),
]
NumBins = Annotated[int, typer.Option(min=1, help="Number of bins of each calibration error.")]
IgnoreIndex = Annotated[int, typer.Option(help="Leave out samples with this label.")]
BinaryOption = Annotated[
    Binary | None,
    typer.Option(help="Two classes: confidence of the predicted class, or of class 1. Needed for one score a sample."),
]
Level = Annotated[float, typer.Option(min=0.5, max=0.999, help="Nominal coverage of intervals.")]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of the draws behind floors, p-values and intervals.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON (fractions, not percent) and nothing else.")]

Force = Annotated[bool, typer.Option("--force", help="Fit matrix and Dirichlet even to fewer samples than parameters.")]

BAD_INPUT = (ValueError, TypeError, IndexError, OSError)  # what bad input raises: one line, exit code 2
Number = TypeVar("Number", int, float)

FILES = "Files: .npz, .safetensors, .csv, .tsv, .csv.gz, .parquet, or a run folder. "


def consoles(as_json: bool) -> tuple[Console, Console]:
    """For results, silent if they go out as JSON; and for remarks."""
    return Console(quiet=as_json, emoji=False), Console(stderr=True, emoji=False)


@contextmanager
def stopped_goes_on(err: Console) -> Iterator[None]:
    """Ctrl-C, or SIGTERM, during trainings says what to do next."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        say(err, "dualfocal: stopped; run the same command again to go on")
        raise


@contextmanager
def errors_name(name: object) -> Iterator[None]:
    """Put a name, such as that of a file, before the message of an error in the input."""
    try:
        yield
    except BAD_INPUT as error:
        raise ValueError(f"{name}: {error}") from error


@contextmanager
def progress_bar(
    err: Console, what: str, *columns: ProgressColumn, total: float | None = 1.0
) -> Iterator[Callable[..., None]]:
    """Show a bar while the block runs, on a terminal; what is yielded takes how much is done, and what else changes."""
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        bar = progress.add_task(what, total=total)
        yield lambda done=None, **more: progress.update(bar, completed=done, **more)


def training_bar(err: Console) -> AbstractContextManager[Callable[..., None]]:
    """A bar for trainings, with the time they have taken and what is left of it."""
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left")
    return progress_bar(err, "", *columns, TimeRemainingColumn(), total=None)


def check_output(out: Path, *inputs: Path) -> None:
    """Raise a ValueError if a file may not lie there, or is one that is read."""
    from dualfocal.runs.layout import PREDICTIONS

    check_place(out)
    for path in inputs:
        read = path / PREDICTIONS if path.is_dir() else path
        if out.exists() and read.exists() and out.samefile(read):
            raise ValueError(f"--out: {out} is read from, it would be lost")


def check_plot(plot: Path | None) -> Path | None:
    """Raise a ValueError if no picture can be written there: a callback of the option."""
    if plot is not None:
        check_choice("the ending of --plot", plot.suffix.lower(), (".png", ".pdf", ".svg"))
        check_place(plot)
    return plot


def say(out: Console, text: str, style: str | None = None, *, wrap: bool = False) -> None:
    """Print text as it is, without markup; a path is not broken into lines unless ``wrap`` allows it."""
    out.print(text, style=style, markup=False, highlight=False, soft_wrap=not wrap)


def show(out: Console, table: Table, before: str = "") -> None:
    """Print a table below its title, before which more may be said."""
    out.print(Text(before + table.title, style="italic"))
    out.print(table.rich())


def print_json(content: object) -> None:
    """Print JSON; NaN and infinities, which JSON does not know, are a defect."""
    print(json.dumps(content, indent=2, allow_nan=False))


def comma_separated(option: str, text: str | None, kind: Callable[[str], Number]) -> list[Number]:
    """Parse numbers, separated by commas."""
    try:
        return [kind(part) for part in text.split(",")] if text else []
    except ValueError as error:
        raise ValueError(f"{option} must be numbers, separated by commas, got {text!r}") from error
