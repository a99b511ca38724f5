"""`dualfocal evaluate`: metrics, noise floors and a verdict for prediction files."""

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    ClusterOption,
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
    TaskOption,
    WeightOption,
    check_plot,
    consoles,
    errors_name,
    print_json,
    progress_bar,
    say,
    show,
)
from dualfocal.cli._completion import names_of
from dualfocal.cli._dense import Boundary, Maps, evaluate_folder, is_dense, refuse_dense_options
from dualfocal.cli._findings import Finding, draw_findings, gate, print_finding
from dualfocal.cli._multilabel import evaluate_labels
from dualfocal.cli._streamed import evaluate_stream, open_stream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dualfocal.calibrators import Calibrator, CalibratorComparison
    from dualfocal.predictions import Predictions, PredictionStream
    from dualfocal.runs.source import Reading

Convention = StrEnum("Convention", ["published", "torchmetrics"])  # which definitions to follow
LogFormat = StrEnum("LogFormat", {"lm_eval": "lm-eval", "inspect": "inspect"})
ChoiceScore = StrEnum(
    "ChoiceScore", {"sum": "sum", "per_char": "per-char", "per_byte": "per-byte", "mutual_info": "mutual-info"}
)


def evaluate(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help=f"Prediction files. {FILES}Each is evaluated separately. With `--sql`: a DuckDB file or a "
            "postgresql:// URL. [default with `--sql`: DuckDB without a database, which reads files]",
            show_default=False,
        ),
    ] = None,
    sql: Annotated[
        str | None,
        typer.Option(metavar="QUERY", help="Evaluate a table or a SELECT of a database, without loading its rows."),
    ] = None,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(
            "--format",
            help="Evaluate multiple-choice logs of a language model: the files `samples_*.jsonl` of "
            "lm-evaluation-harness (`--log_samples`), or logs of inspect_ai (`--logprobs --top-logprobs 20`); or "
            "folders of them. `--cluster` then names a field of `doc` or `metadata`.",
        ),
    ] = None,
    choice_score: Annotated[
        ChoiceScore | None,
        typer.Option(
            help="With `--format`: scores whose softmax gives the probabilities of the options. Log-probabilities "
            "(sum: `acc`), divided by the length of the option (per-char: `acc_norm`, per-byte: `acc_bytes`), or minus "
            "those without the question (mutual-info: `acc_mutual_info`). [default: sum]",
            show_default=False,
        ),
    ] = None,
    logits: Logits = None,
    probs: Probs = None,
    target: Target = None,
    split: Split = None,
    prediction: Prediction = None,
    confidence: Confidence = None,
    merge: Annotated[bool, typer.Option("--merge", help="Treat the files as parts of one set of predictions.")] = False,
    group_by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Also evaluate each group of samples in this column, worst first. Numbers that are not whole are cut "
            "into five groups of equal size.",
        ),
    ] = None,
    group_quantiles: Annotated[
        int | None,
        typer.Option(min=2, max=100, metavar="N", help="Cut the numbers of `--group-by` into N groups of equal size."),
    ] = None,
    cluster: ClusterOption = None,
    weight: WeightOption = None,
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
            autocompletion=names_of(CALIBRATORS, ",+", alone=("all", "none")),
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
    shifted: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="The FILE is the test set; evaluate it and these shifted sets: files, folders of files, or patterns "
            "such as 'noise-*.npz'. The option can be repeated. Labels are optional. `--plot` draws error, NLL, ECE "
            "and AUROC over the severities, numbers at the ends of the names.",
        ),
    ] = None,
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
    boundary: Boundary = None,
    maps: Maps = None,
    as_json: AsJson = False,
    task: TaskOption = None,
) -> None:
    """Is this model calibrated? Every metric, what a perfectly calibrated model would score, and a verdict.

    Logits or probabilities and labels are found by their usual names (`logits`, `probs`, `target`, `label`, ...; in
    tables `logit_0`, `logit_1`, ..., or columns named like the labels if their rows sum to 1). If the names are
    ambiguous, give them as options: the error lists all questions, with a command that answers them.

        dualfocal evaluate predictions.npz --plot reliability.png

        dualfocal evaluate logits.npy --target labels.npy

        dualfocal evaluate predictions.csv --probs score --target outcome --binary positive --group-by hospital

        dualfocal evaluate predictions.csv --cluster patient

        dualfocal evaluate predictions.csv --weight survey_weight

        dualfocal evaluate predictions.npz --calibrate temperature,vector,isotonic

        dualfocal evaluate predictions.csv --task multilabel --calibrate temperature,platt,isotonic

        dualfocal evaluate predictions.npz --fail-over 0.03 || echo "not calibrated"

        dualfocal evaluate FOLDER --ignore-index 255 --boundary 3 --maps worst.png  # logits/*.npy, masks/*.png

        dualfocal evaluate --sql "SELECT * FROM 'predictions/*.parquet'"

        dualfocal evaluate test.npz --shifted noise-1.npz --shifted noise-2.npz --plot shift.png

        dualfocal evaluate lm_eval_output/ --format lm-eval --choice-score per-char
    """
    from dualfocal.calibrators import make_calibrator, parse_methods
    from dualfocal.cli._shift import evaluate_shifted
    from dualfocal.cli._sql import evaluate_sql
    from dualfocal.predictions import PredictionStream
    from dualfocal.runs.source import Reading

    for option, value in (("--group-by", group_by), ("--fail-over", fail_over)):
        if value is not None and not inference:
            raise ValueError(f"{option} needs inference: remove --no-inference")
    if group_quantiles is not None and group_by is None:
        raise ValueError("--group-quantiles needs --group-by")
    methods = {name: make_calibrator(name, force=force) for name in parse_methods(calibrate)}
    reading = Reading(
        logits=logits,
        probs=probs,
        target=target,
        group=group_by,
        cluster=cluster,
        weight=weight,
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
    if task is not None:
        refused = {
            "--sql": sql is not None,
            "--group-by": group_by is not None,
            "--group-quantiles": group_quantiles is not None,
            "--binary": binary is not None,
            "--positive": positive is not None,
            "--prediction": prediction is not None,
            "--confidence": confidence is not None,
            "--convention": convention is not None,
            "--force": force,
        }
        evaluate_labels(
            files or [],
            reading,
            inference=inference,
            calibrate=calibrate,
            folds=folds,
            repeats=repeats,
            merge=merge,
            fail_over=fail_over,
            plot=plot,
            as_json=as_json,
            refused=refused,
        )
        return
    if shifted:
        refused = {
            "--sql": sql is not None,
            "--merge": merge,
            "--group-by": group_by is not None,
            "--convention": convention is not None,
            "--fail-over": fail_over is not None,
            "--prediction": prediction is not None or confidence is not None,
            "--no-inference": not inference,
        }
        evaluate_shifted(
            files or [], shifted, reading, methods, folds=folds, plot=plot, as_json=as_json, refused=refused
        )
        return
    if choice_score is not None and log_format is None:
        raise ValueError("--choice-score needs --format lm-eval or --format inspect")
    if log_format is not None:
        from dualfocal.cli._choices import evaluate_logs

        evaluate_logs(
            log_format.value,
            (choice_score or ChoiceScore.sum).value,
            files or [],
            reading,
            inference=inference,
            fail_over=fail_over,
            plot=plot,
            as_json=as_json,
            refused={
                "--sql": sql is not None,
                "--merge": merge,
                "--calibrate": bool(methods),
                "--convention": convention is not None,
                "--group-quantiles": group_quantiles is not None,
            },
        )
        return
    if sql is not None:
        refused = {
            "--merge": merge,
            "--calibrate": bool(methods),
            "--convention": convention is not None,
            "--group-quantiles": group_quantiles is not None,
        }
        result = evaluate_sql(
            sql, files or [], reading, inference=inference, plot=plot, as_json=as_json, refused=refused
        )
        if fail_over is not None:
            gate(consoles(as_json)[1], {result.name: result.evaluation}, fail_over)
        return
    if not files:
        raise ValueError("Missing argument 'FILE...': give prediction files, or a query of a database with --sql")
    if len(set(files)) < len(files):
        raise ValueError(f"{next(path for path in files if files.count(path) > 1)} is given more than once")
    if any(is_dense(Path(file), reading) for file in files):
        evaluate_folder(
            files,
            reading,
            inference=inference,
            boundary=boundary,
            maps=maps,
            plot=plot,
            fail_over=fail_over,
            as_json=as_json,
            refused={"--merge": merge, "--calibrate": bool(methods), "--convention": convention},
        )
        return
    refuse_dense_options(boundary, maps)
    out, err = consoles(as_json)
    needs_all_rows = {"--calibrate": bool(methods), "--convention": convention is not None}
    loaded = _load(err, [Path(file) for file in files], reading, merge, needs_all_rows, group_quantiles)
    merged = len(loaded) < len(files)
    findings = []
    for name, data in loaded.items():
        if isinstance(data, PredictionStream):
            finding = Finding(name, data, evaluate_stream(err, name, data, reading, inference=inference))
        else:
            finding = _evaluate(err, name, data, reading, convention, inference)
            if methods:
                with errors_name(name):
                    finding.comparison = _compare(
                        err, finding, data, reading, methods, merged=merged, folds=folds, repeats=repeats
                    )
        print_finding(out, finding, reading)
        findings.append(finding)
    if len(findings) > 1:
        headings = ["file", "N", "error %", "NLL", "ECE %", "ECE floor %"]
        show(out, Table(headings, [finding.cells() for finding in findings], "all files"))
    if as_json:
        print_json({"schema": 1, "files": [finding.to_dict() for finding in findings]})
    if plot is not None:
        draw_findings(findings, list(methods), plot)
        say(err, f"Reliability diagram: {plot}")
    if fail_over is not None:
        gate(err, {finding.name: finding.evaluation for finding in findings}, fail_over)


def _load(
    err: Console,
    files: list[Path],
    reading: "Reading",
    merge: bool,
    needs_all_rows: dict[str, bool],
    group_quantiles: int | None,
) -> "Mapping[str, Predictions | PredictionStream]":
    """Load the predictions of each file, or of all files merged into one; files that are too large are opened only.

    Groups of numbers are cut into quantiles.
    """
    from dualfocal.metrics.groups import QUANTILES, quantile_groups
    from dualfocal.predictions import TooLargeError, merge_predictions

    merge = merge and len(files) > 1
    confidence_only = not needs_all_rows["--calibrate"] and reading.group is None
    needs_all_rows |= {
        "--group-by": reading.group is not None,
        "--cluster": reading.cluster is not None,
        "--weight": reading.weight is not None,
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
        reading.check_columns(data, name)
    if merge:
        loaded = {" + ".join(loaded): merge_predictions(loaded)}
    for name, data in loaded.items():
        if data.groups is not None and (group_quantiles is not None or data.groups.dtype.kind == "f"):
            with errors_name(f"{name}: --group-by {data.group_name}"):
                loaded[name] = replace(data, groups=quantile_groups(data.groups, group_quantiles or QUANTILES))
    return loaded if merge else {str(path): (loaded | streams)[str(path)] for path in files}


def _evaluate(
    err: Console,
    name: str,
    data: "Predictions",
    reading: "Reading",
    convention: Convention | None,
    inference: bool,
) -> Finding:
    """Evaluate predictions and, if there are groups, each of them."""
    from dualfocal import metrics
    from dualfocal.metrics.groups import evaluate_groups

    say(err, f"{name}: {data.taken}")
    structure = {"clusters": reading.clusters(data), "sample_weight": data.weights}
    given = {"input": data.input, "convention": convention, **structure, **reading.scoring}
    with errors_name(name):
        finding = Finding(name, data, metrics.evaluate(data.values, data.target, inference=inference, **given))
        if data.groups is not None:
            with progress_bar(err, "groups") as progress:
                finding.groups = evaluate_groups(data.values, data.target, data.groups, progress=progress, **given)
    return finding


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
            clusters=reading.clusters(data),
            sample_weight=data.weights,
            folds=folds,
            repeats=repeats,
            progress=progress,
            **reading.scoring,
        )
