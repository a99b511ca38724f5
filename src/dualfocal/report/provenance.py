"""Recipe, versions, seeds and training curves of the runs in a report."""

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from dualfocal.losses import LOSSES
from dualfocal.report.inputs import ReportInput
from dualfocal.report.names import shortened
from dualfocal.report.tables import Table, plain_table
from dualfocal.runs import Recipe
from dualfocal.runs.recipe import field_docs

CURVES = [f"{part}_{metric}" for part in ("val", "test") for metric in ("error", "nll", "ece")]  # in the log
MOST_POINTS = 60_000  # numbers in all curves of a page together
LONGEST_VALUE = 600


def about(source: ReportInput) -> Table:
    """Return a table of how the predictions were made."""
    rows = [["predictions", source.data.taken]]
    if source.run is not None and (result := source.run.result) is not None:
        for name in ("data", "num_weights", "weights_of_epoch", "device", "versions", "commit", "notes"):
            if getattr(result, name) not in (None, []):
                rows.append([name.replace("_", " "), _plain(getattr(result, name))])
        rows.append(["seconds of training", f"{result.seconds:.1f}"])
        rows += [[f"session {n}", _plain(session)] for n, session in enumerate(result.sessions, start=1)]
    return plain_table("Origin of the predictions", ["field", "value"], rows)


def recipe(source: ReportInput) -> dict[str, Any] | None:
    """Return what differs from the preset of the data set and model, and the whole recipe as JSON (None: no run)."""
    if source.run is None:
        return None
    own = source.run.recipe
    name, preset = nearest_preset(own)
    mine, theirs = own.to_dict(), preset.to_dict()
    hints = field_docs()
    rows = []
    for field, ours in mine.items():
        default = theirs[field]
        if ours != default and field != "schema":
            rows.append([field, _plain(ours), _plain(default), hints.get(field, "")])
    return {
        "summary": shortened(own.description, LONGEST_VALUE),
        "preset": name,
        "table": plain_table(f"Differences from the preset {name}", ["setting", "this run", "preset", "meaning"], rows),
        "json": json.dumps(mine, indent=1, ensure_ascii=False),
    }


def nearest_preset(own: Recipe) -> tuple[str, Recipe]:
    """Return the preset of the same data set, model and loss, or the recipe for custom data sets."""
    from dualfocal.train.presets import PRESETS, custom, preset

    known = own.loss in LOSSES
    for name in PRESETS:
        candidate = preset(name, [f"loss={own.loss}"] if known else [])
        if (candidate.data, candidate.model) == (own.data, own.model):
            return name, candidate
    return "for custom data sets", custom(own.data, own.model, own.loss if known else "dual_focal")


def differences(sources: Sequence[ReportInput]) -> Table | None:
    """Return a table of the fields in which the recipes differ (None: they do not differ)."""
    runs = [(source.name, source.run.recipe.to_dict()) for source in sources if source.run is not None]
    fields = [name for name in (runs[0][1] if runs else {}) if len({_plain(recipe[name]) for _, recipe in runs}) > 1]
    if len(runs) < 2 or not fields:
        return None
    rows = [[name, *(_plain(recipe[field]) for field in fields)] for name, recipe in runs]
    return plain_table("Differences between the recipes", ["run", *fields], rows)


def curves(source: ReportInput, most: int) -> dict[str, Any] | None:
    """Return error, NLL and ECE by epoch of the validation and, if logged, the test split (None: no log)."""
    if source.run is None:
        return None
    log = source.run.log
    series = {}
    for name in CURVES:
        values = [_number(line.get(name)) for line in log]
        if any(value is not None for value in values):
            series[name] = values
    if not series:
        return None
    # With a cosine schedule the learning rate falls in every epoch.
    rates = [_number(line.get("lr")) for line in log] if source.run.recipe.schedule == "step" else []
    drops = [i + 2 for i, (a, b) in enumerate(pairwise(rates)) if a is not None and b is not None and b < a]
    # Every k-th epoch and the last one, if all would be too many.
    step = -(-len(log) * (len(series) + 1) // most)
    indices = sorted({*range(0, len(log), step), len(log) - 1})
    return {
        "epoch": [i + 1 for i in indices],
        "series": {name: [values[i] for i in indices] for name, values in series.items()},
        "drops": drops,
        "step": step,
    }


def _number(value: object) -> float | None:
    """Round to five digits; None, a gap in a curve, if the value is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.5g}")


def _plain(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return shortened(text, LONGEST_VALUE)
