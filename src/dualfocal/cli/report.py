"""`dualfocal report`: an HTML page about predictions or finished runs."""

from pathlib import Path
from typing import Annotated

import typer

from dualfocal.cli import _options as options
from dualfocal.cli._common import CALIBRATORS, check_output, consoles, progress_bar, say
from dualfocal.cli._completion import names_of


def report(
    context: typer.Context,
    inputs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN|FILE", help=f"{options.FILES}Or a folder of runs. Several are shown side by side."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The .html file to write.")] = Path(
        "report.html"
    ),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    calibrators: Annotated[
        str,
        typer.Option(
            metavar="METHODS",
            autocompletion=names_of(CALIBRATORS, ",+", alone=("all", "none")),
            help="Calibrators to compare: `none`, `all`, or names separated by commas. "
            f"Names: {', '.join(CALIBRATORS)}; join names with + for a chain.",
        ),
    ] = "all",
    cluster: options.ClusterOption = None,
    weight: options.WeightOption = None,
    group_by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Also show each group of samples in this column, worst first. Numbers that are not whole are cut into "
            "five groups of equal size.",
        ),
    ] = None,
    monitor: Annotated[
        Path | None,
        typer.Option(metavar="STATE", help="State file of `dualfocal monitor`: show its verdict and history."),
    ] = None,
    logits: options.Logits = None,
    probs: options.Probs = None,
    target: options.Target = None,
    split: options.Split = None,
    binary: options.BinaryOption = None,
    positive: options.Positive = None,
    class_names: options.ClassNames = None,
    percent: options.Percent = False,
    drop_missing: options.DropMissing = False,
    max_memory: options.MaxMemory = None,
    num_bins: options.NumBins = 15,
    ignore_index: options.IgnoreIndex = -100,
    level: options.Level = 0.9,
    seed: options.Seed = 0,
) -> None:
    """One HTML page to send to a colleague: which model is better, or the verdict on one model, and what fixes it.

    Several models of the same samples are compared by paired differences. The page needs no network and no other file;
    figures and tables can be saved from it. It recomputes the diagram, ECE and NLL when you change bins,
    temperature or class. Calibrators are fitted on the validation split of a run; for prediction files they are
    cross-validated.

        dualfocal report runs/cross_entropy runs/dual_focal -o report.html

        dualfocal report runs  # all finished runs in this folder

        dualfocal report predictions.csv --probs score --target outcome --binary top_label

        dualfocal report a.csv b.csv --cluster patient --weight survey_weight --group-by hospital
    """
    from dualfocal.calibrators import parse_methods
    from dualfocal.report import write_report
    from dualfocal.report.inputs import find_inputs

    printer, err = consoles(False)
    inputs, unfinished = find_inputs(inputs)
    if unfinished:
        say(err, f"dualfocal: left out, not finished: {', '.join(map(str, unfinished))}")
    check_output(out, *inputs)
    reading = options.reading_from(context, group=group_by)
    with progress_bar(err, "reading") as progress:
        size = write_report(
            inputs,
            out,
            title=title,
            calibrators=parse_methods(calibrators),
            reading=reading,
            monitor=monitor,
            progress=lambda share, what: progress(share, description=what),
        )
    say(printer, f"Report: {out} ({size / 1e6:.1f} MB)")
