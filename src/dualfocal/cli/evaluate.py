"""`dualfocal evaluate`: metrics, noise floors and a verdict for prediction files."""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from dualfocal._checks import AT_MOST
from dualfocal._table import Table
from dualfocal.cli._common import (
    CALIBRATORS,
    FILES,
    AsJson,
    BinaryOption,
    ClassNames,
    Confidence,
    DropMissing,
    Force,
    IgnoreIndex,
    Level,
    Logits,
    MaxMemory,
    NumBins,
    Percent,
    Positive,
    Prediction,
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
from dualfocal.cli._streamed import evaluate_stream, open_stream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dualfocal.calibrators import Calibrator, CalibratorComparison
    from dualfocal.metrics import Evaluation
    from dualfocal.metrics.groups import GroupEvaluation
    from dualfocal.predictions import Predictions, PredictionStream
    from dualfocal.runs.source import Reading

FLOOR = "noise floor: the mean score of a perfectly calibrated model with the same confidences and number of samples"
TOP_LABEL = (
    "Two classes: the metrics are about the confidence of the predicted class; --binary positive evaluates the "
    "probability of class 1."
)
POSITIVE = (
    "The metrics are about the probability of class 1; --binary top_label evaluates the confidence of the predicted "
    "class."
)
FOLLOWS = (
    "If the groups were made from the labels, ignore this table: among samples of one label, no model is calibrated."
)
Convention = StrEnum("Convention", ["published", "torchmetrics"])  # which definitions to follow


def evaluate(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help=f"Prediction files. {FILES}Each is evaluated separately.")
    ],
    logits: Logits = None,
    probs: Probs = None,
    target: Target = None,
    split: Split = None,
    prediction: Prediction = None,
    confidence: Confidence = None,
    merge: Annotated[bool, typer.Option("--merge", help="Treat the files as parts of one set of predictions.")] = False,
    group_by: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Also evaluate each group of samples in this column, worst first."),
    ] = None,
    binary: BinaryOption = None,
    positive: Positive = None,
    class_names: ClassNames = None,
    percent: Percent = False,
    drop_missing: DropMissing = False,
    max_memory: MaxMemory = None,
    num_bins: NumBins = 15,
    ignore_index: IgnoreIndex = -100,
    convention: Annotated[
        Convention | None,
        typer.Option(help="Use the definitions of the paper's code or of torchmetrics where they differ from ours."),
    ] = None,
    calibrate: Annotated[
        str,
        typer.Option(
            metavar="METHODS",
            help="Compare calibrators: names separated by commas, or `all`. They are fitted on the validation split of "
            "a run folder, otherwise cross-validated. "
            f"Names: {', '.join(CALIBRATORS)}; join names with + for a chain.",
        ),
    ] = "none",
    folds: Annotated[
        int, typer.Option(min=2, max=AT_MOST["folds"], help="Number of folds of the cross-validation.")
    ] = 5,
    repeats: Annotated[
        int,
        typer.Option(
            min=1, max=AT_MOST["repeats"], help="Number of repetitions of the cross-validation, with new folds."
        ),
    ] = 2,
    force: Force = False,
    inference: Annotated[
        bool,
        typer.Option(
            help="Compute noise floors, the calibration test, the interval and the smallest detectable error."
        ),
    ] = True,
    level: Level = 0.9,
    seed: Seed = 0,
    fail_over: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            metavar="X",
            help="Exit with code 3 if the calibration error is certainly larger, such as 0.03: if the lower end of the "
            "interval of the debiased error exceeds it. For tests and continuous integration.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", callback=check_plot, help="Draw a reliability diagram: .png, .pdf or .svg."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Is this model calibrated? Every metric, what a perfectly calibrated model would score, and a verdict.

    Logits or probabilities and labels are found by their usual names (`logits`, `probs`, `target`, `label`, ...; in
    tables `logit_0`, `logit_1`, ..., or columns named like the labels if their rows sum to 1). If the names are
    ambiguous, give them as options: the error lists all questions, with a command that answers them.

        dualfocal evaluate predictions.npz --plot reliability.png

        dualfocal evaluate logits.npy --target labels.npy

        dualfocal evaluate predictions.csv --probs score --target outcome --binary positive --group-by hospital

        dualfocal evaluate predictions.npz --calibrate temperature,vector,isotonic

        dualfocal evaluate predictions.npz --fail-over 0.03 || echo "not calibrated"
    """
    from dualfocal import metrics
    from dualfocal.calibrators import make_calibrator, parse_methods
    from dualfocal.metrics.groups import evaluate_groups
    from dualfocal.predictions import PredictionStream
    from dualfocal.runs.source import Reading

    out, err = consoles(as_json)
    for option, value in (("--group-by", group_by), ("--fail-over", fail_over)):
        if value is not None and not inference:
            raise ValueError(f"{option} needs inference: remove --no-inference")
    methods = {name: make_calibrator(name, force=force) for name in parse_methods(calibrate)}
    if len(set(files)) < len(files):
        raise ValueError(f"{next(path for path in files if files.count(path) > 1)} is given more than once")
    reading = Reading(
        logits=logits,
        probs=probs,
        target=target,
        group=group_by,
        split=split,
        prediction=prediction,
        confidence=confidence,
        positive=positive,
        class_names=class_names,
        percent=percent,
        drop_missing=drop_missing,
        max_memory=max_memory,
        num_bins=num_bins,
        ignore_index=ignore_index,
        binary=binary,
        level=level,
        seed=seed,
    )
    loaded = _load(err, files, reading, merge, {"--calibrate": bool(methods), "--convention": convention is not None})
    findings = []
    for name, data in loaded.items():
        if isinstance(data, PredictionStream):
            evaluation = evaluate_stream(err, name, data, reading, inference=inference)
            findings.append(Finding(name, data, evaluation))
            _print_finding(out, findings[-1], reading)
            continue
        say(err, f"{name}: {data.taken}")
        given = {"input": data.input, **reading.scoring}
        with errors_name(name):
            evaluation = metrics.evaluate(data.values, data.target, convention=convention, inference=inference, **given)
            finding = Finding(name, data, evaluation)
            if data.groups is not None:
                with progress_bar(err, "groups") as progress:
                    finding.groups = evaluate_groups(
                        data.values, data.target, data.groups, convention=convention, progress=progress, **given
                    )
            if methods:
                finding.comparison = _compare(
                    err, finding, data, reading, methods, merged=len(loaded) < len(files), folds=folds, repeats=repeats
                )
        _print_finding(out, finding, reading)
        findings.append(finding)
    if len(findings) > 1:
        headings = ["file", "N", "error %", "NLL", "ECE %", "ECE floor %"]
        show(out, Table(headings, [finding.cells() for finding in findings], "all files"))
    if as_json:
        print_json({"schema": 1, "files": [finding.to_dict() for finding in findings]})
    if plot is not None:
        _draw(findings, list(methods), plot)
        say(err, f"Reliability diagram: {plot}")
    if fail_over is not None:
        gate(err, {finding.name: finding.evaluation for finding in findings}, fail_over)


def gate(err: Console, evaluations: "Mapping[str, Evaluation]", limit: float) -> None:
    """Exit with code 3 if the debiased error of an evaluation is certainly above the limit (``--fail-over``)."""
    failed = False
    for name, evaluation in evaluations.items():
        assert evaluation.inference is not None
        low, high = (f"{100 * end:.2f}" for end in evaluation.inference.debiased_ece)
        interval = f"{100 * evaluation.inference.level:.4g} % interval {low} to {high} %"
        if evaluation.inference.debiased_ece[0] > limit:
            say(err, f"dualfocal: {name}: calibration error above the limit of {100 * limit:g} %: {interval}")
            failed = True
    if failed:
        raise typer.Exit(3)


@dataclass
class Finding:
    """The evaluation of one set of predictions."""

    name: str
    data: "Predictions | PredictionStream"
    evaluation: "Evaluation"
    groups: "list[GroupEvaluation]" = field(default_factory=list)
    comparison: "CalibratorComparison | None" = None

    def cells(self) -> list[str]:
        """The row of the table of several files."""
        one = self.evaluation
        floor = "" if one.inference is None else f"{100 * one.inference.floors['ece'].mean:.2f}"
        return [
            self.name,
            f"{one.num_samples:,}",
            f"{100 * one.error:.2f}",
            "" if math.isnan(one.nll) else f"{one.nll:.4f}",
            f"{100 * one.ece:.2f}",
            floor,
        ]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        content: dict[str, Any] = {"file": self.name, "taken": self.data.taken, **self.evaluation.to_dict()}
        if self.evaluation.inference is not None:
            content["verdict"] = self.evaluation.verdict(self.data.class_names)
        if self.groups:
            content["groups"] = [group.to_dict() for group in self.groups]
        if self.comparison is not None:
            content["calibration"] = {**self.comparison.to_dict(), "verdict": self.comparison.verdict()}
        return content


def _load(
    err: Console, files: list[Path], reading: "Reading", merge: bool, needs_all_rows: dict[str, bool]
) -> "Mapping[str, Predictions | PredictionStream]":
    """Load the predictions of each file, or of all files merged into one; files that are too large are opened only."""
    from dualfocal.predictions import TooLargeError, merge_predictions

    merge = merge and len(files) > 1
    confidence_only = not needs_all_rows["--calibrate"] and reading.group is None
    needs_all_rows |= {
        "--group-by": reading.group is not None,
        "--merge": merge,
        "--binary positive": reading.binary == "positive",
        "--confidence": reading.confidence is not None,
    }
    loaded: dict[str, Predictions] = {}
    streams: dict[str, PredictionStream] = {}
    for path in files:
        try:
            loaded[str(path)] = reading.load(path, confidence_only=confidence_only)
        except TooLargeError as error:
            streams[str(path)] = open_stream(err, path, reading, error, needs_all_rows)
    for name, data in loaded.items():
        if data.group_name is not None and data.group_name == data.label_name:
            raise ValueError(
                f"--group-by: {data.group_name!r} of {name} holds the labels, and among samples of one label no model "
                "is calibrated; group by something that is known before the label"
            )
    if merge:
        return {" + ".join(loaded): merge_predictions(loaded)}
    return {str(path): (loaded | streams)[str(path)] for path in files}


def _compare(
    err: Console,
    finding: Finding,
    data: "Predictions",
    reading: "Reading",
    methods: "dict[str, Calibrator]",
    *,
    merged: bool,
    folds: int,
    repeats: int,
) -> "CalibratorComparison":
    """Compare calibrators, fitted on the validation split of a run folder, otherwise cross-validated."""
    from dualfocal.calibrators import compare_calibrators

    validation, remark = (None, "") if merged else reading.validation(Path(finding.name), reading.rows(data))
    if remark:
        say(err, f"{finding.name}: {remark}")
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
            progress=progress,
            **reading.scoring,
        )


def _print_finding(out: Console, finding: Finding, reading: "Reading") -> None:
    from dualfocal.metrics.evaluation import CONFIDENCE_ONLY
    from dualfocal.metrics.groups import group_table, groups_follow_labels
    from dualfocal.metrics.registry import MEANINGS
    from dualfocal.predictions import PredictionStream

    evaluation, data, groups, comparison = finding.evaluation, finding.data, finding.groups, finding.comparison
    show(out, evaluation.table(), f"{finding.name}: ")
    say(out, MEANINGS, "dim", wrap=True)
    if evaluation.inference is not None:
        say(out, FLOOR, "dim", wrap=True)
        for metric, (low, high) in evaluation.inference.published.items():
            say(out, f"published pivotal bootstrap of {metric}: {100 * low:.2f} to {100 * high:.2f} %")
        say(out, evaluation.verdict(data.class_names), "bold")
    elif evaluation.confidence_only:
        say(out, CONFIDENCE_ONLY, "dim", wrap=True)
    if evaluation.num_classes == 2:
        say(out, POSITIVE if evaluation.positive else TOP_LABEL, "dim", wrap=True)
    if isinstance(data, PredictionStream):
        if evaluation.nll == math.inf:
            say(out, "NLL is infinite: true classes have probability 0, or logits are too far apart to be summed.")
        return
    if evaluation.nll == math.inf:
        rows = reading.rows(data)
        of_target = rows.values.gather(1, rows.target[:, None])
        number = int((of_target == (0 if data.input == "probs" else -math.inf)).sum())
        reason = f"{number:,} true classes have probability 0" if number else "logits are too far apart to be summed"
        say(out, f"NLL is infinite: {reason}.")
    if groups:
        show(out, group_table(str(reading.group), groups))
        number = sum(group.p_adjusted <= 0.05 for group in groups)
        tests = f"p-values adjusted for {len(groups)} tests (Holm). Worst first by the lower end of the interval."
        say(out, f"{number} of {len(groups)} groups are miscalibrated at 5 %, {tests}", "bold")
    if data.groups is not None and groups_follow_labels(data.groups, data.target, reading.ignore_index):
        say(out, f"Each label lies in one group of {reading.group!r}. {FOLLOWS}")
    if comparison is not None:
        show(out, comparison.table())
        say(out, "\n".join([*comparison.remarks(), comparison.caveat()]), "dim")
        say(out, comparison.verdict(), "bold")


def _draw(findings: list[Finding], methods: list[str], plot: Path) -> None:
    """Draw the models and their calibrators, named without folders where the names stay distinct."""
    from dualfocal.plots import reliability_figure, save

    panels = {finding.name: finding.evaluation for finding in findings} | {
        f"{finding.name}, {score.name}": score.evaluation
        for finding in findings
        if finding.comparison is not None
        for score in finding.comparison.methods
        if score.name in methods
    }
    short = [" + ".join(Path(part).name for part in name.split(" + ")) for name in panels]
    names = short if len(set(short)) == len(panels) else list(panels)
    save(reliability_figure(dict(zip(names, panels.values(), strict=True))), plot, dpi=150)
