"""`dualfocal doctor`: check the installation."""

import typer

from dualfocal.cli._common import consoles, print_json, print_table, say
from dualfocal.cli._options import AsJson
from dualfocal.cli.data import Root


def doctor(data_root_: Root = None, as_json: AsJson = False) -> None:
    """Check the installation: versions, devices, kernels, data sets and extras.

    A small loss, a calibrator and, on an NVIDIA GPU, the Triton kernels are tried. Nothing is downloaded. Exits with
    code 1 if something that is needed does not work; missing data sets and extras are listed with the command that
    gets them.

        dualfocal doctor

        dualfocal doctor --json > doctor.json
    """
    try:
        from dualfocal.doctor import diagnose
    except (ImportError, OSError) as error:  # a missing package, or a missing library of a package
        message = (
            f"a package that is needed cannot be imported: {error}; install it again: pip install --force-reinstall"
        )
        typer.echo(f"dualfocal: {message} {getattr(error, 'name', None) or 'torch'}", err=True)
        raise typer.Exit(1) from error
    out, err = consoles(as_json)
    with err.status("trying losses, calibrators and kernels"):
        diagnosis = diagnose(data_root_)
    if as_json:
        print_json(diagnosis.to_dict())
    for table in diagnosis.tables():
        say(out, table.title, "bold")
        print_table(out, table)
        say(out, "")
    for problem in diagnosis.problems:
        say(err, f"dualfocal: {problem}")
    if diagnosis.problems:
        raise typer.Exit(1)
    say(out, "Everything that is needed works.", "bold")
