"""Intervals of each group of samples (``--group-by``), for a page."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scipy.special import ndtri

from dualfocal.metrics.cells import BinStats
from dualfocal.metrics.groups import GroupEvaluation
from dualfocal.report.inputs import design_effect
from dualfocal.report.names import shortened
from dualfocal.report.tables import MINUS, Table, column, number, p_cell

MOST_GROUPS = 40  # in a figure
MOST_ROWS = 1500  # in all tables of groups of a page together


def groups_figure(name: str, groups: Sequence[GroupEvaluation], models: int = 1) -> dict[str, Any]:
    """Return error, over-confidence and debiased error of each group with intervals, in the order given: worst first.

    Args:
        name: name of the column that the groups come from.
        groups: the evaluated groups, from :func:`~dualfocal.metrics.groups.evaluate_groups`.
        models: number of models on the page, which share its size.

    Returns:
        ``rows``: for each of the first 40 groups ``name``, ``count``, ``error``, ``gap`` (mean confidence minus
        accuracy), ``gapLow``, ``gapHigh``, ``debiased``, ``debiasedLow``, ``debiasedHigh`` and ``p`` (adjusted);
        ``column``, ``level``, ``total`` (number of groups), ``positive`` and ``table``.
    """
    rows = []
    for group in groups[:MOST_GROUPS]:
        evaluation, inference = group.evaluation, group.inference
        low, high = _gap_interval(group)
        rows.append(
            {
                "name": shortened(group.name),
                "count": evaluation.num_samples,
                "error": evaluation.error,
                "gap": evaluation.overconfidence,
                "gapLow": low,
                "gapHigh": high,
                "debiased": evaluation.debiased_ece,
                "debiasedLow": inference.debiased_ece[0],
                "debiasedHigh": inference.debiased_ece[1],
                "p": group.p_adjusted,
            }
        )
    level = groups[0].inference.level if groups else 0.9
    positive = bool(groups) and groups[0].evaluation.positive
    return {
        "column": shortened(name),
        "level": level,
        "total": len(groups),
        "positive": positive,
        "rows": rows,
        "table": _table(shortened(name), groups, max(MOST_GROUPS, MOST_ROWS // models), level, positive),
    }


def _table(name: str, groups: Sequence[GroupEvaluation], most: int, level: float, positive: bool) -> Table:
    gap = f"prob {MINUS} share" if positive else f"conf {MINUS} acc"
    rows = [
        [
            [shortened(group.name), group.name],
            number(group.evaluation.num_samples, 0),
            number(100 * group.evaluation.error, 1),
            number(100 * group.evaluation.overconfidence, 1, _ends(_gap_interval(group)), sign=True),
            number(100 * group.evaluation.ece, 1, f"floor {100 * group.inference.floors['ece'].mean:.1f}"),
            number(100 * group.evaluation.debiased_ece, 1, _ends(group.inference.debiased_ece)),
            p_cell(group.p_adjusted),
        ]
        for group in groups[:most]
    ]
    columns = [
        column(name, numeric=False),
        column("N", "samples"),
        column("error %"),
        column(gap, f"mean of the group in points, with its {100 * level:.4g} % confidence interval"),
        column("ECE %", "expected calibration error, above the noise floor: the ECE of a perfectly calibrated model"),
        column("debiased RMS error %", f"with its {100 * level:.4g} % confidence interval"),
        column("p", "p-value of the hypothesis “calibrated”, adjusted for the number of groups (Holm)"),
    ]
    which = f"the worst {most:,} of {len(groups):,}" if len(groups) > most else "worst first"
    return {"caption": f"Groups by {name}, {which}", "columns": columns, "rows": rows, "sortable": True}


def _ends(interval: tuple[float, float]) -> str:
    return f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}"


def gap_interval(bins: BinStats, level: float, effect: float = 1.0) -> tuple[float, float]:
    """Return a confidence interval of mean confidence minus accuracy, for samples with these confidences.

    The variance of the accuracy is computed from the accuracies of the bins, with half a sample added to each side so
    that bins without errors have a variance, too. Half a sample is added to both ends, since the number of correct
    samples is an integer. ``benchmarks/group_intervals.py`` checks the coverage by simulation.

    Args:
        bins: the bins of the samples.
        level: nominal coverage of the interval.
        effect: factor of the variance if the samples are in clusters or have weights.
    """
    n = float(bins.count.sum())
    gap = float(bins.gap.sum()) / n
    rate = (bins.correct + 0.5) / (bins.count + 1)
    variance = float((bins.count * rate * (1 - rate)).sum()) / n
    half = float(ndtri((1 + level) / 2)) * math.sqrt(max(1.0, effect) * variance / n) + 0.5 / n
    return max(-1.0, gap - half), min(1.0, gap + half)


def _gap_interval(group: GroupEvaluation) -> tuple[float, float]:
    evaluation, effect = group.evaluation, design_effect(replace(group.evaluation, inference=group.inference))
    if evaluation.weights is not None:
        effect *= evaluation.num_samples / evaluation.weights.effective
    return gap_interval(evaluation.bins, group.inference.level, effect)
