"""Bootstrap of the metrics of several models, with the same resamples for all, so that differences are paired.

All metrics are functions of sums over units: samples, or clusters of them. A resample draws units with replacement, so
that its sums are the product of the numbers of copies and the sums of the units.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dualfocal.metrics.cells import bin_index, equal_edges
from dualfocal.metrics.ranking import TIE
from dualfocal.metrics.samples import Samples
from dualfocal.metrics.scan import Scan
from dualfocal.metrics.units import MOST_UNITS

DRAWS = 1000
CLASS_COLUMNS = 1024  # classwise bins resampled at a time

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Models = Sequence[tuple[Samples, Scan]]
ShareDone = Callable[[float], None]  # called with the share of the work that is done, from 0 to 1


class Columns(NamedTuple):
    """What is resampled of each sample of a model, (N,) each."""

    confidence: Array
    certainty: Array  # confidence of the predicted class
    correct: Array  # 0 or 1; of class 1 if it is the positive class
    wrong: Array  # whether the predicted class is not the true class
    nll: Array
    brier: Array
    weight: Array
    bin: Index
    adaptive_bin: Index  # its edges stay those of the whole sample

    @classmethod
    def of(cls, samples: Samples, stats: Scan, num_bins: int) -> Self:
        """Return the columns of scanned samples."""
        weight = np.ones(len(samples)) if stats.weight is None else stats.weight
        order = stats.confidence.argsort()
        mass = weight[order].cumsum()
        edges = stats.confidence[order[np.searchsorted(mass, mass[-1] * np.arange(1, num_bins) / num_bins)]]
        return cls(
            confidence=stats.confidence,
            certainty=stats.certainty,
            correct=stats.correct.astype(np.float64),
            wrong=(~stats.right).astype(np.float64),
            nll=stats.nll,
            brier=stats.brier,
            weight=weight,
            bin=bin_index(stats.confidence, equal_edges(num_bins, samples.dtype)),
            adaptive_bin=np.searchsorted(edges, stats.confidence),
        )


def class_probabilities(samples: Samples, num_bins: int) -> Iterator[tuple[slice, Array]]:
    """Yield the probabilities of some classes at a time, float64."""
    log_total = samples.values.double().logsumexp(1, keepdim=True) if samples.input == "logits" else None
    step = max(1, CLASS_COLUMNS // num_bins)
    for start in range(0, samples.num_classes, step):
        p = samples.values[:, start : start + step].double()
        p = p if log_total is None else (p - log_total).exp_()
        yield slice(start, start + p.shape[1]), p.cpu().numpy()


def resample(
    models: Models, num_bins: int, *, draws: int = DRAWS, seed: int = 0, classwise: bool = True
) -> dict[str, Array]:
    """Draw samples, or clusters of them, with replacement, and compute every metric of every model on the same draws.

    How often a sample is drawn is multiplied by its weight, if samples have weights. The draws depend only on the seed
    and the number of samples or clusters. The AURC is linear in the numbers of copies of the samples, up to terms of
    order 1/N; bins of the adaptive ECE keep the edges of the whole sample.

    Returns:
        For each metric float64 numbers (draws, models); ``"squared_error"`` is the square of the debiased error. The
        classwise ECE is left out if not asked for.
    """
    samples, rng = models[0][0], np.random.default_rng(seed)
    unit = np.arange(len(samples)) if samples.cluster is None else samples.cluster.cpu().numpy()
    number = int(unit.max()) + 1
    if number > MOST_UNITS:  # random groups, whose sums have the same variance
        unit, number = (rng.permutation(number) % MOST_UNITS)[unit], MOST_UNITS
    picks = rng.integers(number, size=(draws, number)) + number * np.arange(draws)[:, None]
    copies = np.bincount(picks.ravel(), minlength=draws * number).reshape(draws, number).astype(np.float64)
    drawn = [
        _metrics(samples, Columns.of(samples, stats, num_bins), unit, copies, num_bins) for samples, stats in models
    ]
    if classwise:
        for (samples, _), metrics in zip(models, drawn, strict=True):
            metrics["classwise_ece"] = _classwise(samples, unit, copies, num_bins) / metrics["size"]
    return {name: np.array([metrics[name] for metrics in drawn]).T for name in drawn[0] if name != "size"}


def _metrics(samples: Samples, columns: Columns, unit: Index, copies: Array, num_bins: int) -> dict[str, Array]:
    """Compute the metrics of all draws from one product of the numbers of copies and the sums of the units."""
    number, weight, correct = copies.shape[1], columns.weight, columns.correct
    gap, ones = columns.confidence - correct, np.ones_like(weight)
    area, influence, _ = aurc_influence(columns.certainty, columns.wrong, weight)
    means = [ones, columns.wrong, columns.nll, columns.brier, influence]
    sums = [np.bincount(unit, weight * values, number)[:, None] for values in means]
    in_bins = [ones, gap, correct, weight * (1 - correct), weight * correct]
    for index, values in (*((columns.bin, values) for values in in_bins), (columns.adaptive_bin, gap)):
        summed = np.bincount(unit * num_bins + index, weight * values, number * num_bins)
        sums.append(summed.reshape(number, num_bins))
    with np.errstate(invalid="ignore"):
        drawn = copies @ np.concatenate(sums, axis=1)
    drawn[~np.isfinite(drawn)] = np.nan  # draws of an infinite NLL
    size, error, nll, brier, influence = drawn[:, : len(means)].T
    by_bin = drawn[:, len(means) :].reshape(len(copies), -1, num_bins)
    count, gaps, correct, *squares, adaptive = by_bin.transpose(1, 0, 2)
    return {
        "size": size,
        "error": error / size,
        "nll": nll / size,
        "brier": brier / size,
        "aurc": area + influence / size,
        "ece": abs(gaps).sum(1) / size,
        "adaptive_ece": abs(adaptive).sum(1) / size,
        "mce": (abs(gaps) / np.maximum(count, 1e-300)).max(1),
        "squared_error": debiased_square(count, gaps, correct, squares),
    }


def debiased_square(count: Array, gap: Array, correct: Array, squares: Sequence[Array]) -> Array:
    """Return the square of the debiased error from sums by bin, (..., bins).

    ``squares`` are the sums of squared weights of the wrong and of the correct samples.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        accuracy = correct / count
        rest = 1 - (squares[0] + squares[1]) / count**2
        variance = (squares[0] * accuracy**2 + squares[1] * (1 - accuracy) ** 2) / rest
        # A bin with one sample has no variance.
        bins = np.where((count > 0) & (rest > 1e-9), (gap**2 - variance) / count, 0.0)
    square: Array = bins.sum(-1) / count.sum(-1)
    return square


def _classwise(samples: Samples, unit: Index, copies: Array, num_bins: int) -> Array:
    """Return the classwise ECE of each draw, multiplied by the sum of weights."""
    number, target, total = copies.shape[1], samples.target.cpu().numpy()[:, None], np.zeros(len(copies))
    edges = equal_edges(num_bins, samples.dtype)
    for classes, p in class_probabilities(samples, num_bins):
        residual = p - (target == np.arange(classes.start, classes.stop))
        if samples.weight is not None:
            residual *= samples.weight.cpu().numpy()[:, None]
        width = p.shape[1] * num_bins
        column = unit[:, None] * width + np.arange(p.shape[1]) * num_bins + bin_index(p.ravel(), edges).reshape(p.shape)
        sums = np.bincount(column.ravel(), residual.ravel(), number * width).reshape(number, width)
        total += abs(copies @ sums).sum(1)
    return total / samples.num_classes


def aurc_influence(certainty: Array, wrong: Array, weight: Array) -> tuple[float, Array, Array]:
    """Return the AURC, the influence of each sample on it, per unit of weight, and how much of it an error adds.

    Sorted by descending confidence, sample k has the weight u_k, M_k is the sum of weights and r_k the weighted error
    up to sample k, and the AURC is A = (sum of u_k r_k) / W. More weight du of sample j changes A by
    (r_j - A + sum over k >= j of u_k (wrong_j - r_k) / M_k) du / W. Tied samples share their weights, their errors, and
    what depends on their place.
    """
    order = (-certainty).argsort(kind="stable")
    ordered = certainty[order]
    group = np.concatenate([[0], (-np.diff(ordered) > TIE * ordered[:-1]).cumsum()])
    size = np.bincount(group)

    def shared(values: Array) -> Array:
        means: Array = (np.bincount(group, values) / size)[group]
        return means

    u = shared(weight[order])
    mass = u.cumsum()
    risk = shared(weight[order] * wrong[order]).cumsum() / mass
    area = float(u @ risk / mass[-1])
    after, risk_after = ((u * values / mass)[::-1].cumsum()[::-1] for values in (np.ones_like(u), risk))
    base, of_error = np.empty_like(u), np.empty_like(u)
    base[order], of_error[order] = shared(risk - risk_after) - area, shared(after)
    return area, base + wrong * of_error, of_error


def quantiles(draws: Array, level: float) -> tuple[float, float]:
    """Return the central interval with this share of the draws; NaN draws are left out."""
    draws = np.sort(draws[~np.isnan(draws)])
    last = len(draws) - 1
    shares = [(1 - level) / 2, (1 + level) / 2]
    low, high = np.interp([share * last for share in shares], np.arange(last + 1), draws).tolist()
    return low, high
