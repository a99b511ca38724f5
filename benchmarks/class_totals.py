"""How often does the class table of a report flag a class of a calibrated model? A simulation.

    python benchmarks/class_totals.py [--csv FILE] [--repeats 400] [--log FILE]

Labels are drawn from the probabilities of the model, so that no class is off. Samples have equal weights, or those of
``weight_coverage.py``; each is there ``copies`` times, as a cluster. ``alarms`` is the share of data sets in which
any p-value of :func:`dualfocal.metrics.inference.class_totals.class_totals`, adjusted for all classes, is 5 % or less;
``independent_alarms`` the same for samples that are taken as independent and of equal weight. Goal: at most 7 %; a
setting passes if the 99 % binomial interval of its rate meets the goal.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from _measure import run_simulation
from inference_coverage import passes
from rich.console import Console
from rich.table import Table
from weight_coverage import Setting as Weighted
from weight_coverage import draw

from dualfocal.metrics.inference.class_totals import class_totals
from dualfocal.metrics.inference.classwise import class_gaps
from dualfocal.metrics.rows import as_rows
from dualfocal.metrics.scan import scan

SIGNIFICANCE, GOAL, CHUNK = 0.05, (0.0, 0.07), 50


class Setting(NamedTuple):
    """One setting of the simulation."""

    kind: str
    num_classes: int
    weights: str
    copies: int
    effective: int


class Chunk(NamedTuple):
    """Consecutive data sets of a setting."""

    setting: Setting
    first: int
    count: int


def chunks(repeats: int) -> Iterator[Chunk]:
    """Split all settings into parts of similar size."""
    structures = [("random.5", 1), ("covariate", 1), ("label", 1), ("both", 1), ("equal", 4), ("label", 4)]
    for kind in ("moderate", "sharp"):
        for num_classes in (3, 10):
            for effective in (200, 1000):
                for weights, copies in structures:
                    setting = Setting(kind, num_classes, weights, copies, effective)
                    yield from (Chunk(setting, k, min(CHUNK, repeats - k)) for k in range(0, repeats, CHUNK))


def simulate(chunk: Chunk) -> dict[str, list[float]]:
    """Return one value per data set of each rate."""
    torch.set_num_threads(1)
    setting = Setting(*chunk.setting)
    key = [setting.num_classes, setting.effective, setting.copies, *map(ord, setting.kind + setting.weights)]
    rng = np.random.default_rng([*key, chunk.first])
    values = defaultdict[str, list[float]](list)
    for _ in range(chunk.count):
        weights = "random.9" if setting.weights == "equal" else setting.weights
        arrays = draw(Weighted(setting.kind, setting.num_classes, weights, setting.effective), rng)
        logits, label, weight = (np.concatenate([array] * setting.copies) for array in arrays)
        clusters = None if setting.copies == 1 else np.tile(np.arange(len(arrays[1])), setting.copies)
        weight = None if setting.weights == "equal" else weight
        rows = as_rows(logits, label, input="logits", sample_weight=weight, clusters=clusters)
        gaps = class_totals(rows, scan(rows), design_effect=setting.copies)
        independent = class_gaps(as_rows(logits, label, input="logits"))
        values["alarms"].append(min(gap.p_value for gap in gaps) <= SIGNIFICANCE)
        values["independent_alarms"].append(min(gap.p_value for gap in independent) <= SIGNIFICANCE)
    return {name: [float(value) for value in numbers] for name, numbers in values.items()}


def record(setting: Setting, values: dict[str, list[float]]) -> dict[str, Any]:
    """Return one line of the CSV file."""
    means = {name: float(np.mean(numbers)) for name, numbers in values.items()}
    return {
        **setting._asdict(),
        "repeats": len(values["alarms"]),
        "passed": passes(values["alarms"], GOAL),
        **means,
    }


def show(records: list[dict[str, Any]]) -> None:
    """Print the rates of every setting; those that miss the goal in red."""
    table = Table(title="alarms in %")
    for heading in (*Setting._fields, "alarms", "independent alarms"):
        table.add_column(heading, justify="right")
    for r in records:
        rates = [f"{100 * r[name]:.1f}" for name in ("alarms", "independent_alarms")]
        table.add_row(*(str(r[name]) for name in Setting._fields), *rates, style="" if r["passed"] else "bold red")
    Console(width=120).print(table)


if __name__ == "__main__":
    run_simulation("class_totals.py", __doc__, simulate, chunks, record, show, repeats=400)
