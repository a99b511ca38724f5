"""The tables of a page, as plain lists: every number in them comes from here, and from all samples.

A table is ``{"caption", "columns": [{"title", "help", "numeric"}], "rows": [[cell]], "sort"}``; a cell is a text, or
``[text, value]`` with the number that it is sorted by, or ``[text, value, remark]``.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dualfocal.calibrators import CalibratorComparison
from dualfocal.calibrators.comparison import LARGE, UNCALIBRATED, has_interval, nats
from dualfocal.metrics import Evaluation
from dualfocal.metrics.evaluation import finite
from dualfocal.metrics.inference import Inference
from dualfocal.metrics.registry import METRICS, Metric
from dualfocal.report.subjects import Subject

Cell = str | list[Any]
Table = dict[str, Any]

MOST_METHODS = 5  # side by side in a table: more would not fit on paper
MINUS, NONE = "\N{MINUS SIGN}", "\N{EN DASH}"


def metric_tables(methods: Mapping[str, Evaluation], positive: bool) -> list[Table]:
    """Every metric, a column for each method; beneath a calibration error its floor. A few methods to a table."""
    gap = f"mean forecast {MINUS} share of class 1" if positive else f"confidence {MINUS} accuracy"
    columns = list(methods.items())
    parts = [dict(columns[i : i + MOST_METHODS]) for i in range(0, len(columns), MOST_METHODS)]
    caption = "Every metric, before and after each calibrator" if len(columns) > 1 else "Every metric"
    if len(parts) == 1:
        return [_metric_table(caption, parts[0], gap)]
    return [_metric_table(f"{caption} ({i} of {len(parts)})", part, gap) for i, part in enumerate(parts, start=1)]


def _metric_table(caption: str, methods: dict[str, Evaluation], gap: str) -> Table:
    rows: list[list[Cell]] = []
    for attribute, metric in METRICS.items():
        row: list[Cell] = [metric.heading]
        for result in methods.values():
            value = metric.factor * getattr(result, attribute)
            row.append(number(value, metric.decimals, _remark(result, attribute, metric)))
        rows.append(row)
    rows.append([f"{gap} [%]", *(number(100 * result.overconfidence, 2, sign=True) for result in methods.values())])
    rows.append(["p-value of “calibrated”", *map(_p_value, methods.values())])
    return {"caption": caption, "columns": [column("metric", numeric=False), *map(column, methods)], "rows": rows}


def calibrator_table(comparison: CalibratorComparison | None) -> Table | None:
    """What each calibrator did to likelihood, calibration and error; None if no calibrator was scored."""
    if comparison is None or len(comparison.methods) == 1:
        return None
    rows: list[list[Cell]] = []
    methods = sorted(comparison.methods, key=lambda method: method.name != UNCALIBRATED)
    with_temperature = any(method.temperature is not None for method in methods)
    for method in methods:
        change = method.changes["nll"]
        ends = f"{nats(change.low, '+')} to {nats(change.high, '+')}" if has_interval(change) else ""
        row: list[Cell] = [
            method.name,
            number(method.scores["nll"], 4),
            ["", 0.0] if method.name == UNCALIBRATED else number(change.difference, 4, ends, sign=True),
            number(100 * method.scores["ece"], 2, f"floor {100 * method.ece_floor:.2f}"),
            number(100 * method.scores["error"], 2),
            number(100 * method.argmax_changed, 2),
        ]
        if with_temperature:
            row.append("" if method.temperature is None else number(method.temperature, 3))
        rows.append(row)
    columns = [
        column("method", numeric=False),
        column("NLL", "nats"),
        column("change", f"of the NLL, with its {100 * comparison.level:.4g} % interval"),
        column("ECE %", "and what a perfectly calibrated model would show"),
        column("error %"),
        column("moved %", "samples whose predicted class is another"),
        column("T", "fitted temperature"),
    ]
    caption = "Calibrators" if comparison.repeats == 1 else f"Calibrators: means over {comparison.repeats} repeats"
    return {"caption": caption, "columns": columns[: len(rows[0])], "rows": rows}


def summary_table(
    subjects: Sequence[Subject], comparisons: Sequence[CalibratorComparison | None], positive: bool
) -> Table:
    """All subjects in a line each, before and after temperature scaling where that was tried."""
    gap = f"forecast {MINUS} share" if positive else f"conf {MINUS} acc"
    methods = [() if comparison is None else comparison.methods for comparison in comparisons]
    scaled = [next((method for method in each if method.name == "temperature"), None) for each in methods]
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
            row += [
                number(after.scores["nll"], 4),
                number(100 * after.scores["ece"], 2, f"floor {100 * after.ece_floor:.2f}"),
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
