"""One pass over the predictions, in float64, that computes everything the metrics need from each row.

The rows are processed in tiles that stay in the cache: each tile is converted to float64 once, with the layout that
vectorises best. torch.softmax of float32 rows would take several times as long with few classes, and would round each
confidence to 24 bits. Tensors end here: the result consists of numpy arrays.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.metrics.cells import ROUNDING, BinStats, Floats, bin_index, equal_edges, tally
from dualfocal.metrics.inputs import FEW_CLASSES, RowError, check_logits
from dualfocal.metrics.inputs import ROUNDING as PROBABILITY_ROUNDING
from dualfocal.metrics.samples import Samples

TILE_CPU, TILE_DEVICE = 1 << 17, 1 << 25  # elements per tile
BLOCK = 1 << 14  # minimum number of rows whose numbers are computed together
SUM_TOLERANCE = 1e-2  # of the sum of a row of probabilities: allows half precision, or a csv with three decimals
SAME = 1e-9  # relative tolerance of equal weights


@dataclass(frozen=True)
class Scan:
    """Result of :func:`scan`: numbers of each row, ``(N,)`` each, and the bins of the classes."""

    confidence: Floats  # of the predicted class, or of class 1 if samples.positive
    correct: NDArray[np.bool_]  # whether that class is the true class
    certainty: Floats  # confidence of the predicted class, also if samples.positive
    right: NDArray[np.bool_]  # whether the predicted class is the true class; of several largest values, the first
    predicted: NDArray[np.int64]  # the predicted class
    weight: Floats | None  # weight of each row, with mean 1; None: all rows count the same
    noise: Floats | None  # variance of weight * correct for a calibrated model; None: weight^2 p (1 - p)
    cluster: NDArray[np.int64] | None  # cluster of each row
    dtype: torch.dtype  # precision of the caller's values, to which edges are rounded
    # Empty unless requested:
    nll: Floats  # -log p of the true class
    brier: Floats  # sum_c (p_c - y_c)^2; (p_1 - y)^2 if samples.positive
    classes: BinStats | None = None  # (C, 2, B): by class, by whether the row is predicted as the class, by bin of p

    def bins(self, num_bins: int) -> BinStats:
        """Return bins of equal width of the confidence."""
        edges = equal_edges(num_bins, self.dtype)
        return BinStats.collect(self.confidence, self.correct, edges, weight=self.weight, noise=self.noise)

    def mean(self, values: Floats | NDArray[np.bool_]) -> float:
        """Return the mean over the rows, weighted if they have weights."""
        if self.weight is None:
            return float(values.mean())
        return float((values * self.weight).sum() / self.weight.sum())


def scan(
    samples: Samples, *, num_bins: int = 15, scores: bool = False, classwise: bool = False, as_given: bool = False
) -> Scan:
    """Check the values of all samples and compute what the metrics need, in one pass.

    Args:
        samples: the predictions and targets.
        num_bins: number of bins of each class.
        scores: whether to compute NLL and Brier score.
        classwise: whether to compute the bins of the classes, unless only confidences are known.
        as_given: whether to round confidences to the dtype of the values, like code that computes in that dtype.

    Raises:
        ValueError: a row holds NaN, an infinite maximum, or invalid probabilities.
    """
    classwise = classwise and not samples.confidence_only
    return _TiledScan(samples, num_bins, scores=scores, classwise=classwise, as_given=as_given).run()


def label_weights(samples: Samples) -> Tensor | None:
    """Return the weight of each class, ``(C,)``, if the weights depend on the label alone, or None.

    None also if a class has fewer than two samples: what its weight is cannot be seen.
    """
    if samples.weight is None or int(torch.bincount(samples.target, minlength=samples.num_classes).min()) < 2:
        return None
    start = samples.weight.new_zeros(samples.num_classes)
    low, high = (
        start.scatter_reduce(0, samples.target, samples.weight, reduce, include_self=False)
        for reduce in ("amin", "amax")
    )
    return high if bool((high - low <= SAME * high).all()) else None


class _Columns(NamedTuple):
    """Numbers of each row, ``(N,)`` float64: tensors during the scan, then numpy arrays."""

    certainty: Any  # probability of the predicted class
    one: Any  # probability of class 1, if samples.positive
    target: Any  # probability of the true class
    nll: Any
    brier: Any
    noise: Any  # of weighted rows: variance of weight * (certainty - right) for a calibrated model
    noise_of_one: Any  # the same for class 1


class _Noise:
    """Variance of w (p - y) for a calibrated model: a p^2 + b p for each row and class.

    With weights that do not depend on the label, it is w^2 p (1 - p). Weights that depend on the label alone, w_k for
    class k, are those of a random label: the model is calibrated in the weighted population if a row has label k with
    probability p_k there, so among the rows with probability (p_k / w_k) / S, S = sum_j p_j / w_j. The variance of
    w_Y (p_c - [Y = c]) is then (p_c^2 (M - 2 w_c) + p_c w_c) / S, with M = sum_j p_j w_j.

    Args:
        weight: weight of each row of a tile, ``(T,)``.
        by_label: weight of each class, ``(C,)``, or None.
        p: probabilities of the tile.
        dim: dimension of the classes.
    """

    def __init__(self, weight: Tensor, by_label: Tensor | None, p: Tensor, dim: int) -> None:
        self.by_label, self.weight = by_label, weight
        if by_label is not None:
            columns = torch.stack([1 / by_label, by_label], 1)
            self.total, self.mean = (columns.T @ p if dim == 0 else (p @ columns).T).unbind(0)

    def of(self, p: Tensor, row: Tensor | slice, label: Tensor) -> Tensor:
        """Return the variance of some entries, given their rows in the tile and their classes."""
        if self.by_label is None:
            return self.weight[row] ** 2 * p * (1 - p)
        weight = self.by_label[label]
        return p * (p * (self.mean[row] - 2 * weight) + weight) / self.total[row]

    def by_class(self, p: Tensor, squares: Tensor, dim: int) -> Tensor:
        """Return the sums over the rows of the tile, ``(C,)``, from probabilities and their squares."""
        if self.by_label is None:
            return _sum_rows(p - squares, dim, self.weight**2)
        first, second = _sum_rows(p, dim, 1 / self.total), _sum_rows(squares, dim, 1 / self.total)
        return _sum_rows(squares, dim, self.mean / self.total) + self.by_label * (first - 2 * second)


class _TiledScan:
    """The pass over all rows.

    The entries of the class bins are looked up by block, which holds several tiles: a call for the few rows of each
    tile would be slow.
    """

    def __init__(self, samples: Samples, num_bins: int, *, scores: bool, classwise: bool, as_given: bool) -> None:
        self.samples, self.scores, self.as_given = samples, scores, as_given
        n, device = len(samples), samples.values.device
        self.dim = 0 if samples.values.is_cpu and samples.num_classes < FEW_CLASSES else 1
        self.step = max(1, (TILE_CPU if samples.values.is_cpu else TILE_DEVICE) // samples.num_classes)
        self.by_label = label_weights(samples)
        self.cells = _ClassCells(samples, num_bins, self.dim, self.by_label) if classwise else None
        self.buffer = torch.empty(min(self.step, n) * samples.num_classes, dtype=torch.float64, device=device)
        self.scratch = torch.empty_like(self.buffer) if scores or classwise else self.buffer
        self.columns = _Columns(*torch.empty(len(_Columns._fields), n, dtype=torch.float64, device=device))
        self.predicted = torch.empty(n, dtype=torch.int64, device=device)

    def run(self) -> Scan:
        samples, n = self.samples, len(self.samples)
        block = self.step * max(1, BLOCK // self.step)
        for start in range(0, n, block):
            end = min(start + block, n)
            for first in range(start, end, self.step):
                here = slice(first, min(first + self.step, end))
                self._read_tile(here, _Columns(*(column[here] for column in self.columns)))
            if self.cells is not None:
                self.cells.flush()
        columns = _Columns(*(column.cpu().numpy() for column in self.columns))
        predicted, target = self.predicted.cpu().numpy(), samples.target.cpu().numpy()
        right = predicted == target
        noise = None
        if self.by_label is not None:
            noise = columns.noise_of_one if samples.positive else columns.noise
        confidence, correct = (columns.one, target == 1) if samples.positive else (columns.certainty, right)
        return Scan(
            confidence=confidence,
            correct=correct,
            certainty=confidence if samples.confidence_only else columns.certainty,
            right=correct if samples.confidence_only else right,
            predicted=predicted,
            weight=None if samples.weight is None else samples.weight.cpu().numpy(),
            noise=noise,
            cluster=None if samples.cluster is None else samples.cluster.cpu().numpy(),
            dtype=samples.dtype,
            nll=columns.nll if self.scores else np.empty(0),
            brier=columns.brier if self.scores else np.empty(0),
            classes=None if self.cells is None else self.cells.finish(target, predicted, columns),
        )

    def _read_tile(self, here: slice, columns: "_Columns") -> None:
        """Compute the numbers of the rows of a tile, and add it to the bins of the classes."""
        samples, dim = self.samples, self.dim
        values, target = samples.values[here], samples.target[here]
        tile = self.buffer[: values.numel()].view((samples.num_classes, -1) if dim == 0 else values.shape)
        tile.copy_(values.T if dim == 0 else values)
        peak, predicted = _largest(values, tile, dim)
        self.predicted[here] = predicted
        if samples.input == "logits":
            check_logits(peak, here.start)
            target_value = tile.gather(dim, target.unsqueeze(dim)).squeeze(dim) if self.scores else None
            tile.sub_(peak.unsqueeze(dim)).exp_()
            total = _sum_classes(tile, dim)
            if target_value is not None:
                torch.sub(total.log(), target_value.sub_(peak), out=columns.nll)
            torch.reciprocal(total, out=columns.certainty)  # the largest term is exp(0)
            tile.mul_(columns.certainty.unsqueeze(dim))
        else:
            _check_probabilities(tile, peak, dim, here.start)
            torch.clamp_max(peak, 1.0, out=columns.certainty)
        torch.gather(tile, dim, target.unsqueeze(dim), out=columns.target.unsqueeze(dim))
        if samples.input == "probs" and self.scores:
            torch.neg(columns.target.log(), out=columns.nll)
        if samples.positive:
            torch.clamp_max(tile.select(dim, 1), 1.0, out=columns.one)
        if self.as_given:
            for column in (columns.certainty, columns.one):
                column.copy_(column.to(values.dtype))
        weights = None if samples.weight is None else _Noise(samples.weight[here], self.by_label, tile, dim)
        if weights is not None:
            columns.noise.copy_(weights.of(columns.certainty, slice(None), predicted))
            columns.noise_of_one.copy_(weights.of(columns.one, slice(None), torch.ones_like(predicted)))
        if self.scores or self.cells is not None:
            squares = torch.mul(tile, tile, out=self.scratch[: tile.numel()].view_as(tile))
            if samples.positive:
                torch.square(columns.one - target, out=columns.brier)
            else:
                total = _sum_classes(squares, dim)
                torch.sub(total, columns.target, alpha=2, out=columns.brier).add_(1).clamp_min_(0)
            if self.cells is not None:
                self.cells.add(tile, squares, weights)


class _ClassCells:
    """Bins of the probabilities of every class, apart for the rows that are predicted as the class.

    Only entries above the first bin are looked up; the first bin is the total minus the other bins. Fewer than
    ``num_bins`` classes of a row can have a probability above 1 / num_bins, so with many classes few entries are looked
    up.
    """

    def __init__(self, samples: Samples, num_bins: int, dim: int, by_label: Tensor | None) -> None:
        self.samples, self.dim, self.num_bins, self.by_label = samples, dim, num_bins, by_label
        self.edges = equal_edges(num_bins, samples.dtype)
        self.first = float(self.edges[1]) + ROUNDING if num_bins > 1 else math.inf  # a probability can be 1.0000001
        self.sums = np.zeros((4, samples.num_classes * num_bins))  # count, confidence, variance, squares
        self.totals = np.zeros((2, samples.num_classes))  # confidence and variance of all rows, by class
        self.waiting: list[list[NDArray[Any]]] = []  # class, p, weight, variance, square of entries

    def add(self, p: Tensor, squares: Tensor, weights: _Noise | None) -> None:
        """Add a tile of probabilities."""
        label, row, value = _above(p, self.first, self.dim)
        if weights is None:
            total = _sum_rows(p, self.dim)
            variance = total - _sum_rows(squares, self.dim)
            entries = [label, value]
        else:
            total, variance = _sum_rows(p, self.dim, weights.weight), weights.by_class(p, squares, self.dim)
            weight = weights.weight[row]
            jump = weight if weights.by_label is None else weights.by_label[label]
            entries = [label, value, weight, weights.of(value, row, label), weight * jump]
        self.totals += torch.stack([total, variance]).cpu().numpy()
        self.waiting.append([entry.cpu().numpy() for entry in entries])

    def flush(self) -> None:
        """Look up the bins of the entries added since the last flush."""
        label, p, *weighted = (np.concatenate(parts) for parts in zip(*self.waiting, strict=True))
        index, size = label * self.num_bins + bin_index(p, self.edges), self.sums.shape[1]
        if weighted:
            weight, noise, square = weighted
            self.sums += [np.bincount(index, x, size) for x in (weight, weight * p, noise, square)]
        else:
            count = np.bincount(index, minlength=size)
            self.sums += [count, np.bincount(index, p, size), np.bincount(index, p * (1 - p), size), count]
        self.waiting = []

    def finish(self, target: NDArray[np.int64], predicted: NDArray[np.int64], columns: "_Columns") -> BinStats:
        """Return the bins of all rows added so far, ``(C, 2, B)``."""
        samples, shape = self.samples, (self.samples.num_classes, self.num_bins)
        weight = np.ones(len(target)) if samples.weight is None else samples.weight.cpu().numpy()
        # If weights depend on the label alone, a drawn label has the weight of its class.
        by_label = None if self.by_label is None else self.by_label.cpu().numpy()
        square = (weight**2).sum() if by_label is None else weight.sum() * by_label
        whole = dict(zip(("count", "confidence", "variance", "squares"), self.sums.reshape(4, *shape), strict=True))
        for name, total in (("count", weight.sum()), ("squares", square)):
            whole[name][:, 0] = total - whole[name].sum(1)
        for name, totals in zip(("confidence", "variance"), self.totals, strict=True):
            whole[name][:, 0] = np.maximum(totals - whole[name].sum(1), 0.0)

        def summed(label: NDArray[np.int64], p: Floats, values: Sequence[Floats]) -> list[Floats]:
            index, size = label * self.num_bins + bin_index(p, self.edges), shape[0] * shape[1]
            return [tally(index, one, size).reshape(shape) for one in values]

        whole["correct"], whole["correct_squares"] = summed(target, columns.target, (weight, weight**2))
        right = predicted == target
        p = columns.certainty
        terms = {
            "count": weight,
            "confidence": weight * p,
            "variance": p * (1 - p) if samples.weight is None else columns.noise,
            "squares": weight**2 if by_label is None else weight * by_label[predicted],
            "correct": weight * right,
            "correct_squares": weight**2 * right,
        }
        top = dict(zip(terms, summed(predicted, p, list(terms.values())), strict=True))
        empty = whole["count"] - top["count"] <= ROUNDING  # what is left of an empty bin is rounding
        others = {name: np.where(empty, 0.0, whole[name] - top[name]) for name in whole}
        return BinStats(**{name: np.stack([others[name], top[name]], axis=1) for name in whole}, edges=self.edges)


def _largest(values: Tensor, tile: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return the largest value of each row of a tile, and the first class that has it. NaN counts as the largest."""
    if dim == 1:
        # numpy's argmax is vectorised and finds NaN; the caller's dtype, if numpy has it, is narrower than the tile's.
        native = values if values.dtype in (torch.float32, torch.float64) else tile
        first = torch.from_numpy(native.numpy().argmax(1)) if tile.is_cpu else tile.argmax(1)
        return tile.gather(1, first.unsqueeze(1)).squeeze(1), first
    peak = tile.amax(0)
    first = torch.zeros(tile.shape[1], dtype=torch.int8, device=tile.device)  # fewer than FEW_CLASSES
    for c in range(len(tile) - 1, -1, -1):
        first.masked_fill_(tile[c] == peak, c)
    return peak, first.long()


def _sum_classes(tile: Tensor, dim: int) -> Tensor:
    """Sum a tile over its classes."""
    if dim == 1:
        return tile.sum(1)
    total = tile[0] + tile[1]
    for row in tile[2:]:
        total += row
    return total


def _sum_rows(tile: Tensor, dim: int, factor: Tensor | None = None) -> Tensor:
    """Sum a tile over its rows, each multiplied by a factor."""
    if factor is None:
        return tile.sum(1 - dim)
    return tile @ factor if dim == 0 else factor @ tile


def _check_probabilities(tile: Tensor, peak: Tensor, dim: int, start: int) -> None:
    """Raise a ValueError for the first row of invalid probabilities; synchronises with a device only once."""
    lowest, total = tile.amin(dim), _sum_classes(tile, dim)
    good = (lowest >= 0) & (peak <= 1 + PROBABILITY_ROUNDING)
    good &= (total - 1).abs() <= SUM_TOLERANCE + PROBABILITY_ROUNDING
    if not bool(good.all()):
        row = int((~good).nonzero()[0])
        scores = bool((lowest[row] >= 0) & (peak[row] <= 1 + PROBABILITY_ROUNDING))
        question = (
            "are these probabilities of a multi-label problem? Then pass task='multilabel'"
            if scores
            else "are these logits?"
        )
        raise RowError(
            f"probabilities must sum to 1 (within {SUM_TOLERANCE:g}), lie in [0, 1] and not be NaN",
            start + row,
            f"sums to {total[row]:.6g} and holds {lowest[row]:.6g} to {peak[row]:.6g}; {question}",
        )


def _above(p: Tensor, first: float, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return class, row and value of every entry above ``first``."""
    if not p.is_cpu:
        major, minor = (p > first).nonzero(as_tuple=True)
        value = p[major, minor]
    else:  # numpy is five times as fast here
        position = np.flatnonzero(p.numpy() > first)
        width = p.shape[1]
        # Faster than an integer division, and exact: adding 0.5 keeps the quotient away from whole numbers.
        major = torch.from_numpy(((position + 0.5) * (1 / width)).astype(np.int64))
        value = torch.from_numpy(p.view(-1).numpy()[position])
        minor = torch.from_numpy(position).sub_(major, alpha=width)
    return (major, minor, value) if dim == 0 else (minor, major, value)
