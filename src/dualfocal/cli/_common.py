"""What the commands share: options, tables, and bad input that ends in one line."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dualfocal._files import check_place


class Binary(StrEnum):
    """Which confidence a two-class problem is about."""

    top_label = "top_label"
    positive = "positive"


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

FILES = "Files: .npz, .safetensors, .csv, .tsv, .csv.gz, .parquet, or a run folder. "


def consoles(as_json: bool) -> tuple[Console, Console]:
    """For results, silent if they go out as JSON; and for remarks."""
    return Console(quiet=as_json, emoji=False), Console(stderr=True, emoji=False)


@contextmanager
def stopped_goes_on() -> Iterator[None]:
    """Ctrl-C, or SIGTERM, during trainings says what to do next."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        typer.echo("dualfocal: stopped; run the same command again to go on", err=True)
        raise


@contextmanager
def bad_input_ends(name: str | None = None) -> Iterator[None]:
    """What is wrong with the input becomes one line and exit code 2."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (ValueError, TypeError, IndexError, OSError) as error:
        text = " ".join(str(error).split())
        typer.echo(f"dualfocal: {f'{name}: ' if name else ''}{text}", err=True)
        raise typer.Exit(2) from error


def check_output(out: Path, *inputs: Path) -> None:
    """Raise a ValueError if a file may not lie there, or is one that is read."""
    check_place(out)
    for path in inputs:
        read = path / "predictions.safetensors" if path.is_dir() else path
        if out.exists() and read.exists() and out.samefile(read):
            raise ValueError(f"--out: {out} is read from, it would be lost")


def check_plot(plot: Path | None) -> None:
    """Raise a ValueError if no picture can be written there."""
    if plot is None:
        return
    if plot.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ValueError(f"--plot must end in .png, .pdf or .svg, got {str(plot)!r}")
    if plot.is_dir():
        raise ValueError(f"--plot: {str(plot)!r} is a folder")
    if not plot.parent.is_dir():
        raise ValueError(f"--plot: there is no folder {str(plot.parent)!r}")


def say(out: Console, text: str, style: str | None = None) -> None:
    """Print text as it is: no markup, no highlighting, no line breaks but those of the terminal."""
    out.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def print_table(out: Console, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A titled table; the first column is of names, the others of numbers."""
    out.print(Text(title, style="italic"))
    table = Table()
    for i, heading in enumerate(headings):
        table.add_column(Text(heading), justify="right" if i else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    out.print(table)
