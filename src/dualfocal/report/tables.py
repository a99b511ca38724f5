"""The tables of a page, as plain lists: every number in them comes from here, and from all samples.

A table is ``{"caption", "columns": [{"title", "help", "numeric"}], "rows": [[cell]], "sort"}``; a cell is a text, or
``[text, value]`` with the number that it is sorted by, or ``[text, value, remark]``.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dualfocal.metrics import Evaluation
from dualfocal.metrics.evaluation import READ, finite
from dualfocal.metrics.inference import Inference
from dualfocal.report.calibrated import Calibrated, Method
from dualfocal.report.subjects import Subject

Cell = str | list[Any]
Table = dict[str, Any]

MOST_CLASS_ROWS = 2500  # of all tables of classes on a page together
MINUS, NONE = "\N{MINUS SIGN}", "\N{EN DASH}"
CHANCE = 1.96  # standard errors that chance stays within 19 times of 20


def metric_table(methods: Sequence[Method]) -> Table:
    """Every metric, a column for each method; beneath a calibration error its floor."""
    rows: list[list[Cell]] = []
    for attribute, name, factor, unit in READ:
        decimals = 4 if unit != "%" else 3 if attribute == "classwise_ece" else 2
        row: list[Cell] = [f"{name} [{unit}]" if unit else name]
        for of in methods:
            remark = _remark(of.evaluation, attribute, factor, decimals)
            row.append(_number(factor * getattr(of.evaluation, attribute), decimals, remark))
        rows.append(row)
    rows.append(
        [f"confidence {MINUS} accuracy [%]", *(_number(100 * of.evaluation.overconfidence, 2) for of in methods)]
    )
    rows.append(["p-value of “calibrated”", *(_number(_inference(of.evaluation).p_value, 4) for of in methods)])
    headings = [_column("metric", numeric=False), *(_column(of.name) for of in methods)]
    caption = "Every metric, before and after each calibrator" if len(methods) > 1 else "Every metric"
    return {"caption": caption, "columns": headings, "rows": rows}


def calibrator_table(found: Calibrated, level: float) -> Table:
    """What each calibrator did to likelihood, calibration and error."""
    rows: list[list[Cell]] = []
    for of in found.methods:
        change: Cell = ["", 0.0]
        if of.change is not None:
            ends = f"{of.change.low:+.4f} to {of.change.high:+.4f}"
            change = _number(of.change.difference, 4, ends, sign=True)
        rows.append(
            [
                of.name,
                _number(of.nll, 4),
                change,
                _number(100 * of.ece, 2, f"floor {100 * _inference(of.evaluation).floors['ece'].mean:.2f}"),
                _number(100 * of.error, 2),
                _number(100 * of.moved, 2),
            ]
        )
        if any(other.temperature is not None for other in found.methods):
            rows[-1].append("" if of.temperature is None else _number(of.temperature, 3))
    columns = [
        _column("method", numeric=False),
        _column("NLL", "nats"),
        _column("change", f"of the NLL, with its {100 * level:.4g} % interval"),
        _column("ECE %", "and what a perfectly calibrated model would show"),
        _column("error %"),
        _column("moved %", "samples whose predicted class is another"),
        _column("T", "fitted temperature"),
    ]
    return {"caption": "Calibrators", "columns": columns[: len(rows[0])], "rows": rows}


def class_table(subject: Subject, most: int) -> tuple[Table, str]:
    """Calibration by predicted class, worst first; and a line on what was left out, if anything was."""
    num_classes, predicted, seen = subject.rows.num_classes, subject.predicted, subject.seen
    assert seen.classes is not None
    confidence = seen.uncertainty.reciprocal()
    count, right, sums, variance = (
        _by_class(predicted, of, num_classes)
        for of in (torch.ones_like(confidence), seen.right.double(), confidence, confidence * (1 - confidence))
    )
    gap = (sums - right) / count
    chance = CHANCE * variance.sqrt() / count
    beyond = (gap.abs() - chance).clamp_min(0).nan_to_num(-1.0)
    true = torch.bincount(subject.rows.target, minlength=num_classes)
    one_against_rest = seen.classes.ece()
    order = sorted(range(num_classes), key=lambda c: (-float(beyond[c]), -float(one_against_rest[c]), c))
    columns = (true.double(), count, 100 * right / count, 100 * sums / count, 100 * gap, 100 * chance, 100 * beyond)
    names = subject.class_names
    rows: list[list[Cell]] = []
    for c in order[:most]:
        row: list[Cell] = [[names[c], c]]
        row += [_number(float(of[c]), 0 if i < 2 else 1, sign=i == 4) for i, of in enumerate(columns[:-1])]
        row.append(_number(float(columns[-1][c]), 1) if count[c] else _number(math.nan, 1))
        row.append(_number(100 * float(one_against_rest[c]), 2))
        rows.append(row)
    headings = [
        _column("class", numeric=False),
        _column("true", "samples of this class"),
        _column("predicted", "samples predicted as this class"),
        _column("accuracy %", "among those predicted as this class"),
        _column("confidence %", "mean, among those predicted as this class"),
        _column(f"conf {MINUS} acc", "in points: above 0 is over-confident"),
        _column("± chance", "95 % of what a calibrated model would show, in points"),
        _column("beyond", "how far the gap exceeds what chance explains, in points"),
        _column("one-vs-rest ECE %", "its mean over the classes is the classwise ECE"),
    ]
    note = "" if len(rows) == num_classes else f"The {len(rows):,} worst of {num_classes:,} classes are shown."
    caption = "Calibration by predicted class, worst first"
    return {"caption": caption, "columns": headings, "rows": rows, "sort": [7, True], "sortable": True}, note


def summary_table(subjects: Sequence[Subject], found: Sequence[Calibrated]) -> Table:
    """All subjects in a line each, before and after temperature scaling where that was tried."""
    scaled = [next((of for of in each.methods if of.name == "temperature"), None) for each in found]
    rows: list[list[Cell]] = []
    for subject, after in zip(subjects, scaled, strict=True):
        result, inference = subject.evaluation, _inference(subject.evaluation)
        row: list[Cell] = [
            subject.name,
            _number(result.num_samples, 0),
            _number(100 * result.error, 2),
            _number(result.nll, 4),
            _number(100 * result.ece, 2, f"floor {100 * inference.floors['ece'].mean:.2f}"),
            _number(100 * result.overconfidence, 2, sign=True),
            _number(inference.p_value, 3),
        ]
        if after is not None:
            floor = _inference(after.evaluation).floors["ece"].mean
            row += [_number(after.nll, 4), _number(100 * after.ece, 2, f"floor {100 * floor:.2f}")]
        elif any(scaled):
            row += ["", ""]
        rows.append(row)
    columns = [
        _column("input", numeric=False),
        _column("N", "samples"),
        _column("error %"),
        _column("NLL", "nats"),
        _column("ECE %", "and what a perfectly calibrated model would show"),
        _column(f"conf {MINUS} acc", "in points: above 0 is over-confident"),
        _column("p", "of “calibrated”; not adjusted for the number of inputs"),
    ]
    caption = "As they are"
    if any(scaled):
        caption = "Before and after temperature scaling"
        columns += [_column("NLL after T", "temperature scaling"), _column("ECE % after T", "temperature scaling")]
    return {"caption": caption, "columns": columns, "rows": rows, "sortable": True}


def plain_table(caption: str, headings: Sequence[str], rows: list[list[str]]) -> Table:
    """Texts only."""
    columns = [_column(title, numeric=False) for title in headings]
    return {"caption": caption, "columns": columns, "rows": rows}


def _column(title: str, help: str = "", *, numeric: bool = True) -> dict[str, object]:
    return {"title": title, "help": help, "numeric": numeric}


def _number(value: float, decimals: int, remark: str = "", *, sign: bool = False) -> Cell:
    text = NONE if math.isnan(value) else f"{value:{'+' if sign else ''},.{decimals}f}".replace("-", MINUS)
    text = text.replace("inf", "∞")
    sorted_by = finite(value)
    return [text, sorted_by, remark.replace("-", MINUS)] if remark else [text, sorted_by]


def _remark(result: Evaluation, attribute: str, factor: float, decimals: int) -> str:
    inference = _inference(result)
    if attribute == "debiased_ece":
        low, high = (factor * end for end in inference.debiased_ece)
        return f"{100 * inference.level:.4g} %: {low:.{decimals}f} to {high:.{decimals}f}"
    floor = inference.floors.get(attribute)
    if floor is None:
        return ""
    return f"floor {factor * floor.mean:.{decimals}f}, 95 % {factor * floor.q95:.{decimals}f}"


def _inference(result: Evaluation) -> Inference:
    assert result.inference is not None
    return result.inference


def _by_class(of_class: Tensor, values: Tensor, num_classes: int) -> Tensor:
    return torch.zeros(num_classes, dtype=torch.float64).index_add_(0, of_class, values.double())
