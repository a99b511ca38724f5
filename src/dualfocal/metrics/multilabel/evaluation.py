"""Calibration of multi-label predictions: every label on its own, their mean, and all entries pooled.

A sample can have several of L labels, and the model gives the probability of each. This makes N x L entries, each a
probability and a 0 or 1.

- *Labels*: each one is a binary problem, evaluated like ``binary="positive"``.
- *Macro ECE*: the mean of the ECE of all labels. A rare label counts as much as a frequent one. The mean of its noise
  floor is the mean of the labels' floors. How far it scatters depends on how the labels of a sample depend on each
  other, which a wild bootstrap of whole samples shows (:mod:`dualfocal.metrics.inference`).
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
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dualfocal.metrics.cells import Floats, bin_index, tally
from dualfocal.metrics.draws import Settings, draw_cells, floor_of
from dualfocal.metrics.evaluation import evaluate_samples
from dualfocal.metrics.inference_result import Floor, holm
from dualfocal.metrics.multilabel.entries import Entries
from dualfocal.metrics.multilabel.result import LabelEvaluation, MultilabelEvaluation
from dualfocal.metrics.result import inference_of
from dualfocal.metrics.scan import Scan, scan
from dualfocal.metrics.several import tracked
from dualfocal.metrics.units import MOST_UNITS, unit_factor, wild_signs

MOST_LABELS = 10_000
NO_ENTRIES, ONE_CLUSTER = "all entries are ignored", "its entries are in one cluster"


def evaluate_entries(
    entries: Entries, num_bins: int, settings: Settings | None, progress: Callable[[float], None] | None = None
) -> MultilabelEvaluation:
    """Evaluate multi-label predictions, see :func:`~dualfocal.metrics.evaluate` with ``task="multilabel"``.

    Small p-values of labels are computed again with more draws.

    Args:
        entries: the predictions and targets.
        num_bins: number of bins of the calibration errors.
        settings: how the inference is made (None: without inference).
        progress: called with the share of the labels that are done.

    Raises:
        ValueError: there are too many labels, or none can be evaluated.

    >>> import torch
    >>> from dualfocal.metrics import evaluate
    >>> generator = torch.Generator().manual_seed(1)
    >>> logits = torch.randn(2000, 3, generator=generator) - torch.tensor([0.0, 1.0, 2.0])
    >>> target = torch.rand(2000, 3, generator=generator) < logits.sigmoid()
    >>> logits[:, 2] += 1  # the probabilities of the rarest label are too high
    >>> result = evaluate(logits, target, task="multilabel", inference=True, class_names=["cat", "dog", "emu"])
    >>> [label.name for label in result.miscalibrated]
    ['emu']
    """
    if entries.num_labels > MOST_LABELS:
        raise ValueError(f"at most {MOST_LABELS:,} labels are supported, got {entries.num_labels:,}")
    labels, left_out, noise, wrong = _evaluate_labels(entries, num_bins, settings, progress)
    samples = entries.pooled()
    stats = scan(samples, num_bins=num_bins, scores=True, classwise=True)
    micro = evaluate_samples(samples, stats, num_bins, settings=settings)
    adjusted = math.nan
    if settings is not None:
        p_values = [inference_of(evaluation).p_value for evaluation in (micro, *(label.evaluation for label in labels))]
        adjusted, *by_label = holm(p_values, weights=[len(labels)] + [1] * len(labels))
        labels = [replace(label, p_adjusted=p) for label, p in zip(labels, by_label, strict=True)]
    return MultilabelEvaluation(
        num_samples=len(entries),
        num_bins=num_bins,
        labels=tuple(labels),
        micro=micro,
        macro_ece=float(np.mean([label.evaluation.ece for label in labels])),
        subset_accuracy=1 - float(wrong.mean()),
        macro_floor=None if settings is None else _macro_floor(labels, noise),
        p_adjusted=adjusted,
        left_out=left_out,
        clusters_given=entries.cluster is not None,
    )


def _evaluate_labels(
    entries: Entries, num_bins: int, settings: Settings | None, progress: Callable[[float], None] | None
) -> tuple[list[LabelEvaluation], dict[str, str], Floats, NDArray[np.bool_]]:
    """Evaluate every label.

    Returns:
        The labels, those that were left out with the reason, the noise of their mean ECE in each draw, and which
        samples have a wrong entry.
    """
    cluster, keep = entries.cluster, entries.keep.cpu().numpy()
    unit = np.unique(np.arange(len(entries)) if cluster is None else cluster.cpu().numpy(), return_inverse=True)[1]
    draws = 1 if settings is None else settings.draws
    noise = WildNoise(unit, draws, 0 if settings is None else settings.seed)
    labels, left_out = list[LabelEvaluation](), dict[str, str]()
    total, wrong = np.zeros(draws), np.zeros(len(entries), dtype=bool)
    many = None if settings is None else replace(settings, tests=entries.num_labels)
    for index, name in tracked(list(enumerate(entries.names)), progress):
        samples = entries.label(index)
        if samples is None or (cluster is not None and samples.cluster is None):
            left_out[name] = NO_ENTRIES if samples is None else ONE_CLUSTER
            continue
        stats = scan(samples, num_bins=num_bins, scores=True, classwise=True)
        evaluation = evaluate_samples(samples, stats, num_bins, settings=many)
        labels.append(LabelEvaluation(index, name, evaluation))
        wrong[keep[:, index]] |= ~stats.right
        if settings is not None:
            total += noise.ece(stats, evaluation.bins.edges, keep[:, index])
    if not labels:
        raise ValueError(f"no label can be evaluated: of {next(iter(left_out))!r}, {next(iter(left_out.values()))}")
    return labels, left_out, total / len(labels), wrong


class WildNoise:
    """Draws of the noise of several labels from the same random signs of the samples, or clusters.

    Args:
        unit: sample or cluster of each entry of a column, ``(N,)``, 0, 1, ...
        draws: number of draws.
        seed: seed of the draws.
    """

    def __init__(self, unit: NDArray[np.int64], draws: int, seed: int) -> None:
        number = int(unit.max()) + 1
        self.unit = unit
        if number > MOST_UNITS:
            self.unit = (np.random.default_rng(seed).permutation(number) % MOST_UNITS)[unit]
        self.signs = wild_signs(min(number, MOST_UNITS), draws, seed)

    def ece(self, stats: Scan, edges: Floats, kept: NDArray[np.bool_]) -> Floats:
        """Return the ECE of the noise of a label in each draw; ``kept`` are the samples with an entry."""
        size = len(edges) - 1
        index = self.unit[kept] * size + bin_index(stats.confidence, edges)
        sums, sizes = (
            tally(index, values, self.signs.shape[1] * size).reshape(-1, size)
            for values in (stats.confidence - stats.correct, None)
        )
        full = sizes.any(0)
        centred = sums[:, full] - sizes[:, full] * (sums[:, full].sum(0) / sizes[:, full].sum(0))
        noise = self.signs @ (centred * np.sqrt(unit_factor(sizes[:, full])))
        error: Floats = np.abs(noise).sum(1) / sizes.sum()
        return error


def macro_floor_mean(entries: Entries, *, num_bins: int = 15, draws: int = 1000, seed: int = 0) -> float:
    """Return the mean of the macro floor of :func:`evaluate_multilabel`, without tests and intervals."""
    floors = []
    for index in range(entries.num_labels):
        samples = entries.label(index)
        if samples is None or (entries.cluster is not None and samples.cluster is None):
            continue
        stats = scan(samples)
        bins = stats.bins(num_bins)
        drawn = draw_cells(bins, draws, np.random.default_rng(seed))
        floor = floor_of(np.abs(drawn).sum(1) / len(samples)).mean
        if stats.cluster is not None:
            noise = WildNoise(stats.cluster, draws, seed)
            floor = max(floor, floor_of(noise.ece(stats, bins.edges, np.ones(len(samples), bool))).mean)
        floors.append(floor)
    return float(np.mean(floors)) if floors else math.nan


def _macro_floor(labels: Sequence[LabelEvaluation], noise: Floats) -> Floor:
    """Return the noise floor of the mean ECE.

    The mean of the labels' floors is exact. The 95 % quantile lies above it by what the draws of whole samples show,
    but at least by what independent labels would show: where labels are rare, the draws see too little noise.
    """
    floors = [label.inference.floors["ece"] for label in labels]
    mean = float(np.mean([floor.mean for floor in floors]))
    independent = math.hypot(*(floor.q95 - floor.mean for floor in floors)) / len(floors)
    return Floor(mean, mean + max(float(np.quantile(noise, 0.95) - noise.mean()), independent))
