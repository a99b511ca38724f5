"""The result of an evaluation: every metric, with a verdict in words, a table and JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from dualfocal.metrics.cells import BinStats
from dualfocal.metrics.inference_result import SIGNIFICANCE, Inference, WeightSummary
from dualfocal.metrics.printed import Printed
from dualfocal.metrics.registry import METRICS, metrics_of
from dualfocal.metrics.rounding import Rounding
from dualfocal.metrics.verdict import (
    CONFIDENCE_ONLY,
    TOP_LABEL_ONLY,
    classes_verdict,
    confidence_verdict,
    samples_text,
    suspicions,
)
from dualfocal.tables import Table, quantity

SCHEMA = 1
FLAGS = ("positive", "confidence_only", "streamed")  # in JSON if they are true
MEANS = (("confidence", "accuracy"), ("probability", "share"))  # in JSON: of the predicted class, of class 1


@dataclass(frozen=True, repr=False)
class Evaluation(Printed):
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
    # Whether adaptive ECE and AURC come from fine bins of the confidence, because the samples were only summed up.
    streamed: bool = False
    # Whether only the predicted class is known: num_classes is 0, and what needs the other probabilities is NaN.
    confidence_only: bool = False
    weights: WeightSummary | None = None  # how much information weighted samples carry; None: equal weights
    rounding: Rounding | None = None  # how the probabilities were rounded; None: they were not
    further: Mapping[str, float] = field(default_factory=dict)  # metrics that METRICS adds; also attributes
    # For the verdict; not part of to_dict, and two evaluations with other names can be equal. None: unknown.
    class_names: tuple[str, ...] | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        """Sizes and the main metrics, on one line; ``print`` shows everything."""
        shown = {name: f"{getattr(self, name):.4g}" for name in ("error", "nll", "brier", "ece")}
        sizes = {name: getattr(self, name) for name in ("num_samples", "num_classes")}
        return f"Evaluation({', '.join(f'{name}={value}' for name, value in (sizes | shown).items())}, ...)"

    def __getattr__(self, name: str) -> float:
        """Return a further metric; NaN if it is not known, because the samples were only summed up."""
        if name in METRICS and METRICS[name].compute is not None:
            return self.further.get(name, math.nan)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def rbs(self) -> float:
        """Square root of the Brier score (Gruber and Buettner, 2022)."""
        return math.sqrt(self.brier)

    @property
    def overconfidence(self) -> float:
        """Mean confidence minus accuracy: above 0 the model is over-confident, below 0 under-confident."""
        return self.confidence - self.accuracy

    def verdict(self, class_names: Sequence[str] | None = None, tolerance: float = 0.01) -> str:
        """Say in a few sentences whether confidences and class probabilities are calibrated.

        The two tests are significant by Holm's method: one at 2.5 %, the other then at 5 %. Of rounded probabilities, a
        significant gap is called miscalibration only if its 95 % interval lies above what rounding alone can cause.

        Args:
            class_names: names of the classes (None: those of the evaluation; numbers if it has none).
            tolerance: if the interval of the debiased error ends below it, the verdict says that the gap is small.

        Raises:
            ValueError: the evaluation was made without ``inference=True``.
        """
        inference = inference_of(self)
        names = self.class_names if class_names is None else class_names
        significant, *significant_classes = (p <= SIGNIFICANCE for p in inference.adjusted)
        sentences = [confidence_verdict(self, inference, significant, names, tolerance)]
        if self.confidence_only:
            sentences.append(CONFIDENCE_ONLY if math.isnan(self.nll) else TOP_LABEL_ONLY)
        elif inference.classwise is not None:
            if significant_classes[0] and not significant:
                sentences[0] = f"Confidence of the predicted class: {sentences[0][0].lower()}{sentences[0][1:]}"
            classes = classes_verdict(self, inference, inference.classwise, significant_classes[0], names)
            sentences.append(classes)
        if self.weights is not None:
            sentences.append(self.weights.sentence(self.num_samples))
        if inference.clusters is not None:
            effective = None if self.weights is None else self.weights.effective
            sentences.append(inference.clusters.sentence(self.num_samples, effective))
        if self.rounding is not None and self.rounding.matters:
            sentences.append(self.rounding.sentence())
        return " ".join(suspicions(self, inference, names) + sentences)

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers under stable names: fractions, NLL in nats; values that are not finite are None.

        With ``binary="positive"``, ``confidence`` and ``accuracy`` are named ``probability`` and ``share``: the mean
        probability of class 1, and the share of the samples that belong to it.
        """
        names = list(METRICS)
        names[3:3] = ["rbs", "brier_calibration", "brier_refinement"]
        scores = {name: getattr(self, name) for name in names}
        scores |= dict(zip(MEANS[self.positive], (self.confidence, self.accuracy), strict=True))
        scores["overconfidence"] = self.overconfidence
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
        content |= {name: True for name in FLAGS if getattr(self, name)}
        summaries = {"weights": self.weights, "rounding": self.rounding}
        return content | {name: asdict(summary) for name, summary in summaries.items() if summary is not None}

    def scalars(self, prefix: str = "") -> dict[str, float]:
        """Return a flat dict of floats for a logger (TensorBoard, W&B, MLflow, ``compute_metrics`` of Hugging Face).

        The names are those of ``METRICS``. After ``inference=True`` there are also the noise floors ``ece_floor``,
        ``adaptive_ece_floor``, ``classwise_ece_floor`` and ``mce_floor``, the p-values ``p_value`` and, unless
        ``binary="positive"``, ``classwise_p_value``, and the interval ``debiased_ece_low`` to ``debiased_ece_high``;
        with clusters also ``num_clusters`` and ``design_effect``; with weights ``effective_samples``. Values that are
        not finite are left out.

        Args:
            prefix: text in front of each name, such as ``"val/"``.

        >>> import torch
        >>> from dualfocal.metrics import evaluate
        >>> result = evaluate(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
        >>> {name: round(value, 4) for name, value in result.scalars("val/").items()}  # doctest: +ELLIPSIS
        {'val/error': 0.5, 'val/nll': 0.7201, 'val/brier': 0.5487, ..., 'val/mce': 0.7311, 'val/debiased_ece': 0.0}
        """
        values = {name: getattr(self, name) for name in METRICS}
        if self.weights is not None:
            values["effective_samples"] = self.weights.effective
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
        check_schema("an evaluation", content, SCHEMA)
        positive = content.get("positive", False)
        own = [name for name, metric in METRICS.items() if metric.compute is None]
        further = [name for name in METRICS if name not in own and content.get(name) is not None]
        names = {name: name for name in (*own, "brier_calibration", "brier_refinement")}
        names |= dict(zip(("confidence", "accuracy"), MEANS[positive], strict=True))
        unknown = math.nan if content.get("confidence_only", False) else math.inf
        values: dict[str, Any] = {
            name: unknown if content[key] is None else float(content[key]) for name, key in names.items()
        }
        return cls(
            **{name: content[name] for name in ("num_samples", "num_classes", "num_bins", "convention")},
            **values,
            bins=BinStats.from_dict(content["bins"]),
            inference=None if content["inference"] is None else Inference.from_dict(content["inference"]),
            **{name: content.get(name, False) for name in FLAGS},
            weights=WeightSummary(**content["weights"]) if "weights" in content else None,
            rounding=Rounding(**content["rounding"]) if "rounding" in content else None,
            further={name: float(content[name]) for name in further},
        )

    def table(self) -> Table:
        """Return a table of the metrics, with noise floors if the evaluation was made with ``inference=True``."""
        headings = ["", "value"]
        shown = metrics_of(positive=self.positive)
        metrics = {name: metric for name, metric in shown.items() if not math.isnan(getattr(self, name))}
        rows = [[metric.heading, metric.text(getattr(self, name))] for name, metric in metrics.items()]
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
        samples = samples_text(self.num_samples, clusters.number if clusters else None, self.weights)
        return Table(headings, rows, f"{samples}, {classes}, {quantity(self.num_bins, 'bin')}")

    def _verdicts(self) -> list[str]:
        if self.inference is None:
            return [self.rounding.sentence()] if self.rounding is not None and self.rounding.matters else []
        return [self.verdict()]


def inference_of(evaluation: Evaluation) -> Inference:
    """Return the inference of an evaluation, or raise a ValueError if it was made without ``inference=True``."""
    if evaluation.inference is None:
        raise ValueError("a verdict needs evaluate(..., inference=True)")
    return evaluation.inference


def finite(value: float) -> float | None:
    """Return the value, or None if it is not finite, for JSON."""
    return value if math.isfinite(value) else None


def check_schema(kind: str, content: Mapping[str, Any], schema: int) -> None:
    """Raise a ValueError unless content from JSON has the schema that this version reads."""
    if content["schema"] != schema:
        raise ValueError(f"{kind} has schema {content['schema']}, this version reads schema {schema}")
