"""Calibrators beside the uncalibrated model: a table, remarks, and which one to use."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dualfocal._table import Table
from dualfocal.calibrators._scoring import MethodScore
from dualfocal.calibrators.notes import Note
from dualfocal.metrics.comparison import Difference
from dualfocal.metrics.evaluation import finite

UNCALIBRATED = "as it is"  # the name of the uncalibrated model among the methods
LARGE = 1e7  # from here on a loss is written as 1.234e+07
LEAST_GAIN = 1e-4  # nats: less would be written as 0.0000


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
            total = self.methods[0].evaluation.num_classes
            found = Note("absent_classes", len(self.absent), total, self.absent).finding
            rule = f"left out of this advice is what all but rules them out ({', '.join(self.left_out)})"
            text = f"{text} {found}: {rule}."
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


def recommend(methods: Sequence[MethodScore], simple_first: Sequence[str]) -> str:
    """The simplest method that is sure to help and not significantly worse than the lowest NLL.

    The uncalibrated model if no method is sure to help. ``methods`` have the lowest NLL first.
    """
    lowest = methods[0].scores["nll"]
    uncalibrated = next(method.scores["nll"] for method in methods if method.name == UNCALIBRATED)
    helpful = {method.name for method in methods if -method.changes["nll"].high >= LEAST_GAIN / 2}  # and it must show
    if math.isinf(uncalibrated) and math.isfinite(lowest):  # which has no interval, and is behind any finite one
        finite = (method for method in methods if math.isfinite(method.scores["nll"]))
        helpful = {methods[0].name, *(method.name for method in finite if has_interval(method.behind))}
    if not helpful:
        return UNCALIBRATED
    equal = {m.name for m in methods if m.behind.low <= 0 and math.isfinite(m.scores["nll"])}
    return next((name for name in simple_first if name in equal & helpful), methods[0].name)


def advise(methods: Sequence[MethodScore], recommended: str, level: float) -> str:
    """What to do, in a sentence or two; ``methods`` have the lowest NLL first."""
    by_name = {method.name: method for method in methods}
    best, advised, uncalibrated = methods[0], by_name[recommended], by_name[UNCALIBRATED]
    if len(methods) == 1:
        return "No method could be fitted to these data."
    if not math.isfinite(best.scores["nll"]):
        return "The NLL is infinite, as it is and after each method: a true class has probability 0."
    if not math.isfinite(uncalibrated.scores["nll"]):
        size = "it has the lowest NLL," if best is advised else "its NLL is"
        text = (
            f"Use {advised.name}: {size} {nats(advised.scores['nll'])} nats. "
            "That of the model as it is is infinite: a true class has probability 0."
        )
        return text if best is advised else f"{text} {_behind(best, advised)}"
    if not all(has_interval(method.changes["nll"]) for method in (best, advised)):
        lowest = f"{best.name} has the lowest NLL, {nats(best.scores['nll'])} nats"
        less = "" if best is uncalibrated else f", {nats(-best.changes['nll'].difference)} less than the model as it is"
        return f"Too few samples for an interval, and for advice: {lowest}{less}."
    if advised is uncalibrated:
        if any(method.changes["nll"].high < 0 for method in methods):
            return f"Leave the model as it is: no method is sure to lower its NLL by {LEAST_GAIN:.4f} nats."
        text = "Leave the model as it is: no method lowers its NLL by more than chance may."
    else:
        gain = advised.changes["nll"]
        text = (
            f"Use {advised.name}: it lowers the NLL by {nats(-gain.difference)} nats "
            f"({nats(-gain.high)} to {nats(-gain.low)}, {100 * level:.4g} % interval)."
        )
    return text if best is advised or advised.behind.difference < LEAST_GAIN / 2 else f"{text} {_behind(best, advised)}"


def has_interval(d: Difference) -> bool:
    """Whether a difference has an interval: too few samples, or an infinite NLL, give none."""
    return math.isfinite(d.low) and math.isfinite(d.high)


def nats(value: float, sign: str = "-") -> str:
    """Four decimals; of logits that are very far apart a loss has hundreds of digits before them.

    >>> nats(0.12345), nats(0.5, "+"), nats(2e297)
    ('0.1235', '+0.5000', '2.000e+297')
    """
    return f"{value:{sign}{'.4f' if not abs(value) >= LARGE else '.3e'}}"


def _behind(best: MethodScore, advised: MethodScore) -> str:
    d = advised.behind
    simpler = "" if advised.name == UNCALIBRATED else f", and {advised.name} is simpler"
    return (
        f"{best.name} has the lowest NLL, but by {nats(d.difference)} nats ({nats(d.low, '+')} to {nats(d.high, '+')}) "
        f"only, which chance can explain{simpler}."
    )
