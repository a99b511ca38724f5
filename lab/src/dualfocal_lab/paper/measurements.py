"""What the replication measures of each run, and the same on weighted test samples, for its bootstrap.

``median_p_j`` is the median over the test set of p_j = max{p_c : p_c < p_k}, the largest probability strictly below
that of the true class k, and 0 where there is none (Eq. 3 of the paper). ``mean_top_logit`` is the mean of the largest
logit. ``shift_auroc`` tells the test images with gaussian noise of severity 5 from those without, by entropy.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from scipy.special import entr, softmax
from torch import Tensor
from torch.nn.functional import cross_entropy

from dualfocal.losses import true_and_rival
from dualfocal.metrics import METRICS, Metric, ood_auroc
from dualfocal_lab.checks import finite
from dualfocal_lab.paper.intervals import Floats
from dualfocal_lab.runs import Run, RunError, RunResult

NUM_BINS = 15
LAST_EPOCHS = 20
SEVERITY = 5

Statistic = Callable[[Floats], float]  # of the test samples with these weights


@dataclass(frozen=True)
class MeasuredRun:
    """A finished run; its predictions are read once, and each number is measured once."""

    run: Run
    result: RunResult
    _numbers: dict[str, float | None] = field(default_factory=dict)

    def measure(self, name: str) -> float | None:
        """A number of the run, of ``MEASUREMENTS``; None: the run folder lacks the file that it is measured from."""
        if name not in self._numbers:
            self._numbers[name] = MEASUREMENTS[name].value(self)
        return self._numbers[name]

    @cached_property
    def test(self) -> tuple[Tensor, Tensor] | None:
        """Logits and labels of the test split; None: the run folder has no predictions."""
        return self.run.predictions("test") if self.run.has_predictions else None


@dataclass(frozen=True)
class Measurement:
    """A number of a run: how it is shown, its value, and its value on weighted samples; None: a file is missing."""

    shown: Metric
    value: Callable[[MeasuredRun], float | None]
    statistic: Callable[[MeasuredRun], Statistic | None] = lambda run: None


# Statistics of weighted samples


def weighted_mean(values: Floats) -> Statistic:
    """The mean."""
    return lambda weights: float(weights @ values / weights.sum())


def weighted_median(values: Floats) -> Statistic:
    """The median of samples that occur a whole number of times."""
    order = values.argsort()
    ordered = values[order]

    def median(weights: Floats) -> float:
        number = weights[order].cumsum()
        middle = [(number[-1] - 1) // 2, number[-1] // 2]
        return float(ordered[np.searchsorted(number, middle, side="right")].mean())

    return median


def weighted_ece(logits: Tensor, target: Tensor) -> Statistic:
    """The ECE, with the bins (lo, hi] of :func:`dualfocal.metrics.ece`."""
    confidence, predicted = (part.numpy() for part in logits.double().softmax(1).max(1))
    index = (np.ceil(confidence * NUM_BINS) - 1).clip(0, NUM_BINS - 1).astype(np.int64)
    gap = confidence - (predicted == target.numpy())
    return lambda weights: float(np.abs(np.bincount(index, weights * gap, NUM_BINS)).sum() / weights.sum())


def weighted_auroc(known: Floats, foreign: Floats) -> Statistic:
    """The area under the ROC curve of two scores of each sample; ties count 1/2."""
    order = known.argsort()
    below, up_to = (np.searchsorted(known[order], foreign, side=side) for side in ("left", "right"))

    def auroc(weights: Floats) -> float:
        number = np.concatenate([[0.0], weights[order].cumsum()])
        return float(weights @ (number[below] + number[up_to]) / 2 / weights.sum() ** 2)

    return auroc


# Measurements

FROM_LOGITS: dict[str, Callable[[Tensor, Tensor], Statistic]] = {
    "error": lambda logits, target: weighted_mean((logits.argmax(1) != target).double().numpy()),
    "nll": lambda logits, target: weighted_mean(cross_entropy(logits.double(), target, reduction="none").numpy()),
    "ece": weighted_ece,
}


def _stored(metric: str, scaled_by: str | None = None, suffix: str = "") -> Measurement:
    """A metric of result.json, as trained or after temperature scaling."""

    def value(run: MeasuredRun) -> float | None:
        try:
            return finite(getattr(run.result.evaluation("test", scaled_by), metric))
        except RunError:  # no such part, or no temperature
            return None

    def statistic(run: MeasuredRun) -> Statistic | None:
        if run.test is None:
            return None
        logits, target = run.test
        scaled = logits if scaled_by is None else logits / run.result.temperature(scaled_by)
        return FROM_LOGITS[metric](scaled, target)

    return Measurement(replace(METRICS[metric], label=METRICS[metric].label + suffix), value, statistic)


def _from_predictions(shown: Metric, statistic: Callable[[Tensor, Tensor], Statistic]) -> Measurement:
    """A statistic of the logits and labels of the test split."""

    def of_run(run: MeasuredRun) -> Statistic | None:
        return None if run.test is None else statistic(*run.test)

    def value(run: MeasuredRun) -> float | None:
        on_weights = of_run(run)
        return None if on_weights is None or run.test is None else on_weights(np.ones(len(run.test[1])))

    return Measurement(shown, value, of_run)


def _temperature(name: str, by: str) -> Measurement:
    """A temperature that was fitted on the validation split."""

    def value(run: MeasuredRun) -> float | None:
        return run.result.temperature(name) if name in run.result.calibrated else None

    return Measurement(Metric(f"T by {by}", "", 3), value)


def ece_of_last_epochs(run: MeasuredRun) -> float | None:
    """Mean test ECE over the last 20 epochs of the log; None: the log does not have it for each of them."""
    logged = [line.get("test_ece") for line in run.run.log[-LAST_EPOCHS:]]
    values = [float(value) for value in logged if value is not None]
    return statistics.mean(values) if len(values) == LAST_EPOCHS else None


def shift_auroc(run: MeasuredRun) -> float | None:
    """How well the entropy tells noisy test images from clean ones."""
    shifted = run.run.shifted_logits(SEVERITY)
    return None if run.test is None or shifted is None else ood_auroc(run.test[0], shifted.float(), score="entropy")


def _shift_statistic(run: MeasuredRun) -> Statistic | None:
    """An image and its noisy copy have the same weight."""
    shifted = run.run.shifted_logits(SEVERITY)
    if run.test is None or shifted is None:
        return None
    known, foreign = (entr(softmax(part.double().numpy(), 1)).sum(1) for part in (run.test[0], shifted))
    return weighted_auroc(known, foreign)


MEASUREMENTS: dict[str, Measurement] = {
    "error": _stored("error"),
    "ece": _stored("ece"),
    "nll": _stored("nll"),
    "ece_temperature": _stored("ece", "temperature_ece", ", T by ECE"),  # as published
    "ece_temperature_by_nll": _stored("ece", "temperature", ", T by NLL"),
    "nll_temperature": _stored("nll", "temperature", ", T by NLL"),
    "nll_temperature_by_ece": _stored("nll", "temperature_ece", ", T by ECE"),
    "temperature_ece": _temperature("temperature_ece", "ECE"),
    "temperature": _temperature("temperature", "NLL"),
    "median_p_j": _from_predictions(
        Metric("median p_j", "", 5),
        lambda logits, target: weighted_median(true_and_rival(logits.double(), target)[1].numpy()),
    ),
    "mean_top_logit": _from_predictions(
        Metric("mean top logit", "", 3), lambda logits, target: weighted_mean(logits.double().amax(1).numpy())
    ),
    "ece_last_20": Measurement(Metric("ECE, mean of the last 20 epochs"), ece_of_last_epochs),
    "shift_auroc": Measurement(Metric("AUROC, noise of severity 5"), shift_auroc, _shift_statistic),
}


def resampled(runs: Sequence[MeasuredRun], metric: str, weights: Floats) -> Floats | None:
    """A measurement on each draw of the test samples, (draws, runs); None: a run lacks the samples."""
    columns = [MEASUREMENTS[metric].statistic(run) for run in runs]
    statistics = [column for column in columns if column is not None]
    if len(statistics) < len(runs):
        return None
    return np.array([[statistic(draw) for statistic in statistics] for draw in weights])
