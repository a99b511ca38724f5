"""Run the command line: `dualfocal ...` or `python -m dualfocal ...`."""

import sys

from dualfocal._extras import how_to_install
from dualfocal._startup import begin_startup


def main() -> None:
    """Run the command of this process."""
    begin_startup()
    try:
        from dualfocal.cli import main as run_command
    except ImportError as error:
        if (remedy := how_to_install(error)) is None:
            raise
        sys.exit(f"dualfocal: {remedy}")  # exit code 1

    run_command()


if __name__ == "__main__":
    main()
