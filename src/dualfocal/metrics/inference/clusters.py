"""Inference for samples that are not independent: pixels of an image, questions of a passage, images of a patient.

Samples of one cluster may depend on each other in any way; clusters are independent. The sums of (p - y) over each
cluster and bin then have mean 0 if the model is calibrated, whatever their variance is. A wild bootstrap multiplies
the sums of each cluster by a random number of mean 0 and variance 1 (a sign; with fewer than 50 clusters one of six
values, Webb 2014), which keeps the dependence within clusters and imposes calibration. These draws take the place of
drawn outcomes in :mod:`dualfocal.metrics.inference.top_label` and :mod:`dualfocal.metrics.inference.classwise`. Noise
floors and the interval use the sums of (p - y) less the mean gap of their bin: the noise alone, also if the model is
miscalibrated.

A wild bootstrap learns the noise from the data alone, and sees too little of it where errors are rare. The inference
for independent samples knows the noise from the probabilities, but not the dependence. Of the two, the more cautious
result counts: the larger p-value, noise floor and detectable gap, and the interval that contains both intervals.

``benchmarks/cluster_coverage.py`` checks level and coverage by simulation.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dualfocal.metrics.bins import BinStats
from dualfocal.metrics.inference._class_ranks import ClassDraws, rank_classes
from dualfocal.metrics.inference._gap_draws import GapDraws
from dualfocal.metrics.inference.classwise import SIGNIFICANCE, ClasswiseTest
from dualfocal.metrics.inference.cluster_noise import LEAST, Array, ClusterNoise, cluster_factor
from dualfocal.metrics.inference.cluster_summary import ClusterSummary
from dualfocal.metrics.inference.cluster_sums import ClusterSums
from dualfocal.metrics.inference.label_counts import LabelCounts
from dualfocal.metrics.inference.ranks import last_rank
from dualfocal.metrics.inference.result import Floor, Inference
from dualfocal.metrics.inference.top_label import DRAWS


def cluster_inference(
    inference: Inference, clusters: ClusterSums, labels: LabelCounts | None, bins: BinStats, adaptive: BinStats
) -> Inference:
    """Widen the inference for independent samples by what the clusters of the samples show.

    Args:
        inference: result for independent samples.
        clusters: sums over the samples of each cluster.
        labels: counts of the labels by class and bin; None if only the confidence of the predicted class is known.
        bins: bins of the ECE.
        adaptive: bins of the adaptive ECE.
    """
    noise = ClusterNoise(clusters.num_clusters, inference.draws, inference.seed)
    top = cluster_gaps(noise, *clusters.by_bin(noise, bins.edges))
    p_value = max(inference.p_value, top.p_value)
    low, high = top.interval(p_value, 1 - inference.level)
    summary = summarize_clusters(clusters)
    adaptive_noise = cluster_gaps(noise, *clusters.by_bin(noise, adaptive.edges)).noise
    errors = {
        "ece": np.abs(top.noise).sum(1) / top.total,
        "mce": (np.abs(top.noise) / top.count).max(1),
        "adaptive_ece": np.abs(adaptive_noise).sum(1) / top.total,
    }
    classwise, significance = inference.classwise, SIGNIFICANCE
    if labels is not None:
        test, errors["classwise_ece"] = _cluster_classwise(noise, clusters, labels, summary.design_effect)
        if classwise is not None:  # gaps of single classes are those that are significant with clusters
            classwise = replace(test, p_value=max(classwise.p_value, test.p_value))
            significance = SIGNIFICANCE / 2  # by Holm's method, for the first of two tests
    return replace(
        inference,
        floors={name: larger_floor(floor, errors[name]) for name, floor in inference.floors.items()},
        p_value=p_value,
        debiased_ece=(min(inference.debiased_ece[0], low), max(inference.debiased_ece[1], high)),
        detectable=max(inference.detectable, top.detectable(significance)),
        classwise=classwise,
        clusters=summary,
    )


def cluster_squared_error(clusters: ClusterSums, bins: BinStats) -> float:
    """Return the squared calibration error over the bins, less the noise of clustered samples; it can be negative.

    A bin with samples of one cluster only counts as 0: its noise cannot be estimated.
    """
    noise = ClusterNoise(clusters.num_clusters, draws=1, seed=0)
    return cluster_gaps(noise, *clusters.by_bin(noise, bins.edges)).observed


def fine_cluster_p_value(clusters: ClusterSums, bins: BinStats, *, draws: int, seed: int) -> float:
    """Compute the p-value of the clusters alone, from many draws, as the first of many tests needs it."""
    squares = list[tuple[Array, Array]]()
    for start in range(0, draws, DRAWS):  # in parts, because a draw has a number for each cluster
        noise = ClusterNoise(clusters.num_clusters, min(DRAWS, draws - start), seed + start)
        gaps = cluster_gaps(noise, *clusters.by_bin(noise, bins.edges))
        squares.append(gaps.squares(gaps.null))
    squares.append(gaps.squares(gaps.gap[None]))
    return last_rank([np.concatenate(parts) for parts in zip(*squares, strict=True)])


def noise_of_ece(noise: ClusterNoise, clusters: ClusterSums, bins: BinStats) -> Array:
    """Return the ECE of each draw of the noise alone, (draws,)."""
    gaps = cluster_gaps(noise, *clusters.by_bin(noise, bins.edges))
    error: Array = np.abs(gaps.noise).sum(1) / gaps.total
    return error


def summarize_clusters(clusters: ClusterSums) -> ClusterSummary:
    """Return number, effective number and design effect of the clusters."""
    sums, sizes = clusters.totals()
    n, number = float(sizes.sum()), clusters.num_clusters
    mean = float(sums.sum()) / n
    sums = sums - mean * sizes
    squares, variance = float((sums**2).sum()), (clusters.squares - n * mean**2) * n / max(n - 1, 1)
    design_effect = squares * number / max(number - 1, 1) / variance if variance > 0 else 1.0
    # Of normal numbers with equal variances, 3 (sum of squares)^2 / (sum of fourth powers) is their number.
    by_noise = 3 * squares**2 / float((sums**4).sum()) if squares > 0 else math.inf
    effective = min(by_noise, n**2 / float((sizes**2).sum()), number)
    return ClusterSummary(number, float(effective), design_effect)


def cluster_gaps(noise: ClusterNoise, sums: Array, sizes: Array) -> GapDraws:
    """Draw the gaps of bins by a wild bootstrap of sums over clusters.

    Args:
        noise: draws of clusters.
        sums: sums of (confidence - correctness), ``(K, B)``.
        sizes: numbers of samples, or sums of their weights, ``(K, B)``.
    """
    full = sizes.any(0)
    sums, sizes = sums[:, full], sizes[:, full]
    count, gap = sizes.sum(0), sums.sum(0)
    centred = (sums - sizes * (gap / count)) * np.sqrt(cluster_factor(sizes))
    return GapDraws(
        count=count,
        gap=gap,
        variance=(centred**2).sum(0),
        known=np.count_nonzero(sizes, axis=0) > 1,
        null=noise.draw(sums),
        noise=noise.draw(centred),
        carried=noise.draw(sizes),
    )


def larger_floor(floor: Floor, errors: Array) -> Floor:
    """Return the floor of independent samples, or that of errors drawn by clusters if it is higher."""
    return Floor(max(floor.mean, float(errors.mean())), max(floor.q95, float(np.quantile(errors, 0.95))))


def _cluster_classwise(
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
