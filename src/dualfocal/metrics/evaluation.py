"""All metrics of a set of predictions, from one pass over the data."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import numpy as np

from dualfocal.checks import check_choice, check_count, check_level
from dualfocal.metrics.arrays import Array
from dualfocal.metrics.cells import CONVENTIONS, BinStats
from dualfocal.metrics.copies import copies_warning
from dualfocal.metrics.draws import Settings
from dualfocal.metrics.inference import Evidence, infer
from dualfocal.metrics.inference_result import WeightSummary
from dualfocal.metrics.published import by_convention, published_intervals
from dualfocal.metrics.ranking import RiskCoverage, adaptive_bins
from dualfocal.metrics.registry import METRICS
from dualfocal.metrics.result import Evaluation
from dualfocal.metrics.rounding import Rounding
from dualfocal.metrics.samples import SampleOptions, Samples, as_samples
from dualfocal.metrics.scan import Scan, scan
from dualfocal.metrics.scores import decompose
from dualfocal.metrics.units import UnitSums, unit_sums

if TYPE_CHECKING:
    from dualfocal.metrics.multilabel.result import MultilabelEvaluation


@overload
def evaluate(
    logits: Array | Samples,
    target: Array | None = None,
    *,
    num_bins: int = 15,
    inference: bool = False,
    level: float = 0.9,
    draws: int = 1000,
    seed: int = 0,
    convention: str | None = None,
    task: None = None,
    **options: Unpack[SampleOptions],
) -> Evaluation: ...
@overload
def evaluate(
    logits: Array,
    target: Array,
    *,
    num_bins: int = 15,
    inference: bool = False,
    level: float = 0.9,
    draws: int = 1000,
    seed: int = 0,
    task: Literal["multilabel"],
    **options: Unpack[SampleOptions],
) -> "MultilabelEvaluation": ...
def evaluate(
    logits: Array | Samples,
    target: Array | None = None,
    *,
    num_bins: int = 15,
    inference: bool = False,
    level: float = 0.9,
    draws: int = 1000,
    seed: int = 0,
    convention: str | None = None,
    task: str | None = None,
    **options: Unpack[SampleOptions],
) -> "Evaluation | MultilabelEvaluation":
    """Compute every metric in one pass: error, NLL, Brier score, AURC, and the calibration errors.

    Args:
        logits: predictions, ``(N, C)`` or ``(N, C, d1, ...)``; or :class:`~dualfocal.metrics.Samples`.
        target: class indices, ``(N,)`` or ``(N, d1, ...)``; None with samples.
        num_bins: number of bins of the calibration errors.
        inference: also compute the noise floor of each calibration error (its value for a perfectly calibrated model,
            by chance), the p-value of a test of calibration, a confidence interval of the debiased error, and the
            smallest detectable error; see :mod:`dualfocal.metrics.inference`. The images of dense predictions are then
            clusters, and a warning is given if many samples are copies of others.
        level: nominal coverage of the interval.
        draws: number of draws of a calibrated model's outcomes, for floors and p-value; the p-value is at least
            1 / (draws + 1).
        seed: seed of the draws for ``inference``.
        convention: see :func:`~dualfocal.metrics.ece`; it applies to ECE and MCE and, if it is ``"published"``, to the
            adaptive ECE. Bins and inference do not change. ``"published"`` with ``inference`` adds the published
            pivotal bootstrap intervals of four errors (1000 resamples), whose coverage is poor near zero.
        task: ``"multilabel"`` if a sample can have several labels: ``logits`` and ``target`` have shape ``(N, L)``, the
            sigmoid of a logit is the probability of its label, and ``target`` holds 0 or 1, or ``ignore_index``. See
            :mod:`dualfocal.metrics.multilabel.evaluation`. ``binary``, ``convention`` and ``sample_weight`` do not
            apply.
        **options: what predictions and targets mean: ``input``, ``ignore_index``, ``binary``, ``class_names``,
            ``clusters`` and ``sample_weight``, see :meth:`~dualfocal.metrics.Samples.from_arrays`. With
            ``input="confidence"``, NLL, Brier score, classwise ECE and the test of class probabilities are left out.

    Returns:
        The metrics, as fractions: an :class:`Evaluation`, or a :class:`~dualfocal.metrics.MultilabelEvaluation`.

    Raises:
        TypeError: an argument is not an array.
        ValueError: a shape, dtype, probability or option is invalid, or no sample is left.
        IndexError: a target is not a class index.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> logits = 2 * torch.randn(2000, 10, generator=generator)
    >>> target = torch.multinomial(logits.div(2).softmax(1), 1, generator=generator)[:, 0]  # twice too sharp
    >>> print(evaluate(logits, target, inference=True).verdict())  # doctest: +NORMALIZE_WHITESPACE
    Over-confident: ECE is 23.1 points; a calibrated model would show 2.7 by chance (p < 0.001). Class probabilities:
    miscalibrated (p < 0.001); worst: predictions of class 3, confidence 55.1 %, right 28.2 %.
    """
    check_choice("task", task, (None, "multilabel"))
    check_choice("convention", convention, CONVENTIONS)
    check_count("num_bins", num_bins)
    check_count("draws", draws, 100)
    check_level(level)
    settings = Settings(level, draws, seed) if inference else None
    if task == "multilabel":
        from dualfocal.metrics.multilabel.entries import as_entries
        from dualfocal.metrics.multilabel.evaluation import evaluate_entries

        if convention is not None:
            raise ValueError("convention does not apply to task='multilabel': leave it out")
        return evaluate_entries(as_entries(logits, target, options), num_bins, settings)
    samples = as_samples(logits, target, options)
    samples = samples.by_image() if inference else samples
    stats = scan(samples, num_bins=num_bins, scores=True, classwise=True)
    if inference and samples.cluster is None and (problem := copies_warning(samples)) is not None:
        warnings.warn(problem, stacklevel=2)
    return evaluate_samples(samples, stats, num_bins, settings=settings, convention=convention)


def evaluate_samples(
    samples: Samples,
    stats: Scan,
    num_bins: int,
    *,
    settings: Settings | None = None,
    convention: str | None = None,
) -> Evaluation:
    """Compute the metrics from the scan of the samples, which must include scores.

    Without bins of the classes, the probability of class 1 is the confidence of a prediction that may be right or
    wrong, and nothing else is known.

    Args:
        samples: the samples.
        stats: their scan.
        num_bins: number of bins.
        settings: how the inference is made (None: without inference).
        convention: see :func:`evaluate`.
    """
    bins = stats.bins(num_bins)
    adaptive = adaptive_bins(stats.confidence, stats.correct, num_bins, weight=stats.weight, noise=stats.noise)
    clustered = stats.cluster is not None
    units = None
    if clustered or (settings is not None and stats.weight is not None):
        units = unit_sums(stats, bins, samples=None if samples.confidence_only else samples, adaptive=adaptive)
    summary = Summary(
        bins=bins,
        adaptive=adaptive,
        classes=stats.classes,
        units=units,
        clustered=clustered,
        positive=samples.positive and not samples.confidence_only,
        weights=_weight_summary(stats),
        rounding=samples.rounding,
        scores={
            "error": 1 - stats.mean(stats.right),
            "nll": math.nan if samples.confidence_only else stats.mean(stats.nll),
            "brier": math.nan if samples.confidence_only else stats.mean(stats.brier),
            "aurc": RiskCoverage.from_confidence(stats.certainty, stats.right, stats.weight).area(),
        },
    )
    published: Mapping[str, tuple[float, float]] = {}
    changed: dict[str, float] = {}
    if convention is not None:
        changed = by_convention(samples, num_bins, convention)
        if convention == "published" and settings is not None:
            published = published_intervals(samples, stats, num_bins, settings)
    evaluation = summary.evaluation(
        settings, class_names=samples.class_names, convention=convention, changed=changed, published=published
    )
    further = {name: metric.compute(stats) for name, metric in METRICS.items() if metric.compute is not None}
    return replace(evaluation, further=further) if further else evaluation


def squared_error(stats: Scan, bins: BinStats) -> float:
    """Return the square of the debiased error, before it is cut off at 0: of independent samples, or of clusters."""
    return bins.squared_error() if stats.cluster is None else unit_sums(stats, bins).squared_error()


@dataclass(frozen=True, eq=False)
class Summary:
    """What all evaluations are made of, whether the samples are kept or only their sums.

    Args:
        bins: bins of the confidence.
        adaptive: bins of equal mass.
        classes: bins of all classes, ``(C, 2, B)``; None if only the confidence is known.
        units: sums by unit; None if samples are independent and have equal weights.
        clustered: whether units are clusters.
        positive: whether the confidence is the probability of class 1.
        weights: how much information weighted samples carry.
        rounding: how the probabilities were rounded.
        scores: error, NLL, Brier score and AURC.
        streamed: whether adaptive ECE and AURC come from fine bins of the confidence instead of the samples.
    """

    bins: BinStats
    adaptive: BinStats
    classes: BinStats | None
    units: UnitSums | None
    clustered: bool
    positive: bool
    weights: WeightSummary | None
    rounding: Rounding | None
    scores: Mapping[str, float]
    streamed: bool = False

    def evaluation(
        self,
        settings: Settings | None,
        *,
        class_names: tuple[str, ...] | None = None,
        convention: str | None = None,
        changed: Mapping[str, float] | None = None,
        published: Mapping[str, tuple[float, float]] | None = None,
    ) -> Evaluation:
        """Compute the metrics.

        Args:
            settings: how the inference is made (None: without inference).
            class_names: names of the classes.
            convention: name of another convention.
            changed: calibration errors by that convention.
            published: intervals by that convention.
        """
        bins = self.bins
        total = float(bins.count.sum())
        parts, by_class = None, math.nan
        if self.classes is not None:
            rows = self.classes.sum(1)
            parts, by_class = decompose(self.scores["brier"], bins if self.positive else rows), float(rows.ece().mean())
        square = bins.squared_error()
        if self.units is not None and self.clustered:
            square = self.units.squared_error()
        inference = None
        if settings is not None:
            evidence = Evidence(
                bins,
                self.adaptive,
                self.classes,
                self.units,
                clustered=self.clustered,
                known_weights=self.weights is not None and self.weights.by_label,
                positive=self.positive,
            )
            inference = infer(evidence, settings, published or {})
        errors = {
            "ece": bins.ece(),
            "adaptive_ece": float(np.abs(self.adaptive.gap).sum()) / total,
            "mce": bins.mce(),
        }
        scores = {**errors, **(changed or {}), **self.scores}
        values: dict[str, Any] = {name: float(value) for name, value in scores.items()}
        return Evaluation(
            num_samples=round(total),  # the mean weight is 1
            num_classes=0 if self.classes is None else len(self.classes.count),
            num_bins=bins.num_bins,
            **values,
            brier_calibration=math.nan if parts is None else parts.calibration,
            brier_refinement=math.nan if parts is None else parts.refinement,
            classwise_ece=by_class,
            debiased_ece=math.sqrt(max(square, 0.0)),
            confidence=float(bins.confidence.sum()) / total,
            accuracy=float(bins.correct.sum()) / total,
            bins=bins,
            inference=inference,
            convention=convention,
            positive=self.positive,
            streamed=self.streamed,
            confidence_only=self.classes is None,
            weights=self.weights,
            rounding=self.rounding,
            class_names=class_names,
        )


def _weight_summary(stats: Scan) -> WeightSummary | None:
    """Return how much information weighted samples carry, or None if all have the same weight."""
    if stats.weight is None:
        return None
    total, squares = float(stats.weight.sum()), float((stats.weight**2).sum())
    return WeightSummary(total**2 / squares, float(stats.weight.max()) / total, stats.noise is not None)
