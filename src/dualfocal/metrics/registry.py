"""Label, unit, decimals and meaning of each metric, for tables and text; and how a further metric is computed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dualfocal.metrics.scan import Scan


@dataclass(frozen=True)
class Metric:
    """How a metric is printed. Values are fractions; those in percent are multiplied by 100.

    A line in ``METRICS`` with a function for ``compute`` adds a metric to ``evaluate``, to its tables, JSON and
    scalars, and to reports. Of sums, and of results that were stored before, its value is NaN.

    Args:
        label: name in tables.
        unit: unit in headings.
        decimals: number of decimals.
        meaning: explanation for readers who do not know the label.
        has_floor: whether the metric has a noise floor.
        compute: returns the metric of scanned samples (None: ``evaluate`` itself computes it).

    >>> METRICS["ece"].heading, METRICS["ece"].text(0.0435)
    ('ECE [%]', '4.35')
    """

    label: str
    unit: str = "%"
    decimals: int = 2
    meaning: str = ""
    has_floor: bool = False
    compute: "Callable[[Scan], float] | None" = None

    @property
    def factor(self) -> int:
        """Factor of printed values: 100 for percent."""
        return 100 if self.unit == "%" else 1

    @property
    def heading(self) -> str:
        """Label with unit."""
        return f"{self.label} [{self.unit}]" if self.unit else self.label

    @property
    def smallest_shown(self) -> float:
        """The smallest difference that is not printed as 0."""
        return 0.5 * 10.0**-self.decimals / self.factor

    def text(self, value: float | None, *, sign: bool = False) -> str:
        """Format a value; None (in JSON, a value that is not finite) gives an empty string."""
        return "" if value is None else f"{self.factor * value:{'+' if sign else ''}.{self.decimals}f}"


METRICS: dict[str, Metric] = {
    "error": Metric("error", meaning="share of samples whose predicted class is not the true class"),
    "nll": Metric("NLL", "nats", 4, "mean negative log-likelihood of the true class"),
    "brier": Metric(
        "Brier score", "", 4, "mean squared difference between the probabilities and the outcome, summed over classes"
    ),
    "aurc": Metric("AURC", meaning="mean error rate among the k most confident samples, over all k"),
    "ece": Metric(
        "ECE",
        meaning="expected calibration error: mean gap between confidence and accuracy over bins of equal width",
        has_floor=True,
    ),
    "adaptive_ece": Metric("adaptive ECE", meaning="ECE over bins with equal numbers of samples", has_floor=True),
    "classwise_ece": Metric(
        "classwise ECE",
        decimals=3,
        meaning="ECE of the probability of each class, averaged over the classes",
        has_floor=True,
    ),
    "mce": Metric(
        "MCE",
        meaning="maximum calibration error: the largest gap between confidence and accuracy of a bin",
        has_floor=True,
    ),
    "debiased_ece": Metric(
        "debiased RMS error", meaning="root mean square gap between confidence and accuracy, corrected for noise"
    ),
}
# With binary="positive", the probability of class 1 takes the place of the confidence.
POSITIVE_METRICS = METRICS | {
    "brier": replace(
        METRICS["brier"],
        label="Brier score of class 1",
        meaning="mean squared difference between the probability of class 1 and the outcome, half of the sum over both "
        "classes",
    ),
    "ece": replace(
        METRICS["ece"],
        meaning="expected calibration error: mean gap between probability and frequency of class 1 over bins of equal "
        "width",
    ),
    "mce": replace(
        METRICS["mce"],
        meaning="maximum calibration error: the largest gap between probability and frequency of class 1 in a bin",
    ),
    "debiased_ece": replace(
        METRICS["debiased_ece"],
        meaning="root mean square gap between probability and frequency of class 1, corrected for noise",
    ),
}


def metrics_of(*, positive: bool) -> dict[str, Metric]:
    """Return how each metric is printed; ``positive`` if the probability of class 1 is scored."""
    return POSITIVE_METRICS if positive else METRICS


def footnote(*, positive: bool = False) -> str:
    """Return the explanations below a table."""
    names = ("nll", "brier", "aurc", "debiased_ece") if positive else ("nll", "aurc", "debiased_ece")
    metrics = metrics_of(positive=positive)
    return "; ".join(f"{metrics[name].label}: {metrics[name].meaning}" for name in names)


# Other terms of tables and verdicts: label -> meaning.
TERMS: dict[str, tuple[str, str]] = {
    "confidence": ("confidence", "probability that the model gives to the class it predicts"),
    "accuracy": ("accuracy", "share of samples whose predicted class is the true class: 100 % minus the error"),
    "overconfidence": (
        "confidence \N{MINUS SIGN} accuracy",
        "mean confidence minus accuracy, in points: above 0 the model is over-confident, below 0 under-confident",
    ),
    "floor": (
        "noise floor",
        "error that a perfectly calibrated model with these confidences shows by chance, on average: a calibration "
        "error near its floor is no evidence of miscalibration",
    ),
    "p_value": (
        "p-value",
        "probability that a perfectly calibrated model shows a result at least as extreme; at most 0.05 counts as "
        "evidence of miscalibration",
    ),
    "interval": (
        "confidence interval",
        "range that contains the true value in the stated share of repetitions; of a difference, an interval without 0 "
        "is significant",
    ),
    "calibrated": (
        "calibrated",
        "of the predictions with a confidence of 80 %, 80 % are right; the same holds for every other value",
    ),
    "calibrator": (
        "calibrator",
        "function that corrects the probabilities of a trained model, fitted on samples that the model was not trained "
        "on",
    ),
    "temperature": (
        "temperature",
        "number T that divides the logits: above 1 it lowers the confidence, below 1 it raises it; the predicted class "
        "stays the same",
    ),
    "risk_coverage": (
        "risk-coverage curve",
        "error among the most confident samples (risk) against their share of all samples (coverage)",
    ),
    "design_effect": (
        "design effect",
        "variance of the mean gap between confidence and accuracy, relative to independent samples: 4 means that the "
        "samples carry the information of a quarter as many independent ones",
    ),
    "holm": (
        "Holm's method",
        "adjustment of p-values for the number of tests: the probability of any false alarm stays below 5 %",
    ),
}
# The terms that differ with binary="positive".
POSITIVE_TERMS: dict[str, tuple[str, str]] = {
    "overconfidence": (
        "probability \N{MINUS SIGN} share",
        "mean probability of class 1 minus the share of class 1, in points: above 0 the probabilities are too high, "
        "below 0 too low",
    ),
    "calibrated": (
        "calibrated",
        "of the samples with a probability of 80 %, 80 % are of class 1; the same holds for every other value",
    ),
    "design_effect": (
        "design effect",
        "variance of the mean gap between probability and outcome, relative to independent samples: 4 means that the "
        "samples carry the information of a quarter as many independent ones",
    ),
}
