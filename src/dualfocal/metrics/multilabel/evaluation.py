"""Calibration of multi-label predictions: every label on its own, their mean, and all entries pooled.

A sample can have several of L labels, and the model gives the probability of each. This makes N x L entries, each a
probability and a 0 or 1.

- *Labels*: each one is a binary problem, evaluated like ``binary="positive"``.
- *Macro ECE*: the mean of the ECE of all labels. A rare label counts as much as a frequent one. The mean of its noise
  floor is the mean of the labels' floors. How far it scatters depends on how the labels of a sample depend on each
  other, which a wild bootstrap of whole samples shows (:mod:`dualfocal.metrics.inference.clusters`).
- *Micro ECE*: the ECE of all entries together. Errors of different labels can cancel. The L entries of a sample are
  not independent: floor, test and interval treat each sample as a cluster.
- *Multiplicity*: L labels and the pooled entries are tested. Holm's method controls the family-wise error rate of all
  of them; the pooled test gets half of the significance, the labels share the other half. At most 5 % of calibrated
  models are called miscalibrated. A label with a small p-value is tested again with more draws (50 per label), because
  the adjustment multiplies p-values by up to 2 L.

``benchmarks/multilabel_alarms.py`` checks the rates of false alarms by simulation.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.checks import check_count, check_level
from dualfocal.metrics._several import tracked
from dualfocal.metrics._sorting import SortedConfidences
from dualfocal.metrics.arrays import Array
from dualfocal.metrics.calibration import top_bins
from dualfocal.metrics.evaluation import evaluate_rows
from dualfocal.metrics.inference.cluster_noise import ClusterNoise
from dualfocal.metrics.inference.cluster_sums import RowClusterSums
from dualfocal.metrics.inference.clusters import fine_cluster_p_value, larger_floor, noise_of_ece
from dualfocal.metrics.inference.holm import holm
from dualfocal.metrics.inference.result import Floor
from dualfocal.metrics.inference.top_label import fine_p_value, floor_of_ece
from dualfocal.metrics.multilabel.entries import Entries, as_entries
from dualfocal.metrics.multilabel.result import LabelEvaluation, MultilabelEvaluation
from dualfocal.metrics.result import Evaluation, inference_of
from dualfocal.metrics.rows import Rows
from dualfocal.metrics.scan import Scan, scan

MOST_LABELS = 10_000
SMALL_P = 0.02  # p-values up to this one are computed again, with more draws
DRAWS_PER_LABEL, MOST_DRAWS, MOST_CLUSTER_DRAWS = 50, 50_000, 20_000
NO_ENTRIES, ONE_CLUSTER = "all entries are ignored", "its entries are in one cluster"


@dataclass(frozen=True)
class _Settings:
    """Options of :func:`~dualfocal.metrics.evaluation.evaluate_rows`."""

    num_bins: int
    inference: bool
    level: float
    draws: int
    seed: int


def evaluate_multilabel(
    logits: Array,
    target: Array,
    *,
    input: str | None = None,
    num_bins: int = 15,
    inference: bool = False,
    seed: int = 0,
    ignore_index: int = -100,
    level: float = 0.9,
    draws: int = 1000,
    class_names: Sequence[str] | None = None,
    clusters: Array | None = None,
    progress: Callable[[float], None] | None = None,
) -> MultilabelEvaluation:
    """Evaluate multi-label predictions: :func:`~dualfocal.metrics.evaluate` with ``task="multilabel"``.

    Args:
        logits: log-odds of each label, ``(N, L)``, whose sigmoid is its probability.
        target: 0 or 1 for each sample and label, ``(N, L)``; integers, booleans or floats.
        input: ``"logits"`` or ``"probs"``, whichever ``logits`` holds. None means logits, and raises an error if all
            values lie in [0, 1].
        num_bins: number of bins of the calibration errors.
        inference: also compute noise floors, tests and intervals.
        seed: seed of the draws for ``inference``.
        ignore_index: target value of entries to leave out.
        level: nominal coverage of the intervals.
        draws: number of draws for floors and p-values; small p-values of labels are computed again with more draws.
        class_names: names of the labels (None: the columns of a data frame, or numbers).
        clusters: the cluster of each sample, ``(N,)``; see :func:`~dualfocal.metrics.evaluate`. Without it, samples are
            independent, but not the entries of a sample.
        progress: called with the share of the labels that are done.

    Raises:
        TypeError: an argument is not an array.
        ValueError: a shape, dtype, value or option is invalid, or no entry is left.

    >>> generator = torch.Generator().manual_seed(1)
    >>> logits = torch.randn(2000, 3, generator=generator) - torch.tensor([0.0, 1.0, 2.0])
    >>> target = torch.rand(2000, 3, generator=generator) < logits.sigmoid()
    >>> logits[:, 2] += 1  # the probabilities of the rarest label are too high
    >>> result = evaluate_multilabel(logits, target, inference=True, class_names=["cat", "dog", "emu"])
    >>> [label.name for label in result.miscalibrated]
    ['emu']
    """
    check_count("draws", draws, 100)
    check_level(level)
    check_count("num_bins", num_bins)
    entries = as_entries(
        logits, target, input=input, ignore_index=ignore_index, class_names=class_names, clusters=clusters
    )
    if entries.num_labels > MOST_LABELS:
        raise ValueError(f"at most {MOST_LABELS:,} labels are supported, got {entries.num_labels:,}")
    settings = _Settings(num_bins, inference, level, draws, seed)
    labels, left_out, noise, wrong = _evaluate_labels(entries, settings, progress)
    rows = entries.pooled()
    micro = _evaluate(rows, scan(rows, num_bins=num_bins, scores=True, classwise=True), settings)
    adjusted = math.nan
    if inference:
        p_values = [inference_of(evaluation).p_value for evaluation in (micro, *(label.evaluation for label in labels))]
        adjusted, *by_label = holm(p_values, weights=[len(labels)] + [1] * len(labels))
        labels = [replace(label, p_adjusted=p) for label, p in zip(labels, by_label, strict=True)]
    return MultilabelEvaluation(
        num_samples=len(entries),
        num_bins=num_bins,
        labels=tuple(labels),
        micro=micro,
        macro_ece=float(np.mean([label.evaluation.ece for label in labels])),
        subset_accuracy=1 - float(wrong.double().mean()),
        macro_floor=_macro_floor(labels, noise) if inference else None,
        p_adjusted=adjusted,
        left_out=left_out,
        clusters_given=clusters is not None,
    )


def _evaluate_labels(
    entries: Entries, settings: _Settings, progress: Callable[[float], None] | None
) -> tuple[list[LabelEvaluation], dict[str, str], NDArray[np.float64], Tensor]:
    """Evaluate every label.

    Returns:
        The labels, those that were left out with the reason, the noise of their mean ECE in each draw, and which
        samples have a wrong entry.
    """
    num_labels, cluster = entries.num_labels, entries.cluster
    codes = torch.arange(len(entries), device=entries.values.device) if cluster is None else cluster
    codes = torch.unique(codes, return_inverse=True)[1]
    noise = ClusterNoise(int(codes.max()) + 1, settings.draws, settings.seed) if settings.inference else None
    labels, left_out = list[LabelEvaluation](), dict[str, str]()
    total, wrong = np.zeros(settings.draws), torch.zeros(len(entries), dtype=torch.bool, device=codes.device)
    for index, name in tracked(list(enumerate(entries.names)), progress):
        rows = entries.label(index)
        if rows is None or (cluster is not None and rows.cluster is None):
            left_out[name] = NO_ENTRIES if rows is None else ONE_CLUSTER
            continue
        stats = scan(rows, num_bins=settings.num_bins, scores=True, classwise=True)
        evaluation = _evaluate(rows, stats, settings, num_labels)
        labels.append(LabelEvaluation(index, name, evaluation))
        wrong[entries.keep[:, index]] |= ~stats.right
        if noise is not None:
            sums = RowClusterSums(codes[entries.keep[:, index]], stats)
            total += noise_of_ece(noise, sums, evaluation.bins)
    if not labels:
        raise ValueError(f"no label can be evaluated: of {next(iter(left_out))!r}, {next(iter(left_out.values()))}")
    return labels, left_out, total / len(labels), wrong


def _evaluate(rows: Rows, stats: Scan, settings: _Settings, num_tests: int = 1) -> Evaluation:
    """Evaluate a binary problem. If it is one of many tests, compute a small p-value with more draws."""
    result = evaluate_rows(rows, stats, **vars(settings))
    draws = min(DRAWS_PER_LABEL * num_tests, MOST_DRAWS)
    if result.inference is None or result.inference.p_value > SMALL_P or draws <= settings.draws:
        return result
    samples = SortedConfidences.from_units(stats.confidence, stats.correct)
    p = fine_p_value(samples, result.bins, draws=draws, seed=settings.seed)
    if rows.cluster is not None and p <= SMALL_P:
        draws = min(draws, MOST_CLUSTER_DRAWS)
        sums = RowClusterSums(rows.cluster, stats)
        p = max(p, fine_cluster_p_value(sums, result.bins, draws=draws, seed=settings.seed))
    return replace(result, inference=replace(result.inference, p_value=p))


def macro_floor_mean(entries: Entries, *, num_bins: int = 15, draws: int = 1000, seed: int = 0) -> float:
    """Return the mean of the macro floor of :func:`evaluate_multilabel`, without tests and intervals."""
    floors = []
    for index in range(entries.num_labels):
        rows = entries.label(index)
        if rows is None or (entries.cluster is not None and rows.cluster is None):
            continue
        stats = scan(rows)
        bins = top_bins(stats, rows, num_bins, None)
        samples = SortedConfidences.from_units(stats.confidence, stats.correct)
        floor = floor_of_ece(samples, bins, samples.adaptive_bins(num_bins), draws=draws, seed=seed)
        if rows.cluster is not None:
            sums = RowClusterSums(rows.cluster, stats)
            floor = larger_floor(floor, noise_of_ece(ClusterNoise(sums.num_clusters, draws, seed), sums, bins))
        floors.append(floor.mean)
    return float(np.mean(floors)) if floors else math.nan


def _macro_floor(labels: Sequence[LabelEvaluation], noise: NDArray[np.float64]) -> Floor:
    """Return the noise floor of the mean ECE.

    The mean of the labels' floors is exact. The 95 % quantile lies above it by what the draws of whole samples show,
    but at least by what independent labels would show: where labels are rare, the draws see too little noise.
    """
    floors = [label.inference.floors["ece"] for label in labels]
    mean = float(np.mean([floor.mean for floor in floors]))
    independent = math.hypot(*(floor.q95 - floor.mean for floor in floors)) / len(floors)
    return Floor(mean, mean + max(float(np.quantile(noise, 0.95) - noise.mean()), independent))
