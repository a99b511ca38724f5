"""`dualfocal evaluate --format lm-eval|inspect`: multiple-choice questions of a language model, by task and overall."""

from typing import TYPE_CHECKING

from rich.console import Console

from dualfocal.cli._common import consoles, print_json, progress_bar, say, show
from dualfocal.cli._evaluate.findings import FLOOR, gate, save_diagrams
from dualfocal.cli._evaluate.request import INDEPENDENT_ONLY, Request, refuse
from dualfocal.tables import Table, quantity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dualfocal.metrics.choices import ChoiceEvaluation, Choices
    from dualfocal.predictions.choices import ChoicePredictions

ALL = "all questions"
MOST_PANELS = 12  # of a figure
MOST_VERDICTS = 5  # of tasks
FOUND = "leave it out: the log says where the log-probabilities and the right options are"
REMEDIES = {  # of options that do not apply
    "--sql": "leave it out",
    "--logits": FOUND,
    "--probs": FOUND,
    "--target": FOUND,
    "--prediction": FOUND,
    "--confidence": FOUND,
    "--split": "give the logs of one split",
    "--merge": "leave it out: all logs are evaluated together, and each task",
    "--weight": "leave it out: all questions count the same",
    "--group-by": "leave it out: tasks are the groups",
    "--group-quantiles": "leave it out: tasks are the groups",
    "--binary": "leave it out: the confidence of the chosen option is evaluated",
    "--positive": "leave it out: the confidence of the chosen option is evaluated",
    "--class-names": "leave it out: positions are named A, B, ...",
    "--percent": "leave it out",
    "--drop-missing": "leave it out: questions without a known right option are left out, and counted",
    "--ignore-index": "remove the lines from the log",
    "--convention": "leave it out",
    "--calibrate": "leave it out: a calibrator needs the same options in every question",
}


def evaluate_logs(request: Request, log_format: str, score: str) -> None:
    """Evaluate the logs of one model, and print the result.

    Args:
        request: the files are logs, or folders of logs.
        log_format: name of the format.
        score: how log-probabilities become scores, see ``dualfocal.predictions.choices``.
    """
    from dualfocal.metrics.choices import evaluate_tasks
    from dualfocal.predictions.choices import load_choices

    request.refuse(f"--format {log_format}", REMEDIES)
    files, reading, plot = request.files, request.reading, request.plot
    if not files:
        raise ValueError(f"Missing argument 'FILE...': give logs or folders of logs for --format {log_format}")
    out, err = consoles(request.as_json)
    logs = load_choices(files, format=log_format, cluster=reading.cluster, max_memory=reading.max_memory)
    if any(log.clusters is not None for log in logs):
        refuse(request.given, "questions in clusters", INDEPENDENT_ONLY)
    for log in logs:
        _print_source(err, log, score)
    with progress_bar(err, "tasks") as progress:
        overall, tasks = evaluate_tasks(
            {log.task: log.choices(score) for log in logs},
            num_bins=reading.num_bins,
            inference=request.inference,
            level=reading.level,
            seed=reading.seed,
            progress=progress,
        )
    _print_result(out, overall, tasks, score)
    if request.as_json:
        print_json(_content(log_format, score, logs, overall, tasks))
    if plot is not None:
        _draw(request, overall, tasks, {log.task: log.choices(score) for log in logs})
        say(err, f"Reliability diagram: {plot}")
    if request.fail_over is not None:
        gate(err, {ALL: overall.evaluation}, request.fail_over)


def _print_source(err: Console, log: "ChoicePredictions", score: str) -> None:
    """Say what was read, what was left out, and whether our accuracy is the one that the log records."""
    from dualfocal.predictions.choices import METRICS

    clusters = f"clusters from {log.cluster_name!r}" if log.cluster_name else "independent questions"
    say(err, f"{log.path}: task {log.task}, {quantity(len(log.right), 'question')}, {clusters}")
    for reason, number in (log.left_out or {}).items():
        left_out = f"{quantity(number, 'question')} {'is' if number == 1 else 'are'} left out"
        say(err, f"dualfocal: {log.task}: {left_out}: {reason}")
    for remark in log.remarks:
        say(err, f"dualfocal: {log.task}: {remark}")
    metric = METRICS[log.format].get(score)
    compared, different = log.disagreement(score)
    if different:
        ours = f"the accuracy of the option with the highest score (--choice-score {score})"
        how_many = f"for {different:,} of {quantity(compared, 'question')}, {metric} in the log is not {ours}"
        say(err, f"dualfocal: {log.task}: {how_many}: the model sampled its answer, or the task scores otherwise")


def _print_result(
    out: Console, overall: "ChoiceEvaluation", tasks: "Mapping[str, ChoiceEvaluation]", score: str
) -> None:
    rows = {**tasks, ALL: overall} if len(tasks) > 1 else tasks
    show(out, _accuracy_table(rows, score))
    show(out, _calibration_table(rows))
    if overall.evaluation.inference is not None:
        say(out, f"{FLOOR}; adj. p: adjusted for {quantity(len(tasks), 'task')} (Holm)", "dim", wrap=True)
    positions = _position_table(rows)
    if positions.rows:
        show(out, positions)
        say(out, "A class is a position: class A is the option listed first.", "dim", wrap=True)
    if overall.evaluation.inference is not None:
        say(out, _verdict(overall, tasks), "bold")


def _verdict(overall: "ChoiceEvaluation", tasks: "Mapping[str, ChoiceEvaluation]") -> str:
    """Return the verdict of all questions and, if there are several tasks, how many are miscalibrated."""
    from dualfocal.metrics.inference_result import SIGNIFICANCE

    if len(tasks) == 1:
        return next(iter(tasks.values())).verdict()
    bad = [name for name, task in tasks.items() if task.p_adjusted is not None and task.p_adjusted <= SIGNIFICANCE]
    adjusted = f"{100 * SIGNIFICANCE:g} %, p-values adjusted for {len(tasks)} tests (Holm)"
    sentences = [
        f"All questions together: {overall.verdict()}",
        f"{len(bad)} of {len(tasks)} tasks {'is' if len(bad) == 1 else 'are'} detectably miscalibrated at {adjusted}"
        f"{':' if bad else '.'}",
        *(f"{name}: {tasks[name].verdict()}" for name in bad[:MOST_VERDICTS]),
    ]
    if len(bad) > MOST_VERDICTS:
        sentences.append(f"and {len(bad) - MOST_VERDICTS} more; --json has all verdicts")
    return "\n".join(sentences)


def _accuracy_table(rows: "Mapping[str, ChoiceEvaluation]", score: str) -> Table:
    """Return error and selective accuracy of each row, the largest coverage first."""
    coverages = sorted(next(iter(rows.values())).selective_accuracy, reverse=True)
    cells = []
    for name, row in rows.items():
        low, high = row.num_options
        options = str(low) if low == high else f"{low} - {high}"
        accuracies = [f"{100 * row.selective_accuracy[coverage]:.1f}" for coverage in coverages]
        evaluation = row.evaluation
        cells.append([name, f"{evaluation.num_samples:,}", options, f"{100 * evaluation.error:.1f}", *accuracies])
    headings = ["task", "N", "options", "error %", *(f"top {100 * c:g} %" for c in coverages)]
    return Table(
        headings, cells, f"multiple choice, --choice-score {score}; top 80 %: accuracy of the 80 % most confident"
    )


def _calibration_table(rows: "Mapping[str, ChoiceEvaluation]") -> Table:
    from dualfocal.metrics.verdict import p_text

    headings = ["task", "NLL", "Brier", "conf-acc", "ECE"]
    cells = []
    for name, row in rows.items():
        evaluation, inference = row.evaluation, row.evaluation.inference
        line = [
            name,
            f"{evaluation.nll:.3f}",
            f"{evaluation.brier:.3f}",
            f"{100 * evaluation.overconfidence:+.1f}",
            f"{100 * evaluation.ece:.1f}",
        ]
        if inference is not None:
            low, high = (f"{100 * end:.1f}" for end in inference.debiased_ece)
            p = "" if row.p_adjusted is None else p_text(row.p_adjusted)
            line += [f"{100 * inference.floors['ece'].mean:.1f}", f"{low} - {high}", p]
            headings[5:] = ["floor", f"{100 * inference.level:.4g} % interval", "adj. p"]
        cells.append(line)
    more = " with its noise floor, interval of the debiased RMS error" if len(headings) > 5 else ""
    return Table(headings, cells, f"calibration in percent: confidence minus accuracy, ECE{more}")


def _position_table(rows: "Mapping[str, ChoiceEvaluation]") -> Table:
    """Return the positions of all questions together or, if these were not evaluated, of each task."""
    shown = {ALL: rows[ALL]} if ALL in rows and rows[ALL].positions else rows
    cells = [
        [name, position.name, *(f"{100 * x:.1f}" for x in (position.chosen, position.probability, position.right))]
        for name, row in shown.items()
        for position in row.positions
    ]
    return Table(["task", "position", "chosen %", "mean probability %", "right %"], cells, "positions of the options")


def _content(
    log_format: str,
    score: str,
    logs: "list[ChoicePredictions]",
    overall: "ChoiceEvaluation",
    tasks: "Mapping[str, ChoiceEvaluation]",
) -> dict[str, object]:
    """For JSON."""
    from dualfocal.predictions.choices import METRICS

    entries = []
    for log in logs:
        compared, different = log.disagreement(score)
        entries.append(
            {
                "task": log.task,
                "file": str(log.path),
                "clusters": log.cluster_name,
                "left_out": dict(log.left_out or {}),
                "remarks": list(log.remarks),
                "recorded": {"metric": METRICS[log.format].get(score), "compared": compared, "different": different},
                **tasks[log.task].to_dict(),
            }
        )
    content = {"schema": 1, "format": log_format, "choice_score": score, "overall": overall.to_dict(), "tasks": entries}
    return content | ({} if overall.evaluation.inference is None else {"verdict": _verdict(overall, tasks)})


def _draw(
    request: Request,
    overall: "ChoiceEvaluation",
    tasks: "Mapping[str, ChoiceEvaluation]",
    choices: "Mapping[str, Choices]",
) -> None:
    """Draw all questions and the tasks, if these are many those with the largest ECE above the noise floor."""
    from dualfocal.metrics.choices import merge_choices
    from dualfocal.plots.quantiles import Outcomes

    def excess(name: str) -> float:
        evaluation = tasks[name].evaluation
        return evaluation.ece - (0.0 if evaluation.inference is None else evaluation.inference.floors["ece"].mean)

    worst = sorted(tasks, key=excess, reverse=True)[: MOST_PANELS - 1]
    panels = {ALL: overall.evaluation} if len(tasks) > 1 else {}
    panels |= {name: task.evaluation for name, task in tasks.items() if name in worst}
    questions = {ALL: merge_choices(list(choices.values())), **choices}
    outcomes = {
        name: Outcomes(1 / (1 + asked.odds_against()), asked.chosen == asked.right) for name, asked in questions.items()
    }
    save_diagrams(request, panels, outcomes)
