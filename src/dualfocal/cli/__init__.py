"""The command line: `dualfocal ...` or `python -m dualfocal ...`."""

import contextlib
import io
import os
import shlex
import sys
import warnings
from importlib.metadata import entry_points
from itertools import pairwise
from typing import TextIO

import typer

from dualfocal import __version__
from dualfocal._extras import how_to_install
from dualfocal.cli._common import BAD_INPUT, in_options, is_out_of_memory, is_system_failure
from dualfocal.cli.calibrate import apply, calibrate
from dualfocal.cli.compare import compare
from dualfocal.cli.evaluate import evaluate
from dualfocal.cli.info import info
from dualfocal.cli.monitor import monitor
from dualfocal.cli.report import report
from dualfocal.tables import printable

__all__ = ["app", "full_app", "main"]

COMMANDS = (evaluate, report, compare, calibrate, apply, monitor, info)
LAB_COMMANDS = ("train", "study", "runs", "data", "paper")  # of the package dualfocal-lab
CLOSED_PIPE = 141  # exit code of a shell for a command that SIGPIPE ended

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in COMMANDS:
    app.command()(command)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"dualfocal {__version__}")
        raise typer.Exit


@app.callback()
def _dualfocal(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Measure, test and fix the calibration of a classifier."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit: code 2 and one line on stderr for bad input, 1 if the system fails, 130 for Ctrl-C."""
    words = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an encoding that lacks a character must not lose the result
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: print(
                f"dualfocal: {printable(in_options(str(message)))}", file=sys.stderr
            )
            own = bool(words) and words[0] in {command.__name__ for command in COMMANDS}
            code = (app if own else full_app())(words, prog_name="dualfocal", standalone_mode=False)
            if sys.stdout is not None:
                sys.stdout.flush()  # a full disk may show only now
    except KeyboardInterrupt:
        code = 130
    except (Exception, SystemExit) as error:
        cause = error.__context__ if isinstance(error, SystemExit) else error  # typer exits if a pipe is closed
        if isinstance(cause, BrokenPipeError):  # for example `dualfocal ... | head`
            _silence(sys.stdout, sys.stderr)
            code = CLOSED_PIPE
        elif isinstance(error, SystemExit):
            raise
        else:
            code = _report(error, words)
    sys.exit(code if isinstance(code, int) else 0)


def full_app() -> typer.Typer:
    """Return the app with the commands of other installed packages: see ``dualfocal.cli.commands``."""
    added = {group.name for group in app.registered_groups} | {command.name for command in app.registered_commands}
    for entry in sorted(entry_points(group="dualfocal.commands")):
        if entry.name in added:
            continue
        try:
            command = entry.load()
        except ImportError as error:
            print(f"dualfocal: the command {entry.name} is left out: {how_to_install(error) or error}", file=sys.stderr)
            continue
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=entry.name)
        else:
            app.command(entry.name)(command)
    return app


def _report(error: Exception, arguments: list[str]) -> int:
    """Print an error as one line on stderr and return the exit code. A defect of the package is raised again."""
    missing = how_to_install(error) if isinstance(error, ImportError) else None
    failed = is_system_failure(error)
    usage = getattr(error, "format_message", None)  # typer formats its own usage errors
    if not failed and usage is None and missing is None and not isinstance(error, BAD_INPUT):
        raise error
    message = missing or (str(error) if usage is None else _usage_message(error, usage(), arguments))
    if is_out_of_memory(error):
        message = f"not enough memory for `{shlex.join(['dualfocal', *arguments])}`: {message or 'MemoryError'}"
        message = "; ".join((message, *getattr(error, "__notes__", ())))  # a command may know what needs less
    elif isinstance(error, OSError) and error.strerror:
        # An error of writing has no file name, unless we added it.
        place = error.filename or ("standard output" if failed and _stdout_fails() else "")
        message = f"{place}: {error.strerror}" if place else error.strerror
    with contextlib.suppress(OSError):
        if message:
            print(f"dualfocal: {printable(' '.join(in_options(message).split()))}", file=sys.stderr)
    return 1 if failed else 2


def _usage_message(error: Exception, message: str, arguments: list[str]) -> str:
    """Return a usage error of typer, with the help of a missing argument, or the value that typer refuses."""
    parameter = getattr(error, "param", None)
    meaning = getattr(parameter, "help", None)
    if message.startswith("No such command") and arguments[0] in LAB_COMMANDS:
        return f"{arguments[0]} is a command of dualfocal-lab: in a checkout of dualfocal, pip install -e lab"
    if message.startswith("Missing argument") and meaning:
        return f"{message.rstrip('.')}: {meaning}"
    names = getattr(parameter, "opts", ())
    words = [part for argument in arguments for part in (argument.split("=", 1) if "=" in argument else [argument])]
    values = [value for name, value in pairwise(words) if name in names and value not in message]
    return message + (f", got {values[-1][:60]}" if values else "")


def _stdout_fails() -> bool:
    """Whether stdout cannot be written, found by a line break; if so, what is left to write is dropped."""
    try:
        print(flush=True)
    except OSError:
        _silence(sys.stdout)
        return True
    return False


def _silence(*streams: TextIO) -> None:
    """Discard further output to these streams: Python writes the rest of its buffers when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(nowhere, stream.fileno())
