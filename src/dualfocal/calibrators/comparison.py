"""Calibrators beside the uncalibrated model: a table, remarks, and which one to use."""

import math
from dataclasses import dataclass

from dualfocal._table import Table
from dualfocal.calibrators._scoring import MethodScore
from dualfocal.calibrators.advice import UNCALIBRATED, advise, has_interval, nats
from dualfocal.calibrators.notes import Note
from dualfocal.metrics.comparison import Difference
from dualfocal.metrics.evaluation import finite


@dataclass(frozen=True, kw_only=True)
class CalibratorComparison:
    """Calibrators and the uncalibrated model on the same samples; ``print`` it, or see :meth:`to_dict`.

    ``comparison[name]`` is the score of a method; the uncalibrated model is called ``"as it is"``.
    """

    methods: tuple[MethodScore, ...]  # the lowest NLL first; the uncalibrated model is one of them
    refused: dict[str, str]  # method to reason
    recommended: str  # the simplest that is sure to help and not significantly worse than the lowest NLL
    absent: tuple[int, ...]  # classes that no label names
    left_out: tuple[str, ...]  # methods that are not to be recommended: they would rule these classes out
    num_samples: int  # that were scored
    validation_samples: int | None  # that calibrators were fitted on; None: they were cross-fitted
    part: str  # name of the samples that were scored, where calibrators were fitted on others
    folds: int
    repeats: int  # of the cross-fit, over which scores are means; 1 where calibrators were fitted once
    level: float
    seed: int

    def __getitem__(self, name: str) -> MethodScore:
        return {method.name: method for method in self.methods}[name]

    @property
    def held_out(self) -> bool:
        """Whether calibrators were fitted on other data; otherwise they were cross-fitted."""
        return self.validation_samples is not None

    def verdict(self) -> str:
        """What to do, in a few sentences."""
        allowed = [method for method in self.methods if method.name not in self.left_out]
        leave = self.left_out and len(allowed) == 1
        text = "Leave the model as it is." if leave else advise(allowed, self.recommended, self.level)
        if self.left_out:
            classes = f"Class {self.absent[0]} has" if len(self.absent) == 1 else f"{len(self.absent)} classes have"
            them = "it" if len(self.absent) == 1 else "them"
            rule = f"left out of this advice is what all but rules {them} out ({', '.join(self.left_out)})"
            text = f"{text} {classes} no sample here: {rule}."
        return f"{text}{self.choice()}" if self.held_out else text

    def choice(self) -> str:
        """A reminder that a method chosen by its score looks better than it is; empty if there was no choice."""
        among = len(self.methods) - 1
        return f" (Chosen among {among} methods on these same samples.)" if among > 1 else ""

    def caveat(self) -> str:
        """Which samples the calibrators were fitted on, and which were scored."""
        if self.held_out:
            return (
                f"Fitted on the run's validation part ({self.validation_samples:,} samples), scored on its {self.part} "
                f"part ({self.num_samples:,}), which no fit has seen."
            )
        times = "once" if self.repeats == 1 else f"{self.repeats} times"
        return (
            f"Cross-fitted in {self.folds} folds, {times}: no sample is scored by a fit that saw it. This scores the "
            "procedure, fitted on a part of the data; a calibrator fitted on all of it is not scored here."
        )

    def remarks(self) -> list[str]:
        """Methods that refused the data, and notes of the fits with the methods that made them, a line each."""
        names: dict[Note, list[str]] = {}
        for method in self.methods:
            for note in method.notes:
                names.setdefault(note, []).append(method.name)
        refused = [f"{name} refused: {reason}" for name, reason in self.refused.items()]
        return [*refused, *(f"{', '.join(methods)}: {note}" for note, methods in names.items())]

    def table(self) -> Table:
        """The methods; the last column is the share of samples whose predicted class is another."""
        rows = []
        for method in self.methods:
            change, cell = method.changes["nll"], ""
            if method.name != UNCALIBRATED and not math.isnan(change.difference):
                half = f" ± {nats((change.high - change.low) / 2)}" if has_interval(change) else ""
                cell = f"{nats(change.difference, '+')}{half}"
            rows.append(
                [
                    method.name,
                    nats(method.scores["nll"]),
                    cell,
                    f"{100 * method.scores['ece']:.2f}",
                    f"{100 * method.ece_floor:.2f}",
                    f"{100 * method.scores['error']:.2f}",
                    f"{100 * method.argmax_changed:.2f}",
                ]
            )
        how = "fitted on the validation part" if self.held_out else "cross-fitted"
        title = f"calibrators, {how}, lowest NLL first; percent: ECE, its floor, error, classes that moved"
        headings = ["method", "NLL", f"change ± {100 * self.level:.4g} %", "ECE %", "floor", "error", "moved"]
        return Table(headings, rows, title)

    def to_dict(self) -> dict[str, object]:
        """Plain numbers: fractions, NLL in nats; what is not finite is None."""
        how: dict[str, object] = {"folds": self.folds, "repeats": self.repeats}
        if self.held_out:
            how = {
                "fitted_on": {"part": "val", "num_samples": self.validation_samples},
                "scored_on": {"part": self.part, "num_samples": self.num_samples},
            }
        return {
            "schema": 1,
            **how,
            "level": self.level,
            "seed": self.seed,
            "recommended": self.recommended,
            "methods": [_plain_method(method) for method in self.methods],
            "refused": self.refused,
            "left_out": list(self.left_out),
        }

    def __str__(self) -> str:
        return "\n".join([self.table().text(), *self.remarks(), self.caveat(), self.verdict()])


def _plain_method(method: MethodScore) -> dict[str, object]:
    def plain(d: Difference) -> dict[str, object]:
        return {"difference": finite(d.difference), "interval": [finite(d.low), finite(d.high)]}

    return {
        "method": method.name,
        **{name: finite(value) for name, value in method.scores.items()},
        "ece_floor": method.ece_floor,
        "change": {name: plain(d) for name, d in method.changes.items()},
        "nll_behind_best": plain(method.behind),
        "argmax_changed": method.argmax_changed,
        "notes": list(map(str, method.notes)),
    }
