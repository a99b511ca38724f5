"""Every number of every table of the paper, as printed.

``published.json`` contains the 13 tables in the order of the paper, with one cell per number. A cell is stored where
the paper prints it. If its place is known to be wrong, it has an ``erratum`` and, if they are known, the right fields
in ``meant``; :meth:`Table.as_meant` moves it there. Data, models, losses and metrics have the names of this package:
the column "Weight Decay" is ``cross_entropy``, and "Focal Loss" is ``flsd``, which the paper ran under that name.

``value`` is a fraction where the paper prints percent, nats where it prints nats times 100, and otherwise the printed
number. ``stage`` is ``"before"`` or ``"after"`` temperature scaling (None: it has no effect, or is not given).
``variant`` distinguishes cells that differ in one more property, which ``Table.variant`` names: the ``rival`` of the
loss in the ablation, ``gamma``, the ``ood`` data set, or the ``statistic`` of repeated runs, ``"mean"`` or
``"standard_error"``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

from dualfocal.checks import did_you_mean


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A number of the paper and its place in a table."""

    data: str
    model: str
    method: str
    metric: str
    unit: str  # of the printed number: "percent", "nats x 100" or "number"
    stage: str | None
    printed: str
    value: float
    temperature: float | None  # printed behind the number
    bold: bool
    variant: str | None = None
    row: str | None = None  # of the ablation: the row as the paper names it
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
    metric: str | None  # None if its cells have several metrics
    unit: str  # of most of its cells
    variant: str | None
    headings: Mapping[str, str] = field(hash=False)  # method -> heading in the paper
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
        """Return the cells with the given properties; None matches every cell.

        >>> [cell.printed for cell in published("ece").find(data="cifar10", model="resnet50", method="dual_focal")]
        ['0.46', '0.46']
        """
        filters = {"data": data, "model": model, "method": method, "stage": stage, "metric": metric, "variant": variant}
        required = {(name, value) for name, value in filters.items() if value is not None}
        return [cell for cell in self.cells if all(getattr(cell, name) == value for name, value in required)]

    def value(self, **where: str | None) -> float:
        """Return the value of the only cell with the given properties, see :meth:`find`.

        >>> published("nll").value(data="cifar10", model="resnet50", method="dual_focal", stage="after")
        0.1702

        Raises:
            ValueError: no cell or several cells match; the message lists the possible values.
        """
        matches = self.find(**where)
        if len(matches) == 1:
            return matches[0].value
        filters = {name: value for name, value in where.items() if value is not None}
        what = ", ".join(f"{name}={value!r}" for name, value in filters.items()) or "no filter"
        # For several cells, list the properties in which they differ; for none, the values each filter could have.
        names = ("data", "model", "method", "stage", "metric", "variant") if matches else filters
        cells = {name: matches or self.find(**(filters | {name: None})) or self.cells for name in names}
        values = {name: dict.fromkeys(str(getattr(cell, name)) for cell in cells[name]) for name in names}
        choices = [f"{name}: {', '.join(some)}" for name, some in values.items() if len(some) > 1 or not matches]
        raise ValueError(
            f"{self.key} ({self.name}) has {len(matches)} cells for {what}; choose one of {'; '.join(choices)}"
        )

    def as_meant(self) -> "Table":
        """Return the table with every misplaced cell moved to its right place, as far as that is known.

        >>> cell = {"data": "cifar10", "model": "densenet121", "method": "dual_focal"}
        >>> published("adafocal").value(**cell), published("adafocal").as_meant().value(**cell)
        (0.0081, 0.0057)
        """
        cells = tuple(replace(cell, meant={}, **cell.meant) for cell in self.cells)
        metrics = {cell.metric for cell in cells}
        return replace(self, cells=cells, metric=metrics.pop() if len(metrics) == 1 else None)


@cache
def published_tables() -> tuple[Table, ...]:
    """Return all tables of the paper."""
    file = json.loads((resources.files("dualfocal_lab.paper") / "published.json").read_text("utf-8"))
    tables = []
    for key, table in file["tables"].items():
        # A cell has its own metric and unit only where they differ from the table's.
        shared = {"metric": table["metric"], "unit": table["unit"]}
        cells = tuple(Cell(**(shared | cell)) for cell in table["cells"])
        tables.append(Table(key=key, **(table | {"notes": tuple(table["notes"]), "cells": cells})))
    return tuple(tables)


def published(name: str) -> Table:
    """Return a table of the paper, by number, such as ``"table1"``, or by name, such as ``"ece"``.

    >>> published("table1").title
    'ECE before and after temperature scaling'

    Raises:
        ValueError: the table is unknown; the message suggests the nearest name.
    """
    tables = published_tables()
    known = {table.key: table for table in tables} | {table.name: table for table in tables}
    if name not in known:
        names = ", ".join(f"{table.key} ({table.name})" for table in tables)
        raise ValueError(f"unknown table {name!r}; the paper's tables are {names}{did_you_mean(name, known)}")
    return known[name]
