"""`python -m dualfocal`."""

from dualfocal.cli import main

main()
