"""The class-wise test for samples in clusters, see :mod:`dualfocal.metrics.inference.clusters`."""

from collections.abc import Iterator

import numpy as np

from dualfocal.metrics.inference._class_ranks import ClassDraws, rank_classes
from dualfocal.metrics.inference.classwise import ClasswiseTest
from dualfocal.metrics.inference.cluster_noise import LEAST, Array, ClusterNoise, cluster_factor
from dualfocal.metrics.inference.cluster_sums import ClusterSums
from dualfocal.metrics.inference.label_counts import LabelCounts


def cluster_classwise(
    noise: ClusterNoise, clusters: ClusterSums, labels: LabelCounts, design_effect: float
) -> tuple[ClasswiseTest, Array]:
    """Test the probabilities of all classes by totals, bins and their sum, as in the test for independent samples.

    A sum of (p - y) is squared and divided by its variance under calibration: the sum of the squares over clusters, or
    the variance for independent samples times the design effect of all samples if that is larger, because a few
    clusters can have a small variance by chance. Also return the classwise ECE of each draw.
    """
    errors = np.zeros(len(noise.weights))
    least_variance = np.maximum(labels.variance, clusters.least_variance) * max(design_effect, 1.0) + LEAST

    def parts() -> Iterator[ClassDraws]:
        nonlocal errors
        for part, sums in clusters.by_class(noise):
            drawn = noise.draw(sums)
            errors += (np.abs(drawn[..., :-1]) * _noise_share(sums[..., :-1])).sum((1, 2))
            yield ClassDraws(
                classes=part,
                sums=np.concatenate([drawn, sums.sum(0)[None]]),
                variance=np.maximum((sums**2).sum(0), least_variance[part]),
                total_variance=np.maximum((sums[..., :-1].sum(2) ** 2).sum(0), least_variance[part, :-1].sum(1)),
            )

    test = rank_classes(labels, parts(), noise.groups - 1)
    return test, errors / (labels.num_samples * len(labels.expected))


def _noise_share(sums: Array) -> Array:
    """Return the standard deviation of cluster sums about their mean, relative to that about 0.

    A miscalibrated class has sums with another mean than 0, which are no noise.
    """
    squares, number = (sums**2).sum(0), np.count_nonzero(sums, axis=0)
    share: Array = 1 - sums.sum(0) ** 2 / (np.maximum(number, 1) * squares + LEAST)
    return np.sqrt(np.maximum(share, 0.0) * cluster_factor(sums))
