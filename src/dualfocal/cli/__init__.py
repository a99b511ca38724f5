"""The command line: `dualfocal ...` or `python -m dualfocal ...`."""

import io
import os
import sys
import warnings

import typer

from dualfocal import __version__
from dualfocal._table import printable
from dualfocal.cli._common import BAD_INPUT
from dualfocal.cli.calibrate import apply, calibrate
from dualfocal.cli.compare import compare
from dualfocal.cli.data import app as data
from dualfocal.cli.evaluate import evaluate
from dualfocal.cli.paper import app as paper
from dualfocal.cli.report import report
from dualfocal.cli.study import study
from dualfocal.cli.train import runs, train

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (evaluate, report, compare, calibrate, apply, train, study, runs):
    app.command()(command)
app.add_typer(data, name="data")
app.add_typer(paper, name="paper")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"dualfocal {__version__}")
        raise typer.Exit


@app.callback()
def _dualfocal(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Measure, test and fix the calibration of a classifier; train calibrated ones; re-run the paper."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command; bad input ends with one line on stderr and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an encoding that lacks a character must not lose the result
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: print(f"dualfocal: {printable(str(message))}", file=sys.stderr)
            code = app(arguments, standalone_mode=False)
    except BrokenPipeError:  # for example `dualfocal ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as error:
        # typer formats its own usage errors. Any other exception is a bug and keeps its traceback.
        if not hasattr(error, "format_message") and not isinstance(error, BAD_INPUT):
            raise
        if message := getattr(error, "format_message", error.__str__)():
            print(f"dualfocal: {printable(' '.join(message.split()))}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        code = 130
    sys.exit(code if isinstance(code, int) else 0)
