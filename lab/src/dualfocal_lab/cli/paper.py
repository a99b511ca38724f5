"""`dualfocal paper`: the paper's tables, figures, theory and errata. Each command has a file of its own."""

import typer

from dualfocal_lab.cli.errata import errata
from dualfocal_lab.cli.figures import figures
from dualfocal_lab.cli.replication import replication, verify
from dualfocal_lab.cli.reproduce import reproduce
from dualfocal_lab.cli.theory import theory

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""Reproduce the paper, "Dual Focal Loss for Calibration" (ICML 2023): tables, figures, theory and errata.""",
)
for command in (reproduce, figures, replication, verify, theory, errata):
    app.command()(command)
