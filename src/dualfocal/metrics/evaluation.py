"""All metrics of a set of predictions, from one pass over the data."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from dualfocal.checks import check_choice, check_count, check_level
from dualfocal.metrics._sorting import SortedConfidences
from dualfocal.metrics.arrays import Array, names_of_classes
from dualfocal.metrics.bins import CONVENTIONS, BinStats
from dualfocal.metrics.calibration import adaptive_error, top_bins
from dualfocal.metrics.copies import copies_warning
from dualfocal.metrics.inference.classwise import SIGNIFICANCE, classwise_test
from dualfocal.metrics.inference.cluster_sums import RowClusterSums
from dualfocal.metrics.inference.clusters import cluster_inference, cluster_squared_error
from dualfocal.metrics.inference.label_counts import LabelCounts, RowLabels
from dualfocal.metrics.inference.result import Inference, noise_floor
from dualfocal.metrics.inference.top_label import Confidences, infer
from dualfocal.metrics.inference.weights import summarize_weights, weighted_inference
from dualfocal.metrics.resampling import quantiles, resample
from dualfocal.metrics.result import Evaluation
from dualfocal.metrics.rows import Rows, as_rows, image_clusters
from dualfocal.metrics.scan import Scan, scan
from dualfocal.metrics.scores import decompose, mean

if TYPE_CHECKING:
    from dualfocal.metrics.multilabel.result import MultilabelEvaluation


@overload
def evaluate(
    logits: Array,
    target: Array,
    *,
    input: str | None = None,
    num_bins: int = 15,
    inference: bool = False,
    seed: int = 0,
    ignore_index: int = -100,
    binary: str | None = None,
    convention: str | None = None,
    level: float = 0.9,
    draws: int = 1000,
    class_names: Sequence[str] | None = None,
    clusters: Array | str | None = None,
    sample_weight: Array | None = None,
    task: None = None,
) -> Evaluation: ...
@overload
def evaluate(
    logits: Array,
    target: Array,
    *,
    input: str | None = None,
    num_bins: int = 15,
    inference: bool = False,
    seed: int = 0,
    ignore_index: int = -100,
    level: float = 0.9,
    draws: int = 1000,
    class_names: Sequence[str] | None = None,
    clusters: Array | None = None,
    task: Literal["multilabel"],
) -> "MultilabelEvaluation": ...
def evaluate(
    logits: Array,
    target: Array,
    *,
    input: str | None = None,
    num_bins: int = 15,
    inference: bool = False,
    seed: int = 0,
    ignore_index: int = -100,
    binary: str | None = None,
    convention: str | None = None,
    level: float = 0.9,
    draws: int = 1000,
    class_names: Sequence[str] | None = None,
    clusters: Array | str | None = None,
    sample_weight: Array | None = None,
    task: str | None = None,
) -> "Evaluation | MultilabelEvaluation":
    """Compute every metric in one pass: error, NLL, Brier score, AURC, and the calibration errors.

    Args:
        logits: see :func:`~dualfocal.metrics.ece`.
        target: see :func:`~dualfocal.metrics.ece`.
        input: see :func:`~dualfocal.metrics.ece`; or ``"confidence"``, if only the confidence of the predicted class is
            known: then ``logits`` holds these confidences, ``(N,)``, and ``target`` is 1 where the prediction is right
            and 0 where it is wrong. NLL, Brier score, classwise ECE and the test of class probabilities are left out.
        num_bins: number of bins of the calibration errors.
        inference: also compute the noise floor of each calibration error (its value for a perfectly calibrated model,
            by chance), the p-value of a test of calibration, a confidence interval of the debiased error, and the
            smallest detectable error; see :mod:`dualfocal.metrics.inference.top_label`.
        seed: seed of the draws for ``inference``.
        ignore_index: target value of samples to leave out.
        binary: see :func:`~dualfocal.metrics.ece`.
        convention: see :func:`~dualfocal.metrics.ece`; it applies to ECE and MCE and, if it is ``"published"``, to the
            adaptive ECE. Bins and inference do not change. ``"published"`` with ``inference`` adds the published
            pivotal bootstrap intervals of four errors (1000 resamples), whose coverage is poor near zero.
        level: nominal coverage of the interval.
        draws: number of draws of a calibrated model's outcomes, for floors and p-value; the p-value is at least
            1 / (draws + 1).
        class_names: names of the classes, in the order of the columns of ``logits``, for labels that are texts and for
            the verdict. Not needed if ``logits`` is a data frame whose columns are named like the classes.
        clusters: the cluster of each sample, whole numbers or texts, ``(N,)``: samples of one cluster may depend on
            each other, such as the pixels of an image or the images of a patient. Noise floors, tests, the interval and
            the debiased error allow for it, see :mod:`dualfocal.metrics.inference.clusters`. Without it, the N images
            of dense predictions, ``(N, C, d1, ...)``, are clusters if ``inference`` is asked for, and other samples
            count as independent; a warning is given if many are copies of others. ``"none"``: pixels are independent,
            too.
        sample_weight: weight of each sample, ``(N,)`` or ``(N, d1, ...)``, not negative: survey weights, or importance
            weights of a population with other inputs or labels. All metrics and the inference are those of the
            weighted population, see :mod:`dualfocal.metrics.inference.weights`. Only the ratios of the weights matter.
            Samples of weight 0 are left out and not counted. Equal weights are the same as none.
        task: ``"multilabel"`` if a sample can have several labels: ``logits`` and ``target`` have shape ``(N, L)``, the
            sigmoid of a logit is the probability of its label, and ``target`` holds 0 or 1, or ``ignore_index``. See
            :mod:`dualfocal.metrics.multilabel.evaluation`. ``binary``, ``convention`` and ``sample_weight`` do not
            apply.

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
    if task == "multilabel":
        from dualfocal.metrics.multilabel.evaluation import evaluate_multilabel

        for name, value in (("binary", binary), ("convention", convention), ("sample_weight", sample_weight)):
            if value is not None:
                raise ValueError(f"{name} does not apply to task='multilabel': leave it out")
        return evaluate_multilabel(
            logits,
            target,
            input=input,
            num_bins=num_bins,
            inference=inference,
            seed=seed,
            ignore_index=ignore_index,
            level=level,
            draws=draws,
            class_names=class_names,
            clusters=image_clusters(logits, clusters),
        )
    check_count("draws", draws, 100)
    check_choice("convention", convention, CONVENTIONS)
    check_level(level)
    clusters = image_clusters(logits, clusters) if inference or isinstance(clusters, str) else clusters
    structure: dict[str, Any] = {"ignore_index": ignore_index, "clusters": clusters, "sample_weight": sample_weight}
    if input == "confidence":  # calibrated like the probability of class 1, which is "the prediction is right"
        rows = as_rows(logits, target, input="probs", binary="positive", **structure)
    else:
        rows = as_rows(logits, target, input=input, binary=binary, class_names=class_names, **structure)
    stats = scan(rows, num_bins=num_bins, scores=True, classwise=True)
    if inference and clusters is None and (problem := copies_warning(rows)) is not None:
        warnings.warn(problem, stacklevel=2)
    result = evaluate_rows(rows, stats, num_bins, inference=inference, level=level, draws=draws, seed=seed)
    if input == "confidence":
        result = _of_confidence(result, rows)
    else:
        result = replace(result, class_names=names_of_classes(logits, class_names))
    return result if convention is None else _with_convention(result, rows, stats, convention, level, seed)


def evaluate_rows(
    rows: Rows,
    stats: Scan,
    num_bins: int,
    *,
    inference: bool = False,
    level: float = 0.9,
    draws: int = 1000,
    seed: int = 0,
) -> Evaluation:
    """Compute the metrics from the scan of the rows, which must include scores and classwise bins."""
    bins = top_bins(stats, rows, num_bins, None)
    samples = SortedConfidences.from_units(stats.confidence, stats.correct, rows.weight)
    adaptive, adaptive_bins = adaptive_error(samples, num_bins, None)
    inferred = None
    if inference:
        labels = RowLabels(rows, num_bins, seed)
        if rows.weight is None:
            inferred = infer_both(
                samples, bins, adaptive_bins, labels, positive=rows.positive, level=level, draws=draws, seed=seed
            )
        else:
            inferred = weighted_inference(rows, stats, labels, bins, adaptive_bins, level=level, draws=draws, seed=seed)
        if rows.cluster is not None:
            sums = RowClusterSums(rows.cluster, stats, labels, rows.weight)
            inferred = cluster_inference(inferred, sums, labels, bins, adaptive_bins)
    result = evaluate_bins(
        bins,
        stats.classes,
        squared=squared_error(rows, stats, bins),
        error=mean((~stats.right).double(), rows.weight),
        nll=mean(stats.nll, rows.weight),
        brier=mean(stats.brier, rows.weight),
        aurc=SortedConfidences.from_uncertainty(stats.uncertainty, stats.right, rows.weight).aurc(),
        adaptive_ece=adaptive,
        inference=inferred,
        positive=rows.positive,
    )
    return replace(result, weights=summarize_weights(rows), rounding=rows.rounding)


def squared_error(rows: Rows, stats: Scan, bins: BinStats) -> float:
    """Return the square of the debiased error, before it is cut off at 0: of independent samples, or of clusters."""
    if rows.cluster is None:
        return float(bins.squared_error())
    return cluster_squared_error(RowClusterSums(rows.cluster, stats, weight=rows.weight), bins)


def infer_both(
    samples: Confidences,
    bins: BinStats,
    adaptive: BinStats,
    labels: LabelCounts | None,
    *,
    positive: bool = False,
    level: float = 0.9,
    draws: int = 1000,
    seed: int = 0,
) -> Inference:
    """Compute the inference of the confidences and, if labels of all classes are given, the class-wise test."""
    if labels is None:
        return infer(samples, bins, adaptive, level=level, draws=draws, seed=seed)
    classwise, errors = classwise_test(labels)
    significance = SIGNIFICANCE if positive else SIGNIFICANCE / 2  # by Holm's method, for the first of two
    result = infer(samples, bins, adaptive, level=level, draws=draws, seed=seed, significance=significance)
    result.floors["classwise_ece"] = noise_floor(errors)
    return result if positive else replace(result, classwise=classwise)


def evaluate_bins(
    bins: BinStats,
    classes: BinStats | None,
    *,
    error: float,
    nll: float,
    brier: float,
    aurc: float,
    adaptive_ece: float,
    inference: Inference | None = None,
    positive: bool = False,
    bounds: Mapping[str, float] | None = None,
    squared: float | None = None,
) -> Evaluation:
    """Compute the metrics of the bins of the confidence and of the classes; the other metrics are given.

    Without bins of the classes, only the predicted class is known, and metrics of all classes are NaN. ``squared`` is
    the squared error of :func:`squared_error`, that of independent samples if it is not given.
    """
    square = bins.squared_error() if squared is None else torch.tensor(squared, dtype=torch.float64, device="cpu")
    num_samples = round(float(bins.count.sum())) if bins.weighted else int(bins.count.sum())  # the mean weight is 1
    parts = None if classes is None else decompose(brier, bins if positive else classes)
    return Evaluation(
        num_samples=num_samples,
        num_classes=0 if classes is None else len(classes.count),
        num_bins=bins.num_bins,
        error=error,
        nll=nll,
        brier=brier,
        brier_calibration=math.nan if parts is None else parts.calibration,
        brier_refinement=math.nan if parts is None else parts.refinement,
        aurc=aurc,
        ece=float(bins.ece()),
        adaptive_ece=adaptive_ece,
        classwise_ece=math.nan if classes is None else float(classes.ece().mean()),
        mce=float(bins.mce()),
        debiased_ece=float(square.clamp_min(0).sqrt()),
        confidence=float(bins.confidence.sum()) / num_samples,
        accuracy=float(bins.correct.sum()) / num_samples,
        bins=bins,
        inference=inference,
        positive=positive,
        bounds=bounds or {},
        confidence_only=classes is None,
    )


def _with_convention(
    result: Evaluation, rows: Rows, stats: Scan, convention: str, level: float, seed: int
) -> Evaluation:
    """Return the evaluation with ECE, MCE and adaptive ECE, and their intervals, as other code computes them."""
    num_bins = result.num_bins
    if convention == "published" and result.inference is not None:
        drawn = resample([(rows, stats)], num_bins, seed=seed)
        for name in ("ece", "adaptive_ece", "classwise_ece", "mce"):
            twice, (low, high) = 2 * getattr(result, name), quantiles(drawn[name][:, 0], level)
            result.inference.published[name] = (twice - high, twice - low)
    rounded = scan(rows, as_given=True)
    bins = top_bins(rounded, rows, num_bins, convention)
    result = replace(result, convention=convention, ece=float(bins.ece()), mce=float(bins.mce()))
    if convention != "published":
        return result
    samples = SortedConfidences.from_units(rounded.confidence, rounded.correct, rows.weight)
    return replace(result, adaptive_ece=adaptive_error(samples, num_bins, convention)[0])


def _of_confidence(result: Evaluation, rows: Rows) -> Evaluation:
    """Return the evaluation of the probability that predictions are right as one of their confidence."""
    if result.inference is not None:
        del result.inference.floors["classwise_ece"]
    uncertainty = 1 / rows.values[:, 1].double().clamp_min(1e-300)
    return replace(
        result,
        nll=math.nan,
        brier=math.nan,
        brier_calibration=math.nan,
        brier_refinement=math.nan,
        classwise_ece=math.nan,
        error=1 - result.accuracy,
        aurc=SortedConfidences.from_uncertainty(uncertainty, rows.target == 1, rows.weight).aurc(),
        num_classes=0,
        positive=False,
        confidence_only=True,
    )
