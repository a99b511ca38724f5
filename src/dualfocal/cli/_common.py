"""Options, names and output functions shared by the commands."""

import errno
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer
from rich.console import Console
from rich.progress import Progress, ProgressColumn
from rich.text import Text

from dualfocal._startup import end_startup
from dualfocal.checks import check_choice, check_known
from dualfocal.files import check_place
from dualfocal.tables import Table, printable

if TYPE_CHECKING:
    from dualfocal.predictions import Predictions

# Names for help texts and shell completion, because the registries import torch. A test checks that both agree.
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
MULTILABEL_CALIBRATORS = ("temperature", "platt", "isotonic")
BAD_INPUT = (ValueError, TypeError, IndexError, OSError)  # raised by bad input; ends with one line and exit code 2
# Errors of the operating system that no other input would avoid; exit code 1.
SYSTEM_ERRNOS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EPIPE,
}
NO_MEMORY = ("not enough memory", "can't allocate memory", "out of memory")  # in errors of torch
Number = TypeVar("Number", int, float)

ON_FIT_DATA = (
    "dualfocal: the calibrator was fitted on these data, so its scores on them are too good; fit it on a validation "
    "split that the model was not trained on"
)


def consoles(as_json: bool) -> tuple[Console, Console]:
    """Return the console for results, silent with ``--json``, and the console for messages (stderr).

    Commands call this after their imports, before they read or write anything.
    """
    end_startup()
    return Console(quiet=as_json, emoji=False), Console(stderr=True, emoji=False)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, numpy or torch could not get memory."""
    by_torch = isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)
    return isinstance(error, MemoryError) or by_torch


def is_system_failure(error: BaseException | None) -> bool:
    """Whether an error, or its cause, is one of the machine or the network (exit code 1), not of the input (2)."""
    if error is None:
        return False
    number = error.errno if isinstance(error, OSError) else None
    if in_text := re.search(r"\(os error (\d+)\)", str(error)):  # safetensors has no other way to state it
        number = number or int(in_text[1])
    failed = number in SYSTEM_ERRNOS or isinstance(error, ConnectionError) or is_out_of_memory(error)
    return failed or is_system_failure(error.__cause__)


ARGUMENTS = {  # of Python, in messages of the library
    "task": "--task",
    "binary": "--binary",
    "ignore_index": "--ignore-index",
    "clusters": "--cluster",
    "sample_weight": "--weight",
}
FROM_ONE = "the labels start at 1, subtract 1"
MOST_LISTED = 20  # classes in a message


def in_options(message: str) -> str:
    """Return a message of the library with the options of the command line instead of arguments of Python.

    >>> in_options("leave them out with ignore_index=255")
    'leave them out with --ignore-index 255'
    """
    message = message.replace("clusters=...", "--cluster COLUMN")
    if FROM_ONE in message and (largest := re.search(r"must lie in \[0, (\d+)\]", message)):
        number = int(largest[1]) + 1
        names = ",".join(map(str, range(1, number + 1))) if number <= MOST_LISTED else f"1,2,...,{number}"
        message = message.replace(FROM_ONE, f"the labels start at 1, name them with --class-names {names}")
    arguments = "|".join(ARGUMENTS)
    return re.sub(rf"""\b({arguments})=(['"]?)([\w-]+)\2""", lambda match: f"{ARGUMENTS[match[1]]} {match[3]}", message)


@contextmanager
def errors_name(name: object) -> Iterator[None]:
    """Prefix errors about the input with a name, such as that of the file."""
    try:
        yield
    except BAD_INPUT as error:
        if is_system_failure(error):
            raise
        raise ValueError(f"{name}: {error}") from error


@contextmanager
def progress_bar(
    err: Console, what: str, *columns: ProgressColumn, total: float | None = 1.0
) -> Iterator[Callable[..., None]]:
    """Show a progress bar on a terminal. Yields a function that updates it: ``update(done, description=...)``."""
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        bar = progress.add_task(what, total=total)
        yield lambda done=None, **more: progress.update(bar, completed=done, **more)


def check_output(out: Path, *inputs: Path) -> None:
    """Raise a ValueError if ``out`` cannot be written or is one of the inputs."""
    from dualfocal.predictions import is_run_folder, predictions_file

    check_place(out)
    for path in inputs:
        read = predictions_file(path) if is_run_folder(path) else path
        if out.exists() and read.exists() and out.samefile(read):
            raise ValueError(f"--out: {out} is also an input and would be overwritten; choose another name")


def check_plot(parameter: typer.CallbackParam, plot: Path | None) -> Path | None:
    """Callback of ``--plot`` and ``--maps``: raise a ValueError if no picture can be written there."""
    if plot is not None:
        check_choice(f"the ending of {parameter.opts[0]}", plot.suffix.lower(), (".png", ".pdf", ".svg"))
        check_place(plot)
    return plot


def say(out: Console, text: str, style: str | None = None, *, wrap: bool = False) -> None:
    """Print text without markup, escaped. Long lines are broken only with ``wrap``, so that paths can be copied."""
    out.print(printable(text, keep="\n"), style=style, markup=False, highlight=False, soft_wrap=not wrap)


def say_saved(out: Console, path: Path, data: "Predictions") -> None:
    """Say where calibrated predictions were written, and in which unit."""
    say(out, f"Saved: {path}{' (in percent, like the input)' if data.percent else ''}")


def show(out: Console, table: Table, before: str = "") -> None:
    """Print a table below its title; ``before`` is put in front of the title."""
    out.print(Text(before + printable(table.title), style="italic"))
    print_table(out, table, boxed=True)


def print_table(out: Console, table: Table, *, boxed: bool = False) -> None:
    """Print a table without its title, as several tables if it is too wide."""
    for part in table.rich(out.width, boxed=boxed):
        out.print(part)


def print_json(content: object) -> None:
    """Print JSON. NaN and infinity raise an error, because JSON does not have them."""
    print(json.dumps(content, indent=2, allow_nan=False))


def comma_separated(option: str, text: str | None, kind: Callable[[str], Number]) -> list[Number]:
    """Parse numbers separated by commas."""
    try:
        return [kind(part) for part in text.split(",")] if text else []
    except ValueError as error:
        raise ValueError(f"{option} must be numbers separated by commas, got {text!r}") from error


def check_known_methods(option: str, text: str, known: tuple[str, ...], most: int | None = None) -> tuple[str, ...]:
    """Parse names separated by commas; raise a ValueError if one is unknown or given twice, or if they are too many."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        check_known(option, name, known)
    if len(set(names)) < len(names) or (most is not None and len(names) > most):
        raise ValueError(f"{option} must name {'one method' if most == 1 else 'each method once'}, got {text!r}")
    return names
