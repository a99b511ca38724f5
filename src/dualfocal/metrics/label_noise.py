"""Noise of the labels that two models state, for the intervals of their differences.

A bootstrap cannot draw errors that were not observed: without errors, a model that states fewer of them is better on
every resample. If a model is calibrated, labels vary as if drawn from its probabilities. No interval is shorter than
such labels allow, with the model that states more noise. The noise of a mean of losses has a closed form; calibration
errors are computed from drawn labels. With clusters, variances are multiplied by the design effect of the model's
residuals, if it is above 1. ``benchmarks/few_errors.py`` checks by simulation how often a calibrated model is called
worse than one that states too few errors.
"""

from collections.abc import Iterator

import numpy as np

from dualfocal.metrics.resampling import (
    Array,
    Columns,
    Index,
    Models,
    aurc_influence,
    class_probabilities,
    debiased_square,
)
from dualfocal.metrics.samples import Samples

DRAWS = 200  # of labels; the relative error of a standard deviation is 5 %
LEAST_PROBABILITY = 1e-12  # a class with a smaller probability has the loss of this one
MEANS = ("nll", "brier", "error", "aurc")  # metrics that are means, or nearly so, of a number of each sample


def label_noise(a: Models, b: Models, num_bins: int, *, seed: int = 0) -> dict[str, float]:
    """Return the standard deviation of the difference of each metric, over labels drawn from the stated probabilities.

    Each model is a sequence of repeats, whose losses are averaged; calibration errors are those of the first repeats.
    The labels are drawn from the probabilities of a, and of b; the larger standard deviation is returned. That of the
    classwise ECE is 0: its noise floor is lower for a model that states fewer errors.
    """
    samples = a[0][0]
    columns = [Columns.of(*repeats[0], num_bins) for repeats in (a, b)]
    weight = columns[0].weight
    guess = [repeats[0][0].values.argmax(1).cpu().numpy()[:, None] for repeats in (a, b)]
    outcome = [np.ones_like(one) for one in guess] if samples.positive else guess
    mean, square = np.zeros((2, 2, len(MEANS), len(samples)))  # over labels of a and of b
    stated = np.zeros((2, 2, len(samples)))  # by a and by b: probability of the outcome of a and of b
    after = [aurc_influence(c.certainty, c.wrong, weight)[2][:, None] for c in columns]
    for classes, p, losses in _losses(a, b, guess, after, num_bins):
        hits = np.array([classes == one for one in outcome])
        for m, p_m in enumerate(p):
            expected = p_m * losses
            mean[m] += expected.sum(2)
            square[m] += (expected * losses).sum(2)
            stated[m] += (p_m * hits).sum(2)

    # Each sample has one outcome, right or wrong, or two if the models predict different classes.
    differ, none = (outcome[0] != outcome[1])[:, 0], np.full(len(samples), num_bins)
    bins = [columns[0].bin, none], [np.where(differ, none, columns[1].bin), columns[1].bin]
    weights = np.concatenate([weight, weight * differ])
    deviations = []
    for m, c in enumerate(columns):
        effect = _design_effect(c, samples)
        variance = (square[m] - mean[m] ** 2).clip(0) @ weight**2
        errors = _error_noise(columns, bins, stated[m].ravel(), weights, effect, num_bins, seed)
        deviations.append([*np.sqrt(effect * variance) / weight.sum(), *errors])
    noise = dict(zip((*MEANS, "ece", "debiased_ece"), np.max(deviations, axis=0).tolist(), strict=True))
    return noise | {"adaptive_ece": noise["ece"], "classwise_ece": 0.0}


def _losses(
    a: Models, b: Models, guess: list[Index], after: list[Array], num_bins: int
) -> Iterator[tuple[Index, list[Array], Array]]:
    """Yield classes, their probabilities by a and b, and for each of MEANS what a label of this class adds to b - a.

    Terms that do not depend on the label are left out.
    """
    factor = 1.0 if a[0][0].positive else 2.0  # the Brier score of class 1 is half of the sum over both classes
    for parts in zip(*(class_probabilities(samples, num_bins) for samples, _ in (*a, *b)), strict=True):
        classes = np.arange(parts[0][0].start, parts[0][0].stop)
        repeats = [np.array([p for _, p in of_model]) for of_model in (parts[: len(a)], parts[len(a) :])]
        p_a, p_b = (p.mean(0) for p in repeats)
        log_a, log_b = (np.log(np.maximum(p, LEAST_PROBABILITY)).mean(0) for p in repeats)
        right_a, right_b = (1.0 * (classes == one) for one in guess)
        aurc = after[0] * right_a - after[1] * right_b
        yield classes, [p_a, p_b], np.array([log_a - log_b, factor * (p_a - p_b), right_a - right_b, aurc])


def _error_noise(
    columns: list[Columns],
    bins: tuple[list[Index], list[Index]],
    p: Array,
    weight: Array,
    effect: float,
    num_bins: int,
    seed: int,
) -> tuple[float, float]:
    """Return the noise of the differences in ECE and in debiased error, with the design effect of the clusters.

    Outcomes, each with its bins in a and in b, are 1 with the probability p. The bin ``num_bins`` stands for none. The
    noise of the debiased error is its root mean square deviation from the true difference, because it is biased where
    errors are few: without errors in a bin, no noise is subtracted.
    """
    width = num_bins + 1
    cell = np.concatenate(bins[0]) * width + np.concatenate(bins[1])
    # Outcomes of a cell are drawn together: a binomial number with their mean.
    total, hits, squares = (np.bincount(cell, values) for values in (weight, weight * p, weight**2))
    used = total.nonzero()[0]
    total, hits, squares = total[used], hits[used], squares[used]
    number = np.rint(total**2 / (effect * squares)).clip(1)
    drawn = np.random.default_rng(seed).binomial(number.astype(np.int64), (hits / total).clip(0, 1), (DRAWS, len(used)))
    errors, debiased = [], []
    for c, index in zip(columns, (used // width, used % width), strict=True):
        in_bin = 1.0 * (index[:, None] == np.arange(num_bins))
        expected, square = (np.bincount(c.bin, values, num_bins) for values in (c.weight * c.confidence, c.weight**2))
        count, stated, hit = total @ in_bin, hits @ in_bin, (drawn * (total / number)) @ in_bin
        share = hit / np.maximum(count, 1e-300)
        estimate = debiased_square(count, expected - hit, hit, (square * (1 - share), square * share))
        true = ((expected - stated) ** 2 / np.maximum(count, 1e-300)).sum() / count.sum()
        errors.append(abs(expected - hit).sum(1) / count.sum())
        debiased.append(np.sqrt(estimate.clip(0)) - np.sqrt(true))
    return float((errors[1] - errors[0]).std()), float(np.sqrt(((debiased[1] - debiased[0]) ** 2).mean()))


def _design_effect(columns: Columns, samples: Samples) -> float:
    """Return the variance of the mean of (confidence - correctness), relative to independent samples; at least 1."""
    if samples.cluster is None:
        return 1.0
    gap = columns.confidence - columns.correct
    residual = columns.weight * (gap - np.average(gap, weights=columns.weight))
    square = float((residual**2).sum())
    by_cluster = np.bincount(samples.cluster.cpu().numpy(), residual)
    return max(1.0, float((by_cluster**2).sum()) / square) if square > 0 else 1.0
