"""`dualfocal evaluate`: predictions on disk in, a table and a verdict out."""

import json
import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from dualfocal import metrics
from dualfocal.calibrators import CALIBRATORS, CalibratorComparison, make_calibrator, parse_methods
from dualfocal.cli._calibrators import compare_methods, print_comparison
from dualfocal.cli._common import (
    FILES,
    AsJson,
    BinaryOption,
    Force,
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
    check_plot,
    consoles,
    print_table,
)
from dualfocal.cli._groups import check_groups, print_groups
from dualfocal.metrics import Evaluation
from dualfocal.metrics.groups import GroupEvaluation, evaluate_groups, groups_follow_labels
from dualfocal.metrics.rows import as_rows
from dualfocal.predictions import Predictions, merge_predictions
from dualfocal.report.subjects import Reading
from dualfocal.runs.source import load_file_or_run

FLOOR = "floor: what a perfectly calibrated model with these confidences scores by chance"
FOLLOWS = "If groups were made from labels, the table means nothing: among samples of one label no model is calibrated."


class Convention(StrEnum):
    """Whose definition to follow."""

    published = "published"
    torchmetrics = "torchmetrics"


def evaluate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help=f"{FILES}Each is evaluated on its own.")],
    logits: Logits = None,
    probs: Probs = None,
    target: Target = None,
    split: Split = None,
    merge: Annotated[bool, typer.Option("--merge", help="The files are parts of one set of predictions.")] = False,
    group_by: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Also evaluate each group of samples, worst first.")
    ] = None,
    binary: BinaryOption = None,
    positive: Positive = None,
    num_bins: NumBins = 15,
    ignore_index: IgnoreIndex = -100,
    convention: Annotated[
        Convention | None, typer.Option(help="Follow the paper's code, or torchmetrics, where that differs.")
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(
            metavar="METHODS",
            help="Which calibrator would help? Try these, separated by commas, or `all`, fitted on the validation part "
            "of a run folder, or cross-fitted: "
            f"{', '.join(CALIBRATORS)}; joined by + for a chain.",
        ),
    ] = None,
    folds: Annotated[int, typer.Option(min=2, help="Of the cross-fit.")] = 5,
    repeats: Annotated[int, typer.Option(min=1, help="How often the cross-fit deals samples into folds anew.")] = 2,
    force: Force = False,
    inference: Annotated[
        bool, typer.Option(help="Say what the numbers can bear: floors, test, interval, smallest detectable error.")
    ] = True,
    level: Level = 0.9,
    seed: Seed = 0,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw a reliability diagram: .png, .pdf or .svg.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Is this model calibrated? Every metric, what a perfectly calibrated model would score, and a verdict.

    Logits or probabilities and labels are found by usual names (`logits`, `probs`, `target`, `label`, ...; in tables
    `logit_0`, `logit_1`, ...), never by looking at the values; where names are unclear, say them.

        dualfocal evaluate predictions.npz --plot reliability.png

        dualfocal evaluate predictions.csv --probs score --target outcome --binary positive --group-by hospital

        dualfocal evaluate predictions.npz --calibrate temperature,vector,isotonic
    """
    out, err = consoles(as_json)
    with bad_input_ends():
        if group_by is not None and not inference:
            raise ValueError("--group-by needs inference, to tell groups from noise")
        check_plot(plot)
        names = () if calibrate is None else parse_methods(calibrate)
        methods = {name: make_calibrator(name, force=force) for name in names}
        if len(set(files)) < len(files):
            raise ValueError(f"{next(path for path in files if files.count(path) > 1)} is given more than once")
        loaded = {
            str(path): load_file_or_run(
                path,
                logits=logits,
                probs=probs,
                target=target,
                group=group_by,
                split=split,
                run_split="test",
                positive=positive,
            )
            for path in files
        }
        for name, data in loaded.items():
            check_groups(name, data)
        if merge and len(loaded) > 1:
            loaded = {" + ".join(loaded): merge_predictions(loaded)}

    def run(values: Tensor, labels: Tensor, input: str) -> Evaluation:
        return metrics.evaluate(
            values,
            labels,
            input=input,
            num_bins=num_bins,
            ignore_index=ignore_index,
            binary=None if binary is None else binary.value,
            convention=None if convention is None else convention.value,
            inference=inference,
            level=level,
            seed=seed,
        )

    def in_groups(data: Predictions) -> list[GroupEvaluation]:
        if data.groups is None:
            return []
        with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
            bar = progress.add_task("groups", total=1.0)
            return evaluate_groups(
                data.values,
                data.target,
                data.groups,
                input=data.input,
                num_bins=num_bins,
                ignore_index=ignore_index,
                binary=None if binary is None else binary.value,
                convention=None if convention is None else convention.value,
                level=level,
                seed=seed,
                progress=lambda share: progress.update(bar, completed=share),
            )

    def calibrated(name: str, data: Predictions, result: Evaluation) -> CalibratorComparison:
        reading = Reading(
            logits=logits,
            probs=probs,
            target=target,
            split=split,
            positive=positive,
            ignore_index=ignore_index,
            binary=None if binary is None else binary.value,
            level=level,
            seed=seed,
        )
        path = None if merge and len(files) > 1 else Path(name)
        counts = {"folds": folds, "repeats": repeats, "num_bins": num_bins}
        return compare_methods(path, data, methods, reading, evaluation=result, **counts, err=err)

    records, results, panels = [], {}, dict[str, Evaluation]()
    for name, data in loaded.items():
        err.print(f"{name}: {data.taken}", markup=False, highlight=False, soft_wrap=True)
        with bad_input_ends(name):
            results[name] = result = run(data.values, data.target, data.input)
            groups = in_groups(data)
            comparison = calibrated(name, data, result) if methods else None
        records.append({"file": name, "taken": data.taken, **result.to_dict()})
        if inference:
            records[-1]["verdict"] = result.verdict()
        if groups:
            records[-1]["groups"] = [group.to_dict() for group in groups]
        if comparison is not None:
            records[-1]["calibration"] = {**comparison.to_dict(), "verdict": comparison.verdict()}
        _print_evaluation(out, name, result)
        if result.nll == math.inf:
            text = f"NLL is infinite: {_ruled_out(data, ignore_index):,} true classes have probability 0."
            out.print(text, markup=False, highlight=False, soft_wrap=True)
        if groups:
            print_groups(out, group_by or "", groups)
            if data.groups is not None and groups_follow_labels(data.groups, data.target, ignore_index):
                text = f"Each label lies in one group of {group_by!r}. {FOLLOWS}"
                out.print(text, markup=False, highlight=False, soft_wrap=True)
        if comparison is not None:
            print_comparison(out, comparison)
            scores = [score for score in comparison.methods if score.name in methods]
            panels |= {f"{name}, {score.name}": score.evaluation for score in scores}
    if len(results) > 1:
        _print_summary(out, results)
    if as_json:
        print(json.dumps({"schema": 1, "files": records}, indent=2, allow_nan=False))
    if plot is not None:
        from dualfocal.plots import reliability_figure, save

        with bad_input_ends():
            panels = results | panels
            save(reliability_figure(dict(zip(_short(list(panels)), panels.values(), strict=True))), plot, dpi=150)
        err.print(f"Reliability diagram: {plot}", markup=False, highlight=False, soft_wrap=True)


def _ruled_out(data: Predictions, ignore_index: int) -> int:
    """How many samples have a class that their prediction gives no chance at all."""
    binary = "top_label" if data.values.ndim == 1 else None
    rows = as_rows(data.values, data.target, input=data.input, ignore_index=ignore_index, binary=binary)
    of_target = rows.values.gather(1, rows.target[:, None])
    return int((of_target == (0 if data.input == "probs" else -math.inf)).sum())


def _short(names: list[str]) -> list[str]:
    """Names without their folders, where that leaves them different."""
    short = [" + ".join(Path(part).name for part in name.split(" + ")) for name in names]
    return short if len(set(short)) == len(names) else names


def _print_evaluation(out: Console, name: str, result: Evaluation) -> None:
    table = result.table()
    print_table(out, f"{name}: {table.title}", table.headings, table.rows)
    if result.inference is None:
        return
    out.print(FLOOR, style="dim", markup=False, highlight=False)
    for metric, (low, high) in result.inference.published.items():
        text = f"published pivotal bootstrap of {metric}: {100 * low:.2f} to {100 * high:.2f} %"
        out.print(text, markup=False, highlight=False)
    out.print(result.verdict(), style="bold", markup=False, highlight=False, soft_wrap=True)


def _print_summary(out: Console, results: dict[str, Evaluation]) -> None:
    rows = []
    for name, r in results.items():
        floor = "" if r.inference is None else f"{100 * r.inference.floors['ece'].mean:.2f}"
        rows.append([name, f"{r.num_samples:,}", f"{100 * r.error:.2f}", f"{r.nll:.4f}", f"{100 * r.ece:.2f}", floor])
    print_table(out, "all files", ["file", "N", "error %", "NLL", "ECE %", "ECE floor %"], rows)
