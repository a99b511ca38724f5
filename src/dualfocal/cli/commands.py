"""What a package needs to add commands to ``dualfocal``, so that they look and fail like the others.

A command is a function for typer, or a ``typer.Typer`` with commands of its own, that an installed package names in its
entry-point group ``dualfocal.commands``::

    [project.entry-points."dualfocal.commands"]
    train = "my_package.commands:train"
"""

from dualfocal.cli._common import (
    check_plot,
    comma_separated,
    consoles,
    errors_name,
    is_out_of_memory,
    print_json,
    print_table,
    progress_bar,
    say,
    show,
)
from dualfocal.cli._completion import names_of
from dualfocal.cli._options import AsJson

__all__ = [
    "AsJson",
    "check_plot",
    "comma_separated",
    "consoles",
    "errors_name",
    "is_out_of_memory",
    "names_of",
    "print_json",
    "print_table",
    "progress_bar",
    "say",
    "show",
]
