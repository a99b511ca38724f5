"""Scores of calibrators and of the uncalibrated model on the same samples, and their paired differences."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from dualfocal.calibrators._base import Calibrator
from dualfocal.calibrators.notes import Note
from dualfocal.calibrators.temperature import TemperatureScaling
from dualfocal.metrics.comparison import LEAST, Difference, interval
from dualfocal.metrics.evaluation import Evaluation, evaluate_rows
from dualfocal.metrics.resampling import resample
from dualfocal.metrics.rows import Rows
from dualfocal.metrics.scan import scan

COMPARED = ("nll", "brier", "error", "ece")
NOT_COMPARED = Difference(math.nan, math.nan, -math.inf, math.inf)


@dataclass(frozen=True)
class MethodScore:
    """Scores of a calibrator, or of the uncalibrated model, on samples that no fit has seen."""

    name: str
    evaluation: Evaluation  # of the first repeat, with floors
    scores: dict[str, float]  # nll, brier, error and ece, means over the repeats
    argmax_changed: float = 0.0  # share of samples whose predicted class is another
    notes: tuple[Note, ...] = ()
    fitted: Calibrator | None = None  # where there was one fit, not one for each fold
    changes: dict[str, Difference] = field(default_factory=dict)  # from the uncalibrated model (a) to this method (b)
    behind: Difference = NOT_COMPARED  # in NLL: from the best method that may be recommended (a) to this one (b)
    draws: dict[str, Tensor] = field(default_factory=dict, repr=False, compare=False)  # the scores of resampled data

    @property
    def ece_floor(self) -> float:
        """The mean ECE of a perfectly calibrated model with these confidences."""
        assert self.evaluation.inference is not None
        return self.evaluation.inference.floors["ece"].mean

    @property
    def temperature(self) -> float | None:
        """The temperature, where the method is temperature scaling, fitted once."""
        return float(self.fitted.temperature) if isinstance(self.fitted, TemperatureScaling) else None


def score(
    name: str,
    repeats: Sequence[Rows],
    *,
    num_bins: int,
    level: float,
    seed: int,
    evaluation: Evaluation | None = None,
) -> MethodScore:
    """Score the same samples, calibrated in one or several ways; methods are not compared yet.

    ``evaluation`` is that of the first repeat, where it is known. The draws of the resampling depend on the seed alone,
    so that all methods have the same.
    """
    scanned = [(rows, scan(rows, num_bins=num_bins, scores=True, classwise=True)) for rows in repeats]
    if evaluation is None:
        evaluation = evaluate_rows(*scanned[0], num_bins, inference=True, level=level, seed=seed)
    evaluations = [evaluation, *(evaluate_rows(*repeat, num_bins) for repeat in scanned[1:])]
    scores = {metric: sum(getattr(each, metric) for each in evaluations) / len(evaluations) for metric in COMPARED}
    draws = {}
    if len(repeats[0]) >= LEAST:
        resampled = resample(scanned, num_bins, seed=seed, every_metric=False)
        draws = {metric: resampled[metric].mean(1) for metric in COMPARED}
    return MethodScore(name, evaluation, scores, draws=draws)


def ranked(methods: Sequence[MethodScore], level: float, left_out: Collection[str] = ()) -> tuple[MethodScore, ...]:
    """The methods with their differences, the lowest NLL first; the first given one is the uncalibrated model.

    Methods that are ``left_out`` of the advice are not the best, whatever their NLL.
    """
    uncalibrated = methods[0]
    best = min((method for method in methods if method.name not in left_out), key=lambda method: method.scores["nll"])

    def between(a: MethodScore, b: MethodScore, metric: str) -> Difference:
        ends = (-math.inf, math.inf)
        if a.draws:  # there are enough samples
            ends = interval(b.draws[metric] - a.draws[metric], b.scores[metric] - a.scores[metric], level)
        return Difference(a.scores[metric], b.scores[metric], *ends)

    compared = [
        replace(
            method,
            changes={metric: between(uncalibrated, method, metric) for metric in COMPARED},
            behind=between(best, method, "nll"),
        )
        for method in methods
    ]
    return tuple(sorted(compared, key=lambda method: method.scores["nll"]))
