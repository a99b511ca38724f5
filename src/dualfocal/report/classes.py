"""The table of classes: probabilities beside frequencies, for all samples and for those predicted as the class."""

import math

from dualfocal.metrics.classwise import class_gaps
from dualfocal.metrics.inference_result import ClassGap
from dualfocal.metrics.samples import Samples
from dualfocal.metrics.units import unit_sums
from dualfocal.report.inputs import ReportInput
from dualfocal.report.tables import MINUS, Cell, Table, column, number, p_cell, small_decimals

MOST_ROWS = 2500  # in all class tables of a page together


def class_table(source: ReportInput, most: int) -> dict[str, Table | str]:
    """Return the table of classes, the most significant first, and a note on how to read it."""
    samples = source.samples
    scanned, units = source.scanned, None
    assert scanned.classes is not None
    if samples.weight is not None or samples.cluster is not None:
        units = unit_sums(scanned, source.evaluation.bins, samples=samples)
    gaps = class_gaps(scanned.classes, units, source.design_effect)
    overall = {gap.index: gap for gap in gaps if not gap.among_predicted}
    if samples.num_classes == 2:  # only class 1 is tested: class 0 is its complement
        tested = overall[1]
        overall[0] = ClassGap(0, False, 1 - tested.probability, 1 - tested.share, tested.p_value)
    top = {gap.index: gap for gap in gaps if gap.among_predicted}
    counts = scanned.classes.count[:, 1].sum(1).tolist()
    one_against_rest = scanned.classes.sum(1).ece()

    def significance(c: int) -> tuple[float, float]:
        both = [part[c] for part in (overall, top) if c in part]
        return min(gap.p_value for gap in both), -max(abs(gap.probability - gap.share) for gap in both)

    order = sorted(range(samples.num_classes), key=significance)
    decimals = small_decimals(1 / samples.num_classes)
    lines = [
        [
            [source.class_names[c], c],
            *_cells(overall[c], decimals),
            number(counts[c], 0),
            *_cells(top.get(c)),
            number(100 * float(one_against_rest[c]), 1 + decimals),
        ]
        for c in order[:most]
    ]
    columns = [
        column("class", numeric=False),
        column("probability %", "mean probability of this class over all samples"),
        column("occurs %", "share of all samples that belong to this class"),
        column("difference", "probability minus share, in points; above 0: too high"),
        column("p", "p-value of the difference, adjusted for all classes (Holm)"),
        column("predicted", "samples predicted as this class"),
        column("confidence %", "mean over the samples predicted as this class"),
        column("accuracy %", "of the samples predicted as this class"),
        column(f"conf {MINUS} acc", "confidence minus accuracy, in points; above 0: over-confident"),
        column("p", "p-value of confidence minus accuracy, adjusted for all classes (Holm)"),
        column("one-vs-rest ECE %", "ECE of the probability of this class; the mean over classes is the classwise ECE"),
    ]
    part = f"{len(lines):,} of " if len(lines) < samples.num_classes else ""
    caption = f"Calibration by class, most significant first ({part}{samples.num_classes:,} classes)"
    table = {"caption": caption, "columns": columns, "rows": lines, "sortable": True}
    return {"classes": table, "classesNote": _note(samples, len(lines))}


def _cells(gap: ClassGap | None, decimals: int = 1) -> list[Cell]:
    if gap is None:  # never predicted
        return [number(math.nan, 1)] * 3 + [["", 1.0]]
    return [
        number(100 * gap.probability, decimals),
        number(100 * gap.share, decimals),
        number(100 * (gap.probability - gap.share), decimals, sign=True),
        p_cell(gap.p_value),
    ]


def _note(samples: Samples, shown: int) -> str:
    if samples.cluster is not None:
        method = "those of t-tests of sums over clusters"
    elif samples.weight is not None:
        method = "those of t-tests of sums over samples"
    else:
        method = "those of the number of samples, by a gamma distribution with the same mean, variance and skewness"
    text = (
        "A difference with p above 0.05 is within what chance explains: at most 5 % of calibrated models have any "
        f"class below. The p-values are {method}, adjusted for the number of classes."
    )
    if shown < samples.num_classes:
        return f"The {shown:,} most significant of {samples.num_classes:,} classes are shown. {text}"
    return text
