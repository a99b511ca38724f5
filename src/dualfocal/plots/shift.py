"""Error, NLL, ECE and AUROC of shifted sets over their severity."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from dualfocal.metrics.registry import METRICS
from dualfocal.metrics.shift.scores import HEADINGS, SHOWN, ShiftEvaluation, ShiftScores
from dualfocal.plots.style import (
    BLUE,
    DARK_GREY,
    GREY,
    Look,
    NotebookFigure,
    legend_below,
    look_of,
    plain,
    styled,
    tidy,
    varied,
)

Floats = NDArray[np.float64]

LONGEST = 14  # characters of a name below an axis
SPREAD = 0.12  # between points of several models, if names are not severities
FLOOR = "noise floor of the ECE"
MEANING = (
    "AUROC entropy, AUROC confidence: shifted against test samples, 50 if they look the same. AUROC errors: wrong "
    "against right predictions, by confidence."
)


def shift_figure(
    evaluations: ShiftEvaluation | Mapping[str, ShiftEvaluation], *, title: str = "", remark: str = ""
) -> Figure:
    """Draw error, NLL and ECE of the test set and of each shifted set, with their intervals, and below them AUROC.

    If the names of all shifted sets end in numbers, lines connect the sets of a kind in order of their severity.

    Args:
        evaluations: the result of :func:`~dualfocal.metrics.evaluate_shift`; or several, by name, to be compared, such
            as two models, or a model before and after calibration.
        title: title of the figure.
        remark: text below the figure.

    Raises:
        ValueError: there is nothing to draw.

    >>> import torch
    >>> from dualfocal.metrics import evaluate_shift
    >>> logits, target = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)), torch.arange(200) % 3
    >>> result = evaluate_shift((logits, target), {"scaled-1": (2 * logits, target), "scaled-2": (3 * logits, target)})
    >>> figure = shift_figure(result)
    >>> [axis.get_title() for axis in figure.axes]
    ['error [%]', 'NLL [nats]', 'ECE [%]', 'AUROC entropy [%]', 'AUROC confidence [%]', 'AUROC errors [%]']
    """
    named = {"": evaluations} if isinstance(evaluations, ShiftEvaluation) else dict(evaluations)
    if not named:
        raise ValueError("a figure of shifted sets needs at least one evaluation")
    shifted = [scores for evaluation in named.values() for scores in evaluation.shifted]
    severities = sorted({scores.severity for scores in shifted if scores.severity is not None})
    joined = all(scores.severity is not None for scores in shifted)
    if joined:
        labels = ["test", *(f"{severity:g}" for severity in severities)]
        places = {
            scores.name: 1 + severities.index(scores.severity) for scores in shifted if scores.severity is not None
        }
    else:
        labels = ["test", *dict.fromkeys(scores.name for scores in shifted)]
        places = {name: place for place, name in enumerate(labels[1:], start=1)}
    kinds = list(dict.fromkeys(scores.kind for scores in shifted))
    with styled():
        figure = NotebookFigure(figsize=(9.0, 5.4), layout="constrained")
        panels = dict(zip((*SHOWN, *HEADINGS), figure.subplots(2, 3, sharex=True).flat, strict=True))
        for panel, axis in panels.items():
            _frame(axis, panel, labels, "severity" if joined else "")
            for version, (name, evaluation) in enumerate(named.items()):
                offset = 0.0 if joined else SPREAD * (version - (len(named) - 1) / 2)
                for kind, sets in _series(evaluation, kinds, joined).items():
                    look, label = _look(name, version, kind, kinds, len(named) > 1)
                    x = np.array([0, *(places[scores.name] for scores in sets[1:])]) + offset
                    _draw(axis, x, [_interval(scores, panel) for scores in sets], look, label, joined)
                    if panel == "ece":
                        _draw_floor(axis, x, sets, look, joined)
        if title:
            figure.suptitle(plain(title), fontsize=10)
        handles, texts = panels["ece"].get_legend_handles_labels()
        floor = Line2D([], [], color=DARK_GREY, linestyle=":" if joined else "none", marker="" if joined else "_")
        level = f"{100 * next(iter(named.values())).level:.4g} % intervals."
        remark = f"{level} {MEANING}" + (f"\n{remark}" if remark else "")
        legend_below(figure, [*handles, floor], [*texts, FLOOR], columns=4, remark=remark)
    return figure


def _series(evaluation: ShiftEvaluation, kinds: Sequence[str], joined: bool) -> dict[str, list[ShiftScores]]:
    """Return the test set and the shifted sets of each kind; all in one if names are not severities."""
    if not joined:
        return {"": list(evaluation.sets)}
    by_kind = {kind: [scores for scores in evaluation.shifted if scores.kind == kind] for kind in kinds}
    return {kind: [evaluation.test, *sets] for kind, sets in by_kind.items() if sets}


def _look(name: str, version: int, kind: str, kinds: Sequence[str], several: bool) -> tuple[Look, str]:
    """Return look and label of a line: colours tell models apart; of one model, kinds of shift."""
    place = kinds.index(kind) if kind in kinds else 0
    one_kind = not kind or len(kinds) == 1
    if several:
        return varied(look_of(name, version), place), name if one_kind else f"{name}, {kind}"
    if one_kind:
        return Look(BLUE, "-", "o", ""), kind or "value"
    return look_of(kind, place), kind


def _frame(axis: Axes, panel: str, labels: Sequence[str], xlabel: str) -> None:
    axis.set_title(METRICS[panel].heading if panel in METRICS else f"{HEADINGS[panel]} [%]")
    shown = [plain(label if len(label) <= LONGEST else f"{label[: LONGEST - 3]}...") for label in labels]
    long = max(map(len, shown)) > 5
    axis.set_xticks(range(len(shown)), shown, rotation=30 if long else 0, ha="right" if long else "center")
    axis.set_xlim(-0.4, len(shown) - 0.6)
    if panel in HEADINGS:
        axis.axhline(50, color=GREY, linewidth=0.8, linestyle="--")
        axis.set_xlabel(xlabel)
    tidy(axis, grid="y")


def _interval(scores: ShiftScores, panel: str) -> tuple[float, float, float]:
    """Return value, low and high in the unit of the axis; the value is NaN if it is unknown or not finite."""
    if panel in HEADINGS:
        area = scores.auroc.get(panel)
        return (math.nan,) * 3 if area is None else (100 * area.value, 100 * area.low, 100 * area.high)
    value = math.nan if scores.evaluation is None else getattr(scores.evaluation, panel)
    ends = (value, *scores.intervals.get(panel, (value, value)))
    value, low, high = (METRICS[panel].factor * end if math.isfinite(end) else math.nan for end in ends)
    return value, low, high


def _draw(
    axis: Axes, x: Floats, intervals: Sequence[tuple[float, float, float]], look: Look, label: str, joined: bool
) -> None:
    value, low, high = np.array(intervals).T
    known = ~np.isnan(value)
    x, value, low, high = x[known], value[known], low[known], high[known]
    text = plain(label)
    if joined:
        axis.fill_between(x, low, high, color=look.colour, alpha=0.18, linewidth=0)
        axis.plot(x, value, color=look.colour, linestyle=look.line, marker=look.marker, markersize=4, label=text)
    else:
        errors = [value - low, high - value]
        axis.errorbar(
            x, value, errors, fmt=look.marker, color=look.colour, markersize=4, elinewidth=1.1, capsize=2, label=text
        )


def _draw_floor(axis: Axes, x: Floats, sets: Sequence[ShiftScores], look: Look, joined: bool) -> None:
    inferences = [None if scores.evaluation is None else scores.evaluation.inference for scores in sets]
    floors = np.array([math.nan if each is None else 100 * each.floors["ece"].mean for each in inferences])
    known = ~np.isnan(floors)
    if known.any():
        line, marker = (":", "") if joined else ("none", "_")
        axis.plot(x[known], floors[known], linestyle=line, marker=marker, color=look.colour, linewidth=1.1)
