"""Comparison of two models on the same samples: paired differences of every metric, with confidence intervals."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist
from typing import Any, Self, Unpack

import numpy as np

from dualfocal.checks import check_count, check_level
from dualfocal.metrics.arrays import Array as AnyArray
from dualfocal.metrics.arrays import column_names, in_column_order, num_classes_of
from dualfocal.metrics.evaluation import evaluate_samples, squared_error
from dualfocal.metrics.inference_result import ENOUGH_CLUSTERS, WeightSummary
from dualfocal.metrics.label_noise import label_noise
from dualfocal.metrics.printed import Printed
from dualfocal.metrics.registry import METRICS, Metric, metrics_of
from dualfocal.metrics.resampling import Array, Models, ShareDone, quantiles, resample
from dualfocal.metrics.result import Evaluation, finite
from dualfocal.metrics.samples import SampleOptions, Samples, as_samples, same_samples
from dualfocal.metrics.scan import scan
from dualfocal.metrics.several import named_errors, tracked
from dualfocal.metrics.verdict import samples_text
from dualfocal.tables import Table, printable, quantity

LEAST = 10  # samples needed for a comparison


@dataclass(frozen=True)
class Difference:
    """A metric of models a and b, with the confidence interval of b - a. Below 0, b is better."""

    a: float
    b: float
    low: float  # ends of the interval of b - a
    high: float

    @classmethod
    def from_draws(cls, metric: str, a: float, b: float, draws: Array, level: float, noise: float = 0.0) -> Self:
        """Make the interval from bootstrap draws of b - a, at least as long as this noise allows.

        The square root makes the draws of the debiased error skewed near 0, where plain quantiles cover best, and its
        noise makes it too large: of its interval, only the end nearer to 0 is moved.
        """
        return cls(a, b, *interval(draws, b - a, level, noise, skewed=metric == "debiased_ece"))

    @property
    def difference(self) -> float:
        """The metric of b minus that of a."""
        return self.b - self.a

    @property
    def significant(self) -> bool:
        """Whether the interval excludes 0. An infinite value differs significantly from any finite one."""
        return self.low > 0 or self.high < 0 or math.isinf(self.a) != math.isinf(self.b)

    def better(self, least: float = 0.0) -> str:
        """Return ``"A"`` or ``"B"`` if it is lower by ``least`` over the whole interval, else an empty string."""
        if not self.significant or (math.isfinite(self.difference) and min(abs(self.low), abs(self.high)) < least):
            return ""
        return "B" if self.high < 0 or self.difference == -math.inf else "A"

    def size_text(self, metric: Metric) -> str:
        """Format the size of the difference and its interval, without the sign: ``"1.20 points (0.40 to 2.00)"``."""
        sign = -1.0 if self.difference < 0 else 1.0
        low, high = map(metric.text, sorted((sign * self.low, sign * self.high)))
        unit = "points" if metric.unit == "%" else metric.unit
        return f"{metric.text(sign * self.difference)} {unit} ({low} to {high})"

    def to_dict(self, a: str = "a", b: str = "b") -> dict[str, Any]:
        """Return plain numbers, with these names of the models; values that are not finite are None."""
        return {
            a: finite(self.a),
            b: finite(self.b),
            "difference": finite(self.difference),
            "interval": [finite(self.low), finite(self.high)],
        }


@dataclass(frozen=True)
class Comparison(Printed):
    """Result of :func:`compare`: two models on the same samples. ``print`` it, or see :meth:`to_dict`.

    Args:
        a: the metrics of model a.
        b: the metrics of model b.
        differences: the difference b - a of each metric, by name.
        level: nominal coverage of the confidence intervals.
        seed: seed of the resampling.
        num_clusters: number of clusters of the samples (None: the samples are independent).
        names: names of the models in table and verdict.
    """

    a: Evaluation
    b: Evaluation
    differences: dict[str, Difference]
    level: float
    seed: int
    num_clusters: int | None = None
    names: tuple[str, str] = ("A", "B")

    @property
    def weights(self) -> WeightSummary | None:
        """How much information weighted samples carry; None: equal weights."""
        return self.a.weights

    def verdict(self) -> str:
        """Say in one sentence which model has the lower NLL, error and debiased RMS error."""
        clauses = [self._clause(name) for name in ("nll", "error", "debiased_ece")]
        size = f"N = {self.a.num_samples:,}"
        if self.num_clusters is not None:
            size += f" in {quantity(self.num_clusters, 'cluster')}"
            if self.num_clusters < ENOUGH_CLUSTERS:
                size += f"; with fewer than {ENOUGH_CLUSTERS}, intervals are too short"
        if self.weights is not None:
            size += f", weighted: effective {round(self.weights.effective):,}"
            if not self.weights.reliable:
                size += "; a few samples decide, intervals are not reliable"
        return f"{'; '.join(clauses)} ({100 * self.level:.4g} % intervals, {size})."

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers: fractions, NLL in nats; values that are not finite are None."""
        return {
            "schema": 1,
            "num_samples": self.a.num_samples,
            **({} if self.num_clusters is None else {"num_clusters": self.num_clusters}),
            **({} if self.weights is None else {"weights": asdict(self.weights)}),
            "level": self.level,
            "seed": self.seed,
            "differences": {name: difference.to_dict() for name, difference in self.differences.items()},
        }

    def table(self) -> Table:
        """Return a table with each metric of both models, the difference and its interval."""
        rows = []
        metrics = metrics_of(positive=self.a.positive)
        for name, d in self.differences.items():
            metric = metrics[name]
            size = metric.text(d.difference, sign=True)
            ends = f"{metric.text(d.low, sign=True)} to {metric.text(d.high, sign=True)}"
            if not math.isfinite(d.difference):  # the difference of two infinite values is NaN
                size, ends = "" if math.isnan(d.difference) else size, ""
            better, _ = self._better_and_other(name)
            rows.append([metric.heading, metric.text(d.a), metric.text(d.b), size, ends, better])
        a, b = self.names
        headings = ["", a, b, f"{b} - {a}", f"{100 * self.level:.4g} % interval", "better"]
        return Table(headings, rows, samples_text(self.a.num_samples, self.num_clusters, self.weights))

    def _better_and_other(self, name: str) -> tuple[str, str]:
        """Return the name of the model with the lower metric, and that of the other; empty if neither is better."""
        better = self.differences[name].better(METRICS[name].smallest_shown)
        a, b = self.names
        return {"A": (a, b), "B": (b, a), "": ("", "")}[better]

    def _clause(self, name: str) -> str:
        d, metric = self.differences[name], METRICS[name]
        better, other = map(printable, self._better_and_other(name))
        if not better:
            return f"{metric.label} not significantly different"
        if not math.isfinite(d.difference):
            return f"{better} has the lower {metric.label} (infinite for {other}: a true class has probability 0)"
        return f"{better} has the lower {metric.label}, by {d.size_text(metric)}"


def compare(
    a: AnyArray | Samples,
    b: AnyArray | Samples,
    target: AnyArray | None = None,
    *,
    names: tuple[str, str] | None = None,
    num_bins: int = 15,
    level: float = 0.9,
    seed: int = 0,
    progress: ShareDone | None = None,
    **options: Unpack[SampleOptions],
) -> Comparison:
    """Compare two models on the same samples, metric by metric, with confidence intervals of the differences.

    The intervals come from a paired bootstrap: both models are scored on the same resamples, so that the difficulty of
    the samples cancels. They are intervals of the expected difference at this N. For ECE, adaptive ECE and classwise
    ECE that difference includes the noise floors, which two calibrated models need not share. To decide which model is
    better *calibrated*, use the debiased error. The MCE is not compared: it is the gap of one small bin, and resampling
    does not show how much it varies (two equal models, N = 300, were called different in 22 % of 200 trials, not 10 %).

    A bootstrap cannot draw errors that were not observed. Labels are therefore also drawn from the probabilities of
    each model, and an interval is at least as long as the noise of such labels allows, see
    :mod:`dualfocal.metrics.label_noise`: with few errors, the model that states fewer of them is not called better by
    chance. The classwise ECE has no such allowance: its noise floor is truly lower if a model states fewer errors.

    Args:
        a: predictions of one model; or :class:`~dualfocal.metrics.Samples`, for predictions of another kind than ``b``.
        b: predictions of the other model, for the same samples.
        target: class indices; None with samples.
        names: names of the models in table, verdict and error messages (None: A and B).
        num_bins: number of bins of the calibration errors.
        level: nominal coverage of the intervals.
        seed: seed of the resampling.
        progress: called with the share of the work that is done.
        **options: what predictions and targets mean, see :meth:`~dualfocal.metrics.Samples.from_arrays`. Whole clusters
            are resampled, by default the images of dense predictions.

    Returns:
        The differences b - a with their intervals. For all metrics, lower is better.

    Raises:
        ValueError: an input is invalid (the message names the model), there are fewer than 10 samples or clusters, or
            the models were scored on other samples.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> logits = 2 * torch.randn(2000, 10, generator=generator)
    >>> target = torch.multinomial(logits.div(2).softmax(1), 1, generator=generator)[:, 0]
    >>> compare(logits, logits / 2, target).differences["nll"].significant
    True
    """
    check_level(level)
    check_count("num_bins", num_bins)
    if names is not None and (isinstance(names, str) or len(names) != 2):
        raise ValueError(f"names must be the names of the two models, got {names!r}")
    name_a, name_b = ("a", "b") if names is None else map(str, names)
    if not isinstance(a, Samples) and not isinstance(b, Samples):
        if (number_a := num_classes_of(a)) != (number_b := num_classes_of(b)):
            raise ValueError(
                f"the models must have the same classes, but {name_a} has {number_a} and {name_b} {number_b}"
            )
        b = in_column_order(name_b, b, column_names(a), name_a)
    pair = []
    for name, data in ((name_a, a), (name_b, b)):
        with named_errors(name):
            pair.append(as_samples(data, target, options))
            pair[-1].check_classes("compare")
    if not same_samples(*pair):
        raise ValueError(f"{name_a} and {name_b} must be predictions for the same samples, with the same labels")
    first = pair[0].by_image()
    second = replace(pair[1], cluster=first.cluster, cluster_names=first.cluster_names)
    models = []
    for name, samples in tracked([(name_a, first), (name_b, second)], progress):
        with named_errors(name):
            models.append((samples, scan(samples, num_bins=num_bins, scores=True, classwise=True)))
    check_enough_samples(first)
    evaluations = [evaluate_samples(samples, stats, num_bins) for samples, stats in models]
    drawn = resampled_metrics(models, evaluations, num_bins, seed=seed)
    noise = label_noise(models[:1], models[1:], num_bins, seed=seed)
    differences = {}
    for name in METRICS:
        if name in noise:  # not of the MCE
            before, after = (float(getattr(evaluation, name)) for evaluation in evaluations)
            draws = drawn[name][:, 1] - drawn[name][:, 0]
            differences[name] = Difference.from_draws(name, before, after, draws, level, noise[name])
    return Comparison(
        evaluations[0],
        evaluations[1],
        differences,
        level,
        seed,
        first.num_clusters,
        ("A", "B") if names is None else (name_a, name_b),
    )


def check_enough_samples(samples: Samples) -> None:
    """Raise a ValueError if there are too few samples or clusters for a comparison."""
    size = samples.num_clusters or len(samples)
    if size < LEAST and samples.cluster is None:
        raise ValueError(f"a comparison needs at least {LEAST} samples, got {size}")
    if size < LEAST:
        raise ValueError(
            f"a comparison needs at least {LEAST} clusters (images of dense predictions), got {size}; pass "
            'clusters="none" only if the samples are independent'
        )


def resampled_metrics(
    models: Models, evaluations: Sequence[Evaluation], num_bins: int, *, seed: int = 0, classwise: bool = True
) -> dict[str, Array]:
    """Return the draws of :func:`~dualfocal.metrics.resampling.resample` with those of the debiased error.

    Resamples have more noise than the sample itself: the squares of the debiased error are shifted so that their mean
    is the estimate.
    """
    drawn = resample(models, num_bins, seed=seed, classwise=classwise)
    squared = drawn.pop("squared_error")
    estimates = [squared_error(stats, e.bins) for (_, stats), e in zip(models, evaluations, strict=True)]
    drawn["debiased_ece"] = np.sqrt((squared - squared.mean(0) + estimates).clip(0))
    return drawn


def interval(
    draws: Array, centre: float, level: float, noise: float = 0.0, *, skewed: bool = False
) -> tuple[float, float]:
    """Return the interval of a difference from its bootstrap draws, at least as long as normal noise around the centre.

    Args:
        draws: bootstrap draws of the difference.
        centre: the difference itself.
        level: nominal coverage.
        noise: standard deviation of the noise, see :mod:`dualfocal.metrics.label_noise`.
        skewed: whether the ends are quantiles of the draws, and noise moves only the end nearer to 0; otherwise the
            interval is pivotal around the centre.
    """
    if not math.isfinite(centre):  # the NLL is infinite if a true class has probability 0
        return -math.inf, math.inf
    low, high = quantiles(draws, level)
    if not skewed:
        both = centre + float(draws[~np.isnan(draws)].mean())
        low, high = both - high, both - low
    half = NormalDist().inv_cdf((1 + level) / 2) * noise
    return (
        low if skewed and centre < 0 else min(low, centre - half),
        high if skewed and centre > 0 else max(high, centre + half),
    )
