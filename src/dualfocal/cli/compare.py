"""`dualfocal compare`: two models' predictions for the same samples in, paired differences out."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from dualfocal import metrics
from dualfocal.cli._common import (
    FILES,
    AsJson,
    BinaryOption,
    IgnoreIndex,
    Level,
    Logits,
    NumBins,
    Positive,
    Probs,
    Seed,
    Split,
    Target,
    bad_input_ends,
    consoles,
    print_table,
)
from dualfocal.predictions import Predictions
from dualfocal.runs.source import load_file_or_run


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help=f"One model's predictions. {FILES}")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The other's, for the same samples in the same order.")],
    logits: Logits = None,
    probs: Probs = None,
    target: Target = None,
    split: Split = None,
    binary: BinaryOption = None,
    positive: Positive = None,
    num_bins: NumBins = 15,
    ignore_index: IgnoreIndex = -100,
    level: Level = 0.9,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Which of two models is better, on the same samples? Paired differences, B - A, with intervals and a verdict.

    Both files must hold the same labels. Names are found as by `dualfocal evaluate`, in each file.

        dualfocal compare cross_entropy.npz dual_focal.npz
    """
    out, err = consoles(as_json)
    with bad_input_ends():
        first, second = (
            load_file_or_run(
                path, logits=logits, probs=probs, target=target, positive=positive, split=split, run_split="test"
            )
            for path in (a, b)
        )
        _check_same_labels(first, second)
    two_classes = None if binary is None else binary.value
    for name, data in ((a, first), (b, second)):
        err.print(f"{name}: {data.taken}", markup=False, highlight=False, soft_wrap=True)
    with bad_input_ends(), Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        bar = progress.add_task("resampling", total=1.0)
        result = metrics.compare(
            first.values,
            second.values,
            first.target,
            input=(first.input, second.input),
            binary=two_classes,
            num_bins=num_bins,
            ignore_index=ignore_index,
            level=level,
            seed=seed,
            names=(str(a), str(b)),
            progress=lambda share: progress.update(bar, completed=share),
        )
    if as_json:
        record = {"a": str(a), "b": str(b), **result.to_dict(), "verdict": result.verdict()}
        print(json.dumps(record, indent=2, allow_nan=False))
        return
    table = result.table()
    print_table(out, f"A = {a}, B = {b}, {table.title}", table.headings, table.rows)
    out.print(result.verdict(), style="bold", markup=False, highlight=False, soft_wrap=True)


def _check_same_labels(a: Predictions, b: Predictions) -> None:
    if a.class_names and b.class_names and a.class_names != b.class_names:
        raise ValueError("both files must have the same classes in the same order")
    if a.target.shape != b.target.shape:
        shapes = f"{tuple(a.target.shape)} and {tuple(b.target.shape)}"
        raise ValueError(f"both files must hold the same labels, got shapes {shapes}")
    differ = (a.target != b.target).reshape(-1).nonzero()[:, 0]
    if len(differ):
        i = int(differ[0])
        labels = f"{int(a.target.reshape(-1)[i])} and {int(b.target.reshape(-1)[i])}"
        raise ValueError(f"both files must hold the same labels: {len(differ)} differ, the first at {i}: {labels}")
