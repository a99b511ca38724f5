"""The class-wise test from random draws of the gaps of all classes, for clusters and for weights."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr

from dualfocal.metrics.inference.classwise import ClassGap, ClasswiseTest, largest_gaps
from dualfocal.metrics.inference.cluster_noise import LEAST
from dualfocal.metrics.inference.holm import holm
from dualfocal.metrics.inference.label_counts import LabelCounts
from dualfocal.metrics.inference.ranks import Array, last_rank


@dataclass(frozen=True, eq=False)
class ClassDraws:
    """Sums of (p - y) of some classes: in each bin and, last, over the samples that are predicted as the class.

    Args:
        classes: the classes.
        sums: sums of each draw of a calibrated model, and of the data, ``(R + 1, classes, B + 1)``.
        variance: variance of these sums for a calibrated model, ``(classes, B + 1)``.
        total_variance: variance of the sums over all bins, ``(classes,)``.
    """

    classes: slice
    sums: Array
    variance: Array
    total_variance: Array


def rank_classes(labels: LabelCounts, parts: Iterable[ClassDraws], freedom: float) -> ClasswiseTest:
    """Test the probabilities of all classes by totals, bins and their sum, as :mod:`.classwise` does.

    Args:
        labels: counts of the labels.
        parts: draws of all classes; all parts have the same draws.
        freedom: degrees of freedom of the variances, for the tests of single classes.
    """
    num_classes = len(labels.expected)
    tested = np.arange(num_classes) >= (num_classes == 2)  # of two classes, one mirrors the other
    extreme, largest, total = np.zeros(1), np.zeros(1), np.zeros(1)
    ratios = np.zeros((2, num_classes))
    for part in parts:
        in_bins, here = part.sums[..., :-1], tested[part.classes]
        totals = np.stack(
            [here * in_bins.sum(2) ** 2 / part.total_variance, part.sums[..., -1] ** 2 / part.variance[:, -1]]
        )
        extreme = np.maximum(extreme, totals.max((0, 2)))
        ratios[:, part.classes] = totals[:, -1]
        x = (in_bins**2 / part.variance[:, :-1]).sum(2)[:, here]
        if x.size:
            largest = np.maximum(largest, ((x - x.mean(0)) / np.maximum(x.std(0), LEAST)).max(1))
            total = total + x.sum(1)
    statistics = np.broadcast_arrays(extreme, largest, total)
    gaps = largest_gaps(total_gaps(labels, ratios, freedom))
    return ClasswiseTest(last_rank(statistics), gaps, len(extreme) - 1)


def total_gaps(labels: LabelCounts, ratios: Array, freedom: float) -> list[ClassGap]:
    """Compare the totals of all classes with their expectations by t-tests.

    Args:
        labels: counts of the labels.
        ratios: squares of the sums of (p - y) of each class, divided by their variance, for all samples and for those
            that are predicted as the class, ``(2, classes)``.
        freedom: degrees of freedom of the variances.
    """
    tested = np.arange(len(labels.expected)) >= (len(labels.expected) == 2)
    observed = np.stack([labels.observed[:, :-1].sum(1), labels.observed[:, -1]])
    expected = np.stack([labels.expected[:, :-1].sum(1), labels.expected[:, -1]])
    count = np.stack([np.full(len(tested), labels.num_samples), labels.predicted])
    kind, index = np.nonzero((count > 0) & np.stack([tested, np.ones_like(tested)]))
    p_values = 2 * stdtr(max(freedom, 1), -np.sqrt(ratios[kind, index]))
    return [
        ClassGap(int(c), bool(k), float(expected[k, c] / count[k, c]), float(observed[k, c] / count[k, c]), p)
        for k, c, p in zip(kind, index, holm(p_values.tolist()), strict=True)
    ]
