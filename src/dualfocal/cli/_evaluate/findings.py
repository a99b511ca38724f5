"""What `dualfocal evaluate` finds out about a set of predictions, and how it is printed and drawn."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from dualfocal.cli._common import say, show

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dualfocal.calibrators import CalibratorComparison
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


def print_finding(out: Console, finding: Finding, reading: "Reading") -> None:
    """Print table, verdict, groups and the comparison of calibrators."""
    from dualfocal.metrics.groups import groups_follow_labels
    from dualfocal.metrics.registry import MEANINGS
    from dualfocal.metrics.verdict import CONFIDENCE_ONLY
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
        print_groups(out, str(reading.group), groups)
    if data.groups is not None and groups_follow_labels(data.groups, data.target, reading.ignore_index):
        say(out, f"Each label lies in one group of {reading.group!r}. {FOLLOWS}")
    if comparison is not None:
        show(out, comparison.table())
        say(out, "\n".join([*comparison.remarks(), comparison.caveat()]), "dim")
        say(out, comparison.verdict(), "bold")


def print_groups(out: Console, column: str, groups: "list[GroupEvaluation]") -> None:
    """Print the table of the groups, and how many are miscalibrated."""
    from dualfocal.metrics.groups import MOST_SHOWN, group_table

    show(out, group_table(column, groups))
    number = sum(group.p_adjusted <= 0.05 for group in groups)
    tests = f"p-values adjusted for {len(groups)} tests (Holm). Worst first by the lower end of the interval."
    if len(groups) > MOST_SHOWN:
        tests += " --json has all groups."
    say(out, f"{number} of {len(groups)} groups are miscalibrated at 5 %, {tests}", "bold")


def draw_findings(findings: list[Finding], methods: list[str], plot: Path) -> None:
    """Draw the models and their calibrators; the title of the recommended one is bold.

    Files are named without folders where the names stay distinct. A single file with calibrators is named once, above
    the figure.
    """
    from dualfocal.plots import reliability_figure, save

    short = [" + ".join(Path(part).name for part in finding.name.split(" + ")) for finding in findings]
    names = short if len(set(short)) == len(findings) else [finding.name for finding in findings]
    alone = len(findings) == 1 and findings[0].comparison is not None
    panels: dict[str, Evaluation] = {}
    recommended = []
    for name, finding in zip(names, findings, strict=True):
        chosen = "" if finding.comparison is None else finding.comparison.recommended
        scores = [] if finding.comparison is None else finding.comparison.methods
        evaluations = {"uncalibrated" if alone else name: finding.evaluation}
        evaluations |= {
            score.name if alone else f"{name}, {score.name}": score.evaluation
            for score in scores
            if score.name in methods
        }
        for label, evaluation in evaluations.items():
            is_chosen = label == chosen or label == f"{name}, {chosen}"
            panels[f"{label}, recommended" if is_chosen else label] = evaluation
            recommended += [f"{label}, recommended"] if is_chosen else []
    title = names[0] if alone else ""
    save(reliability_figure(panels, title=title, highlight=recommended), plot, dpi=150)


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
