"""All metrics of a set of predictions, from one pass over the data."""

import html
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import torch

from dualfocal._checks import check_choice, check_count, check_level
from dualfocal._table import Table
from dualfocal.metrics._sorting import SortedConfidences
from dualfocal.metrics.bins import CONVENTIONS, BinStats
from dualfocal.metrics.calibration import adaptive_error, top_bins
from dualfocal.metrics.classwise import SIGNIFICANCE, classwise_test
from dualfocal.metrics.clusters import cluster_inference, cluster_squared_error
from dualfocal.metrics.copies import copies_warning
from dualfocal.metrics.inference import Confidences, Inference, infer, noise_floor
from dualfocal.metrics.label_counts import LabelCounts, RowLabels
from dualfocal.metrics.registry import METRICS
from dualfocal.metrics.resampling import quantiles, resample
from dualfocal.metrics.rows import Array, Rows, as_rows
from dualfocal.metrics.scan import Scan, scan
from dualfocal.metrics.scores import decompose, mean
from dualfocal.metrics.verdict import CONFIDENCE_ONLY, classes_verdict, confidence_verdict

if TYPE_CHECKING:
    from dualfocal.metrics.multilabel_result import MultilabelEvaluation

SCHEMA = 1


@dataclass(frozen=True)
class Evaluation:
    """Result of :func:`evaluate`: every metric, as a fraction. ``print`` it; see :meth:`to_dict`, :meth:`scalars`."""

    num_samples: int
    num_classes: int
    num_bins: int
    error: float
    nll: float
    brier: float
    brier_calibration: float
    brier_refinement: float
    aurc: float
    ece: float
    adaptive_ece: float
    classwise_ece: float
    mce: float
    debiased_ece: float
    confidence: float  # mean confidence of the predicted class (of class 1 with binary="positive")
    accuracy: float  # share of samples for which that class is the true class
    bins: BinStats  # bins of the ECE
    inference: Inference | None = None
    convention: str | None = None
    positive: bool = False  # whether binary="positive": the probability of class 1 is scored
    # From BinnedPredictions: how much a metric can at most differ from its value from the predictions themselves.
    bounds: Mapping[str, float] = field(default_factory=dict)
    # Whether input="confidence": num_classes is 0, and what needs all probabilities is NaN.
    confidence_only: bool = False

    @property
    def rbs(self) -> float:
        """Square root of the Brier score (Gruber and Buettner, 2022)."""
        return math.sqrt(self.brier)

    @property
    def overconfidence(self) -> float:
        """Mean confidence minus accuracy: above 0 the model is over-confident, below 0 under-confident."""
        return self.confidence - self.accuracy

    def verdict(self, class_names: Sequence[str] | None = None) -> str:
        """Say in a few sentences whether confidences and class probabilities are calibrated.

        The two tests are significant by Holm's method: one at 2.5 %, the other then at 5 %.

        Args:
            class_names: names of the classes; numbers if there are none.

        Raises:
            ValueError: the evaluation was made without ``inference=True``.
        """
        inference = self.inference
        if inference is None:
            raise ValueError("a verdict needs evaluate(..., inference=True)")
        significant, *significant_classes = (p <= SIGNIFICANCE for p in inference.adjusted)
        sentences = [confidence_verdict(self, inference, significant)]
        if self.confidence_only:
            sentences.append(CONFIDENCE_ONLY)
        elif inference.classwise is not None:
            if significant_classes[0] and not significant:
                sentences[0] = f"Confidence of the predicted class: {sentences[0][0].lower()}{sentences[0][1:]}"
            classes = classes_verdict(inference.classwise, significant_classes[0], self.num_classes, class_names)
            sentences.append(classes)
        if inference.clusters is not None:
            sentences.append(inference.clusters.sentence(self.num_samples))
        return " ".join(sentences)

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers under stable names: fractions, NLL in nats; values that are not finite are None."""
        names = list(METRICS)
        names[3:3] = ["rbs", "brier_calibration", "brier_refinement"]
        scores = {name: getattr(self, name) for name in (*names, "confidence", "accuracy", "overconfidence")}
        content = {
            "schema": SCHEMA,
            "num_samples": self.num_samples,
            "num_classes": self.num_classes,
            "num_bins": self.num_bins,
            "convention": self.convention,
            **{name: finite(value) for name, value in scores.items()},
            "bins": self.bins.to_dict(),
            "inference": None if self.inference is None else self.inference.to_dict(),
        }
        content |= {name: True for name in ("positive", "confidence_only") if getattr(self, name)}
        return content | ({"bounds": dict(self.bounds)} if self.bounds else {})

    def scalars(self, prefix: str = "") -> dict[str, float]:
        """Return a flat dict of floats for a logger (TensorBoard, W&B, MLflow, ``compute_metrics`` of Hugging Face).

        The names are those of ``METRICS``. After ``inference=True`` there are also the noise floors ``ece_floor``,
        ``adaptive_ece_floor``, ``classwise_ece_floor`` and ``mce_floor``, the p-values ``p_value`` and, unless
        ``binary="positive"``, ``classwise_p_value``, and the interval ``debiased_ece_low`` to ``debiased_ece_high``;
        with clusters also ``num_clusters`` and ``design_effect``. Values that are not finite are left out.

        Args:
            prefix: text in front of each name, such as ``"val/"``.

        >>> import torch
        >>> result = evaluate(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
        >>> {name: round(value, 4) for name, value in result.scalars("val/").items()}  # doctest: +ELLIPSIS
        {'val/error': 0.5, 'val/nll': 0.7201, 'val/brier': 0.5487, ..., 'val/mce': 0.7311, 'val/debiased_ece': 0.0}
        """
        values = {name: getattr(self, name) for name in METRICS}
        if (inference := self.inference) is not None:
            values |= {f"{name}_floor": floor.mean for name, floor in inference.floors.items()}
            values["p_value"] = inference.p_value
            if inference.classwise is not None:
                values["classwise_p_value"] = inference.classwise.p_value
            values["debiased_ece_low"], values["debiased_ece_high"] = inference.debiased_ece
            if inference.clusters is not None:
                values["num_clusters"] = inference.clusters.number
                values["design_effect"] = inference.clusters.design_effect
        return {f"{prefix}{name}": float(value) for name, value in values.items() if math.isfinite(value)}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read the output of :meth:`to_dict`: ``from_dict(content).to_dict() == content``.

        Raises:
            ValueError: the content has another schema.
            KeyError, TypeError: an entry is missing, or has another type.
        """
        if content["schema"] != SCHEMA:
            raise ValueError(f"an evaluation has schema {content['schema']}, this version reads schema {SCHEMA}")
        scores = (*METRICS, "brier_calibration", "brier_refinement", "confidence", "accuracy")
        unknown = math.nan if content.get("confidence_only", False) else math.inf
        values: dict[str, Any] = {name: unknown if content[name] is None else float(content[name]) for name in scores}
        return cls(
            **{name: content[name] for name in ("num_samples", "num_classes", "num_bins", "convention")},
            **values,
            bins=BinStats.from_dict(content["bins"]),
            inference=None if content["inference"] is None else Inference.from_dict(content["inference"]),
            positive=content.get("positive", False),
            bounds=content.get("bounds", {}),
            confidence_only=content.get("confidence_only", False),
        )

    def table(self) -> Table:
        """Return a table of the metrics, with noise floors if the evaluation was made with ``inference=True``.

        Where values have bounds, a column shows them, rounded up.
        """
        headings = ["", "value"]
        metrics = {name: metric for name, metric in METRICS.items() if not math.isnan(getattr(self, name))}
        rows = [[metric.heading, metric.text(getattr(self, name))] for name, metric in metrics.items()]
        if self.bounds:
            headings.append("off by at most")
            for row, (name, metric) in zip(rows, metrics.items(), strict=True):
                row.append(metric.text_above(self.bounds[name]) if name in self.bounds else "")
        if self.inference is not None:
            headings += ["floor", "its 95 % quantile"]
            for row, (name, metric) in zip(rows, metrics.items(), strict=True):
                floor = self.inference.floors.get(name)
                row += ["", ""] if floor is None else [metric.text(floor.mean), metric.text(floor.q95)]
            low, high = (METRICS["debiased_ece"].text(end) for end in self.inference.debiased_ece)
            interval = [f"  its {100 * self.inference.level:.4g} % interval [%]", f"{low} to {high}"]
            rows.append(interval + [""] * (len(headings) - 2))
        classes = "only the predicted class" if self.confidence_only else f"{self.num_classes} classes"
        clusters = self.inference and self.inference.clusters
        samples = f"{self.num_samples:,} samples" + (f" in {clusters.number:,} clusters" if clusters else "")
        return Table(headings, rows, f"{samples}, {classes}, {self.num_bins} bins")

    def __str__(self) -> str:
        table = self.table()
        return "\n".join([table.title, table.text(), *([] if self.inference is None else [self.verdict()])])

    def _repr_html_(self) -> str:
        return self.table().html() + ("" if self.inference is None else f"<p><b>{html.escape(self.verdict())}</b></p>")


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
    clusters: Array | None = None,
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
    clusters: Array | None = None,
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
            smallest detectable error; see :mod:`dualfocal.metrics.inference`.
        seed: seed of the draws for ``inference``.
        ignore_index: target value of samples to leave out.
        binary: see :func:`~dualfocal.metrics.ece`.
        convention: see :func:`~dualfocal.metrics.ece`; it applies to ECE and MCE and, if it is ``"published"``, to the
            adaptive ECE. Bins and inference do not change. ``"published"`` with ``inference`` adds the published
            pivotal bootstrap intervals of four errors (1000 resamples), whose coverage is poor near zero.
        level: nominal coverage of the interval.
        draws: number of draws of a calibrated model's outcomes, for floors and p-value; the p-value is at least
            1 / (draws + 1).
        class_names: names of the classes, in the order of the columns of ``logits``, if the labels are texts. Not
            needed if ``logits`` is a data frame whose columns are named like the classes.
        clusters: the cluster of each sample, whole numbers or texts, ``(N,)``: samples of one cluster may depend on
            each other, such as the pixels of an image or the images of a patient. Noise floors, tests, the interval and
            the debiased error allow for it, see :mod:`dualfocal.metrics.clusters`. Without it, samples count as
            independent; a warning is given if many are copies of others.
        task: ``"multilabel"`` if a sample can have several labels: ``logits`` and ``target`` have shape ``(N, L)``, the
            sigmoid of a logit is the probability of its label, and ``target`` holds 0 or 1, or ``ignore_index``. See
            :mod:`dualfocal.metrics.multilabel`. ``binary`` and ``convention`` do not apply.

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
        from dualfocal.metrics.multilabel import evaluate_multilabel

        if binary is not None or convention is not None:
            raise ValueError("binary and convention do not apply to task='multilabel': leave them out")
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
            clusters=clusters,
        )
    check_count("draws", draws, 100)
    check_choice("convention", convention, CONVENTIONS)
    check_level(level)
    if input == "confidence":  # calibrated like the probability of class 1, which is "the prediction is right"
        rows = as_rows(logits, target, input="probs", ignore_index=ignore_index, binary="positive", clusters=clusters)
    else:
        rows = as_rows(
            logits,
            target,
            input=input,
            ignore_index=ignore_index,
            binary=binary,
            class_names=class_names,
            clusters=clusters,
        )
    stats = scan(rows, num_bins=num_bins, scores=True, classwise=True)
    if inference and clusters is None and (problem := copies_warning(rows)) is not None:
        warnings.warn(problem, stacklevel=2)
    result = evaluate_rows(rows, stats, num_bins, inference=inference, level=level, draws=draws, seed=seed)
    if input == "confidence":
        result = _of_confidence(result, rows)
    if convention is None:
        return result
    if convention == "published" and result.inference is not None:
        drawn = resample([(rows, stats)], num_bins, seed=seed)
        for name in ("ece", "adaptive_ece", "classwise_ece", "mce"):
            twice, (low, high) = 2 * getattr(result, name), quantiles(drawn[name][:, 0], level)
            result.inference.published[name] = (twice - high, twice - low)
    rounded = scan(rows, as_given=True)
    bins = top_bins(rounded, rows, num_bins, convention)
    result = replace(result, convention=convention, ece=float(bins.ece()), mce=float(bins.mce()))
    if convention == "published":
        samples = SortedConfidences.from_units(rounded.confidence, rounded.correct)
        result = replace(result, adaptive_ece=adaptive_error(samples, num_bins, convention)[0])
    return result


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
    samples = SortedConfidences.from_units(stats.confidence, stats.correct)
    adaptive, adaptive_bins = adaptive_error(samples, num_bins, None)
    inferred = None
    if inference:
        labels = RowLabels(rows, num_bins, seed)
        inferred = infer_both(
            samples, bins, adaptive_bins, labels, positive=rows.positive, level=level, draws=draws, seed=seed
        )
        if rows.cluster is not None:
            inferred = cluster_inference(inferred, labels, stats, bins, adaptive_bins)
    return evaluate_bins(
        bins,
        stats.classes,
        squared=squared_error(rows, stats, bins),
        error=mean((~stats.right).double()),
        nll=mean(stats.nll),
        brier=mean(stats.brier),
        aurc=SortedConfidences.from_uncertainty(stats.uncertainty, stats.right).aurc(),
        adaptive_ece=adaptive,
        inference=inferred,
        positive=rows.positive,
    )


def squared_error(rows: Rows, stats: Scan, bins: BinStats) -> float:
    """Return the square of the debiased error, before it is cut off at 0: of independent samples, or of clusters."""
    return float(bins.squared_error()) if rows.cluster is None else cluster_squared_error(rows.cluster, stats, bins)


def infer_both(
    samples: Confidences,
    bins: BinStats,
    adaptive: BinStats,
    labels: LabelCounts,
    *,
    positive: bool = False,
    level: float = 0.9,
    draws: int = 1000,
    seed: int = 0,
) -> Inference:
    """Compute the inference of the confidences and the class-wise test."""
    classwise, errors = classwise_test(labels)
    significance = SIGNIFICANCE if positive else SIGNIFICANCE / 2  # by Holm's method, for the first of two
    result = infer(samples, bins, adaptive, level=level, draws=draws, seed=seed, significance=significance)
    result.floors["classwise_ece"] = noise_floor(errors)
    return result if positive else replace(result, classwise=classwise)


def evaluate_bins(
    bins: BinStats,
    classes: BinStats,
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

    ``squared`` is the squared error of :func:`squared_error`, that of independent samples if it is not given.
    """
    square = bins.squared_error() if squared is None else torch.tensor(squared, dtype=torch.float64, device="cpu")
    num_samples = int(bins.count.sum())
    parts = decompose(brier, classes)
    return Evaluation(
        num_samples=num_samples,
        num_classes=len(classes.count),
        num_bins=bins.num_bins,
        error=error,
        nll=nll,
        brier=brier,
        brier_calibration=parts.calibration,
        brier_refinement=parts.refinement,
        aurc=aurc,
        ece=float(bins.ece()),
        adaptive_ece=adaptive_ece,
        classwise_ece=float(classes.ece().mean()),
        mce=float(bins.mce()),
        debiased_ece=float(square.clamp_min(0).sqrt()),
        confidence=float(bins.confidence.sum()) / num_samples,
        accuracy=float(bins.correct.sum()) / num_samples,
        bins=bins,
        inference=inference,
        positive=positive,
        bounds=bounds or {},
    )


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
        aurc=SortedConfidences.from_uncertainty(uncertainty, rows.target == 1).aurc(),
        num_classes=0,
        positive=False,
        confidence_only=True,
    )


def finite(value: float) -> float | None:
    """Return the value, or None if it is not finite, for JSON."""
    return value if math.isfinite(value) else None
