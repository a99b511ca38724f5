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
    from dualfocal.metrics import Samples
    from dualfocal.predictions import Predictions, PredictionStream

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
            with errors_name(name):
                finding = _evaluate(err, name, data, request, convention=convention, merged=merged)
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
    confidence_only = not request.methods
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
    err: Console, name: str, data: "Predictions", request: Request, *, convention: str | None, merged: bool
) -> Finding:
    """Evaluate predictions, each group of them if there are groups, and calibrators if they are asked for."""
    from dualfocal import metrics
    from dualfocal.metrics.groups import evaluate_groups, groups_follow_labels

    reading = request.reading
    say(err, f"{name}: {data.taken}")
    samples = reading.samples(data)
    scoring = reading.scoring
    evaluation = metrics.evaluate(samples, inference=request.inference, convention=convention, **scoring)
    finding = Finding(name, data.taken, evaluation, data.names_of_classes, reading.group)
    if data.groups is not None:
        with progress_bar(err, "groups") as progress:
            finding.groups = evaluate_groups(
                samples, groups=data.groups, convention=convention, progress=progress, **scoring
            )
        finding.groups_follow_labels = groups_follow_labels(samples, data.groups)
    if evaluation.nll == math.inf:
        finding.infinite_nll = _why_infinite(samples)
    if request.plot_style != "uniform":
        from dualfocal.plots.quantiles import Outcomes

        finding.outcomes = Outcomes.from_samples(samples)
    if request.methods:
        finding.comparison = _compare(err, name, samples, request, merged=merged)
    return finding


def _why_infinite(samples: "Samples") -> str:
    """Return why the NLL is infinite."""
    of_target = samples.values.gather(1, samples.target[:, None])
    number = int((of_target == (0 if samples.input == "probs" else -math.inf)).sum())
    if number == 0:
        return "logits are too far apart to be summed"
    rounded = "; if they were rounded to 0, save more digits, or logits" if samples.input == "probs" else ""
    return f"{quantity(number, 'true class')} {'has' if number == 1 else 'have'} probability 0{rounded}"


def _compare(err: Console, name: str, samples: "Samples", request: Request, *, merged: bool) -> "CalibratorComparison":
    """Compare calibrators, fitted on the validation split of a run folder, otherwise cross-validated."""
    from dualfocal.calibrators import compare_calibrators

    validation, remark = (None, "") if merged else request.reading.validation(Path(name), samples)
    if remark:
        say(err, f"{name}: {remark}")
    with progress_bar(err, "fitting calibrators") as progress:
        return compare_calibrators(
            samples,
            methods=request.methods,
            validation=validation,
            folds=request.folds,
            repeats=request.repeats,
            progress=progress,
            **request.reading.scoring,
        )
