"""Result of the evaluation of multi-label predictions: numbers, tables and a verdict."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dualfocal.metrics.inference_result import SIGNIFICANCE, Floor, Inference
from dualfocal.metrics.multilabel.verdict import FEW, multilabel_verdict
from dualfocal.metrics.printed import Printed
from dualfocal.metrics.registry import METRICS
from dualfocal.metrics.result import Evaluation, finite, inference_of
from dualfocal.metrics.verdict import p_text, percent_text
from dualfocal.tables import Table, quantity

SCHEMA = 1
MOST_SHOWN = 20  # labels in a table


@dataclass(frozen=True)
class LabelEvaluation:
    """The metrics of one label.

    Args:
        index: column of the label.
        name: name of the label.
        evaluation: metrics of its probability, as with ``binary="positive"``.
        p_adjusted: p-value of the test of calibration, adjusted for all labels and the pooled test (Holm); NaN without
            inference.
    """

    index: int
    name: str
    evaluation: Evaluation
    p_adjusted: float = math.nan

    @property
    def base_rate(self) -> float:
        """Share of samples that have the label."""
        return self.evaluation.accuracy

    @property
    def num_positive(self) -> int:
        """Number of samples that have the label."""
        return int(self.evaluation.bins.correct.sum())

    @property
    def is_rare(self) -> bool:
        """Whether fewer than 10 samples have the label, or fewer than 10 do not have it."""
        return min(self.num_positive, self.evaluation.num_samples - self.num_positive) < FEW

    @property
    def is_miscalibrated(self) -> bool:
        """Whether the test of the label is significant; False without inference."""
        return self.p_adjusted <= SIGNIFICANCE

    @property
    def inference(self) -> Inference:
        """Noise floors, test and confidence interval of the label."""
        return inference_of(self.evaluation)

    def to_dict(self) -> dict[str, Any]:
        """Return plain content for JSON."""
        about = {"label": self.name, "index": self.index, "base_rate": self.base_rate, "positives": self.num_positive}
        return {**about, "p_adjusted": finite(self.p_adjusted), **self.evaluation.to_dict()}


@dataclass(frozen=True)
class MultilabelEvaluation(Printed):
    """Result of :func:`~dualfocal.metrics.evaluate` with ``task="multilabel"``; all metrics are fractions.

    Args:
        num_samples: number of samples that have at least one entry.
        num_bins: number of bins of the calibration errors.
        labels: the evaluation of every label, in the order of the columns.
        micro: the evaluation of all entries pooled; its clusters are the samples, or those that the caller gave.
        macro_ece: mean ECE of the labels.
        subset_accuracy: share of samples whose labels are all predicted right, at a threshold of 0.5.
        macro_floor: noise floor of the macro ECE; None without inference.
        p_adjusted: p-value of the pooled test, adjusted for all labels and the pooled test; NaN without inference.
        left_out: labels that cannot be evaluated, with the reason.
        clusters_given: whether the caller gave clusters of samples.
    """

    num_samples: int
    num_bins: int
    labels: tuple[LabelEvaluation, ...]
    micro: Evaluation
    macro_ece: float
    subset_accuracy: float
    macro_floor: Floor | None = None
    p_adjusted: float = math.nan
    left_out: Mapping[str, str] = field(default_factory=dict)
    clusters_given: bool = False

    def __getitem__(self, name: str) -> LabelEvaluation:
        return {label.name: label for label in self.labels}[name]

    @property
    def num_labels(self) -> int:
        """Number of labels that were evaluated."""
        return len(self.labels)

    @property
    def num_entries(self) -> int:
        """Number of entries, one for each sample and label, without ignored ones."""
        return self.micro.num_samples

    @property
    def inference(self) -> Inference | None:
        """Noise floors, test and interval of all entries pooled; None without inference."""
        return self.micro.inference

    @property
    def hamming_error(self) -> float:
        """Share of entries that are predicted wrong, at a threshold of 0.5."""
        return self.micro.error

    @property
    def micro_ece(self) -> float:
        """ECE of all entries pooled."""
        return self.micro.ece

    @property
    def nll(self) -> float:
        """Mean binary cross-entropy of all entries, in nats."""
        return self.micro.nll

    @property
    def brier(self) -> float:
        """Mean squared difference of probability and target, over all entries."""
        return self.micro.brier

    @property
    def macro_nll(self) -> float:
        """Mean over labels of the mean binary cross-entropy; differs from ``nll`` only if entries are ignored."""
        return sum(label.evaluation.nll for label in self.labels) / self.num_labels

    @property
    def macro_brier(self) -> float:
        """Mean over labels of the Brier score; differs from ``brier`` only if entries are ignored."""
        return sum(label.evaluation.brier for label in self.labels) / self.num_labels

    @property
    def base_rates(self) -> dict[str, float]:
        """Share of samples that have each label."""
        return {label.name: label.base_rate for label in self.labels}

    @property
    def ranked(self) -> list[LabelEvaluation]:
        """Labels, worst first: the miscalibrated ones, then by the lower end of the interval, then by ECE - floor."""
        if self.inference is None:
            return sorted(self.labels, key=lambda label: label.evaluation.ece, reverse=True)
        return sorted(
            self.labels,
            key=lambda label: (
                label.is_miscalibrated,
                label.inference.debiased_ece[0],
                label.evaluation.ece - label.inference.floors["ece"].mean,
            ),
            reverse=True,
        )

    @property
    def miscalibrated(self) -> list[LabelEvaluation]:
        """Labels whose test is significant (family-wise 5 %), worst first; none without inference."""
        return [label for label in self.ranked if label.is_miscalibrated]

    def verdict(self) -> str:
        """Say in a few sentences whether the probabilities of the labels are calibrated.

        Raises:
            ValueError: the evaluation was made without ``inference=True``.
        """
        if self.inference is None or self.macro_floor is None:
            raise ValueError("a verdict needs evaluate(..., inference=True)")
        return multilabel_verdict(self, self.inference, self.macro_floor)

    def table(self) -> Table:
        """Return a table of the metrics, with noise floors if the evaluation was made with ``inference=True``."""
        ece, percent = METRICS["ece"], METRICS["error"]
        rows = [
            ["Hamming error [%]", percent.text(self.hamming_error), "", ""],
            ["subset accuracy [%]", percent.text(self.subset_accuracy), "", ""],
            [METRICS["nll"].heading, METRICS["nll"].text(self.nll), "", ""],
            ["Brier score", METRICS["brier"].text(self.brier), "", ""],
            ["macro ECE [%]", ece.text(self.macro_ece), *_floor_cells(self.macro_floor)],
            [
                "micro ECE [%]",
                ece.text(self.micro_ece),
                *_floor_cells(None if self.inference is None else self.inference.floors["ece"]),
            ],
            ["micro debiased RMS error [%]", ece.text(self.micro.debiased_ece), "", ""],
        ]
        headings = ["", "value", "floor", "its 95 % quantile"]
        if self.inference is None:
            headings, rows = headings[:2], [row[:2] for row in rows]
        else:
            low, high = (ece.text(end) for end in self.inference.debiased_ece)
            rows.append([f"  its {100 * self.inference.level:.4g} % interval [%]", f"{low} to {high}", "", ""])
        sizes = {"sample": self.num_samples, "label": self.num_labels, "bin": self.num_bins}
        title = ", ".join(quantity(number, noun) for noun, number in sizes.items())
        return Table(headings, rows, title)

    def label_table(self, most: int = MOST_SHOWN) -> Table:
        """Return a table with a row for each of the ``most`` worst labels, in percent."""
        headings = ["label", "N", "base rate", "mean p", "ECE"]
        if self.inference is not None:
            headings += ["floor", f"debiased, {100 * self.inference.level:.4g} %", "adjusted p"]
        rows = []
        for label in self.ranked[:most]:
            evaluation = label.evaluation
            row = [
                label.name,
                f"{evaluation.num_samples:,}",
                percent_text(label.base_rate),
                percent_text(evaluation.confidence),
                f"{100 * evaluation.ece:.2f}",
            ]
            if self.inference is not None:
                low, high = label.inference.debiased_ece
                floor = label.inference.floors["ece"].mean
                row += [f"{100 * floor:.2f}", f"{100 * low:.2f} - {100 * high:.2f}", p_text(label.p_adjusted)]
            rows.append(row)
        which = f"the worst {most} of {self.num_labels} labels" if self.num_labels > most else "worst first"
        order = "by ECE" if self.inference is None else "miscalibrated ones first, by the lower end of the interval"
        return Table(headings, rows, f"by label, {which} ({order}); percent")

    def scalars(self, prefix: str = "") -> dict[str, float]:
        """Return a flat dict of floats for a logger; values that are not finite are left out.

        Args:
            prefix: text in front of each name, such as ``"val/"``.
        """
        names = ("hamming_error", "subset_accuracy", "nll", "brier", "macro_ece", "micro_ece")
        values = {name: getattr(self, name) for name in names}
        if self.inference is not None and self.macro_floor is not None:
            values |= {"macro_ece_floor": self.macro_floor.mean, "micro_ece_floor": self.inference.floors["ece"].mean}
            values |= {"p_value": self.inference.p_value, "miscalibrated_labels": len(self.miscalibrated)}
            values["micro_debiased_ece_low"], values["micro_debiased_ece_high"] = self.inference.debiased_ece
        return {f"{prefix}{name}": float(value) for name, value in values.items() if math.isfinite(value)}

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers under stable names: fractions, NLL in nats; values that are not finite are None."""
        names = (
            "hamming_error",
            "subset_accuracy",
            "nll",
            "brier",
            "macro_nll",
            "macro_brier",
            "macro_ece",
            "micro_ece",
        )
        return {
            "schema": SCHEMA,
            "task": "multilabel",
            "num_samples": self.num_samples,
            "num_labels": self.num_labels,
            "num_bins": self.num_bins,
            **{name: finite(getattr(self, name)) for name in names},
            "macro_floor": None if self.macro_floor is None else asdict(self.macro_floor),
            "p_adjusted": finite(self.p_adjusted),
            "clusters_given": self.clusters_given,
            "micro": self.micro.to_dict(),
            "labels": [label.to_dict() for label in self.labels],
            "left_out": dict(self.left_out),
        }

    def _tables(self) -> list[Table]:
        return [self.table(), self.label_table()]

    def _verdicts(self) -> list[str]:
        return [] if self.inference is None else [self.verdict()]


def _floor_cells(floor: Floor | None) -> list[str]:
    return ["", ""] if floor is None else [METRICS["ece"].text(floor.mean), METRICS["ece"].text(floor.q95)]
