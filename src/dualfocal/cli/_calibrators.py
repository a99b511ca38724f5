"""Calibrators compared on predictions: `--calibrate` of `dualfocal evaluate`."""

from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from dualfocal.calibrators import Calibrator, CalibratorComparison, compare_calibrators
from dualfocal.cli._common import print_table, say
from dualfocal.metrics import Evaluation
from dualfocal.predictions import Predictions
from dualfocal.report.calibrated import validation_part
from dualfocal.report.subjects import Reading


def compare_methods(
    path: Path | None,
    data: Predictions,
    methods: dict[str, Calibrator],
    reading: Reading,
    *,
    evaluation: Evaluation,
    folds: int,
    repeats: int,
    num_bins: int,
    err: Console,
) -> CalibratorComparison:
    """Calibrators fitted on the validation part of a run that has one; otherwise cross-fitted.

    ``path`` is None for merged files; ``num_bins`` may be more than a report can have.
    """
    validation, remark = (None, "") if path is None else validation_part(path, reading.rows(data), reading)
    if remark:
        say(err, f"{path}: {remark}")
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        bar = progress.add_task("fitting calibrators", total=1.0)
        return compare_calibrators(
            data.values,
            data.target,
            methods,
            input=data.input,
            validation=validation,
            part=reading.split or "test",
            evaluation=evaluation,
            folds=folds,
            repeats=repeats,
            num_bins=num_bins,
            ignore_index=reading.ignore_index,
            binary=reading.binary,
            level=reading.level,
            seed=reading.seed,
            progress=lambda share: progress.update(bar, completed=share),
        )


def print_comparison(out: Console, comparison: CalibratorComparison) -> None:
    """The table, the remarks of the fits, and the advice."""
    table = comparison.table()
    print_table(out, table.title, table.headings, table.rows)
    for remark in comparison.remarks():
        say(out, remark, "dim")
    say(out, comparison.caveat(), "dim")
    say(out, comparison.verdict(), "bold")
