"""`dualfocal evaluate --task multilabel`, and the same for `calibrate` and `apply`."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from dualfocal.cli._common import (
    MULTILABEL_CALIBRATORS,
    ON_FIT_DATA,
    check_known_methods,
    consoles,
    errors_name,
    print_json,
    progress_bar,
    say,
    say_saved,
    show,
)
from dualfocal.cli._evaluate.findings import say_above
from dualfocal.cli._evaluate.request import Request, check_different, refuse
from dualfocal.tables import quantity

if TYPE_CHECKING:
    from dualfocal.calibrators import MultilabelCalibrator, MultilabelComparison
    from dualfocal.metrics import MultilabelEvaluation
    from dualfocal.metrics.multilabel.entries import Entries
    from dualfocal.predictions import Predictions, Reading

REMEDIES = {  # of options that do not apply
    "--sql": "export the rows to a file",
    "--shifted": "evaluate each file without --shifted",
    "--group-by": "evaluate a file per group",
    "--group-quantiles": "evaluate a file per group",
    "--binary": "each label is scored by its probability, like --binary positive",
    "--positive": "write targets as 0 and 1",
    "--prediction": "the probabilities of all labels are needed",
    "--confidence": "the probabilities of all labels are needed",
    "--weight": "weights are for one class per sample",
    "--convention": "their definitions are for one class per sample",
    "--plot-style corp": "its band is for independent samples, and the labels of a sample are not",
    "--force": "it is for matrix and Dirichlet scaling",
}
PLACE = "--task multilabel"
MOST_ABOVE = 5  # labels named by --fail-over
MEANING = (
    "macro ECE: mean ECE of the labels; micro ECE: of all entries pooled{}; Hamming "
    "error: share of wrong entries; subset accuracy: share of samples whose labels are all right"
)


@dataclass
class LabelFinding:
    """The evaluation of one set of multi-label predictions."""

    name: str
    data: "Predictions"
    evaluation: "MultilabelEvaluation"
    comparison: "MultilabelComparison | None" = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        content: dict[str, Any] = {"file": self.name, "taken": self.data.taken, **self.evaluation.to_dict()}
        if self.evaluation.inference is not None:
            content["verdict"] = self.evaluation.verdict()
        if self.comparison is not None:
            content["calibration"] = {**self.comparison.to_dict(), "verdict": self.comparison.verdict()}
        return content


def evaluate_labels(request: Request, calibrate: str) -> None:
    """Evaluate multi-label predictions and print what was found."""
    request.refuse(PLACE, REMEDIES)
    files, reading, plot = request.files, request.reading, request.plot
    if not files:
        raise ValueError("Missing argument 'FILE...': give prediction files")
    check_different(files)
    if plot is not None and len(files) > 1 and not request.merge:
        raise ValueError(f"--plot with --task multilabel draws one file, got {len(files)}: give one, or --merge")
    methods = methods_of(calibrate)
    from dualfocal.predictions import merge_predictions

    out, err = consoles(request.as_json)
    loaded = {file: load_labels(Path(file), reading) for file in files}
    if request.merge and len(loaded) > 1:
        loaded = {" + ".join(loaded): merge_predictions(loaded)}
    findings = []
    for name, data in loaded.items():
        finding = _evaluate(err, name, data, reading, request.inference)
        if methods:
            with errors_name(name):
                finding.comparison = _compare(err, data, request, methods)
        _print(out, finding)
        findings.append(finding)
    if request.as_json:
        print_json({"schema": 1, "files": [finding.to_dict() for finding in findings]})
    if plot is not None:
        from dualfocal.plots import multilabel_figure, save

        [finding] = findings
        drawn = _in_quantiles(finding, reading) if request.plot_style == "quantile" else finding.evaluation
        save(multilabel_figure(drawn), plot, dpi=150)
        say(err, f"Reliability diagrams: {plot}")
    if request.fail_over is not None:
        _gate(err, findings, request.fail_over)


def methods_of(calibrate: str) -> tuple[str, ...]:
    """Parse ``--calibrate``: names separated by commas, ``all`` or ``none``."""
    if calibrate in ("none", "all"):
        return () if calibrate == "none" else MULTILABEL_CALIBRATORS
    return check_known_methods("--calibrate with --task multilabel", calibrate, MULTILABEL_CALIBRATORS)


def load_labels(path: Path, reading: "Reading", *, labels: bool = True) -> "Predictions":
    """Load multi-label predictions with the options of a command."""
    from dualfocal.metrics.inputs import INDEPENDENT
    from dualfocal.predictions import load_multilabel_predictions

    if path.is_dir():
        raise ValueError(f"{path}: --task multilabel reads files, not folders: give a file, or leave out --task")
    return load_multilabel_predictions(
        path,
        logits=reading.logits,
        probs=reading.probs,
        target=reading.target,
        cluster=None if reading.cluster == INDEPENDENT else reading.cluster,
        split=reading.split,
        class_names=reading.class_names,
        percent=reading.percent,
        drop_missing=reading.drop_missing,
        labels=labels,
        max_memory=reading.max_memory,
    )


def _evaluate(err: Console, name: str, data: "Predictions", reading: "Reading", inference: bool) -> LabelFinding:
    from dualfocal.metrics.draws import Settings
    from dualfocal.metrics.multilabel.evaluation import evaluate_entries

    say(err, f"{name}: {data.taken}")
    settings = Settings(level=reading.level, seed=reading.seed) if inference else None
    with errors_name(name), progress_bar(err, "labels") as progress:
        result = evaluate_entries(_entries(data, reading), reading.num_bins, settings, progress)
    return LabelFinding(name, data, result)


def _entries(data: "Predictions", reading: "Reading") -> "Entries":
    from dualfocal.metrics.multilabel.entries import as_entries

    return as_entries(
        data.values,
        data.target,
        {
            "input": data.input,
            "ignore_index": reading.ignore_index,
            "class_names": data.class_names,
            "clusters": data.clusters,
        },
    )


def _compare(err: Console, data: "Predictions", request: Request, methods: Sequence[str]) -> "MultilabelComparison":
    from dualfocal.calibrators import compare_multilabel_calibrators

    reading = request.reading
    with progress_bar(err, "fitting calibrators") as progress:
        return compare_multilabel_calibrators(
            data.values,
            data.target,
            methods,
            input=data.input,
            ignore_index=reading.ignore_index,
            clusters=data.clusters,
            folds=request.folds,
            repeats=request.repeats,
            progress=progress,
            **reading.scoring,
        )


def _in_quantiles(finding: LabelFinding, reading: "Reading") -> "MultilabelEvaluation":
    """Return the evaluation with bins that hold equally many samples."""
    from dualfocal.plots.quantiles import Outcomes, QuantileEvaluation

    evaluation, entries = finding.evaluation, _entries(finding.data, reading)
    pooled = QuantileEvaluation.of(evaluation.micro, Outcomes.from_samples(entries.pooled()))
    labels = []
    for label in evaluation.labels:
        samples = entries.label(label.index)
        assert samples is not None  # otherwise the label is left out of the evaluation
        labels.append(
            replace(label, evaluation=QuantileEvaluation.of(label.evaluation, Outcomes.from_samples(samples)))
        )
    return replace(evaluation, micro=pooled, labels=tuple(labels))


def _print(out: Console, finding: LabelFinding) -> None:
    """Print tables, verdict and the comparison of calibrators."""
    from dualfocal.metrics.multilabel.result import MOST_SHOWN

    evaluation, comparison = finding.evaluation, finding.comparison
    show(out, evaluation.table(), f"{finding.name}: ")
    clusters = "in the clusters of --cluster" if evaluation.clusters_given else "where each sample is a cluster"
    say(out, MEANING.format(f", {clusters}"), "dim", wrap=True)
    show(out, evaluation.label_table())
    if evaluation.inference is not None:
        tests = f"p-values are adjusted for {quantity(evaluation.num_labels, 'label')} and the pooled test (Holm)."
        more = " --json has all labels." if evaluation.num_labels > MOST_SHOWN else ""
        say(out, f"{tests}{more}", "dim", wrap=True)
        say(out, evaluation.verdict(), "bold")
    if comparison is not None:
        show(out, comparison.table())
        say(out, "\n".join([*comparison.remarks(), comparison.caveat()]), "dim")
        say(out, comparison.verdict(), "bold")


def _gate(err: Console, findings: Sequence[LabelFinding], limit: float) -> None:
    """Exit with code 3 if the error of all entries, or of a miscalibrated label, is certainly above the limit."""
    failed = False
    for finding in findings:
        evaluations = {f"{finding.name}: all entries": finding.evaluation.micro}
        for label in finding.evaluation.miscalibrated:
            evaluations[f"{finding.name}: label {label.name!r}"] = label.evaluation
        failed |= say_above(err, evaluations, limit, most=MOST_ABOVE)
    if failed:
        raise typer.Exit(3)


def multilabel_method(method: str, given: Collection[str]) -> str:
    """Return the method of `dualfocal calibrate --task multilabel`, after a check of its options."""
    refuse(given, PLACE, REMEDIES)
    (name,) = check_known_methods("--method with --task multilabel", method, MULTILABEL_CALIBRATORS, most=1)
    return name


def apply_labels(
    calibrator: "MultilabelCalibrator", path: Path, file: Path, out: Path, reading: "Reading", *, as_json: bool
) -> None:
    """Calibrate multi-label predictions with a saved calibrator, and score them if there is a target."""
    from dualfocal.calibrators.application import effect_verdict, is_worse, multilabel_nll_change
    from dualfocal.calibrators.inputs import digest
    from dualfocal.metrics import evaluate
    from dualfocal.predictions import rewrite_predictions

    printer, err = consoles(as_json)
    data = load_labels(file, reading, labels=reading.target is not None)
    say(err, f"{file}: {data.taken}")
    names = calibrator.class_names
    if names is not None and data.class_names is not None and names != data.class_names:
        raise ValueError(
            f"{path} was fitted for the labels {', '.join(names[:8])}, but {file} has, in this order, "
            f"{', '.join(data.class_names[:8])}"
        )
    with errors_name(file):
        calibrated = calibrator(data.values, input=data.input)
    if calibrator.fitted_on is not None and calibrator.fitted_on.digest == digest(data.values):
        say(err, ON_FIT_DATA)
    values = calibrated.sigmoid() if data.input == "probs" else calibrated
    rewrite_predictions(out, data, values, max_memory=reading.max_memory)
    content: dict[str, Any] = {
        "schema": 1,
        "task": "multilabel",
        "calibrator": str(path),
        "file": str(file),
        "out": str(out),
    }
    if data.labels is not None:
        scores = {}
        for when, one, kind in (("before", data.values, data.input), ("after", calibrated, "logits")):
            with errors_name(file):
                scores[when] = evaluate(
                    one, data.labels, task="multilabel", input=kind, ignore_index=reading.ignore_index
                )
        rows = zip(*(score.table().rows for score in scores.values()), strict=True)
        table = replace(scores["before"].table(), headings=["", *scores])
        show(printer, replace(table, rows=[[*first, second[1]] for first, second in rows]), f"{file}: ")
        logits = data.values.double().logit() if data.input == "probs" else data.values
        change = multilabel_nll_change(logits, calibrated, data.labels, ignore_index=reading.ignore_index)
        before, after = scores.values()
        nll, ece = (before.nll, after.nll), (before.macro_ece, after.macro_ece)
        verdict = effect_verdict(nll, ece, change, ece_name="macro ECE")
        say(printer, verdict, "bold")
        content |= {when: score.scalars() for when, score in scores.items()}
        content |= {"worse": is_worse(nll, change), "verdict": verdict}
    if as_json:
        print_json(content)
    say_saved(printer, out, data)
