"""Result of :func:`compare_calibrators`: scores of each method, a table and a recommendation."""

import html
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from dualfocal.calibrators._scoring import AnyScore, MethodScore, Score
from dualfocal.calibrators.notes import Note
from dualfocal.metrics.comparison import Difference
from dualfocal.metrics.inference_result import ENOUGH_CLUSTERS
from dualfocal.metrics.result import finite
from dualfocal.tables import Table

UNCALIBRATED = "uncalibrated"  # name of the uncalibrated model among the methods
LARGE = 1e7  # larger losses are printed as 1.234e+07
LEAST_GAIN = 1e-4  # nats; a smaller gain would be printed as 0.0000


class MethodComparison(ABC, Generic[AnyScore]):
    """Scores of calibrators and of the uncalibrated model on the same samples: what all comparisons share."""

    methods: tuple[AnyScore, ...]

    def __getitem__(self, name: str) -> AnyScore:
        return {method.name: method for method in self.methods}[name]

    @abstractmethod
    def verdict(self) -> str:
        """Recommendation in a few sentences."""

    @abstractmethod
    def caveat(self) -> str:
        """Which samples were used for fitting and which for scoring."""

    @abstractmethod
    def table(self) -> Table:
        """Table of the methods."""

    def remarks(self) -> list[str]:
        """One line per distinct note of the fits, with the methods it concerns."""
        names: dict[Note, list[str]] = {}
        for method in self.methods:
            for note in method.notes:
                names.setdefault(note, []).append(method.name)
        return [f"{', '.join(methods)}: {note}" for note, methods in names.items()]

    def __str__(self) -> str:
        return "\n".join([self.table().text(), *self.remarks(), self.caveat(), self.verdict()])

    def _repr_html_(self) -> str:
        remarks = "<br>".join(map(html.escape, [*self.remarks(), self.caveat()]))
        return f"{self.table().html()}<p>{remarks}</p><p><b>{html.escape(self.verdict())}</b></p>"


@dataclass(frozen=True, kw_only=True)
class CalibratorComparison(MethodComparison[MethodScore]):
    """Scores of calibrators and of the uncalibrated model on the same samples.

    ``print(comparison)`` shows a table and a recommendation, :meth:`to_dict` gives plain numbers.
    ``comparison[name]`` is the score of one method; the uncalibrated model is named ``"uncalibrated"``.

    Attributes:
        methods: scores of all methods, including the uncalibrated model, sorted by NLL, lowest first.
        refused: methods that could not be fitted, with the reason.
        recommended: simplest method that helps significantly and is not significantly worse than the best.
        absent: classes without samples.
        left_out: methods that are not recommended because they give absent classes almost zero probability.
        num_samples: number of scored samples.
        validation_samples: number of samples used for fitting; None with cross-validation.
        folds: number of folds of the cross-validation.
        repeats: number of repeats of the cross-validation; 1 with validation data.
        level: nominal coverage of the confidence intervals.
        seed: seed of the folds and of the resampling.
        num_clusters: number of clusters of the scored samples; None if the samples are independent.
    """

    methods: tuple[MethodScore, ...]
    refused: dict[str, str]
    recommended: str
    absent: tuple[int, ...]
    left_out: tuple[str, ...]
    num_samples: int
    validation_samples: int | None
    folds: int
    repeats: int
    level: float
    seed: int
    num_clusters: int | None = None

    @property
    def held_out(self) -> bool:
        """Whether calibrators were fitted on separate validation data; otherwise they were cross-validated."""
        return self.validation_samples is not None

    def verdict(self) -> str:
        """Recommendation in a few sentences."""
        allowed = [method for method in self.methods if method.name not in self.left_out]
        none_allowed = self.left_out and len(allowed) == 1
        text = "Keep the model uncalibrated." if none_allowed else advise(allowed, self.recommended, self.level)
        if self.left_out:
            total = self.methods[0].evaluation.num_classes
            finding = Note("absent_classes", len(self.absent), total, self.absent).finding
            rule = "methods that would give them almost zero probability are not recommended"
            text = f"{text} {finding}; {rule} ({', '.join(self.left_out)})."
        count = len(self.methods) - 1
        if count == 1 or self.recommended == UNCALIBRATED:
            return text
        return f"{text} (Chosen among {count} methods on these samples: its gain may be overestimated.)"

    def caveat(self) -> str:
        """Which samples were used for fitting and which for scoring."""
        if self.num_clusters is None:
            return f"{self._splits()}{self._weights()}"
        few = f", and are too short for fewer than {ENOUGH_CLUSTERS} clusters"
        whole = "Intervals" if self.held_out else "Folds and intervals"
        return (
            f"{self._splits()} {whole} keep the {self.num_clusters:,} clusters whole"
            f"{few if self.num_clusters < ENOUGH_CLUSTERS else ''}.{self._weights()}"
        )

    def _weights(self) -> str:
        weights = self.methods[0].evaluation.weights
        if weights is None:
            return ""
        return (
            f" Scores are weighted (effective sample size {round(weights.effective):,}); calibrators were fitted "
            "without weights."
        )

    def _splits(self) -> str:
        if self.held_out:
            return (
                f"Each calibrator was fitted on the validation split ({self.validation_samples:,} samples) and scored "
                f"on {self.num_samples:,} other samples."
            )
        repeated = "" if self.repeats == 1 else f", repeated {self.repeats} times"
        return (
            f"Cross-validated ({self.folds} folds{repeated}): each sample is scored by a calibrator fitted on the "
            "other folds. A calibrator fitted on all samples can score slightly differently on new data."
        )

    def remarks(self) -> list[str]:
        """One line per method that could not be fitted, then one per distinct note with the methods it concerns."""
        return [*(f"{name} skipped: {reason}" for name, reason in self.refused.items()), *super().remarks()]

    def table(self) -> Table:
        """Table of the methods; the last column is the share of samples whose predicted class changed."""
        rows = []
        for method in self.methods:
            rows.append(
                [
                    method.name,
                    nats(method.scores["nll"]),
                    change_cell(method),
                    f"{100 * method.scores['ece']:.2f}",
                    f"{100 * method.ece_floor:.2f}",
                    f"{100 * method.scores['error']:.2f}",
                    f"{100 * method.argmax_changed:.2f}",
                ]
            )
        how = "fitted on the validation split" if self.held_out else "cross-validated"
        title = f"calibrators, {how}, lowest NLL first; in percent: ECE, its noise floor, error, flipped predictions"
        headings = ["method", "NLL", f"change ± {100 * self.level:.4g} %", "ECE", "floor", "error", "flips"]
        return Table(headings, rows, title)

    def to_dict(self) -> dict[str, object]:
        """JSON-serialisable dictionary: fractions, NLL in nats, None for values that are not finite."""
        how: dict[str, object] = {"folds": self.folds, "repeats": self.repeats}
        if self.held_out:
            how = {
                "fitted_on": {"num_samples": self.validation_samples},
                "scored_on": {"num_samples": self.num_samples},
            }
        return {
            "schema": 1,
            **how,
            **({} if self.num_clusters is None else {"num_clusters": self.num_clusters}),
            "level": self.level,
            "seed": self.seed,
            "recommended": self.recommended,
            "methods": [_plain_method(method) for method in self.methods],
            "refused": self.refused,
            "left_out": list(self.left_out),
        }


def _plain_method(method: MethodScore) -> dict[str, object]:
    return {
        "method": method.name,
        **{name: finite(value) for name, value in method.scores.items()},
        "ece_floor": method.ece_floor,
        "change": {name: plain_difference(change) for name, change in method.changes.items()},
        "nll_behind_best": plain_difference(method.behind),
        "argmax_changed": method.argmax_changed,
        "notes": list(map(str, method.notes)),
    }


def plain_difference(difference: Difference) -> dict[str, object]:
    """Return a difference and its interval for JSON; None for values that are not finite."""
    return {
        "difference": finite(difference.difference),
        "interval": [finite(difference.low), finite(difference.high)],
    }


def change_cell(method: Score) -> str:
    """Text of the change of the NLL with half of its interval; empty for the uncalibrated model."""
    change = method.changes["nll"]
    if method.name == UNCALIBRATED or math.isnan(change.difference):
        return ""
    half = f" ± {nats((change.high - change.low) / 2)}" if has_interval(change) else ""
    return f"{nats(change.difference, '+')}{half}"


def recommend(methods: Sequence[Score], simple_first: Sequence[str]) -> str:
    """Simplest method that lowers the NLL significantly and is not significantly worse than the best method.

    Args:
        methods: scores, sorted by NLL, lowest first.
        simple_first: method names, simplest first.

    Returns:
        The name of the method; ``"uncalibrated"`` if no method lowers the NLL significantly.
    """
    lowest = methods[0].scores["nll"]
    uncalibrated = next(method.scores["nll"] for method in methods if method.name == UNCALIBRATED)
    helpful = {method.name for method in methods if -method.changes["nll"].high >= LEAST_GAIN / 2}  # not 0 when printed
    if math.isinf(uncalibrated) and math.isfinite(lowest):  # no interval, but worse than any finite NLL
        finite = (method for method in methods if math.isfinite(method.scores["nll"]))
        helpful = {methods[0].name, *(method.name for method in finite if has_interval(method.behind))}
    if not helpful:
        return UNCALIBRATED
    equal = {m.name for m in methods if m.behind.low <= 0 and math.isfinite(m.scores["nll"])}
    return next((name for name in simple_first if name in equal & helpful), methods[0].name)


def advise(methods: Sequence[Score], recommended: str, level: float) -> str:
    """Recommendation in one or two sentences; ``methods`` are sorted by NLL, lowest first."""
    by_name = {method.name: method for method in methods}
    best, advised, uncalibrated = methods[0], by_name[recommended], by_name[UNCALIBRATED]
    if len(methods) == 1:
        return "No calibrator could be fitted to these data."
    if not math.isfinite(best.scores["nll"]):
        return "The NLL is infinite with and without calibration, because a true class has probability 0."
    if not math.isfinite(uncalibrated.scores["nll"]):
        size = "it has the lowest NLL," if best is advised else "its NLL is"
        text = (
            f"Use {advised.name}: {size} {nats(advised.scores['nll'])} nats. "
            "The uncalibrated model has infinite NLL, because it gives a true class probability 0."
        )
        return text if best is advised else f"{text} {_behind(best, advised)}"
    if not all(has_interval(method.changes["nll"]) for method in (best, advised)):
        lowest = f"{best.name} has the lowest NLL, {nats(best.scores['nll'])} nats"
        less = "" if best is uncalibrated else f", {nats(-best.changes['nll'].difference)} less than uncalibrated"
        return f"Too few samples for a confidence interval or a recommendation: {lowest}{less}."
    if advised is uncalibrated:
        if any(method.changes["nll"].high < 0 for method in methods):
            return f"Keep the model uncalibrated: no method reliably lowers the NLL by {LEAST_GAIN:.4f} nats or more."
        text = "Keep the model uncalibrated: no method lowers the NLL significantly."
    else:
        gain = advised.changes["nll"]
        text = (
            f"Use {advised.name}: it lowers the NLL by {nats(-gain.difference)} nats "
            f"({nats(-gain.high)} to {nats(-gain.low)}, {100 * level:.4g} % confidence interval)."
        )
    return text if best is advised or advised.behind.difference < LEAST_GAIN / 2 else f"{text} {_behind(best, advised)}"


def has_interval(d: Difference) -> bool:
    """Whether the difference has a confidence interval; it has none with too few samples or an infinite NLL."""
    return math.isfinite(d.low) and math.isfinite(d.high)


def nats(value: float, sign: str = "-") -> str:
    """Format a loss with four decimals, or in scientific notation if it is very large.

    >>> nats(0.12345), nats(0.5, "+"), nats(2e297)
    ('0.1235', '+0.5000', '2.000e+297')
    """
    return f"{value:{sign}{'.4f' if not abs(value) >= LARGE else '.3e'}}"


def _behind(best: Score, advised: Score) -> str:
    d = advised.behind
    simpler = "" if advised.name == UNCALIBRATED else f", and {advised.name} is simpler"
    return (
        f"{best.name} has the lowest NLL, but the difference of {nats(d.difference)} nats "
        f"({nats(d.low, '+')} to {nats(d.high, '+')}) is not significant{simpler}."
    )
