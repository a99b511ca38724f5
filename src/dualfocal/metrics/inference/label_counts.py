"""Counts of labels by class and bin, observed and drawn from the model's own probabilities, for the class-wise test."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.metrics.bins import BinStats
from dualfocal.metrics.inference.poisson_binomial import mid_p_value
from dualfocal.metrics.rows import Rows, first_maximum
from dualfocal.metrics.units import ONE, Binner, equal_edges

FEW_CLASSES = 32  # up to this many, labels are drawn by one comparison per class, which is faster than a search
TILE_CPU, TILE_DEVICE = 1 << 17, 1 << 24  # labels drawn at a time; those of a CPU stay in its cache
LEAST = 1e-300

Array = NDArray[np.float64]


class LabelCounts(ABC):
    """Counts of labels by class: in each bin of its probability, and among the samples predicted as the class."""

    num_samples: int
    draw_size: int  # number of random numbers that a draw takes
    # (C, B + 1): the number of observed labels, its expectation, variance and third cumulant
    observed: Array
    expected: Array
    variance: Array
    third: Array
    predicted: NDArray[Any]  # (C,), how many samples are predicted as each class, or the sum of their weights
    sum_variance: float = 1.0  # of the sum of a statistic over all classes, relative to its variance among the draws

    @abstractmethod
    def draw(self, draws: int) -> Array:
        """Draw the labels of all samples ``draws`` times: counts by draw, class and bin."""

    def mid_p_value(self, c: int, hits: int, *, among_predicted: bool) -> float | None:
        """Return the exact mid-p-value of the number of labels of a class; None if the state does not determine it."""
        return None


class RowLabels(LabelCounts):
    """Counts of labels of rows; of weighted rows, sums of weights."""

    def __init__(self, rows: Rows, num_bins: int, seed: int = 0) -> None:
        self.rows, self.num_bins, self.device = rows, num_bins, rows.values.device
        self.num_samples = self.draw_size = len(rows)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.binner = Binner(equal_edges(num_bins, rows.dtype, self.device))
        self.width = num_bins + 1
        shape = (rows.num_classes, self.width)
        expected, squares, cubes, observed = torch.zeros(
            4, shape[0] * shape[1], dtype=torch.float64, device=self.device
        )
        self.guess = torch.empty(len(rows), dtype=torch.int64, device=self.device)  # the predicted class of each row
        self.total = torch.empty(len(rows), dtype=torch.float64, device=self.device)  # its normaliser, or the log of it
        for part, p, cell in self.tiles(max(1, (1 << 20) // rows.num_classes)):
            guess = self.guess[part] = first_maximum(rows.values[part])
            is_right = (guess == rows.target[part]).double()
            weight = torch.ones_like(is_right) if rows.weight is None else rows.weight[part]
            if rows.weight is None:
                terms = (p, p**2, p**3)
            else:  # the cumulants of a weighted outcome
                variance, w = p * (1 - p), weight[:, None]
                terms = (p * w, variance * w**2, variance * (1 - 2 * p) * w**3)
            for term, sums in zip(terms, (expected, squares, cubes), strict=True):
                sums.index_add_(0, cell.reshape(-1), term.reshape(-1))
                sums.index_add_(0, guess * self.width + num_bins, term.gather(1, guess[:, None])[:, 0])
            observed.index_add_(0, cell.gather(1, rows.target[part, None])[:, 0], weight)
            observed.index_add_(0, guess * self.width + num_bins, is_right * weight)
            values = rows.values[part].double()
            self.total[part] = values.logsumexp(1) if rows.input == "logits" else values.sum(1)
        sums = [part.view(shape).cpu().numpy() for part in (expected, squares, cubes)]
        self.expected, self.observed = sums[0], observed.view(shape).cpu().numpy()
        self.variance = np.maximum(sums[0] - sums[1], 0.0)  # sum of p (1 - p)
        self.third = sums[0] - 3 * sums[1] + 2 * sums[2]  # sum of p (1 - p) (1 - 2 p)
        if rows.weight is not None:
            self.variance, self.third = sums[1:]
        self.predicted = torch.bincount(self.guess, weights=rows.weight, minlength=rows.num_classes).cpu().numpy()

    def mid_p_value(self, c: int, hits: int, *, among_predicted: bool) -> float:
        """Return the mid-p-value of the number of labels of a class, exactly."""
        p = self.probabilities(slice(c, c + 1))[:, 0]
        p = p[self.guess == c] if among_predicted else p
        return mid_p_value(p.clamp_(0.0, 1.0).cpu().numpy(), hits)

    def probabilities(self, classes: slice) -> Tensor:
        """Return the probabilities of some classes for all rows, float64."""
        p = self.rows.values[:, classes].double()
        return (p - self.total[:, None]).exp_() if self.rows.input == "logits" else p / self.total[:, None]

    def tiles(self, size: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield rows, their probabilities and the cell (class and bin) of each, (T, C)."""
        rows = self.rows
        offset = self.width * torch.arange(rows.num_classes, device=self.device)
        for start in range(0, len(rows), size):
            part = slice(start, min(start + size, len(rows)))
            p = rows.values[part].double()
            p = p.softmax(1) if rows.input == "logits" else p / p.sum(1, keepdim=True)
            yield part, p, offset + self.binner((p * ONE).round_().reshape(-1)).view_as(p)

    def draw(self, draws: int) -> Array:
        """Draw the labels of all rows ``draws`` times: counts by draw, class and bin."""
        size = max(1, (TILE_CPU if self.device.type == "cpu" else TILE_DEVICE) // draws)
        few = self.rows.num_classes <= FEW_CLASSES
        counts = (self._by_comparison if few else self._by_search)(draws, size)
        return counts.view(draws, self.rows.num_classes, self.width).cpu().numpy()

    def _by_comparison(self, draws: int, size: int) -> Tensor:
        """Count labels with matrix products: u < cumulative probability, times the cells of two classes."""
        num_classes, width = self.rows.num_classes, self.width
        counts = torch.zeros(num_classes * width, draws, dtype=torch.float64, device=self.device)
        for part, p, cell in self.tiles(size):
            cumulative = p.cumsum(1).float()
            cumulative[:, -1] = 1.0  # above any u
            member = torch.zeros(len(p), num_classes * width, device=self.device).scatter_(1, cell, 1.0)
            member.scatter_(1, (self.guess[part] * width + self.num_bins)[:, None], 1.0)
            uniform = torch.rand(len(p), draws, generator=self.generator, device=self.device)
            below = torch.empty_like(uniform)
            for c in range(num_classes):
                torch.lt(uniform, cumulative[:, c, None], out=below)
                both = member[:, c * width : (c + 2) * width].T @ below
                counts[c * width : (c + 1) * width] += both[:width]
                counts[(c + 1) * width : (c + 2) * width] -= both[width:]
        return counts.T.contiguous()

    def _by_search(self, draws: int, size: int) -> Tensor:
        num_classes, num_cells = self.rows.num_classes, self.rows.num_classes * self.width
        counts = torch.zeros(draws * num_cells, dtype=torch.int32, device=self.device)
        offset = num_cells * torch.arange(draws, device=self.device)
        for part, p, cell in self.tiles(size):
            guess = self.guess[part, None]
            uniform = torch.rand(len(p), draws, generator=self.generator, device=self.device)
            label = torch.searchsorted(p.cumsum(1).float(), uniform, right=True).clamp_max_(num_classes - 1)
            hits = [(cell.gather(1, label) + offset).reshape(-1)]
            hits.append((guess * self.width + self.num_bins + offset)[label == guess])
            for index in hits:
                counts.index_add_(0, index, torch.ones_like(index, dtype=torch.int32))
        return counts.double()


class CellLabels(LabelCounts):
    """Counts of labels of samples of which only sums are known, by class, by whether it is predicted, and by bin.

    The number of labels in each cell is drawn as a binomial number whose mean and variance are those of the number of
    labels. Draws of different classes are independent, except that of two classes, one mirrors the other. True labels
    are not quite independent, because each sample has one label: the sum of a statistic over all classes has a larger
    variance. How much larger depends on how many classes compete for a sample, which the sums do not tell. In
    simulations it was larger by 12 to 17 % with 3 classes (by 26 to 37 % if the model is very confident), and by 0 to
    13 % with 10 or 100. ``sum_variance``, 1 + 1 / (3 (C - 1)), is a compromise. The level of the test hardly depends on
    it, because this sum is one of three statistics.

    Args:
        bins: counts, sums of p and numbers of labels, ``(C, 2, B)``.
        squares: sums of p^2, ``(C, 2, B)``.
        cubes: sums of p^3, ``(C, 2, B)``.
        seed: seed of the draws.
    """

    def __init__(self, bins: BinStats, squares: Tensor, cubes: Tensor, seed: int = 0) -> None:
        count, mean, labels = (x.double().numpy() for x in (bins.count, bins.confidence, bins.correct))
        square = np.clip(squares.numpy(), mean**2 / np.maximum(count, 1.0), mean)
        self.rng = np.random.default_rng(seed)
        self.num_samples, self.draw_size = int(bins.count[0].sum()), int((bins.count > 0).sum())
        self.mean = mean
        self.observed, self.expected = _with_predicted(labels), _with_predicted(mean)
        self.variance = _with_predicted(mean - square)
        self.third = _with_predicted(mean - 3 * square + 2 * cubes.numpy())
        self.predicted = bins.count[:, 1].sum(1).numpy()
        if len(mean) > 2:
            self.sum_variance = 1 + 1 / (3 * (len(mean) - 1))
        # Of the rarer outcome, label or not, the number of trials can be rounded without changing the variance much.
        self.base = np.where(2 * mean > count, count, 0.0)
        self.sign = np.where(2 * mean > count, -1.0, 1.0)
        hits = np.abs(self.base - mean)
        hit_squares = np.where(2 * mean > count, count - 2 * mean + square, square)
        trials = hits**2 / np.maximum(np.clip(hit_squares, hits**2 / np.maximum(count, 1.0), hits), LEAST)
        self.trials = np.maximum(np.rint(trials), np.ceil(hits)).astype(np.int64)
        self.p = np.minimum(hits / np.maximum(self.trials, 1), 1.0)

    def draw(self, draws: int) -> Array:
        """Draw the number of labels in all cells ``draws`` times, and sum them by class and bin."""
        tested = slice(1, 2) if len(self.mean) == 2 else slice(None)
        trials, p = (x[tested, ..., None] for x in (self.trials, self.p))
        drawn = self.rng.binomial(trials, p, size=(*trials.shape[:-1], draws))
        counts: Array = self.base[tested] + self.sign[tested] * np.moveaxis(drawn, -1, 0)
        if len(self.mean) == 2:  # a sample of bin b of class 1 is in bin B - 1 - b of class 0
            mirrored = self.mean[0] - (counts[:, 0] - self.mean[1])[:, ::-1, ::-1]
            counts = np.stack([mirrored, counts[:, 0]], axis=1)
        return _with_predicted(counts)


def _with_predicted(cells: Array) -> Array:
    """Turn (..., C, 2, B) into (..., C, B + 1): sums over the axis of size 2, and of its entry 1 over the bins."""
    return np.concatenate([cells.sum(-2), cells[..., 1, :].sum(-1, keepdims=True)], axis=-1)
