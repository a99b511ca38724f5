"""The picture of the claims: the runs of each loss, and the differences between losses."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from matplotlib.figure import Figure

from dualfocal.plots.style import LOOKS, NotebookFigure, legend_below, styled
from dualfocal_lab.paper.measurements import MEASUREMENTS
from dualfocal_lab.paper.replication import Replication
from dualfocal_lab.paper.replication_plan import replication_plan
from dualfocal_lab.paper.verdicts import Difference, Part
from dualfocal_lab.plots.forest import ForestRow, forest_legend, forest_panel

LOSSES = {"cross_entropy": "cross-entropy", "flsd": "FLSD-53", "dual_focal": "dual focal"}
OTHER_LOSSES = {  # of table 1
    "brier": "Brier loss",
    "mmce": "MMCE",
    "label_smoothing": "label smoothing",
    "inverse_focal": "inverse focal",
}
FACTORS = {"median_p_j": 1000.0}  # others by their unit


@dataclass(frozen=True)
class Panel:
    """A panel of the picture, with its differences beside it.

    Attributes:
        label: Quantity.
        unit: Unit of the quantity, and of differences.
        metrics: Keys of ``MEASUREMENTS``, and what is added to the labels of their rows.
        log: Whether the axis of the quantity is logarithmic.
    """

    label: str
    unit: tuple[str, str]
    metrics: Mapping[str, str]
    log: bool = False


PERCENT, NATS, NO_UNIT = (" [%]", " [points]"), (" [nats]", " [nats]"), ("", "")
PANELS = (
    Panel("ECE", PERCENT, {"ece": "", "ece_last_20": ", last 20 epochs", "ece_temperature": ", T"}, log=True),
    Panel("NLL", NATS, {"nll": "", "nll_temperature": ", T"}, log=True),
    Panel("error", PERCENT, {"error": ""}),
    Panel("AUROC of noisy images", PERCENT, {"shift_auroc": ""}),
    Panel("median p_j, x 1000", NO_UNIT, {"median_p_j": ""}),
    Panel("mean top logit", NO_UNIT, {"mean_top_logit": ""}),
    Panel("temperature", NO_UNIT, {"temperature_ece": ", by ECE", "temperature": ", by NLL"}),
)


def group_name(group: str) -> str:
    """Return a group of runs in words.

    >>> group_name("flsd"), group_name("dual_focal gamma 6")
    ('FLSD-53', 'dual focal, gamma 6')
    """
    loss, gamma, value = group.partition(" gamma ")
    return (LOSSES | OTHER_LOSSES)[loss] + (f", gamma {value}" if gamma else "")


def claims_figure(decided: Replication) -> Figure:
    """Draw the quantities of all claims: each loss at the left, dual focal minus its rivals at the right."""
    parts = [(claim.id, part) for claim in decided.claims for part in claim.parts if part.role != "reported"]
    columns = [claim_rows(parts, panel.metrics) for panel in PANELS]
    heights = [len(left) + 1.9 for left, _ in columns]
    with styled():
        figure = NotebookFigure(figsize=(7.6, 0.19 * sum(heights) + 0.6), layout="constrained")
        axes = figure.subplots(len(PANELS), 2, height_ratios=heights, width_ratios=[1.15, 1])
        for (left_axis, right_axis), (left, right), panel in zip(axes, columns, PANELS, strict=True):
            forest_panel(left, log=panel.log, ax=left_axis).set_xlabel(panel.label + panel.unit[0])
            right_axis.set_visible(any(right))
            forest_panel(right, ax=right_axis).set_xlabel(f"difference in {panel.label}{panel.unit[1]}")
            right_axis.set_yticklabels([])
        axes[0, 0].set_title("each loss")
        axes[0, 1].set_title("dual focal minus the loss of the row")
        handles, labels = forest_legend(
            hollow="run known before the rules were fixed",
            interval="interval that decides (arrow: it continues)",
            claimed="values for which the claim holds",
        )
        legend_below(figure, handles, labels, columns=3)
    return figure


def claim_rows(
    parts: Sequence[tuple[str, Part]], metrics: Mapping[str, str]
) -> tuple[list[ForestRow], list[ForestRow | None]]:
    """Return the rows of a panel, and for each row the difference to its loss (None: no claim is about it).

    Args:
        parts: the quantities of all claims, with the name of the claim.
        metrics: the metrics of the panel, and what is added to the labels of their rows.
    """
    left: dict[tuple[str, str], ForestRow] = {}
    right: dict[tuple[str, str], ForestRow] = {}
    for metric in metrics:
        for name, part in parts:
            if part.metric != metric or part.kind == "mean":  # the mean of repetitions has the same runs
                continue
            for group in part.values:
                row = left.get((metric, group)) or _values_row(part, group, metrics[metric])
                left[metric, group] = row if isinstance(part, Difference) else _judged_row(row, part, name)
            if isinstance(part, Difference):
                right[metric, list(part.values)[-1]] = _difference_row(part, name)
    names, groups = list(metrics), [*LOSSES]
    keys = sorted(left, key=lambda key: (names.index(key[0]), groups.index(key[1]) if key[1] in groups else 9))
    return [left[key] for key in keys], [right.get(key) for key in keys]


def _values_row(part: Part, group: str, suffix: str) -> ForestRow:
    """The runs of a group, and the published number if there is one."""
    plan, values = replication_plan(), part.values[group]
    label = group_name(group).removeprefix("dual focal, ")  # "gamma 6": below the row of dual focal
    row = ForestRow(
        label=label + suffix,
        colour=LOOKS[group.partition(" ")[0]].colour,
        values=tuple(values.values()),
        hollow=tuple(f"{group} seed {seed}" in plan["known_in_advance"] for seed in values),
        mean=statistics.fmean(values.values()) if len(values) > 1 else None,
        published=plan["published"].get(group, {}).get(part.metric),
    )
    return in_unit(part.metric, row)


def _judged_row(row: ForestRow, part: Part, claim: str) -> ForestRow:
    """Add what decides a claim about one loss, and its verdict."""
    judged = ForestRow(label="", interval=part.interval, published=part.published)
    if part.kind == "temperature":
        value = float(part.published or 0.0)
        tolerance = _tolerance() if part.metric == "temperature" else 0.0
        judged = replace(judged, interval=None, claimed=(value - tolerance, value + tolerance))
    judged = in_unit(part.metric, judged)
    note = f"{claim} {part.verdict}"
    return replace(row, interval=judged.interval, published=judged.published, claimed=judged.claimed, note=note)


def _tolerance() -> float:
    """How far from the published temperature those by NLL may be."""
    return next(float(claim["tolerance"]) for claim in replication_plan()["claims"] if claim["kind"] == "temperature")


def _difference_row(part: Difference, claim: str) -> ForestRow:
    first, second = ([*values.values()] for values in part.values.values())
    row = ForestRow(
        label="",
        mean=statistics.fmean(first) - statistics.fmean(second) if first and second else None,
        interval=part.judged_interval,
        published=part.published,
        claimed=(part.bound, math.inf) if part.direction > 0 else (-math.inf, part.bound),
        note=f"{claim} {part.verdict}",
    )
    return in_unit(part.metric, row)


def in_unit(metric: str, row: ForestRow) -> ForestRow:
    """Return the row in the unit of its panel; the numbers of runs are fractions."""
    factor = FACTORS.get(metric, 100.0 if MEASUREMENTS[metric].shown.unit == "%" else 1.0)

    def number(value: float | None) -> float | None:
        return None if value is None else factor * value

    def pair(ends: tuple[float, float] | None) -> tuple[float, float] | None:
        return None if ends is None else (factor * ends[0], factor * ends[1])

    return replace(
        row,
        values=tuple(factor * value for value in row.values),
        mean=number(row.mean),
        interval=pair(row.interval),
        published=number(row.published),
        floor=number(row.floor),
        claimed=pair(row.claimed),
    )
