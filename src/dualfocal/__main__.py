"""Run the command line by `python -m dualfocal`."""

from dualfocal.cli import main

main()
