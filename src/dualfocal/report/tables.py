"""The tables of a page, as plain lists: every number in them comes from here, and from all samples.

A table is ``{"caption", "columns": [{"title", "help", "numeric"}], "rows": [[cell]], "sort"}``; a cell is a text, or
``[text, value]`` with the number that it is sorted by, or ``[text, value, remark]``.
"""

import math
from collections.abc import Sequence
from typing import Any

from dualfocal.calibrators.ranking import AS_IS, LARGE, Scored, has_ends, nats
from dualfocal.metrics import Evaluation
from dualfocal.metrics.evaluation import finite
from dualfocal.metrics.inference import Inference
from dualfocal.metrics.registry import METRICS, Metric
from dualfocal.report.calibrated import Calibrated
from dualfocal.report.subjects import Subject

Cell = str | list[Any]
Table = dict[str, Any]

MOST_METHODS = 5  # side by side in a table: more would not fit on paper
MINUS, NONE = "\N{MINUS SIGN}", "\N{EN DASH}"


def metric_tables(found: Calibrated, positive: bool) -> list[Table]:
    """Every metric, a column for each method; beneath a calibration error its floor. A few methods to a table."""
    gap = f"mean forecast {MINUS} share of class 1" if positive else f"confidence {MINUS} accuracy"
    parts = [found.methods[i : i + MOST_METHODS] for i in range(0, len(found.methods), MOST_METHODS)]
    caption = "Every metric, before and after each calibrator" if len(found.methods) > 1 else "Every metric"
    if len(parts) == 1:
        return [_metric_table(caption, parts[0], gap, found.repeats)]
    return [
        _metric_table(f"{caption} ({i} of {len(parts)})", part, gap, found.repeats)
        for i, part in enumerate(parts, start=1)
    ]


def _metric_table(caption: str, methods: Sequence[Scored], gap: str, repeats: int) -> Table:
    rows: list[list[Cell]] = []
    for attribute, metric in METRICS.items():
        row: list[Cell] = [metric.heading]
        for of in methods:
            value = metric.factor * getattr(of.evaluation, attribute)
            row.append(number(value, metric.decimals, _remark(of.evaluation, attribute, metric)))
        rows.append(row)
    rows.append([f"{gap} [%]", *(number(100 * of.evaluation.overconfidence, 2, sign=True) for of in methods)])
    rows.append(["p-value of “calibrated”", *(_p_value(of.evaluation) for of in methods)])
    # The table of calibrators has means over repeats, so that this one must say that it has not.
    titles = [of.name if repeats == 1 or of.name == AS_IS else f"{of.name}, repeat 1" for of in methods]
    return {"caption": caption, "columns": [column("metric", numeric=False), *map(column, titles)], "rows": rows}


def calibrator_table(found: Calibrated, level: float) -> Table:
    """What each calibrator did to likelihood, calibration and error."""
    rows: list[list[Cell]] = []
    for of in found.methods:
        change = of.changes["nll"]
        ends = f"{nats(change.low, '+')} to {nats(change.high, '+')}" if has_ends(change) else ""
        row: list[Cell] = [
            of.name,
            number(of.scores["nll"], 4),
            ["", 0.0] if of.name == AS_IS else number(change.difference, 4, ends, sign=True),
            number(100 * of.scores["ece"], 2, f"floor {100 * _inference(of.evaluation).floors['ece'].mean:.2f}"),
            number(100 * of.scores["error"], 2),
            number(100 * of.argmax_changed, 2),
        ]
        if found.temperatures:
            row.append(number(found.temperatures[of.name], 3) if of.name in found.temperatures else "")
        rows.append(row)
    columns = [
        column("method", numeric=False),
        column("NLL", "nats"),
        column("change", f"of the NLL, with its {100 * level:.4g} % interval"),
        column("ECE %", "and what a perfectly calibrated model would show"),
        column("error %"),
        column("moved %", "samples whose predicted class is another"),
        column("T", "fitted temperature"),
    ]
    caption = "Calibrators" if found.repeats == 1 else f"Calibrators: means over {found.repeats} repeats"
    return {"caption": caption, "columns": columns[: len(rows[0])], "rows": rows}


def summary_table(subjects: Sequence[Subject], found: Sequence[Calibrated], positive: bool) -> Table:
    """All subjects in a line each, before and after temperature scaling where that was tried."""
    gap = f"forecast {MINUS} share" if positive else f"conf {MINUS} acc"
    scaled = [next((of for of in each.methods if of.name == "temperature"), None) for each in found]
    rows: list[list[Cell]] = []
    for subject, after in zip(subjects, scaled, strict=True):
        result, inference = subject.evaluation, _inference(subject.evaluation)
        row: list[Cell] = [
            subject.name,
            number(result.num_samples, 0),
            number(100 * result.error, 2),
            number(result.nll, 4),
            number(100 * result.ece, 2, f"floor {100 * inference.floors['ece'].mean:.2f}"),
            number(100 * result.overconfidence, 2, sign=True),
            _p_value(result),
        ]
        if after is not None:
            floor = _inference(after.evaluation).floors["ece"].mean
            row += [
                number(after.scores["nll"], 4),
                number(100 * after.scores["ece"], 2, f"floor {100 * floor:.2f}"),
            ]
        elif any(scaled):
            row += ["", ""]
        rows.append(row)
    columns = [
        column("input", numeric=False),
        column("N", "samples"),
        column("error %"),
        column("NLL", "nats"),
        column("ECE %", "and what a perfectly calibrated model would show"),
        column(gap, "in points: above 0 claims too much"),
        column("p", "of “calibrated”; not adjusted for the number of inputs"),
    ]
    caption = "As they are"
    if any(scaled):
        caption = "Before and after temperature scaling"
        columns += [column("NLL after T", "temperature scaling"), column("ECE % after T", "temperature scaling")]
    return {"caption": caption, "columns": columns, "rows": rows, "sortable": True}


def plain_table(caption: str, headings: Sequence[str], rows: list[list[str]]) -> Table:
    """Texts only."""
    columns = [column(title, numeric=False) for title in headings]
    return {"caption": caption, "columns": columns, "rows": rows}


def column(title: str, help: str = "", *, numeric: bool = True) -> dict[str, object]:
    """A heading, and what it means."""
    return {"title": title, "help": help, "numeric": numeric}


def number(value: float, decimals: int, remark: str = "", *, sign: bool = False) -> Cell:
    """A cell with a number, and a remark beneath it."""
    form = f".{decimals}f" if not abs(value) >= LARGE or decimals == 0 else ".3e"
    text = NONE if math.isnan(value) else f"{value:{'+' if sign else ''},{form}}".replace("-", MINUS)
    text = text.replace("inf", "∞")
    sorted_by = finite(value)
    return [text, sorted_by, remark.replace("-", MINUS)] if remark else [text, sorted_by]


def _p_value(result: Evaluation) -> Cell:
    value = _inference(result).p_value
    return ["< 0.001" if value < 0.001 else f"{value:.3f}", value]  # 1/1001 is the least that 1000 draws give


def _remark(result: Evaluation, attribute: str, metric: Metric) -> str:
    inference = _inference(result)
    if attribute == "debiased_ece":
        low, high = map(metric.text, inference.debiased_ece)
        return f"{100 * inference.level:.4g} %: {low} to {high}"
    floor = inference.floors.get(attribute)
    if floor is None:
        return ""
    return f"floor {metric.text(floor.mean)}, 95 % {metric.text(floor.q95)}"


def _inference(result: Evaluation) -> Inference:
    assert result.inference is not None
    return result.inference
