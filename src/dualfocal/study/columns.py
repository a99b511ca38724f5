"""The columns of a study's table."""

import math
from dataclasses import dataclass

from dualfocal.metrics.registry import METRICS
from dualfocal.runs import RunResult


@dataclass(frozen=True)
class Column:
    """A metric of the test part, as trained or after temperature scaling. Means have a decimal less than one run."""

    metric: str
    label: str
    scaled: bool = False
    has_floor: bool = True

    @property
    def name(self) -> str:
        """The column's name in JSON and CSV."""
        return f"{self.metric}_t" if self.scaled else self.metric

    @property
    def heading(self) -> str:
        """The column's name in tables."""
        return self.label + (" %" if self.factor == 100 else "") + (", T" if self.scaled else "")

    @property
    def factor(self) -> int:
        """What a value is multiplied by where it is shown."""
        return METRICS[self.metric].factor

    @property
    def decimals(self) -> int:
        """Of values where they are shown."""
        return METRICS[self.metric].decimals - 1

    def text(self, value: float) -> str:
        """A value as it is shown."""
        return "failed" if math.isnan(value) else f"{self.factor * value:.{self.decimals}f}"

    def value(self, result: RunResult) -> float:
        """The metric of a run; NaN where it is not finite."""
        value = getattr(result.evaluation(scaled_by=self.scaled_by), self.metric)
        return value if math.isfinite(value) else math.nan

    @property
    def scaled_by(self) -> str | None:
        """The temperature, as results name it."""
        return "temperature" if self.scaled else None


COMPARED = (  # columns whose differences are shown, too
    Column("error", "error", has_floor=False),
    Column("nll", "NLL", has_floor=False),
    Column("nll", "NLL", scaled=True, has_floor=False),
    Column("ece", "ECE"),
    Column("ece", "ECE", scaled=True),
)
OTHERS = (Column("adaptive_ece", "AdaECE"), Column("classwise_ece", "cw ECE"), Column("mce", "MCE"))
COLUMNS = {column.name: column for column in (*COMPARED, *OTHERS)}
NAMES = (*COLUMNS, "temperature")


def with_temperature(cells: list[str], temperature: str) -> list[str]:
    """The temperature stands beside the columns it changes."""
    return [*cells[: len(COMPARED)], temperature, *cells[len(COMPARED) :]]
