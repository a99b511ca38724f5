"""Which gamma: by validation data, with all that they cannot tell from it."""

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from dualfocal._table import Table
from dualfocal.metrics import compare
from dualfocal.metrics.registry import METRICS
from dualfocal.runs import Run
from dualfocal.study.plan import Study

CRITERIA = ("nll", "ece")


@dataclass(frozen=True)
class GammaChoice:
    """The lowest of a criterion on the validation part, and its neighbours within one standard error.

    Attributes:
        means: Of each entry, over the seeds.
        behind: Of each entry, how far behind the best it is, and the standard error of that.
    """

    criterion: str
    means: dict[str, float]
    behind: dict[str, tuple[float, float]]
    chosen: str
    left_out: list[str]

    @property
    def within(self) -> list[str]:
        """The entries that one standard error does not tell from the best; it is one of them."""
        return [entry for entry, (by, error) in self.behind.items() if by <= error]

    def sentence(self) -> str:
        """The choice, and how much it means."""
        others = [entry for entry in self.within if entry != self.chosen]
        start = f"Lowest validation {METRICS[self.criterion].label}: {self.chosen}"
        left_out = f" Without all their runs, and left out: {', '.join(self.left_out)}." if self.left_out else ""
        if len(self.means) == 1:
            return f"{start}, the only one.{left_out}"
        if not others:
            return f"{start}, more than one standard error below the others.{left_out}"
        return f"{start}; within one standard error of it: {', '.join(others)}.{left_out}"

    def markdown(self) -> str:
        """A table of the entries, and the sentence."""
        metric = METRICS[self.criterion]
        unit = " %" if metric.unit == "%" else ""
        headings = ["", f"validation {metric.label}{unit}", "behind the best", "standard error"]
        rows = [[entry, *map(metric.text, (self.means[entry], *self.behind[entry]))] for entry in self.behind]
        return f"{Table(headings, rows).markdown()}\n\n{self.sentence()}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        behind = {entry: {"by": by, "standard_error": error} for entry, (by, error) in self.behind.items()}
        return {"criterion": self.criterion, "chosen": self.chosen, "within": self.within, "behind": behind}


def choose_gamma(study: Study, out: Path, criterion: str = "nll") -> GammaChoice:
    """Choose among the entries of a study by validation NLL, or by validation ECE.

    An ECE of few samples is mostly noise, and its least value is where the noise was lucky: the NLL says more. The
    standard error is of the paired difference to the best, over seeds and validation samples.

    Raises:
        ValueError: no entry has all its runs.
    """
    folders, results = study.folders(out), study.results(out)
    complete = [entry for entry in study.entries if all((entry, seed) in results for seed in study.seeds)]
    if not complete:
        raise ValueError("no gamma has been trained with all seeds")
    scores = {
        entry: [getattr(results[entry, seed].evaluation("val"), criterion) for seed in study.seeds]
        for entry in complete
    }
    means = {entry: statistics.mean(values) for entry, values in scores.items()}
    best = min(means, key=lambda entry: means[entry])
    behind = {}
    for entry in complete:
        apart = [mine - right for mine, right in zip(scores[entry], scores[best], strict=True)]
        over_seeds = statistics.stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else 0.0
        pairs = [(folders[entry, seed], folders[best, seed]) for seed in study.seeds]
        error = 0.0 if entry == best else math.hypot(over_seeds, _sampling_error(pairs, criterion))
        behind[entry] = means[entry] - means[best], error
    return GammaChoice(criterion, means, behind, best, [entry for entry in study.entries if entry not in complete])


def _sampling_error(pairs: list[tuple[Path, Path]], criterion: str) -> float:
    """What the validation samples leave open, where all seeds share them; otherwise the spread over seeds has it."""
    runs = [[Run(folder).predictions("val") for folder in pair] for pair in pairs]
    target = runs[0][0][1]
    if any(not torch.equal(of[1], target) for pair in runs for of in pair):
        return 0.0
    if criterion == "ece":
        (a, _), (b, _) = runs[0]
        difference = compare(a, b, target).differences["ece"]
        return (difference.high - difference.low) / (2 * 1.645)  # of an interval of 90 %
    apart = [
        F.cross_entropy(a.double(), target, reduction="none") - F.cross_entropy(b.double(), target, reduction="none")
        for (a, _), (b, _) in runs
    ]
    return float(torch.stack(apart).mean(0).std() / math.sqrt(len(target)))
