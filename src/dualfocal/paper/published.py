"""Every number of every table of the paper, as printed.

``published.json`` has the 13 tables in the order of the paper, with a cell per number. A cell stands where the paper
prints it; where that is known to be wrong it has an ``erratum``, and ``meant``, the fields that are right, if they are
known: :meth:`Table.as_meant` moves it there. Names of data, models, losses and metrics are this package's: the column
"Weight Decay" is ``cross_entropy``, and "Focal Loss" is ``flsd``, which is what the paper ran under that name.

``value`` is for computing: a fraction where the paper prints percent, nats where it prints nats times 100, else the
printed number. ``stage`` is ``"before"`` or ``"after"`` temperature scaling; None: it does not matter, or is not said.
``variant`` tells cells apart that differ in one thing more, which ``Table.variant`` names: the loss's ``rival`` in the
ablation, ``gamma``, the ``ood`` data set, or the ``statistic``, ``"mean"`` or ``"standard_error"``, of repeated runs.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

from dualfocal._checks import did_you_mean


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A number of the paper, and where it stands."""

    data: str
    model: str
    method: str
    metric: str
    unit: str  # of what is printed: "percent", "nats x 100" or "number"
    stage: str | None
    printed: str
    value: float
    temperature: float | None  # as printed behind the number
    bold: bool
    variant: str | None = None
    row: str | None = None  # the ablation's rows in the paper's words
    erratum: str | None = None
    meant: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of the paper."""

    key: str  # "table1" to "table13"
    name: str
    label: str  # in the paper's source
    title: str
    caption: str
    metric: str | None  # None: its cells have several
    unit: str  # of most of its cells
    variant: str | None
    headings: Mapping[str, str] = field(hash=False)  # method to the paper's word for it
    notes: tuple[str, ...]
    cells: tuple[Cell, ...]

    def find(
        self,
        *,
        data: str | None = None,
        model: str | None = None,
        method: str | None = None,
        stage: str | None = None,
        metric: str | None = None,
        variant: str | None = None,
    ) -> list[Cell]:
        """The cells that have what is asked for; None asks for nothing.

        >>> [cell.printed for cell in published("ece").find(data="cifar10", model="resnet50", method="dual_focal")]
        ['0.46', '0.46']
        """
        asked = {"data": data, "model": model, "method": method, "stage": stage, "metric": metric, "variant": variant}
        wanted = {(name, value) for name, value in asked.items() if value is not None}
        return [cell for cell in self.cells if all(getattr(cell, name) == value for name, value in wanted)]

    def value(self, **where: str | None) -> float:
        """The value of the one cell that :meth:`find` finds.

        >>> published("nll").value(data="cifar10", model="resnet50", method="dual_focal", stage="after")
        0.1702

        Raises:
            ValueError: there is no such cell, or more than one; the message says what there is.
        """
        found = self.find(**where)
        if len(found) == 1:
            return found[0].value
        asked = {name: value for name, value in where.items() if value is not None}
        what = ", ".join(f"{name}={value!r}" for name, value in asked.items()) or "all there is"
        # Of several cells, in what they differ; else of each thing asked for what there is beside the rest, or at all.
        names = ("data", "model", "method", "stage", "metric", "variant") if found else asked
        cells = {name: found or self.find(**(asked | {name: None})) or self.cells for name in names}
        values = {name: dict.fromkeys(str(getattr(cell, name)) for cell in cells[name]) for name in names}
        listed = [f"{name}: {', '.join(of)}" for name, of in values.items() if len(of) > 1 or not found]
        raise ValueError(f"{self.key} ({self.name}) has {len(found)} cells for {what}; say one of {'; '.join(listed)}")

    def as_meant(self) -> "Table":
        """The table with every misplaced cell where it belongs, as far as that is known.

        >>> cell = {"data": "cifar10", "model": "densenet121", "method": "dual_focal"}
        >>> published("adafocal").value(**cell), published("adafocal").as_meant().value(**cell)
        (0.0081, 0.0057)
        """
        cells = tuple(replace(cell, meant={}, **cell.meant) for cell in self.cells)
        metrics = {cell.metric for cell in cells}
        return replace(self, cells=cells, metric=metrics.pop() if len(metrics) == 1 else None)


@cache
def published_tables() -> tuple[Table, ...]:
    """All tables of the paper, read once."""
    file = json.loads((resources.files("dualfocal.paper") / "published.json").read_text("utf-8"))
    tables = []
    for key, table in file["tables"].items():
        # A cell has its metric and unit only where they are not the table's.
        shared = {"metric": table["metric"], "unit": table["unit"]}
        cells = tuple(Cell(**(shared | cell)) for cell in table["cells"])
        tables.append(Table(key=key, **(table | {"notes": tuple(table["notes"]), "cells": cells})))
    return tuple(tables)


def published(name: str) -> Table:
    """A table of the paper, by number, as ``"table1"``, or by name, as ``"ece"``.

    >>> published("table1").title
    'ECE before and after temperature scaling'

    Raises:
        ValueError: there is no such table; the message has the nearest name.
    """
    tables = published_tables()
    known = {table.key: table for table in tables} | {table.name: table for table in tables}
    if name not in known:
        names = ", ".join(f"{table.key} ({table.name})" for table in tables)
        raise ValueError(f"the paper's tables are {names}; got {name!r}{did_you_mean(name, known)}")
    return known[name]
