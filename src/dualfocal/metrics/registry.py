"""How each metric is shown: its name, unit and number of decimals. The only place that knows."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """Name, unit and decimals of a metric. Values are fractions; those in percent are shown times 100.

    >>> METRICS["ece"].heading, METRICS["ece"].text(0.0435)
    ('ECE [%]', '4.35')
    """

    label: str
    unit: str = "%"
    decimals: int = 2

    @property
    def factor(self) -> int:
        """What a value is multiplied by where it is shown."""
        return 100 if self.unit == "%" else 1

    @property
    def heading(self) -> str:
        """The label with its unit."""
        return f"{self.label} [{self.unit}]" if self.unit else self.label

    def text(self, value: float | None, *, sign: bool = False) -> str:
        """A value as it is shown; None, which stands for a value that is not finite in JSON, as nothing."""
        return "" if value is None else f"{self.factor * value:{'+' if sign else ''}.{self.decimals}f}"


METRICS: dict[str, Metric] = {
    "error": Metric("error"),
    "nll": Metric("NLL", "nats", 4),
    "brier": Metric("Brier score", "", 4),
    "aurc": Metric("AURC"),
    "ece": Metric("ECE"),
    "adaptive_ece": Metric("adaptive ECE"),
    "classwise_ece": Metric("classwise ECE", decimals=3),
    "mce": Metric("MCE"),
    "debiased_ece": Metric("debiased RMS error"),
}
FLOORS = ("ece", "adaptive_ece", "classwise_ece", "mce")  # metrics that have a noise floor
