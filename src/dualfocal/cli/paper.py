"""`dualfocal paper`: the paper's tables, figures, theory and errata. Each command has a file of its own."""

import typer

from dualfocal.cli.errata import errata
from dualfocal.cli.figures import figures
from dualfocal.cli.replication import replication, verify
from dualfocal.cli.reproduce import reproduce
from dualfocal.cli.theory import theory

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""Reproduce the paper, "Dual Focal Loss for Calibration" (ICML 2023): tables, figures, theory and errata.""",
)
for command in (reproduce, figures, replication, verify, theory, errata):
    app.command()(command)
