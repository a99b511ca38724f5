"""The columns of a study's table."""

import math
from dataclasses import dataclass, replace

from dualfocal.metrics.registry import METRICS, Metric
from dualfocal.runs import RunResult

FLOORS = ("ece", "adaptive_ece", "classwise_ece", "mce")  # metrics that have a noise floor


@dataclass(frozen=True)
class Column:
    """A metric of the test part, as trained or after temperature scaling."""

    key: str
    metric: Metric
    scaled_by: str | None = None

    @property
    def name(self) -> str:
        """The column's name in JSON and CSV."""
        return f"{self.key}_t" if self.scaled_by else self.key

    @property
    def heading(self) -> str:
        """The column's name in tables."""
        return self.metric.label + (" %" if self.metric.unit == "%" else "") + (", T" if self.scaled_by else "")

    def value(self, result: RunResult) -> float:
        """The metric of a run; NaN where it is not finite."""
        value = getattr(result.evaluation(scaled_by=self.scaled_by), self.key)
        return value if math.isfinite(value) else math.nan


def _column(key: str, label: str | None = None, scaled_by: str | None = None) -> Column:
    """Means over seeds are shown with a decimal less than the metrics of one run."""
    metric = METRICS[key]
    return Column(key, replace(metric, label=label or metric.label, decimals=metric.decimals - 1), scaled_by)


COMPARED = (  # columns whose differences are shown, too
    _column("error"),
    _column("nll"),
    _column("nll", scaled_by="temperature"),
    _column("ece"),
    _column("ece", scaled_by="temperature"),
)
OTHERS = (_column("adaptive_ece", "AdaECE"), _column("classwise_ece", "cw ECE"), _column("mce"))
COLUMNS = {column.name: column for column in (*COMPARED, *OTHERS)}
NAMES = (*COLUMNS, "temperature")


def with_temperature(cells: list[str], temperature: str) -> list[str]:
    """A row with the temperature beside the columns that it changes."""
    return [*cells[: len(COMPARED)], temperature, *cells[len(COMPARED) :]]
