"""Choose gamma by validation NLL or ECE, with the gammas that are within one standard error of the best."""

import html
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from dualfocal.checks import check_choice
from dualfocal.metrics import METRICS
from dualfocal.tables import Table
from dualfocal_lab.runs import Run
from dualfocal_lab.study.differences import half_widths
from dualfocal_lab.study.plan import Study

CRITERIA = ("nll", "ece")


@dataclass(frozen=True)
class GammaChoice:
    """The entry with the lowest validation criterion, and how far the others are above it. ``print`` it.

    Attributes:
        criterion: ``"nll"`` or ``"ece"``.
        means: Entry -> mean of the criterion over the seeds.
        behind: Entry -> paired difference to the best entry, and its standard error.
        chosen: The best entry.
        left_out: Entries that have unfinished runs.
    """

    criterion: str
    means: dict[str, float]
    behind: dict[str, tuple[float, float]]
    chosen: str
    left_out: list[str]

    @property
    def within(self) -> list[str]:
        """The entries within one standard error of the best, including the best itself."""
        return [entry for entry, (difference, error) in self.behind.items() if difference <= error]

    def sentence(self) -> str:
        """Return the choice and its uncertainty in one sentence."""
        others = [entry for entry in self.within if entry != self.chosen]
        start = f"Lowest validation {METRICS[self.criterion].label}: {self.chosen}"
        left_out = (
            f" Left out, since some of their runs are not finished: {', '.join(self.left_out)}."
            if self.left_out
            else ""
        )
        if len(self.means) == 1:
            return f"{start}, the only complete entry.{left_out}"
        if not others:
            return f"{start}, more than one standard error below all others.{left_out}"
        return f"{start}; within one standard error of it: {', '.join(others)}.{left_out}"

    def table(self) -> Table:
        """Return a table of the entries: mean of the criterion, distance to the best entry, its standard error."""
        metric = METRICS[self.criterion]
        unit = " %" if metric.unit == "%" else ""
        headings = ["", f"validation {metric.label}{unit}", "above the best", "standard error"]
        rows = [[entry, *map(metric.text, (self.means[entry], *self.behind[entry]))] for entry in self.behind]
        return Table(headings, rows)

    def markdown(self) -> str:
        """Return the table and the sentence as Markdown."""
        return f"{self.table().markdown()}\n\n{self.sentence()}"

    def __str__(self) -> str:
        return f"{self.table().text()}\n{self.sentence()}"

    def _repr_html_(self) -> str:
        return f"{self.table().html()}<p><b>{html.escape(self.sentence())}</b></p>"

    def to_dict(self) -> dict[str, Any]:
        """Return the content for JSON."""
        behind = {
            entry: {"by": difference, "standard_error": error} for entry, (difference, error) in self.behind.items()
        }
        return {"criterion": self.criterion, "chosen": self.chosen, "within": self.within, "behind": behind}


def choose_gamma(study: Study, out: Path, criterion: str = "nll") -> GammaChoice:
    """Choose the entry of a study with the lowest validation NLL or ECE.

    Prefer the NLL: on few samples the ECE is mostly noise, and its minimum selects noise. The standard error is that of
    the paired difference to the best entry, over seeds and validation samples.

    Args:
        study: a study of several gammas.
        out: the folder of the study.
        criterion: ``"nll"`` or ``"ece"``.

    Raises:
        ValueError: the criterion is unknown, or no entry has finished runs for all seeds.
    """
    check_choice("criterion", criterion, CRITERIA)
    folders, results = study.folders(out), study.results(out)
    complete = [entry for entry in study.entries if all((entry, seed) in results for seed in study.seeds)]
    if not complete:
        raise ValueError("no gamma has finished runs for all seeds")
    scores = {
        entry: [getattr(results[entry, seed].evaluation("val"), criterion) for seed in study.seeds]
        for entry in complete
    }
    means = {entry: statistics.mean(values) for entry, values in scores.items()}
    best = min(means, key=lambda entry: means[entry])
    behind = {}
    for entry in complete:
        pairs = [score - lowest for score, lowest in zip(scores[entry], scores[best], strict=True)]
        over_seeds = statistics.stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else 0.0
        run_pairs = [(folders[entry, seed], folders[best, seed]) for seed in study.seeds]
        error = 0.0 if entry == best else math.hypot(over_seeds, _sampling_error(run_pairs, criterion))
        behind[entry] = means[entry] - means[best], error
    return GammaChoice(criterion, means, behind, best, [entry for entry in study.entries if entry not in complete])


def _sampling_error(pairs: list[tuple[Path, Path]], criterion: str) -> float:
    """Return the standard error due to the validation samples.

    0 if the seeds have different samples: then the spread over seeds includes it.
    """
    runs = [[Run(folder).predictions("val") for folder in pair] for pair in pairs]
    target = runs[0][0][1]
    if any(not torch.equal(labels, target) for pair in runs for _, labels in pair):
        return 0.0
    if criterion == "ece":
        (a, _), (b, _) = runs[0]
        return half_widths(a, b, target)["ece"] / 1.645  # of a 90 % interval
    differences = [
        F.cross_entropy(a.double(), target, reduction="none") - F.cross_entropy(b.double(), target, reduction="none")
        for (a, _), (b, _) in runs
    ]
    return float(torch.stack(differences).mean(0).std() / math.sqrt(len(target)))
