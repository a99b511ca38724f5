"""What `dualfocal evaluate` finds out about a set of predictions, and how it is printed and drawn."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from dualfocal.cli._common import say, show
from dualfocal.cli._evaluate.request import Request
from dualfocal.tables import quantity

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from dualfocal.calibrators import CalibratorComparison
    from dualfocal.metrics import Evaluation
    from dualfocal.metrics.groups import GroupEvaluation
    from dualfocal.plots.quantiles import Outcomes

FLOOR = "noise floor: the mean score of a perfectly calibrated model with the same confidences and number of samples"
TOP_LABEL = (
    "Two classes: the metrics are about the confidence of the predicted class, and the Brier score is the sum over "
    "both classes; --binary positive evaluates the probability of class {}."
)
POSITIVE = (
    "The metrics are about the probability of class {}; --binary top_label evaluates the confidence of the predicted "
    "class."
)
FROM_LABELS = (
    "If the groups were made from the labels, ignore this table: among samples of one label, no model is calibrated."
)


@dataclass
class Finding:
    """The evaluation of one set of predictions.

    Args:
        name: the file, or the query of a database.
        taken: which arrays or columns were read, in words.
        evaluation: the metrics.
        class_names: names of the classes (None: unknown).
        group_column: column of the groups (None: no groups).
        groups: the evaluation of each group.
        groups_follow_labels: whether each label lies in one group.
        infinite_nll: why the NLL is infinite; empty if it is finite.
        comparison: the comparison of calibrators (None: not requested).
        outcomes: what diagrams without bins of equal width need (None: not requested).
    """

    name: str
    taken: str
    evaluation: "Evaluation"
    class_names: tuple[str, ...] | None = None
    group_column: str | None = None
    groups: "list[GroupEvaluation]" = field(default_factory=list)
    groups_follow_labels: bool = False
    infinite_nll: str = ""
    comparison: "CalibratorComparison | None" = None
    outcomes: "Outcomes | None" = None

    def cells(self) -> list[str]:
        """The row of the table of several files."""
        evaluation = self.evaluation
        floor = "" if evaluation.inference is None else f"{100 * evaluation.inference.floors['ece'].mean:.2f}"
        return [
            self.name,
            f"{evaluation.num_samples:,}",
            f"{100 * evaluation.error:.2f}",
            "" if math.isnan(evaluation.nll) else f"{evaluation.nll:.4f}",
            f"{100 * evaluation.ece:.2f}",
            floor,
        ]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        content = {"file": self.name, "taken": self.taken, **with_verdict(self.evaluation, self.class_names)}
        if self.groups:
            content["groups"] = [group.to_dict() for group in self.groups]
        if self.comparison is not None:
            content["calibration"] = {**self.comparison.to_dict(), "verdict": self.comparison.verdict()}
        return content


def with_verdict(evaluation: "Evaluation", class_names: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Return an evaluation for JSON, with the verdict if there is inference."""
    verdict = {} if evaluation.inference is None else {"verdict": evaluation.verdict(class_names)}
    return {**evaluation.to_dict(), **verdict}


def print_finding(out: Console, finding: Finding) -> None:
    """Print table, verdict, groups and the comparison of calibrators."""
    from dualfocal.metrics.verdict import CONFIDENCE_ONLY

    evaluation, comparison = finding.evaluation, finding.comparison
    print_evaluation(out, finding.name, evaluation, finding.class_names)
    if evaluation.confidence_only and evaluation.inference is None:
        say(out, CONFIDENCE_ONLY, "dim", wrap=True)
    say_confidence(out, evaluation, finding.class_names)
    if finding.infinite_nll:
        say(out, f"NLL is infinite: {finding.infinite_nll}.")
    if finding.groups:
        _print_groups(out, str(finding.group_column), finding.groups)
    if finding.groups_follow_labels:
        say(out, f"Each label lies in one group of {finding.group_column!r}. {FROM_LABELS}")
    if comparison is not None:
        show(out, comparison.table())
        say(out, "\n".join([*comparison.remarks(), comparison.caveat()]), "dim")
        say(out, comparison.verdict(), "bold")


def say_confidence(out: Console, evaluation: "Evaluation", class_names: tuple[str, ...] | None = None) -> None:
    """Say which probability the metrics of two classes are about."""
    if evaluation.num_classes == 2:
        remark = POSITIVE if evaluation.positive else TOP_LABEL
        say(out, remark.format(class_names[1] if class_names else 1), "dim", wrap=True)


def print_evaluation(
    out: Console, name: str, evaluation: "Evaluation", class_names: tuple[str, ...] | None = None
) -> None:
    """Print the table of the metrics, what they mean, and the verdict."""
    from dualfocal.metrics.registry import footnote

    show(out, evaluation.table(), f"{name}: ")
    say(out, footnote(positive=evaluation.positive), "dim", wrap=True)
    if evaluation.inference is not None:
        say(out, FLOOR, "dim", wrap=True)
        for metric, (low, high) in evaluation.inference.published.items():
            say(out, f"published pivotal bootstrap of {metric}: {100 * low:.2f} to {100 * high:.2f} %")
        say(out, evaluation.verdict(class_names), "bold")


def _print_groups(out: Console, column: str, groups: "list[GroupEvaluation]") -> None:
    """Print the table of the groups, and how many are miscalibrated."""
    from dualfocal.metrics.groups import MOST_SHOWN, group_table

    show(out, group_table(column, groups))
    number = sum(group.p_adjusted <= 0.05 for group in groups)
    tests = f"p-values adjusted for {quantity(len(groups), 'test')} (Holm). "
    tests += "Worst first by the lower end of the interval."
    if len(groups) > MOST_SHOWN:
        tests += " --json has all groups."
    verb = "is" if 1 in (number, len(groups)) else "are"
    say(out, f"{number} of {quantity(len(groups), 'group')} {verb} detectably miscalibrated at 5 %, {tests}", "bold")


def draw_findings(findings: list[Finding], request: Request) -> None:
    """Draw the models and their calibrators; the title of the recommended one is bold.

    Files are named without folders where the names stay distinct. A single file with calibrators is named once, above
    the figure.
    """
    short = [" + ".join(Path(part).name for part in finding.name.split(" + ")) for finding in findings]
    names = short if len(set(short)) == len(findings) else [finding.name for finding in findings]
    alone = len(findings) == 1 and findings[0].comparison is not None
    panels: dict[str, Evaluation] = {}
    recommended = []
    for name, finding in zip(names, findings, strict=True):
        comparison = finding.comparison
        evaluations = {"uncalibrated": finding.evaluation}
        if comparison is not None:
            evaluations |= {
                score.name: score.evaluation for score in comparison.methods if score.name in request.methods
            }
        for method, evaluation in evaluations.items():
            label = name if method == "uncalibrated" else f"{name}, {method}"
            label = method if alone else label
            if comparison is not None and method == comparison.recommended:
                label = f"{label}, recommended"
                recommended.append(label)
            panels[label] = evaluation
    outcomes = {name: finding.outcomes for name, finding in zip(names, findings, strict=True) if finding.outcomes}
    save_diagrams(request, panels, outcomes, title=names[0] if alone else "", highlight=recommended)


def save_diagrams(
    request: Request,
    evaluations: "Mapping[str, Evaluation]",
    outcomes: "Mapping[str, Outcomes]",
    *,
    title: str = "",
    highlight: "Collection[str]" = (),
) -> None:
    """Draw a reliability diagram of each evaluation in the style of ``--plot-style``; "uniform" needs no samples."""
    from dualfocal.plots import corp_figure, reliability_figure, save
    from dualfocal.plots.quantiles import QuantileEvaluation

    assert request.plot is not None
    if request.plot_style == "corp":
        seed = request.reading.seed
        curves = {name: outcomes[name].corp(positive=e.positive, seed=seed) for name, e in evaluations.items()}
        figure = corp_figure(curves, title=title)
    else:
        if request.plot_style == "quantile":
            evaluations = {name: QuantileEvaluation.of(e, outcomes[name]) for name, e in evaluations.items()}
        figure = reliability_figure(evaluations, title=title, highlight=highlight)
    save(figure, request.plot, dpi=150)


def gate(err: Console, evaluations: "Mapping[str, Evaluation]", limit: float) -> None:
    """Exit with code 3 if the debiased RMS error of an evaluation is certainly above the limit (``--fail-over``)."""
    if say_above(err, evaluations, limit):
        raise typer.Exit(3)


def say_above(err: Console, evaluations: "Mapping[str, Evaluation]", limit: float, most: int | None = None) -> bool:
    """Return whether the debiased RMS error of an evaluation is certainly above a limit, and name those above.

    The lower end of the confidence interval must be above the limit; at most ``most`` evaluations are named.
    """
    from dualfocal.metrics.registry import METRICS

    tests = {name: evaluation.inference for name, evaluation in evaluations.items() if evaluation.inference is not None}
    above = {name: test for name, test in tests.items() if test.debiased_ece[0] > limit}
    for name, test in list(above.items())[:most]:
        low, high = (f"{100 * end:.2f}" for end in test.debiased_ece)
        interval = f"{100 * test.level:.4g} % interval {low} to {high} %"
        label = METRICS["debiased_ece"].label
        say(err, f"dualfocal: {name}: {label} above the limit of {100 * limit:g} %: {interval}")
    if most is not None and len(above) > most:
        say(err, f"dualfocal: and {len(above) - most} more")
    return bool(above)
