"""`dualfocal evaluate`: predictions on disk in, a table and a verdict out."""

import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from dualfocal._table import Table
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
    check_plot,
    consoles,
    errors_name,
    print_json,
    progress_bar,
    say,
    show,
)
from dualfocal.cli._names import CALIBRATORS

if TYPE_CHECKING:
    from dualfocal.calibrators import Calibrator, CalibratorComparison
    from dualfocal.metrics import Evaluation
    from dualfocal.metrics.groups import GroupEvaluation
    from dualfocal.predictions import Predictions
    from dualfocal.runs.source import Reading

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
    from dualfocal.calibrators import make_calibrator, parse_methods
    from dualfocal.predictions import merge_predictions
    from dualfocal.runs.source import Reading

    out, err = consoles(as_json)
    if group_by is not None and not inference:
        raise ValueError("--group-by needs inference, to tell groups from noise")
    check_plot(plot)
    names = () if calibrate is None else parse_methods(calibrate)
    methods = {name: make_calibrator(name, force=force) for name in names}
    if len(set(files)) < len(files):
        raise ValueError(f"{next(path for path in files if files.count(path) > 1)} is given more than once")
    reading = Reading(
        logits=logits,
        probs=probs,
        target=target,
        group=group_by,
        split=split,
        positive=positive,
        num_bins=num_bins,
        ignore_index=ignore_index,
        binary=binary,
        level=level,
        seed=seed,
    )
    loaded = {str(path): reading.load(path) for path in files}
    for name, data in loaded.items():
        _check_groups(name, data)
    merged = merge and len(loaded) > 1
    if merged:
        loaded = {" + ".join(loaded): merge_predictions(loaded)}
    findings = []
    for name, data in loaded.items():
        say(err, f"{name}: {data.taken}")
        with errors_name(name):
            finding = Finding(name, data, *_evaluate(data, reading, convention, inference, err))
            if methods:
                path = None if merged else Path(name)
                finding.comparison = _compare_methods(path, finding, methods, reading, folds, repeats, err)
        _print_finding(out, finding, reading)
        findings.append(finding)
    if len(findings) > 1:
        _print_summary(out, findings)
    if as_json:
        print_json({"schema": 1, "files": [finding.to_dict() for finding in findings]})
    if plot is not None:
        _draw(findings, list(methods), plot)
        say(err, f"Reliability diagram: {plot}")


@dataclass
class Finding:
    """What was found of one set of predictions."""

    name: str
    data: "Predictions"
    evaluation: "Evaluation"
    groups: "list[GroupEvaluation]"
    comparison: "CalibratorComparison | None" = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        content: dict[str, Any] = {"file": self.name, "taken": self.data.taken, **self.evaluation.to_dict()}
        if self.evaluation.inference is not None:
            content["verdict"] = self.evaluation.verdict()
        if self.groups:
            content["groups"] = [group.to_dict() for group in self.groups]
        if self.comparison is not None:
            content["calibration"] = {**self.comparison.to_dict(), "verdict": self.comparison.verdict()}
        return content


def _check_groups(name: str, data: "Predictions") -> None:
    if data.group_name is not None and data.group_name == data.label_name:
        raise ValueError(
            f"--group-by: {data.group_name!r} of {name} holds the labels, and among samples of one label no model is "
            "calibrated; group by what is known before the label is"
        )


def _evaluate(
    data: "Predictions", reading: "Reading", convention: str | None, inference: bool, err: Console
) -> "tuple[Evaluation, list[GroupEvaluation]]":
    """All samples, and each group of them."""
    from dualfocal.metrics import evaluate
    from dualfocal.metrics.groups import evaluate_groups

    options: dict[str, Any] = {
        "input": data.input,
        "num_bins": reading.num_bins,
        "ignore_index": reading.ignore_index,
        "binary": reading.binary,
        "convention": convention,
        "level": reading.level,
        "seed": reading.seed,
    }
    evaluation = evaluate(data.values, data.target, inference=inference, **options)
    if data.groups is None:
        return evaluation, []
    with progress_bar(err, "groups") as progress:
        return evaluation, evaluate_groups(data.values, data.target, data.groups, progress=progress, **options)


def _compare_methods(
    path: Path | None,
    finding: Finding,
    methods: "dict[str, Calibrator]",
    reading: "Reading",
    folds: int,
    repeats: int,
    err: Console,
) -> "CalibratorComparison":
    """Calibrators fitted on the validation part of a run that has one; otherwise cross-fitted."""
    from dualfocal.calibrators import compare_calibrators

    data = finding.data
    validation, remark = (None, "") if path is None else reading.validation(path, reading.rows(data))
    if remark:
        say(err, f"{path}: {remark}")
    with progress_bar(err, "fitting calibrators") as progress:
        return compare_calibrators(
            data.values,
            data.target,
            methods,
            input=data.input,
            validation=validation,
            part=reading.split or "test",
            evaluation=finding.evaluation,
            folds=folds,
            repeats=repeats,
            num_bins=reading.num_bins,
            ignore_index=reading.ignore_index,
            binary=reading.binary,
            level=reading.level,
            seed=reading.seed,
            progress=progress,
        )


def _print_finding(out: Console, finding: Finding, reading: "Reading") -> None:
    from dualfocal.metrics.groups import group_table, groups_follow_labels

    evaluation, data, groups, comparison = finding.evaluation, finding.data, finding.groups, finding.comparison
    table = evaluation.table()
    show(out, table, f"{finding.name}: {table.title}")
    if evaluation.inference is not None:
        say(out, FLOOR, "dim", wrap=True)
        for metric, (low, high) in evaluation.inference.published.items():
            say(out, f"published pivotal bootstrap of {metric}: {100 * low:.2f} to {100 * high:.2f} %")
        say(out, evaluation.verdict(), "bold")
    if evaluation.nll == math.inf:
        number = _ruled_out(data, reading.ignore_index)
        say(out, f"NLL is infinite: {number:,} true classes have probability 0.")
    if groups:
        show(out, group_table(str(reading.group), groups))
        number = sum(group.p_adjusted <= 0.05 for group in groups)
        tests = f"p-values adjusted for {len(groups)} tests (Holm). Worst first by the lower end of the interval."
        say(out, f"{number} of {len(groups)} groups are miscalibrated at 5 %, {tests}", "bold")
    if data.groups is not None and groups_follow_labels(data.groups, data.target, reading.ignore_index):
        say(out, f"Each label lies in one group of {reading.group!r}. {FOLLOWS}")
    if comparison is not None:
        show(out, comparison.table())
        for remark in comparison.remarks():
            say(out, remark, "dim")
        say(out, comparison.caveat(), "dim")
        say(out, comparison.verdict(), "bold")


def _print_summary(out: Console, findings: list[Finding]) -> None:
    rows = []
    for finding in findings:
        one = finding.evaluation
        floor = "" if one.inference is None else f"{100 * one.inference.floors['ece'].mean:.2f}"
        numbers = [f"{one.num_samples:,}", f"{100 * one.error:.2f}", f"{one.nll:.4f}", f"{100 * one.ece:.2f}", floor]
        rows.append([finding.name, *numbers])
    show(out, Table(["file", "N", "error %", "NLL", "ECE %", "ECE floor %"], rows, "all files"))


def _draw(findings: list[Finding], methods: list[str], plot: Path) -> None:
    """Draw the models, then their calibrators; names without their folders, where that leaves them different."""
    from dualfocal.plots import reliability_figure, save

    panels = {finding.name: finding.evaluation for finding in findings}
    for finding in findings:
        scores = finding.comparison.methods if finding.comparison is not None else ()
        panels |= {f"{finding.name}, {score.name}": score.evaluation for score in scores if score.name in methods}
    short = [" + ".join(Path(part).name for part in name.split(" + ")) for name in panels]
    names = short if len(set(short)) == len(panels) else list(panels)
    save(reliability_figure(dict(zip(names, panels.values(), strict=True))), plot, dpi=150)


def _ruled_out(data: "Predictions", ignore_index: int) -> int:
    """How many samples have a class that their prediction gives no chance at all."""
    from dualfocal.metrics.rows import as_rows

    binary = "top_label" if data.values.ndim == 1 else None
    rows = as_rows(data.values, data.target, input=data.input, ignore_index=ignore_index, binary=binary)
    of_target = rows.values.gather(1, rows.target[:, None])
    return int((of_target == (0 if data.input == "probs" else -math.inf)).sum())
