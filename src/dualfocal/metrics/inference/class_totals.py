"""Mean probability and share of every class, for samples that are independent, weighted or in clusters."""

import numpy as np
import torch

from dualfocal.metrics.inference._class_ranks import total_gaps
from dualfocal.metrics.inference.classwise import ClassGap, class_gaps
from dualfocal.metrics.inference.cluster_noise import LEAST, Grouping
from dualfocal.metrics.inference.cluster_sums import RowClusterSums
from dualfocal.metrics.inference.label_counts import RowLabels
from dualfocal.metrics.rows import Rows
from dualfocal.metrics.scan import Scan


def class_totals(rows: Rows, stats: Scan, design_effect: float = 1.0) -> list[ClassGap]:
    """Compare the mean probability of each class with its share, for all samples and for those predicted as the class.

    For independent samples, p-values are those of :func:`~dualfocal.metrics.inference.classwise.class_gaps`. With
    weights or clusters, they are t-tests of the sums of (p - y), whose variance is the sum of squares over clusters, or
    the variance of independent samples times the design effect if that is larger, as in the class-wise test of
    :mod:`dualfocal.metrics.inference.clusters`; ``benchmarks/class_totals.py`` checks their level by simulation.
    Classes that are never predicted have no second entry.

    Args:
        rows: the samples.
        stats: their scan.
        design_effect: design effect of all samples.
    """
    if rows.weight is None and rows.cluster is None:
        return class_gaps(rows)
    labels = RowLabels(rows, num_bins=1)
    cluster = torch.arange(len(rows), device=rows.values.device) if rows.cluster is None else rows.cluster
    clusters = RowClusterSums(cluster, stats, labels, rows.weight)
    groups = Grouping(clusters.num_clusters, np.random.default_rng(0))
    least = np.maximum(labels.variance, clusters.least_variance) * max(design_effect, 1.0) + LEAST
    ratios = np.zeros((2, rows.num_classes))
    for part, sums in clusters.by_class(groups):  # (clusters, classes, 2): all samples, and those of the class
        variance = np.maximum((sums**2).sum(0), least[part])
        ratios[:, part] = (sums.sum(0) ** 2 / variance).T
    return total_gaps(labels, ratios, groups.groups - 1)
