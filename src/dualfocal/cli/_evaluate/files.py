"""`dualfocal evaluate FILE...`: prediction files and run folders, one evaluation each."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dualfocal.cli._common import consoles, errors_name, print_json, progress_bar, say, show
from dualfocal.cli._evaluate.findings import Finding, draw_findings, gate, print_finding
from dualfocal.cli._evaluate.request import INDEPENDENT_ONLY, Request, refuse
from dualfocal.cli._evaluate.streamed import evaluate_stream, open_stream
from dualfocal.tables import Table, quantity

if TYPE_CHECKING:
    from dualfocal.calibrators import CalibratorComparison
    from dualfocal.predictions import Predictions, PredictionStream, Reading

SAVED = "save calibrated predictions with `dualfocal calibrate` and `dualfocal apply`, and evaluate these"
OF_CALIBRATED = {"--plot-style quantile": SAVED, "--plot-style corp": SAVED}


def evaluate_files(request: Request, *, convention: str | None, group_quantiles: int | None) -> None:
    """Evaluate each file, or all files merged into one, and print, draw and check what was found.

    Args:
        request: options of the command.
        convention: whose definitions to follow.
        group_quantiles: number of groups into which numbers are cut.
    """
    from dualfocal.predictions import PredictionStream

    if request.methods:
        refuse(request.given, "--calibrate", OF_CALIBRATED)
    reading, inference = request.reading, request.inference
    out, err = consoles(request.as_json)
    loaded = _load(err, request, convention, group_quantiles)
    merged = len(loaded) < len(request.files)
    findings = []
    for name, data in loaded.items():
        if isinstance(data, PredictionStream):
            finding = evaluate_stream(err, name, data, reading, inference=inference)
        else:
            finding = _evaluate(err, name, data, reading, convention=convention, inference=inference)
            if request.plot_style != "uniform":
                from dualfocal.plots.quantiles import Samples

                finding.samples = Samples.from_rows(reading.rows(data))
            if request.methods:
                with errors_name(name):
                    finding.comparison = _compare(err, finding, data, request, merged=merged)
        print_finding(out, finding)
        findings.append(finding)
    if len(findings) > 1:
        headings = ["file", "N", "error %", "NLL", "ECE %", "ECE floor %"]
        show(out, Table(headings, [finding.cells() for finding in findings], "all files"))
    if request.as_json:
        print_json({"schema": 1, "files": [finding.to_dict() for finding in findings]})
    if request.plot is not None:
        draw_findings(findings, request)
        say(err, f"Reliability diagram: {request.plot}")
    if request.fail_over is not None:
        gate(err, {finding.name: finding.evaluation for finding in findings}, request.fail_over)


def _load(
    err: Console, request: Request, convention: str | None, group_quantiles: int | None
) -> "Mapping[str, Predictions | PredictionStream]":
    """Load the predictions of each file, or of all files merged into one; files that are too large are opened only.

    Groups of numbers are cut into quantiles.
    """
    from dualfocal.metrics.groups import QUANTILES, quantile_groups
    from dualfocal.predictions import TooLargeError, merge_predictions

    files, reading = [Path(file) for file in request.files], request.reading
    merge = request.merge and len(files) > 1
    confidence_only = not request.methods and reading.group is None
    needs_all_rows = {
        "--calibrate": bool(request.methods),
        "--convention": convention is not None,
        "--group-by": reading.group is not None,
        "--weight": reading.weight is not None,
        "--merge": merge,
        "--confidence": reading.confidence is not None,
        f"--plot-style {request.plot_style}": request.plot_style != "uniform",
    }
    loaded: dict[str, Predictions] = {}
    streams: dict[str, PredictionStream] = {}
    for path in files:
        try:
            loaded[str(path)] = reading.load(path, confidence_only=confidence_only)
        except TooLargeError as error:
            streams[str(path)] = open_stream(err, path, reading, error, needs_all_rows)
    for name, data in loaded.items():
        reading.check_columns(data, name)
        if data.weights is not None:
            refuse(request.given, "--weight", INDEPENDENT_ONLY)
        if data.clusters is not None or (data.values.ndim > 2 and reading.cluster is None):  # images are clusters
            refuse(request.given, f"samples in clusters ({name})", INDEPENDENT_ONLY)
    if merge:
        loaded = {" + ".join(loaded): merge_predictions(loaded)}
    for name, data in loaded.items():
        if data.groups is not None and (group_quantiles is not None or data.groups.dtype.kind == "f"):
            with errors_name(f"{name}: --group-by {data.group_name}"):
                loaded[name] = replace(data, groups=quantile_groups(data.groups, group_quantiles or QUANTILES))
    return loaded if merge else {str(path): (loaded | streams)[str(path)] for path in files}


def _evaluate(
    err: Console, name: str, data: "Predictions", reading: "Reading", *, convention: str | None, inference: bool
) -> Finding:
    """Evaluate predictions and, if there are groups, each of them."""
    from dualfocal import metrics
    from dualfocal.metrics.groups import evaluate_groups, groups_follow_labels

    say(err, f"{name}: {data.taken}")
    options = {
        "input": data.input,
        "convention": convention,
        "clusters": reading.clusters(data),
        "sample_weight": data.weights,
        **reading.scoring,
    }
    with errors_name(name):
        evaluation = metrics.evaluate(data.values, data.target, inference=inference, **options)
        finding = Finding(name, data.taken, evaluation, data.names_of_classes, reading.group)
        if data.groups is not None:
            with progress_bar(err, "groups") as progress:
                finding.groups = evaluate_groups(data.values, data.target, data.groups, progress=progress, **options)
            finding.groups_follow_labels = groups_follow_labels(data.groups, data.target, reading.ignore_index)
    if evaluation.nll == math.inf:
        finding.infinite_nll = _why_infinite(data, reading)
    return finding


def _why_infinite(data: "Predictions", reading: "Reading") -> str:
    """Return why the NLL is infinite."""
    rows = reading.rows(data)
    of_target = rows.values.gather(1, rows.target[:, None])
    number = int((of_target == (0 if data.input == "probs" else -math.inf)).sum())
    if number == 0:
        return "logits are too far apart to be summed"
    rounded = "; if they were rounded to 0, save more digits, or logits" if data.input == "probs" else ""
    return f"{quantity(number, 'true class')} {'has' if number == 1 else 'have'} probability 0{rounded}"


def _compare(
    err: Console, finding: Finding, data: "Predictions", request: Request, *, merged: bool
) -> "CalibratorComparison":
    """Compare calibrators, fitted on the validation split of a run folder, otherwise cross-validated."""
    from dualfocal.calibrators import compare_calibrators

    reading = request.reading
    validation, remark = (None, "") if merged else reading.validation(Path(finding.name), reading.rows(data))
    if remark:
        say(err, f"{finding.name}: {remark}")
    with progress_bar(err, "fitting calibrators") as progress:
        return compare_calibrators(
            data.values,
            data.target,
            request.methods,
            input=data.input,
            validation=validation,
            part=reading.split or "test",
            evaluation=finding.evaluation,
            clusters=reading.clusters(data),
            sample_weight=data.weights,
            folds=request.folds,
            repeats=request.repeats,
            progress=progress,
            **reading.scoring,
        )
