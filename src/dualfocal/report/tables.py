"""The tables of a page, as plain lists: every number in them comes from here, and from all samples.

A table is ``{"caption", "columns": [{"title", "help", "numeric"}], "rows": [[cell]], "sort"}``; a cell is a text, or
``[text, value]`` with the number that it is sorted by, or ``[text, value, remark]``.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dualfocal.calibrators import CalibratorComparison, MethodScore
from dualfocal.calibrators.comparison import LARGE, UNCALIBRATED, has_interval, nats
from dualfocal.metrics import Evaluation
from dualfocal.metrics.evaluation import finite
from dualfocal.metrics.inference import Inference
from dualfocal.metrics.registry import METRICS, Metric
from dualfocal.report.calibrated import Calibration
from dualfocal.report.inputs import ReportInput

Cell = str | list[Any]
Table = dict[str, Any]

MOST_METHODS = 5  # side by side in a table: more would not fit on paper
MINUS, NONE = "\N{MINUS SIGN}", "\N{EN DASH}"


def metric_tables(methods: Mapping[str, Evaluation], positive: bool) -> list[Table]:
    """Every metric, a column for each method; beneath a calibration error its floor. A few methods to a table."""
    gap = f"mean forecast {MINUS} share of class 1" if positive else f"confidence {MINUS} accuracy"
    caption = "Every metric, before and after each calibrator" if len(methods) > 1 else "Every metric"
    columns = list(methods.items())
    parts = [dict(columns[i : i + MOST_METHODS]) for i in range(0, len(columns), MOST_METHODS)]
    return [
        {
            "caption": caption if len(parts) == 1 else f"{caption} ({i} of {len(parts)})",
            "columns": [column("metric", numeric=False), *map(column, part)],
            "rows": [
                *(
                    [of.heading, *(_metric(of, name, result) for result in part.values())]
                    for name, of in METRICS.items()
                ),
                [f"{gap} [%]", *(number(100 * result.overconfidence, 2, sign=True) for result in part.values())],
                ["p-value of “calibrated”", *map(_p_value, part.values())],
            ],
        }
        for i, part in enumerate(parts, start=1)
    ]


def calibrator_table(comparison: CalibratorComparison | None) -> Table | None:
    """What each calibrator did to likelihood, calibration and error; None if no calibrator was scored."""
    if comparison is None or len(comparison.methods) == 1:
        return None
    methods = sorted(comparison.methods, key=lambda method: method.name != UNCALIBRATED)
    rows = [
        [
            method.name,
            number(method.scores["nll"], 4),
            _change(method),
            _ece(method.scores["ece"], method.ece_floor),
            number(100 * method.scores["error"], 2),
            number(100 * method.argmax_changed, 2),
            "" if method.temperature is None else number(method.temperature, 3),
        ]
        for method in methods
    ]
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
    width = 7 if any(method.temperature is not None for method in methods) else 6
    return {"caption": caption, "columns": columns[:width], "rows": [row[:width] for row in rows]}


def summary_table(subjects: Sequence[ReportInput], found: Sequence[Calibration]) -> Table:
    """All subjects in a line each, before and after temperature scaling where that was tried."""
    gap = f"forecast {MINUS} share" if subjects[0].rows.positive else f"conf {MINUS} acc"
    columns = [
        column("input", numeric=False),
        column("N", "samples"),
        column("error %"),
        column("NLL", "nats"),
        column("ECE %", "and what a perfectly calibrated model would show"),
        column(gap, "in points: above 0 claims too much"),
        column("p", "of “calibrated”; not adjusted for the number of inputs"),
        column("NLL after T", "temperature scaling"),
        column("ECE % after T", "temperature scaling"),
    ]
    rows: list[list[Cell]] = [
        [
            subject.name,
            number(subject.evaluation.num_samples, 0),
            number(100 * subject.evaluation.error, 2),
            number(subject.evaluation.nll, 4),
            _ece(subject.evaluation.ece, _inference(subject.evaluation).floors["ece"].mean),
            number(100 * subject.evaluation.overconfidence, 2, sign=True),
            _p_value(subject.evaluation),
            "" if of.scaled is None else number(of.scaled.scores["nll"], 4),
            "" if of.scaled is None else _ece(of.scaled.scores["ece"], of.scaled.ece_floor),
        ]
        for subject, of in zip(subjects, found, strict=True)
    ]
    any_scaled = any(of.scaled for of in found)
    caption, width = ("Before and after temperature scaling", 9) if any_scaled else ("As they are", 7)
    rows = [row[:width] for row in rows]
    return {"caption": caption, "columns": columns[:width], "rows": rows, "sortable": True}


def plain_table(caption: str, headings: Sequence[str], rows: list[list[str]]) -> Table:
    """Texts only."""
    return {"caption": caption, "columns": [column(title, numeric=False) for title in headings], "rows": rows}


def column(title: str, help: str = "", *, numeric: bool = True) -> dict[str, object]:
    """A heading, and what it means."""
    return {"title": title, "help": help, "numeric": numeric}


def number(value: float, decimals: int, remark: str = "", *, sign: bool = False) -> Cell:
    """A cell with a number, and a remark beneath it."""
    form = f".{decimals}f" if not abs(value) >= LARGE or decimals == 0 else ".3e"
    text = NONE if math.isnan(value) else f"{value:{'+' if sign else ''},{form}}".replace("-", MINUS)
    cell = [text.replace("inf", "∞"), finite(value)]
    return [*cell, remark.replace("-", MINUS)] if remark else cell


def _p_value(result: Evaluation) -> Cell:
    value = _inference(result).p_value
    return ["< 0.001" if value < 0.001 else f"{value:.3f}", value]  # 1/1001 is the least that 1000 draws give


def _metric(metric: Metric, name: str, result: Evaluation) -> Cell:
    inference, remark = _inference(result), ""
    if name == "debiased_ece":
        low, high = map(metric.text, inference.debiased_ece)
        remark = f"{100 * inference.level:.4g} %: {low} to {high}"
    elif floor := inference.floors.get(name):
        remark = f"floor {metric.text(floor.mean)}, 95 % {metric.text(floor.q95)}"
    return number(metric.factor * getattr(result, name), metric.decimals, remark)


def _change(method: MethodScore) -> Cell:
    change = method.changes["nll"]
    ends = f"{nats(change.low, '+')} to {nats(change.high, '+')}" if has_interval(change) else ""
    return ["", 0.0] if method.name == UNCALIBRATED else number(change.difference, 4, ends, sign=True)


def _ece(value: float, floor: float) -> Cell:
    return number(100 * value, 2, f"floor {100 * floor:.2f}")


def _inference(result: Evaluation) -> Inference:
    assert result.inference is not None
    return result.inference
