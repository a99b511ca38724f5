"""Curves of a page, computed from all samples: risk by coverage, histograms of the confidence, ROC of two classes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dualfocal.metrics.auroc import auroc
from dualfocal.metrics.ranking import RiskCoverage
from dualfocal.metrics.samples import Samples
from dualfocal.report.inputs import ReportInput
from dualfocal.report.tables import Table, column, number

POINTS = 200  # of a curve
COVERAGES = (0.8, 0.9, 0.95)  # of the table of selective errors
HISTOGRAM_BINS = 40


def coverage_figure(source: ReportInput) -> dict[str, Any]:
    """Return the risk-coverage curve.

    Returns:
        ``coverage``, ``risk`` and ``threshold`` (the lowest confidence that is answered) of up to 200 points, and
        ``selective``: the same three numbers at 80, 90, 95 and 100 % coverage.
    """
    curve = RiskCoverage.from_confidence(source.scanned.certainty, source.scanned.right, source.scanned.weight)
    count = min(POINTS, len(source.samples))
    coverage = np.arange(1, count + 1) / count
    return {
        "coverage": rounded(coverage),
        "risk": rounded(curve.risks(coverage)),
        "threshold": rounded([curve.threshold(share) for share in coverage]),
        "selective": [[share, curve.risk(share), curve.threshold(share)] for share in (*COVERAGES, 1.0)],
    }


def coverage_table(sources: Sequence[ReportInput], figures: Sequence[dict[str, Any]]) -> Table:
    """Return a table of the error at some coverages, one row per model."""
    rows = [
        [
            source.name,
            *(
                number(100 * risk, 2, "" if share == 1 else f"confidence ≥ {_threshold(threshold)} %")
                for share, risk, threshold in figure["selective"]
            ),
            number(100 * source.evaluation.aurc, 2),
        ]
        for source, figure in zip(sources, figures, strict=True)
    ]
    columns = [
        column("model", numeric=False),
        *(
            column(f"error % at {100 * share:.0f} % coverage", "error among this share of the most confident samples")
            for share in COVERAGES
        ),
        column("error % of all samples"),
        column("AURC %", "area under the risk-coverage curve: mean of the error over all coverages"),
    ]
    return {"caption": "Selective error", "columns": columns, "rows": rows, "sortable": len(rows) > 1}


def histogram_figure(source: ReportInput) -> dict[str, Any]:
    """Return the number of right and wrong predictions by confidence, in 40 bins.

    With ``binary="positive"``, these are the samples of class 1 and of class 0 by the probability of class 1.
    """
    scanned = source.scanned
    bins, confidence = scanned.bins(HISTOGRAM_BINS), scanned.confidence
    weight = np.ones(len(confidence)) if scanned.weight is None else scanned.weight
    means = [
        float((weight * confidence)[group].sum() / weight[group].sum()) if group.any() else None
        for group in (scanned.correct, ~scanned.correct)
    ]
    return {
        "right": rounded(bins.correct.tolist()),
        "wrong": rounded((bins.count - bins.correct).tolist()),
        "means": means,
    }


def roc_figure(samples: Samples, level: float = 0.9) -> dict[str, Any] | None:
    """Return the ROC curve of the probability of class 1 (None unless there are two classes, both with samples).

    Returns:
        ``fpr`` and ``tpr``: shares of the samples of class 0 and of class 1 with at least a probability of
        ``threshold``, up to 201 points; ``auroc``: area under the curve of all points; ``interval``: DeLong's
        confidence interval of the area (None if samples have weights) with nominal coverage ``level``; ``counts``:
        samples of class 0 and of class 1.
    """
    if samples.num_classes != 2:
        return None
    values = samples.values.double()
    # Differences of logits distinguish samples whose probabilities both round to 1.
    score = (values[:, 1] - values[:, 0] if samples.input == "logits" else values[:, 1]).numpy()
    positive = (samples.target == 1).numpy()
    weight = np.ones(len(score)) if samples.weight is None else samples.weight.numpy()
    counts = [float(weight[~positive].sum()), float(weight[positive].sum())]
    if min(counts) == 0:
        return None
    order = np.argsort(-score, kind="stable")
    ordered = score[order]
    last = np.append(ordered[1:] != ordered[:-1], True)
    fpr, tpr = (
        np.append(0.0, np.cumsum(np.where(group[order], weight[order], 0.0))[last]) / count
        for group, count in zip((~positive, positive), counts, strict=True)
    )
    area, interval = float(np.trapezoid(tpr, fpr)), None
    if samples.weight is None:
        estimate = auroc(score, positive, level=level, clusters=samples.cluster)
        area, interval = estimate.value, [estimate.low, estimate.high]
    # Points at equal distances along the curve; the first one is (0, 0), above all probabilities.
    length = fpr + tpr
    chosen = np.unique(np.searchsorted(length, np.linspace(0, length[-1], POINTS + 1)).clip(0, len(length) - 1))
    chosen = np.unique(np.concatenate([[0], chosen, [len(length) - 1]]))
    threshold = ordered[last][np.maximum(chosen - 1, 0)]
    if samples.input == "logits":
        threshold = np.exp(-np.logaddexp(0, -threshold))
    return {
        "fpr": rounded(fpr[chosen]),
        "tpr": rounded(tpr[chosen]),
        "threshold": [1.0, *rounded(threshold[1:])],
        "auroc": area,
        "interval": interval,
        "level": level,
        "counts": rounded(counts),
    }


def rounded(values: Sequence[float] | np.ndarray, digits: int = 5) -> list[float]:
    """Round to significant digits; whole numbers, which are counts, stay exact."""
    return [int(value) if value == int(value) else float(f"{value:.{digits}g}") for value in map(float, values)]


def _threshold(confidence: float) -> str:
    """Return a confidence in percent, with enough decimals to tell it from 100."""
    text = f"{100 * confidence:.1f}"
    return text if text != "100.0" or confidence == 1 else f"{100 * confidence:.4f}"
