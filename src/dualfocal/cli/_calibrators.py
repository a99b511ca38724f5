"""Calibrators tried on predictions: `--calibrate` of `dualfocal evaluate`."""

from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from dualfocal.calibrators import Calibrator, CrossFit, cross_fit
from dualfocal.calibrators.held_out import HeldOut, fit_and_score
from dualfocal.cli._common import print_table
from dualfocal.predictions import Predictions
from dualfocal.report.calibrated import validation_part
from dualfocal.report.subjects import Reading


def try_calibrators(
    path: Path | None,
    data: Predictions,
    methods: dict[str, Calibrator],
    reading: Reading,
    *,
    folds: int,
    repeats: int,
    num_bins: int,
    err: Console,
) -> CrossFit | HeldOut:
    """Fitted on the validation part, of a run that has one; otherwise cross-fitted.

    ``path`` is None for merged files; ``num_bins`` may be more than a report can have.
    """
    validation, remark = None, ""
    if path is not None and path.is_dir():
        rows = reading.rows(data)
        validation, remark = validation_part(path, rows, reading)
    if remark:
        err.print(f"{path}: {remark}", markup=False, highlight=False, soft_wrap=True)
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        bar = progress.add_task("fitting calibrators", total=1.0)

        def tell(share: float) -> None:
            progress.update(bar, completed=share)

        if validation is not None:
            return fit_and_score(
                validation,
                rows,
                methods,
                part=reading.split or "test",
                num_bins=num_bins,
                level=reading.level,
                seed=reading.seed,
                progress=tell,
            )
        return cross_fit(
            data.values,
            data.target,
            methods,
            input=data.input,
            folds=folds,
            repeats=repeats,
            num_bins=num_bins,
            ignore_index=reading.ignore_index,
            binary=reading.binary,
            level=reading.level,
            seed=reading.seed,
            progress=tell,
        )


def print_tried(out: Console, result: CrossFit | HeldOut) -> None:
    """The table, what the fits had to say, and the advice."""
    headings, rows = result.table()
    how = "cross-fitted" if isinstance(result, CrossFit) else "fitted on the validation part"
    title = f"calibrators, {how}, lowest NLL first; percent: ECE, its floor, error, classes that moved"
    print_table(out, title, headings, rows)
    for name, reason in result.refused.items():
        out.print(f"{name} refused: {reason}", markup=False, highlight=False, soft_wrap=True)
    for note, names in result.notes().items():
        out.print(f"{', '.join(names)}: {note}", style="dim", markup=False, highlight=False, soft_wrap=True)
    out.print(result.caveat(), style="dim", markup=False, highlight=False, soft_wrap=True)
    out.print(result.verdict(), style="bold", markup=False, highlight=False, soft_wrap=True)
