"""`dualfocal compare`: paired differences between two models on the same samples."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from dualfocal.cli import _options as options
from dualfocal.cli._common import consoles, errors_name, print_json, progress_bar, say, show
from dualfocal.cli._evaluate.request import check_different

MCE = "MCE is not compared: it is the gap of one small bin, and resampling does not show how much it varies."


def compare(
    context: typer.Context,
    a: Annotated[Path, typer.Argument(metavar="A", help=f"Predictions of one model. {options.FILES}")],
    b: Annotated[
        Path, typer.Argument(metavar="B", help="The other model's predictions for the same samples, in the same order.")
    ],
    identity: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="COLUMN", help="Column or array that identifies the samples, if they are in another order."
        ),
    ] = None,
    cluster: options.ClusterOption = None,
    weight: options.WeightOption = None,
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
    as_json: options.AsJson = False,
) -> None:
    """Which of two models is better? Paired differences on the same samples, B - A, with intervals and a verdict.

    Both files must have the same labels; classes with names may be in another order, and rows with `--id`. Arrays and
    columns are found as in `dualfocal evaluate`. The columns of `--cluster` and `--weight` are read from A.

        dualfocal compare cross_entropy.npz dual_focal.npz

        dualfocal compare a.csv b.parquet --id image

        dualfocal compare a.csv b.csv --cluster patient
    """
    import torch

    from dualfocal import metrics
    from dualfocal.metrics.registry import footnote
    from dualfocal.predictions import check_same_labels
    from dualfocal.predictions.alignment import align_rows, class_order, reorder_classes

    out, err = consoles(as_json)
    reading = options.reading_from(context, group=identity)
    first, second = reading.load(a), replace(reading, cluster=None, weight=None).load(b)
    check_different([str(a), str(b)])
    remark = ""
    if identity is not None:
        first, second, remark = align_rows(first, second)
    with errors_name(b):
        order = class_order(second.class_names, first.class_names)
    if order is not None:
        second = reorder_classes(second, order)
    check_same_labels(first, second)
    reading.check_columns(replace(first, group_name=None), str(a))
    say(err, f"{a}: {first.taken}\n{b}: {second.taken}" + (f"\n{remark}" if remark else ""))
    if torch.equal(first.values, second.values) and first.input == second.input:
        say(err, "dualfocal: the predictions of A and B are identical")
    second = replace(second, clusters=first.clusters, weights=first.weights)
    with errors_name(a):
        samples_a = reading.samples(first)
    with errors_name(b):
        samples_b = reading.samples(second)
    with progress_bar(err, "resampling") as progress:
        result = metrics.compare(samples_a, samples_b, names=(str(a), str(b)), progress=progress, **reading.scoring)
    result = replace(result, names=("A", "B"))  # short: the title says which file is which
    if as_json:
        print_json({"a": str(a), "b": str(b), **result.to_dict(), "verdict": result.verdict()})
    show(out, result.table(), f"A = {a}, B = {b}, ")
    say(out, footnote(positive=result.a.positive), "dim", wrap=True)
    say(out, MCE, "dim", wrap=True)
    say(out, result.verdict(), "bold")
