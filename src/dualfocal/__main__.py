"""Run the command line: `dualfocal ...` or `python -m dualfocal ...`."""

from dualfocal._startup import begin_startup


def main() -> None:
    """Run the command of this process."""
    begin_startup()
    from dualfocal.cli import main as run_command

    run_command()


if __name__ == "__main__":
    main()
