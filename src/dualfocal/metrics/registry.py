"""Label, unit, decimals and meaning of each metric, for tables and text."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """How a metric is printed. Values are fractions; those in percent are multiplied by 100.

    Args:
        label: name in tables.
        unit: unit in headings.
        decimals: number of decimals.
        meaning: explanation for readers who do not know the label.

    >>> METRICS["ece"].heading, METRICS["ece"].text(0.0435)
    ('ECE [%]', '4.35')
    """

    label: str
    unit: str = "%"
    decimals: int = 2
    meaning: str = ""

    @property
    def factor(self) -> int:
        """Factor of printed values: 100 for percent."""
        return 100 if self.unit == "%" else 1

    @property
    def heading(self) -> str:
        """Label with unit."""
        return f"{self.label} [{self.unit}]" if self.unit else self.label

    def text(self, value: float | None, *, sign: bool = False) -> str:
        """Format a value; None (in JSON, a value that is not finite) gives an empty string."""
        return "" if value is None else f"{self.factor * value:{'+' if sign else ''}.{self.decimals}f}"

    def text_above(self, value: float) -> str:
        """Format an upper bound: round it up, unless it is above by the rounding of float64 only."""
        scale = self.factor * 10**self.decimals
        return self.text(math.ceil(value * scale - 1e-6) / scale)


METRICS: dict[str, Metric] = {
    "error": Metric("error"),
    "nll": Metric("NLL", "nats", 4, "mean negative log-likelihood of the true class"),
    "brier": Metric("Brier score", "", 4),
    "aurc": Metric("AURC", meaning="mean error rate among the k most confident samples, over all k"),
    "ece": Metric("ECE"),
    "adaptive_ece": Metric("adaptive ECE"),
    "classwise_ece": Metric("classwise ECE", decimals=3),
    "mce": Metric("MCE"),
    "debiased_ece": Metric(
        "debiased RMS error", meaning="root mean square gap between confidence and accuracy, corrected for noise"
    ),
}
MEANINGS = "; ".join(f"{metric.label}: {metric.meaning}" for metric in METRICS.values() if metric.meaning)
FLOORS = ("ece", "adaptive_ece", "classwise_ece", "mce")  # metrics that have a noise floor
