"""The tables of a page as plain lists, computed from all samples.

A table is ``{"caption", "columns": [{"title", "help", "numeric"}], "rows": [[cell]], "sort"}``; a cell is a text, or
``[text, value]`` with the number to sort by, ``[text, value, remark]``, or ``[text, value, remark, term]`` with a key
of the glossary.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dualfocal.calibrators import CalibratorComparison, MethodScore
from dualfocal.calibrators.comparison import LARGE, UNCALIBRATED, has_interval, nats
from dualfocal.metrics import Evaluation
from dualfocal.metrics.inference_result import Inference
from dualfocal.metrics.registry import POSITIVE_TERMS, TERMS, Metric, metrics_of
from dualfocal.metrics.result import finite
from dualfocal.report.calibrated import Calibration
from dualfocal.report.inputs import ReportInput

Cell = str | list[Any]
Table = dict[str, Any]

MOST_METHODS = 5  # columns of a table: more would not fit on paper
MINUS, NONE = "\N{MINUS SIGN}", "\N{EN DASH}"


def metric_tables(methods: Mapping[str, Evaluation], positive: bool, caption: str) -> list[Table]:
    """Return tables of every metric with a column per method; a calibration error has its noise floor below it."""
    names, results = list(methods), list(methods.values())
    starts = range(0, len(names), MOST_METHODS)
    return [
        {
            "caption": caption if len(starts) == 1 else f"{caption} ({number} of {len(starts)})",
            "columns": [column("metric", numeric=False), *map(column, names[start : start + MOST_METHODS])],
            "rows": _metric_rows(results[start : start + MOST_METHODS], positive),
        }
        for number, start in enumerate(starts, start=1)
    ]


def _metric_rows(results: Sequence[Evaluation], positive: bool) -> list[list[Cell]]:
    gap = f"mean probability of class 1 {MINUS} share of class 1" if positive else f"confidence {MINUS} accuracy"
    tested = "probability of class 1" if positive else "confidence of the predicted class"
    rows = [
        [_term(metric.heading, name), *(_metric(metric, name, result) for result in results)]
        for name, metric in metrics_of(positive=positive).items()
    ]
    gaps = [number(100 * result.overconfidence, 2, sign=True) for result in results]
    rows.append([_term(f"{gap} [%]", "overconfidence"), *gaps])
    rows.append([_term(f"p-value, {tested}", "p_value"), *(p_cell(_inference(result).p_value) for result in results)])
    if not positive:
        rows.append([_term("p-value, all class probabilities", "p_value"), *map(_classwise_p, results)])
    return rows


def model_tables(sources: Sequence[ReportInput], calibrations: Sequence[Calibration]) -> list[Table]:
    """Return tables of all metrics of all models side by side; of several models, a sortable summary comes first."""
    summary = [summary_table(sources, calibrations)] if len(sources) > 1 else []
    evaluations = {source.name: source.evaluation for source in sources}
    return summary + metric_tables(evaluations, sources[0].samples.positive, "All metrics, uncalibrated")


def calibrated_tables(source: ReportInput, calibration: Calibration) -> list[Table]:
    """Return tables of all metrics before and after each calibrator; none if no calibrator was scored."""
    if calibration.comparison is None or not calibration.evaluations:
        return []
    methods = {UNCALIBRATED: calibration.comparison[UNCALIBRATED].evaluation, **calibration.evaluations}
    return metric_tables(methods, source.samples.positive, "Metrics before and after each calibrator")


def glossary(positive: bool = False) -> dict[str, dict[str, str]]:
    """Return label and meaning of each term, by key; ``positive`` if the probability of class 1 is scored."""
    metrics = {name: (metric.heading, metric.meaning) for name, metric in metrics_of(positive=positive).items()}
    terms = {**metrics, **TERMS, **(POSITIVE_TERMS if positive else {})}
    return {
        key: {"label": label, "meaning": f"{meaning[0].upper()}{meaning[1:]}."}
        for key, (label, meaning) in terms.items()
    }


def calibrator_table(comparison: CalibratorComparison | None) -> Table | None:
    """Return a table of the calibrators' NLL, ECE and error (None: no calibrator was scored)."""
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
        column("NLL [nats]", term="nll"),
        column("change of NLL", f"change of the NLL, with its {100 * comparison.level:.4g} % confidence interval"),
        column("ECE [%]", term="ece"),
        column("error [%]", term="error"),
        column("changed [%]", "samples whose predicted class changes"),
        column("T", "fitted temperature"),
    ]
    caption = "Calibrators" if comparison.repeats == 1 else f"Calibrators: means over {comparison.repeats} repeats"
    width = 7 if any(method.temperature is not None for method in methods) else 6
    return {"caption": caption, "columns": columns[:width], "rows": [row[:width] for row in rows]}


def summary_table(sources: Sequence[ReportInput], calibrations: Sequence[Calibration]) -> Table:
    """Return a table with one row per input, before and after temperature scaling if that was scored."""
    gap, gap_help = (
        (f"prob {MINUS} share", "probability minus share of class 1, in points; above 0: too high")
        if sources[0].samples.positive
        else (f"conf {MINUS} acc", "confidence minus accuracy, in points; above 0: over-confident")
    )
    columns = [
        column("input", numeric=False),
        column("N", "samples"),
        column("error [%]", term="error"),
        column("NLL [nats]", term="nll"),
        column("ECE [%]", term="ece"),
        column(gap, gap_help),
        column("p", "p-value of the hypothesis “calibrated”, adjusted for the two tests, not for the number of inputs"),
        column("NLL after T [nats]", "NLL after temperature scaling"),
        column("ECE after T [%]", "ECE after temperature scaling"),
    ]
    samples: list[list[Cell]] = [
        [
            source.name,
            number(source.evaluation.num_samples, 0),
            number(100 * source.evaluation.error, 2),
            number(source.evaluation.nll, 4),
            _ece(source.evaluation.ece, _inference(source.evaluation).floors["ece"].mean),
            number(100 * source.evaluation.overconfidence, 2, sign=True),
            p_cell(_inference(source.evaluation).joint_p_value),
            "" if calibration.scaled is None else number(calibration.scaled.scores["nll"], 4),
            "" if calibration.scaled is None else _ece(calibration.scaled.scores["ece"], calibration.scaled.ece_floor),
        ]
        for source, calibration in zip(sources, calibrations, strict=True)
    ]
    any_scaled = any(calibration.scaled for calibration in calibrations)
    caption, width = ("Before and after temperature scaling", 9) if any_scaled else ("Uncalibrated", 7)
    samples = [row[:width] for row in samples]
    return {"caption": caption, "columns": columns[:width], "rows": samples, "sortable": True}


def column(title: str, help: str = "", *, term: str = "", numeric: bool = True) -> dict[str, object]:
    """Return the heading of a column with its explanation, or with a key of the glossary."""
    return {"title": title, "help": help, "term": term, "numeric": numeric}


def number(value: float, decimals: int, remark: str = "", *, sign: bool = False) -> Cell:
    """Return a cell with a number, and a remark below it."""
    form = f".{decimals}f" if not abs(value) >= LARGE or decimals == 0 else ".3e"
    text = NONE if math.isnan(value) else f"{value:{'+' if sign else ''},{form}}".replace("-", MINUS)
    cell = [text.replace("inf", "∞"), finite(value)]
    return [*cell, remark.replace("-", MINUS)] if remark else cell


def small_decimals(share: float) -> int:
    """Return how many decimals show a small share in percent with two digits, at least 1.

    >>> small_decimals(0.1), small_decimals(0.01), small_decimals(0.001)
    (1, 1, 2)
    """
    return max(1, 1 - math.floor(math.log10(100 * share) + 1e-9))


def p_cell(value: float) -> Cell:
    """Return a cell with a p-value."""
    return ["< 0.001" if value < 0.001 else f"{value:.3f}", value]  # 1/1001 is the lowest value with 1000 draws


def _term(text: str, key: str) -> Cell:
    """Return a cell with a key of the glossary."""
    return [text, None, "", key]


def _classwise_p(result: Evaluation) -> Cell:
    classwise = _inference(result).classwise
    return "" if classwise is None else p_cell(classwise.p_value)


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
