"""Inference for weighted samples: survey weights, and importance weights of a population with other inputs or labels.

The question is whether the model is calibrated in the weighted population: whether the weighted sums of (p - y) over
the bins have mean 0. Their noise is larger than that of equally weighted samples, and is computed in two ways:

- *Labels are drawn* from the model's own probabilities, with the weights fixed, as for equally weighted samples. This
  is right if the weights depend on the input only (covariate shift, most survey weights). If all samples of a class
  have the same weight w_k (label shift, sampling by class), labels are drawn with probabilities proportional to
  p_k / w_k, and have the weight of their class: those are the labels among the samples, not in the population.
- *A wild bootstrap*, :mod:`dualfocal.metrics.inference.clusters` with every sample as a cluster, learns the noise from
  the data: it is right for all weights, but sees too little noise where errors are rare.

If the weights depend on the label alone, the first way is exact, and counts for tests and noise floors. Otherwise it is
not known whether weights and labels depend on each other, and the more cautious of both results counts, as with
clusters. The interval contains both intervals in either case. Weights count as known.

``benchmarks/weight_coverage.py`` checks level and coverage by simulation.
"""

from dataclasses import replace

import numpy as np
import torch

from dualfocal.metrics.bins import BinStats, weighted_variance
from dualfocal.metrics.inference._class_ranks import ClassDraws, rank_classes
from dualfocal.metrics.inference._gap_draws import GapDraws
from dualfocal.metrics.inference._label_draws import LabelDraws, class_weights
from dualfocal.metrics.inference.classwise import LEAST_VARIANCE, SIGNIFICANCE, ClasswiseTest
from dualfocal.metrics.inference.cluster_sums import RowClusterSums
from dualfocal.metrics.inference.clusters import cluster_inference
from dualfocal.metrics.inference.label_counts import RowLabels
from dualfocal.metrics.inference.result import Inference, noise_floor
from dualfocal.metrics.inference.weight_summary import WeightSummary
from dualfocal.metrics.rows import Rows
from dualfocal.metrics.scan import Scan


def summarize_weights(rows: Rows) -> WeightSummary | None:
    """Return how much information weighted rows carry, or None if all have the same weight."""
    if rows.weight is None:
        return None
    total, squares = float(rows.weight.sum()), float((rows.weight**2).sum())
    return WeightSummary(total**2 / squares, float(rows.weight.max()) / total, class_weights(rows) is not None)


def weighted_inference(
    rows: Rows,
    stats: Scan,
    labels: RowLabels,
    bins: BinStats,
    adaptive: BinStats,
    *,
    level: float,
    draws: int,
    seed: int,
) -> Inference:
    """Compute floors, tests and interval of weighted rows. Clusters of the rows are left to the caller."""
    assert rows.weight is not None
    drawn = LabelDraws(rows, stats, labels, bins, adaptive, draws, seed)
    top = _gap_draws(drawn.top, bins)
    total = float(rows.weight.sum())
    errors = {
        "ece": np.abs(drawn.top).sum(1) / total,
        "adaptive_ece": np.abs(drawn.adaptive).sum(1) / total,
        "mce": (np.abs(top.null) / top.count).max(1),
        "classwise_ece": np.abs(drawn.classes[..., :-1]).sum((1, 2)) / (total * rows.num_classes),
    }
    p_value = top.p_value
    inference = Inference(
        floors={name: noise_floor(torch.from_numpy(values)) for name, values in errors.items()},
        p_value=p_value,
        debiased_ece=top.interval(p_value, 1 - level),
        level=level,
        detectable=top.detectable(SIGNIFICANCE if rows.positive else SIGNIFICANCE / 2),
        draws=draws,
        seed=seed,
        classwise=None if rows.positive else _classwise(drawn, labels, rows),
    )
    if rows.cluster is not None:
        return inference
    each_row = torch.arange(len(rows), device=rows.values.device)
    sums = RowClusterSums(each_row, stats, labels, rows.weight)
    robust = replace(cluster_inference(inference, sums, labels, bins, adaptive), clusters=None)
    return robust if drawn.by_class is None else replace(inference, debiased_ece=robust.debiased_ece)


def _gap_draws(drawn: np.ndarray, bins: BinStats) -> GapDraws:
    """Return the gaps of the bins that are not empty, with draws of a calibrated model, ``(R, B)``."""
    assert bins.squares is not None
    full = (bins.count > 0).cpu().numpy()
    variance = weighted_variance(bins.count, bins.accuracy, bins.squares).cpu().numpy()[full]
    known = np.isfinite(variance)
    null = drawn[:, full]
    return GapDraws(
        count=bins.count.cpu().numpy()[full],
        gap=bins.gap.cpu().numpy()[full],
        variance=np.where(known, variance, 0.0),
        known=known,
        null=null,
        noise=null,
    )


def _classwise(drawn: LabelDraws, labels: RowLabels, rows: Rows) -> ClasswiseTest:
    """Test the probabilities of all classes; the variance of every sum is that of its draws."""
    assert rows.weight is not None
    squares = float((rows.weight**2).mean())
    least = LEAST_VARIANCE * squares  # as for equal weights, a class with few samples counts less
    sums = np.concatenate([drawn.classes, (labels.expected - labels.observed)[None]])
    variance = np.maximum((drawn.classes**2).mean(0), least)
    total = np.maximum((drawn.classes[..., :-1].sum(2) ** 2).mean(0), least)
    part = ClassDraws(slice(0, len(total)), sums, variance, total)
    return rank_classes(labels, [part], len(rows) / squares - 1)
