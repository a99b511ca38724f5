"""The class-wise test for samples in clusters, see :mod:`dualfocal.metrics.clusters`."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from dualfocal.metrics._cluster_noise import LEAST, Array, ClusterNoise, cluster_factor, last_rank
from dualfocal.metrics._cluster_sums import ClusterSums
from dualfocal.metrics.classwise import MOST_GAPS, SIGNIFICANCE, ClassGap, ClasswiseTest
from dualfocal.metrics.holm import holm
from dualfocal.metrics.label_counts import LabelCounts


def cluster_classwise(
    noise: ClusterNoise, clusters: ClusterSums, labels: LabelCounts, design_effect: float
) -> tuple[ClasswiseTest, Array]:
    """Test the probabilities of all classes by totals, bins and their sum, as in the test for independent samples.

    A sum of (p - y) is squared and divided by its variance under calibration: the sum of the squares over clusters, or
    the variance for independent samples times the design effect of all samples if that is larger, because a few
    clusters can have a small variance by chance. Also return the classwise ECE of each draw.
    """
    num_classes, draws = len(labels.expected), len(noise.weights)
    tested = np.arange(num_classes) >= (num_classes == 2)  # of two classes, one mirrors the other
    extreme, largest, total, errors = np.zeros((4, draws + 1))
    ratios = np.zeros((2, num_classes))
    least_variance = labels.variance * max(design_effect, 1.0) + LEAST
    for part, sums in clusters.by_class(noise):
        drawn = np.concatenate([noise.draw(sums), sums.sum(0)[None]])  # (draws + 1, classes, bins + 1), the data last
        in_bins = drawn[..., :-1]
        errors += (np.abs(in_bins) * _noise_share(sums[..., :-1])).sum((1, 2))
        variance = np.maximum((sums**2).sum(0), least_variance[part])
        of_total = np.maximum((sums[..., :-1].sum(2) ** 2).sum(0), least_variance[part, :-1].sum(1))
        totals = np.stack([tested[part] * in_bins.sum(2) ** 2 / of_total, drawn[..., -1] ** 2 / variance[:, -1]])
        extreme = np.maximum(extreme, totals.max((0, 2)))
        ratios[:, part] = totals[:, -1]
        x = (in_bins**2 / variance[:, :-1]).sum(2)[:, tested[part]]
        if x.size:
            largest = np.maximum(largest, ((x - x.mean(0)) / np.maximum(x.std(0), LEAST)).max(1))
            total += x.sum(1)
    p_value = last_rank([extreme, largest, total])
    errors = errors[:-1] / (labels.num_samples * num_classes)
    return ClasswiseTest(p_value, _significant_gaps(labels, ratios, tested, noise.groups), draws), errors


def _noise_share(sums: Array) -> Array:
    """Return the standard deviation of cluster sums about their mean, relative to that about 0.

    A miscalibrated class has sums with another mean than 0, which are no noise.
    """
    squares, number = (sums**2).sum(0), np.count_nonzero(sums, axis=0)
    share: Array = 1 - sums.sum(0) ** 2 / (np.maximum(number, 1) * squares + LEAST)
    return np.sqrt(np.maximum(share, 0.0) * cluster_factor(sums))


def _significant_gaps(
    labels: LabelCounts, ratios: Array, tested: NDArray[np.bool_], groups: int
) -> tuple[ClassGap, ...]:
    """Return the classes whose mean probability is significantly off, by a t-test of their cluster sums."""
    observed = np.stack([labels.observed[:, :-1].sum(1), labels.observed[:, -1]])
    expected = np.stack([labels.expected[:, :-1].sum(1), labels.expected[:, -1]])
    count = np.stack([np.full(len(tested), labels.num_samples), labels.predicted])
    kind, index = np.nonzero((count > 0) & np.stack([tested, np.ones_like(tested)]))
    p_values = 2 * student.sf(np.sqrt(ratios[kind, index]), max(groups - 1, 1))
    gaps = [
        ClassGap(int(c), bool(k), float(expected[k, c] / count[k, c]), float(observed[k, c] / count[k, c]), p)
        for k, c, p in zip(kind, index, holm(p_values.tolist()), strict=True)
    ]
    gaps.sort(key=lambda gap: (gap.p_value, -math.fabs(gap.probability - gap.share)))
    return tuple(gap for gap in gaps[:MOST_GAPS] if gap.p_value <= SIGNIFICANCE)
