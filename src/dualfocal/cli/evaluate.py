"""`dualfocal evaluate`: metrics, noise floors and a verdict for prediction files."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dualfocal.checks import AT_MOST
from dualfocal.cli import _options as options
from dualfocal.cli._common import CALIBRATORS, MULTILABEL_CALIBRATORS, check_plot
from dualfocal.cli._completion import names_of
from dualfocal.cli._evaluate.choices import evaluate_logs
from dualfocal.cli._evaluate.dense import Boundary, Maps, evaluate_folder, is_dense
from dualfocal.cli._evaluate.files import evaluate_files
from dualfocal.cli._evaluate.multilabel import evaluate_labels
from dualfocal.cli._evaluate.request import DENSE_ONLY, Request, check_different, refuse
from dualfocal.cli._evaluate.shift import evaluate_shifted
from dualfocal.cli._evaluate.sql import evaluate_sql

if TYPE_CHECKING:
    from dualfocal.calibrators import Calibrator

PlotStyle = StrEnum("PlotStyle", ["uniform", "quantile", "corp"])
Convention = StrEnum("Convention", ["published", "torchmetrics"])  # which definitions to follow
LogFormat = StrEnum("LogFormat", {"lm_eval": "lm-eval", "inspect": "inspect"})
ChoiceScore = StrEnum(
    "ChoiceScore", {"sum": "sum", "per_char": "per-char", "per_byte": "per-byte", "mutual_info": "mutual-info"}
)


def evaluate(
    context: typer.Context,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help=f"Prediction files. {options.FILES}Each is evaluated separately. For segmentation, a folder with "
            "logits/NAME.npy and masks/NAME.png. With `--sql`: a DuckDB file or a postgresql:// URL. [default with "
            "`--sql`: DuckDB without a database, which reads files]",
            show_default=False,
        ),
    ] = None,
    logits: options.Logits = None,
    probs: options.Probs = None,
    target: options.Target = None,
    split: options.Split = None,
    prediction: options.Prediction = None,
    confidence: options.Confidence = None,
    merge: Annotated[
        bool,
        typer.Option(
            "--merge", help="Treat the files as parts of one set of predictions.", rich_help_panel=options.IN_FILE
        ),
    ] = False,
    group_by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Also evaluate each group of samples in this column, worst first. Numbers that are not whole are cut "
            "into five groups of equal size.",
            rich_help_panel=options.SAMPLES,
        ),
    ] = None,
    group_quantiles: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=100,
            metavar="N",
            help="Cut the numbers of `--group-by` into N groups of equal size.",
            rich_help_panel=options.SAMPLES,
        ),
    ] = None,
    cluster: options.ClusterOption = None,
    weight: options.WeightOption = None,
    binary: options.BinaryOption = None,
    positive: options.Positive = None,
    class_names: options.ClassNames = None,
    percent: options.Percent = False,
    drop_missing: options.DropMissing = False,
    max_memory: options.MaxMemory = None,
    sql: Annotated[
        str | None,
        typer.Option(
            metavar="QUERY",
            help="Evaluate a table or a SELECT of a database, which is read in batches.",
            rich_help_panel=options.INPUTS,
        ),
    ] = None,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(
            "--format",
            help="Evaluate multiple-choice logs of a language model: the files `samples_*.jsonl` of "
            "lm-evaluation-harness (`--log_samples`), or logs of inspect_ai (`--logprobs --top-logprobs 20`); or "
            "folders of them. `--cluster` then names a field of `doc` or `metadata`.",
            rich_help_panel=options.INPUTS,
        ),
    ] = None,
    choice_score: Annotated[
        ChoiceScore | None,
        typer.Option(
            help="With `--format`: score of an option; the softmax of the scores gives the probabilities. sum: "
            "log-probability of the option (accuracy `acc`); per-char, per-byte: divided by its length (`acc_norm`, "
            "`acc_bytes`); mutual-info: minus its log-probability without the question (`acc_mutual_info`). "
            "[default: sum]",
            show_default=False,
            rich_help_panel=options.INPUTS,
        ),
    ] = None,
    num_bins: options.NumBins = 15,
    ignore_index: options.IgnoreIndex = -100,
    convention: Annotated[
        Convention | None,
        typer.Option(
            help="Use the definitions of the paper's code or of torchmetrics where they differ from ours.",
            rich_help_panel=options.STATISTICS,
        ),
    ] = None,
    calibrate: Annotated[
        str,
        typer.Option(
            metavar="METHODS",
            autocompletion=names_of(CALIBRATORS, ",+", alone=("all", "none")),
            help="Compare calibrators: names separated by commas, or `all`. They are fitted on the validation split of "
            "a run folder, otherwise cross-validated. "
            f"Names: {', '.join(CALIBRATORS)}; join names with + for a chain. With `--task multilabel`: "
            f"{', '.join(MULTILABEL_CALIBRATORS)}.",
            rich_help_panel=options.CALIBRATION,
        ),
    ] = "none",
    folds: Annotated[
        int,
        typer.Option(
            min=2,
            max=AT_MOST["folds"],
            help="Number of folds of the cross-validation.",
            rich_help_panel=options.CALIBRATION,
        ),
    ] = 5,
    repeats: Annotated[
        int,
        typer.Option(
            min=1,
            max=AT_MOST["repeats"],
            help="Number of repetitions of the cross-validation, with new folds.",
            rich_help_panel=options.CALIBRATION,
        ),
    ] = 2,
    force: options.Force = False,
    shifted: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Shifted sets, evaluated beside the test set FILE: a file, a folder of files, or a pattern such as "
            "'noise-*.npz'. The option can be repeated. Labels are optional. `--plot` draws error, NLL, ECE and AUROC "
            "over the severities, which are the numbers at the ends of the file names.",
            rich_help_panel=options.INPUTS,
        ),
    ] = None,
    inference: Annotated[
        bool,
        typer.Option(
            help="Compute noise floors, the calibration test, the interval and the smallest detectable error.",
            rich_help_panel=options.STATISTICS,
        ),
    ] = True,
    level: options.Level = 0.9,
    seed: options.Seed = 0,
    fail_over: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            metavar="X",
            help="Limit of the debiased RMS error, such as 0.03, for continuous integration: exit with code 3 if the "
            "lower end of its interval is above.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=check_plot,
            help="Draw a reliability diagram: .png, .pdf or .svg.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    plot_style: Annotated[
        PlotStyle,
        typer.Option(
            help="With `--plot`: uniform draws bins of equal width; quantile draws bins with equally many samples, for "
            "models whose probabilities are nearly all small, or nearly all large; corp draws a curve without bins, by "
            "isotonic regression.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = PlotStyle.uniform,
    boundary: Boundary = None,
    maps: Maps = None,
    as_json: options.AsJson = False,
    task: options.TaskOption = None,
) -> None:
    """Is this model calibrated? Every metric, what a perfectly calibrated model would score, and a verdict.

    Logits or probabilities and labels are found by their usual names (`logits`, `probs`, `target`, `label`, ...; in
    tables `logit_0`, `logit_1`, ..., or columns named like the labels if their rows sum to 1). If the names are
    ambiguous, give them as options: the error lists all questions, with options that answer them.

        dualfocal evaluate predictions.npz --plot reliability.png

        dualfocal evaluate predictions.npz --plot reliability.png --plot-style quantile

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
    given = options.given_names(context) | {f"--plot-style {plot_style}"}
    for option, value in (("--group-by", group_by), ("--fail-over", fail_over)):
        if value is not None and not inference:
            raise ValueError(f"{option} needs inference: remove --no-inference")
    if group_quantiles is not None and group_by is None:
        raise ValueError("--group-quantiles needs --group-by")
    for option in ("--folds", "--repeats", "--force"):
        if option in given and calibrate == "none":
            raise ValueError(f"{option} needs --calibrate, such as --calibrate temperature")
    methods = {} if calibrate == "none" else _calibrators(calibrate, force=force)
    reading = options.reading_from(context, group=group_by)
    request = Request(
        files=files or [],
        reading=reading,
        given=given,
        methods=methods,
        folds=folds,
        repeats=repeats,
        merge=merge,
        inference=inference,
        plot=plot,
        plot_style=plot_style.value,
        fail_over=fail_over,
        as_json=as_json,
    )
    if "--plot-style" in given and plot is None:
        raise ValueError("--plot-style needs --plot, such as --plot reliability.png")
    if choice_score is not None and log_format is None:
        raise ValueError("--choice-score needs --format lm-eval or --format inspect")
    if task is not None:
        return evaluate_labels(request, calibrate)
    if shifted:
        return evaluate_shifted(request, shifted)
    if log_format is not None:
        return evaluate_logs(request, log_format.value, (choice_score or ChoiceScore.sum).value)
    if sql is not None:
        return evaluate_sql(request, sql)
    if not files:
        raise ValueError("Missing argument 'FILE...': give prediction files, or a query of a database with --sql")
    check_different(files)
    if any(is_dense(Path(file), reading) for file in files):
        return evaluate_folder(request, boundary=boundary, maps=maps)
    refuse(given, "prediction files", DENSE_ONLY)
    evaluate_files(request, convention=convention, group_quantiles=group_quantiles)


def _calibrators(names: str, *, force: bool) -> "dict[str, Calibrator]":
    from dualfocal.calibrators import make_calibrator, parse_methods

    return {name: make_calibrator(name, force=force) for name in parse_methods(names)}
