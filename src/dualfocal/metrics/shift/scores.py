"""The scores of a model on a test set and on shifted sets: a table, a verdict and JSON."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dualfocal.metrics.auroc import Auroc
from dualfocal.metrics.inference_result import SIGNIFICANCE, holm
from dualfocal.metrics.printed import Printed
from dualfocal.metrics.registry import METRICS
from dualfocal.metrics.result import Evaluation, inference_of
from dualfocal.tables import Table

SCHEMA = 1
SHOWN = ("error", "nll", "ece")
HEADINGS = {"entropy": "AUROC entropy", "confidence": "AUROC confidence", "errors": "AUROC errors"}
COLUMNS = ("AUROC entropy", "AUROC conf.", "AUROC errors")  # narrow enough for a terminal
AUROC_MEANINGS = (
    "AUROC entropy, AUROC conf. [%]: how well entropy and confidence tell samples of the set from test samples (50: "
    "not at all); AUROC errors [%]: how well the confidence tells right from wrong predictions of the set"
)
NUMBERED = re.compile(r"(.*?)[-_ ]*?(\d+(?:\.\d+)?)")  # a kind of shift and its severity


@dataclass(frozen=True)
class ShiftScores:
    """Scores of the test set, or of one shifted set.

    Args:
        name: name of the set.
        num_samples: number of samples, without ignored ones.
        evaluation: all metrics, with inference (None: no labels).
        intervals: confidence intervals of ``"error"``, ``"nll"`` and ``"ece"``; those that cannot be computed are left
            out.
        auroc: ``"entropy"`` and ``"confidence"``: of telling the samples from test samples; ``"errors"``: of telling
            right from wrong predictions of this set by the confidence.
    """

    name: str
    num_samples: int
    evaluation: Evaluation | None = None
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    auroc: Mapping[str, Auroc] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The name without the number at its end."""
        return kind_and_severity(self.name)[0]

    @property
    def severity(self) -> float | None:
        """The number at the end of the name; None if there is none."""
        return kind_and_severity(self.name)[1]

    def to_dict(self) -> dict[str, Any]:
        """Return plain content for JSON: fractions, NLL in nats."""
        return {
            "name": self.name,
            "num_samples": self.num_samples,
            "evaluation": None if self.evaluation is None else self.evaluation.to_dict(),
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
            "auroc": {name: area.to_dict() for name, area in self.auroc.items()},
        }


@dataclass(frozen=True)
class ShiftEvaluation(Printed):
    """Result of :func:`evaluate_shift`. ``print`` it; see :meth:`to_dict`.

    Args:
        test: scores of the test set.
        shifted: scores of the shifted sets, in order of their severity.
        level: nominal coverage of the intervals.
        seed: seed of the resampling.
    """

    test: ShiftScores
    shifted: tuple[ShiftScores, ...]
    level: float
    seed: int

    @property
    def sets(self) -> tuple[ShiftScores, ...]:
        """The test set and the shifted sets."""
        return (self.test, *self.shifted)

    def table(self) -> Table:
        """Return a table with two rows for each set: its scores, and below them their intervals."""
        rows = []
        for scores in self.sets:
            values, ends = [scores.name, f"{scores.num_samples:,}"], ["", ""]
            for name in SHOWN:
                metric = METRICS[name]
                value = math.nan if scores.evaluation is None else getattr(scores.evaluation, name)
                values.append("" if math.isnan(value) else metric.text(value))
                bounds = scores.intervals.get(name)
                ends.append("" if bounds is None else "-".join(metric.text(end) for end in bounds))
            inference = None if scores.evaluation is None else scores.evaluation.inference
            values.append("" if inference is None else METRICS["ece"].text(inference.floors["ece"].mean))
            ends.append("")
            for name in HEADINGS:
                area = scores.auroc.get(name)
                values.append("" if area is None else f"{100 * area.value:.1f}")
                ends.append("" if area is None else f"{100 * area.low:.1f}-{100 * area.high:.1f}")
            rows += [values, ends]
        headings = ["set", "N", *(METRICS[name].heading for name in SHOWN), "floor", *COLUMNS]
        title = f"{self.test.name} and {len(self.shifted)} shifted sets, below each value its"
        return Table(headings, rows, f"{title} {100 * self.level:.4g} % interval; AUROC in percent")

    def verdict(self) -> str:
        """Say in a few sentences what the shift does to error and calibration, and how well it is noticed."""
        sentences = []
        evaluations = {scores.name: scores.evaluation for scores in self.shifted if scores.evaluation is not None}
        if evaluations and self.test.evaluation is not None:
            worst = max(evaluations, key=lambda name: evaluations[name].ece)
            ece, error = (_change(name, self.test.evaluation, evaluations[worst]) for name in ("ece", "error"))
            sentences.append(
                f"From {self.test.name} to {worst}, the shifted set with the highest ECE, the ECE changes {ece}, the "
                f"error {error}."
            )
            p_values = holm([inference_of(evaluation).joint_p_value for evaluation in evaluations.values()])
            number = sum(p <= SIGNIFICANCE for p in p_values)
            sentences.append(f"{number} of {len(p_values)} shifted sets are detectably miscalibrated at 5 % (Holm).")
        areas = sorted((scores.auroc["entropy"].value, scores.name) for scores in self.shifted)
        ends = dict.fromkeys((areas[0], areas[-1]))
        noticed = " to ".join(f"{100 * value:.1f} % ({name})" for value, name in ends)
        sentences.append(f"AUROC of the entropy, shifted against {self.test.name} samples: {noticed}.")
        if surer := [scores.name for scores in self.shifted if scores.auroc["entropy"].high < 0.5]:
            sentences.append(
                f"The model is more certain of shifted than of {self.test.name} samples: {', '.join(surer)}."
            )
        return " ".join(sentences)

    def to_dict(self) -> dict[str, Any]:
        """Return plain content for JSON: fractions, NLL in nats."""
        return {
            "schema": SCHEMA,
            "level": self.level,
            "seed": self.seed,
            "test": self.test.to_dict(),
            "shifted": [scores.to_dict() for scores in self.shifted],
        }


def kind_and_severity(name: str) -> tuple[str, float | None]:
    """Split the number off the end of a name.

    >>> kind_and_severity("noise-3"), kind_and_severity("blur_0.5"), kind_and_severity("svhn")
    (('noise', 3.0), ('blur', 0.5), ('svhn', None))
    """
    numbered = NUMBERED.fullmatch(name)
    return (name, None) if numbered is None else (numbered[1], float(numbered[2]))


def severity_order(names: Iterable[str]) -> list[str]:
    """Order names that end in numbers by them, within each kind; kinds and other names stay in the given order.

    >>> severity_order(["noise-10", "noise-2", "svhn", "blur-1", "noise-1"])
    ['noise-1', 'noise-2', 'noise-10', 'svhn', 'blur-1']
    """
    names = list(names)
    kinds = list(dict.fromkeys(kind_and_severity(name)[0] for name in names))

    def place(name: str) -> tuple[int, float]:
        kind, severity = kind_and_severity(name)
        return kinds.index(kind), -math.inf if severity is None else severity

    return sorted(names, key=place)


def _change(name: str, test: Evaluation, shifted: Evaluation) -> str:
    before, after = (METRICS[name].text(getattr(evaluation, name)) for evaluation in (test, shifted))
    return f"from {before} to {after} %"
