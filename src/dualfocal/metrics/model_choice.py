"""Choice among models that were scored on the same samples: the one with the lowest NLL against each other one.

With two models, the intervals of the differences are those of :func:`~dualfocal.metrics.compare`. With more, they are
simultaneous for all pairs of models and one metric: the ends are as many standard errors from the difference as the
largest deviation among all pairs has in the stated share of resamples (max-t). All pairs are allowed for, not only
those that are shown, because the best model is found on the same samples. A standard error is at least that of labels
drawn from the probabilities of one of both models, see :mod:`dualfocal.metrics.label_noise`.
``benchmarks/model_choice.py`` checks by simulation how often such intervals hold.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dualfocal.metrics.comparison import Difference, check_enough_samples, resampled_metrics
from dualfocal.metrics.inference_result import ENOUGH_CLUSTERS, WeightSummary
from dualfocal.metrics.label_noise import label_noise
from dualfocal.metrics.registry import METRICS
from dualfocal.metrics.resampling import Array, ShareDone
from dualfocal.metrics.result import Evaluation
from dualfocal.metrics.samples import Samples, same_samples
from dualfocal.metrics.scan import Scan
from dualfocal.metrics.several import tracked
from dualfocal.tables import quantity

DECISIVE = ("nll", "debiased_ece", "error", "aurc")  # the metrics that a choice is made by
NAMES = {name: METRICS[name].label for name in DECISIVE} | {"aurc": "selective risk (AURC)"}
MOST_NAMED = 4  # models that a sentence names


@dataclass(frozen=True)
class ModelChoice:
    """Result of :func:`choose_model`.

    Args:
        best: the model with the lowest NLL.
        differences: other model -> metric -> the other model's value minus that of the best; above 0, the best is
            better.
        num_samples: number of samples.
        level: nominal coverage of the intervals, simultaneous for all pairs of models.
        seed: seed of the resampling.
        num_clusters: number of clusters of the samples (None: the samples are independent).
        weights: how much information weighted samples carry (None: equal weights).
    """

    best: str
    differences: dict[str, dict[str, Difference]]
    num_samples: int
    level: float
    seed: int
    num_clusters: int | None = None
    weights: WeightSummary | None = None

    def outcome(self, other: str, metric: str) -> str:
        """Return ``"better"``, ``"worse"`` or ``"equal"``: the best model against another one."""
        winner = self.differences[other][metric].better(METRICS[metric].smallest_shown)
        return {"": "equal", "A": "better", "B": "worse"}[winner]

    def verdict(self) -> str:
        """Say in a few sentences which model is better, by which metrics."""
        others = list(self.differences)
        sentence = self._of_two(others[0]) if len(others) == 1 else self._of_many(others)
        return f"{sentence} {self.how()}"

    def how(self) -> str:
        """Say how the intervals were made."""
        size = quantity(self.num_samples, "sample")
        if self.num_clusters is not None:
            size += f" in {quantity(self.num_clusters, 'cluster')}"
        if self.weights is not None:
            size += f", weighted: effective {round(self.weights.effective):,}"
        models = len(self.differences) + 1
        pairs = "" if models == 2 else f", simultaneous for all {math.comb(models, 2)} pairs of models"
        few = self.num_clusters is not None and self.num_clusters < ENOUGH_CLUSTERS
        caution = f" With fewer than {ENOUGH_CLUSTERS} clusters, intervals are too short." if few else ""
        if self.weights is not None and not self.weights.reliable:
            caution += " A few samples have most of the weight: intervals are not reliable."
        return f"({100 * self.level:.4g} % intervals of paired differences on {size}{pairs}.){caution}"

    def _of_two(self, other: str) -> str:
        nll = self.differences[other]["nll"]
        if self.outcome(other, "nll") == "equal":
            size = f" ({nll.size_text(METRICS['nll'])})" if math.isfinite(nll.difference) else ""
            text = f"{self.best} and {other} are not significantly different in NLL{size}."
        elif math.isfinite(nll.difference):
            text = f"{self.best} is better than {other}: its NLL is lower by {nll.size_text(METRICS['nll'])}."
        else:
            text = f"{self.best} is better than {other}, whose NLL is infinite: it gives a true class probability 0."
        clauses = []
        for metric in DECISIVE[1:]:
            outcome = self.outcome(other, metric)
            if outcome == "equal":
                clauses.append(f"{NAMES[metric]} not significantly different")
            else:
                winner = self.best if outcome == "better" else other
                size = self.differences[other][metric].size_text(METRICS[metric])
                clauses.append(f"{NAMES[metric]} lower for {winner}, by {size}")
        details = "; ".join(clauses)
        return f"{text} {details[0].upper()}{details[1:]}."

    def _of_many(self, others: list[str]) -> str:
        text = f"{self.best} has the lowest NLL of {len(others) + 1} models"
        better, equal = (
            [other for other in others if self.outcome(other, "nll") == outcome] for outcome in ("better", "equal")
        )
        if not equal:
            text += ", significantly lower than that of each other model."
        elif not better:
            text += ", but not significantly lower than that of any other model."
        else:
            text += (
                f", significantly lower than that of {_listed(better)}; not significantly different: {_listed(equal)}."
            )
        lower = {
            metric: [other for other in others if self.outcome(other, metric) == "worse"] for metric in DECISIVE[1:]
        }
        clauses = [f"{NAMES[metric]} of {_listed(names)}" for metric, names in lower.items() if names]
        if not clauses:
            *names, last = (NAMES[metric] for metric in DECISIVE[1:])
            return f"{text} No other model has a significantly lower {', '.join(names)} or {last}."
        return f"{text} Significantly lower than that of {self.best}: {'; '.join(clauses)}."

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers: fractions, NLL in nats; values that are not finite are None."""
        return {
            "schema": 1,
            "best": self.best,
            "num_samples": self.num_samples,
            **({} if self.num_clusters is None else {"num_clusters": self.num_clusters}),
            **({} if self.weights is None else {"weights": asdict(self.weights)}),
            "level": self.level,
            "seed": self.seed,
            "differences": {
                other: {
                    metric: {**difference.to_dict("best", "other"), "outcome": self.outcome(other, metric)}
                    for metric, difference in by_metric.items()
                }
                for other, by_metric in self.differences.items()
            },
        }


def choose_model(
    models: Mapping[str, tuple[Samples, Scan, Evaluation]],
    num_bins: int,
    *,
    level: float = 0.9,
    seed: int = 0,
    progress: ShareDone | None = None,
) -> ModelChoice:
    """Compare the model with the lowest NLL with each other model, by paired differences.

    Args:
        models: name -> samples, their scan with scores and classwise bins, and their evaluation; all of the same ones.
        num_bins: number of bins of the calibration errors.
        level: nominal coverage of the intervals.
        seed: seed of the resampling.
        progress: called with the share of the work that is done.

    Raises:
        ValueError: there are fewer than two models, fewer than 10 samples or clusters, or the samples differ.
    """
    names = list(models)
    if len(names) < 2:
        raise ValueError(f"a choice needs at least two models, got {len(names)}")
    samples, scans, evaluations = zip(*models.values(), strict=True)
    for name, other in zip(names[1:], samples[1:], strict=True):
        if not same_samples(samples[0], other):
            raise ValueError(f"{names[0]} and {name} were scored on different samples: their labels or weights differ")
    check_enough_samples(samples[0])
    scored = list(zip(samples, scans, strict=True))
    drawn = resampled_metrics(scored, evaluations, num_bins, seed=seed, classwise=False)
    best = min(range(len(names)), key=lambda i: (evaluations[i].nll, evaluations[i].error))
    noises = [label_noise([scored[best]], [other], num_bins, seed=seed) for other in tracked(scored, progress)]
    differences: dict[str, dict[str, Difference]] = {name: {} for i, name in enumerate(names) if i != best}
    for metric in DECISIVE:
        values = [float(getattr(evaluation, metric)) for evaluation in evaluations]
        errors = None if len(names) == 2 else _simultaneous_errors(drawn[metric], level)
        for i, name in enumerate(names):
            if i == best:
                continue
            if errors is None:
                draws = drawn[metric][:, i] - drawn[metric][:, best]
                difference = Difference.from_draws(metric, values[best], values[i], draws, level, noises[i][metric])
            else:
                spread, factor = errors
                change, half = values[i] - values[best], factor * max(spread[best, i], noises[i][metric])
                ends = (change - half, change + half) if math.isfinite(change) else (-math.inf, math.inf)
                difference = Difference(values[best], values[i], *ends)
            differences[name][metric] = difference
    return ModelChoice(
        names[best], differences, len(samples[0]), level, seed, samples[0].num_clusters, evaluations[0].weights
    )


def _simultaneous_errors(draws: Array, level: float) -> tuple[Array, float]:
    """Return the standard deviation of each pair's difference, (K, K), and half the length of its interval by it.

    ``draws`` are those of a metric, (R, K).
    """
    with np.errstate(invalid="ignore", divide="ignore"):  # models with an infinite NLL are left out
        difference = draws[:, :, None] - draws[:, None, :]
        spread = difference.std(0, ddof=1)
        deviation = abs(difference - difference.mean(0)) / spread
    largest = np.nan_to_num(deviation, nan=0.0, posinf=0.0).max((1, 2))
    return spread, float(np.quantile(largest, level))


def _listed(names: list[str]) -> str:
    shown = names if len(names) <= MOST_NAMED else names[: MOST_NAMED - 1]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest} others" if rest else "")
