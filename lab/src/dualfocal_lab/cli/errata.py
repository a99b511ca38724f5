"""`dualfocal paper errata`: inconsistencies of the paper and its code."""

from dataclasses import asdict
from textwrap import fill
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from dualfocal.cli.commands import consoles, print_json, say

WIDTH = 80  # longer lines are hard to read
INDENT = 4
HEADING = "bold underline"


def errata(
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", help="Only these entries, for example `rbs-root`. [default: all]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """List inconsistencies in the paper and its public code, and what this package does about each.

    Each entry says where it is, what is inconsistent, what this package does, and how to get the published behaviour: a
    command, or Python with names from `dualfocal.losses`, `.metrics`, `.calibrators`, `.models`, `.train.presets` and
    `.paper.published`. A `preset(NAME, SETTINGS)` is `dualfocal train NAME --set SETTING ...`. Tables are numbered in
    the order of the paper. The last section lists methods that the paper only cites and that are not included.

        dualfocal paper errata

        dualfocal paper errata adafocal-columns rbs-root

        dualfocal paper errata --json
    """
    from dualfocal_lab.paper.errata import OUT_OF_SCOPE, find_errata

    out, _ = consoles(as_json)
    groups = find_errata(keys or ())
    out_of_scope = [] if keys else list(OUT_OF_SCOPE)
    if as_json:
        records = [{"kind": kind, **asdict(erratum)} for kind, group in groups.items() for erratum in group]
        print_json({"schema": 1, "errata": records, "out_of_scope": out_of_scope})
    for kind, group in groups.items():
        say(out, f"{kind}\n", HEADING)
        for erratum in group:
            out.print(Text.assemble((erratum.key, "bold"), "  ", (erratum.where, "dim")), soft_wrap=True)
            _print_paragraph(out, "", erratum.what)
            _print_paragraph(out, "Here: ", erratum.ours)
            _print_paragraph(out, "As published: ", "" if erratum.option else "no option")
            if erratum.option:  # to be copied, so never broken into lines
                say(out, " " * (INDENT + 2) + erratum.option, "cyan")
            out.print()
    if out_of_scope:
        say(out, "cited by the paper, not included here\n", HEADING)
    for method in out_of_scope:
        _print_paragraph(out, "- ", method, hanging=2)


def _print_paragraph(out: Console, label: str, text: str, hanging: int = 0) -> None:
    """Print an indented paragraph, wrapped here because rich would pad the lines with spaces."""
    lines = fill(
        label + text,
        min(WIDTH, out.width),
        initial_indent=" " * INDENT,
        subsequent_indent=" " * (INDENT + hanging),
        break_on_hyphens=False,
    )
    shown = Text(lines)
    shown.stylize("italic", 0, INDENT + len(label))
    out.print(shown, soft_wrap=True)
