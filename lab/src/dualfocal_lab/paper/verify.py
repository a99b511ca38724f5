"""Recompute published numbers from the logits of the same networks, where they have been published, too.

The folder ``published_logits`` in the results of the lab holds such files. A file is named after its cells in the
tables, ``MODEL-DATA-METHOD.npz``, and has the splits ``val``, for the temperature, and ``test``.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dualfocal.calibrators import TemperatureScaling
from dualfocal.metrics import METRICS, adaptive_ece, evaluate
from dualfocal.predictions import load_predictions
from dualfocal.tables import Table
from dualfocal_lab import RESULTS
from dualfocal_lab.checks import finite
from dualfocal_lab.paper.published import Cell, published_tables

FOLDER = RESULTS / "published_logits"
HEADINGS = ("table", "method", "number", "published", "recomputed", "agrees")


@dataclass(frozen=True)
class RecomputedCell:
    """A published number, and the same computed from the logits."""

    file: str
    table: str
    cell: Cell
    value: float
    temperature: float | None  # of stage "after"

    @property
    def printed(self) -> str:
        """Our number, printed as the paper prints its own."""
        decimals = len(self.cell.printed.partition(".")[2])
        return f"{self.value if self.cell.unit == 'number' else 100 * self.value:.{decimals}f}"

    @property
    def agrees(self) -> bool:
        """Whether all printed digits are the same, those of the temperature, too."""
        given = self.cell.temperature
        same_temperature = given is None or self.temperature is None or abs(given - self.temperature) < 1e-6
        return same_temperature and self.printed == self.cell.printed

    @property
    def number(self) -> str:
        """What the number is."""
        return self.cell.metric if self.cell.stage is None else f"{self.cell.metric} {self.cell.stage} T"

    def cells(self) -> list[str]:
        """Return the row as text."""
        pairs = ((self.cell.printed, self.cell.temperature), (self.printed, self.temperature))
        texts = [text if t is None or self.cell.temperature is None else f"{text} ({t:.1f})" for text, t in pairs]
        return [self.table, self.cell.method, self.number, *texts, "yes" if self.agrees else "no"]


@dataclass(frozen=True)
class Verification:
    """All numbers that could be recomputed."""

    recomputed: tuple[RecomputedCell, ...]

    def table(self) -> Table:
        """One row per published number, in the paper's order."""
        return Table(HEADINGS, [cell.cells() for cell in self.recomputed], "Published numbers", left=(0, 1, 2))

    def sentence(self) -> str:
        """How many agree, and which do not."""
        others = [row for row in self.recomputed if not row.agrees]
        text = (
            f"{len(self.recomputed) - len(others)} of {len(self.recomputed)} published numbers follow from the "
            "published logits, to the last printed digit"
        )
        names = [f"{row.number} ({row.table}, {row.cell.method})" for row in others]
        return f"{text}; not: {', '.join(names)}." if names else f"{text}."

    def to_dict(self) -> dict[str, Any]:
        """Plain content for JSON; numbers are fractions and nats."""
        rows = [
            {
                "file": row.file,
                "table": row.table,
                **{name: getattr(row.cell, name) for name in ("data", "model", "method", "metric", "stage")},
                "published": row.cell.value,
                "published_temperature": row.cell.temperature,
                "recomputed": finite(row.value),
                "temperature": row.temperature,
                "agrees": row.agrees,
            }
            for row in self.recomputed
        ]
        return {"numbers": rows}


def verify(files: Iterable[Path]) -> Verification:
    """Recompute every number that the tables have for these files; see the module for their names and content.

    Raises:
        ValueError: the name of a file does not belong to any number of the tables.
        PredictionsError: a file cannot be read.
    """
    rows = [row for file in files for row in _recompute(file)]
    order = [table.key for table in published_tables()]
    return Verification(tuple(sorted(rows, key=lambda row: (order.index(row.table), row.file))))


def _recompute(file: Path) -> list[RecomputedCell]:
    model, data, method = [*file.stem.split("-", 2), "", ""][:3]
    cells = [
        (table.key, cell)
        for table in published_tables()
        for cell in table.as_meant().find(data=data, model=model, method=method)
        if cell.variant is None and cell.metric in METRICS
    ]
    if not cells:
        raise ValueError(
            f"{file}: the name must be MODEL-DATA-METHOD.npz with names of the paper's tables, such as "
            "resnet50-cifar10-flsd.npz"
        )
    validation, test = (load_predictions(file, split=split) for split in ("val", "test"))
    scaling = TemperatureScaling(criterion="ece").fit(validation.values, validation.target)
    temperature = float(scaling.temperature)
    logits = {"before": test.values, "after": test.values / temperature}
    evaluations = {stage: evaluate(values, test.target) for stage, values in logits.items()}
    recomputed = []
    for key, cell in cells:
        stage = cell.stage or "before"
        value = float(getattr(evaluations[stage], cell.metric))
        if cell.metric == "adaptive_ece":  # the published edges lose a sample
            value = adaptive_ece(logits[stage], test.target, convention="published")
        recomputed.append(RecomputedCell(file.name, key, cell, value, temperature if stage == "after" else None))
    return recomputed
