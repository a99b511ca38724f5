"""Step and broken-line functions of each class's probability, then normalised: histogram, Bayesian, isotonic.

All three return log-probabilities, with a floor.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal._checks import check_choice, check_count
from dualfocal._tensors import check_number, wide_dtype
from dualfocal.calibrators._base import Calibrator, Fit
from dualfocal.calibrators._passes import tile_parts
from dualfocal.metrics.rows import Rows, check_logits

FLOOR = 1e-12  # of a probability, before they are normalised
SAME = 1e-10  # relative difference of probabilities that count as equal
COLUMNS = 1 << 23  # numbers of the columns that are worked on together
EQUIVALENT = 2.0  # samples that the prior of a binning is worth, in all its bins together
WINDOW = 20.0  # binnings this many times less probable than the best are left out

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Column:
    """One class's probabilities in ascending order: values, how many samples have each, and how many of the class."""

    p: Floats
    count: NDArray[np.int64]
    hits: NDArray[np.int64]

    @property
    def frequency(self) -> float:
        """Share of the samples that are of the class; as if there were half a sample more of both kinds."""
        return (int(self.hits.sum()) + 0.5) / (int(self.count.sum()) + 1)

    def split(self, edges: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Samples and hits in each bin ``(lo, hi]`` between the inner edges."""
        ends = np.concatenate([[0], np.searchsorted(self.p, edges, side="right"), [len(self.p)]])
        count, hits = (np.diff(np.concatenate([[0], np.cumsum(of)])[ends]) for of in (self.count, self.hits))
        return count, hits

    def equal_mass(self, num_bins: int | NDArray[np.int64]) -> tuple[Floats, NDArray[np.int64]]:
        """Inner edges of bins of about equal size, halfway between neighbours; for several binnings at once."""
        sizes = np.atleast_1d(num_bins)
        whose = np.repeat(np.arange(len(sizes)), sizes - 1)
        rank = np.arange(len(whose)) - np.repeat(np.cumsum(sizes - 1) - (sizes - 1), sizes - 1) + 1
        upto = np.cumsum(self.count)
        place = np.searchsorted(upto, rank * upto[-1] / sizes[whose])
        fits = place < len(self.p) - 1
        place, whose = place[fits], whose[fits]
        new = np.ones(len(place), dtype=bool)
        new[1:] = (place[1:] != place[:-1]) | (whose[1:] != whose[:-1])  # equal probabilities share a bin
        place, whose = place[new], whose[new]
        return (self.p[place] + self.p[place + 1]) / 2, whose


class _ClasswiseMap(Calibrator):
    """A function of its own for each class's probability."""

    learned = ("knots", "values")
    by_class = "knots"
    offset = "removed"
    knots: Tensor  # (C, M), ascending; short rows are filled up
    values: Tensor  # (C, M) or (C, M + 1)

    @abstractmethod
    def _fit_column(self, column: Column) -> tuple[Floats, Floats]:
        """Knots and values of one class."""

    def _look_up(self, p: Tensor, knots: Tensor, values: Tensor) -> Tensor:
        """The function of (C, n) probabilities; unless overridden, it is constant between knots."""
        index = torch.searchsorted(knots, p).clamp_(max=values.shape[1] - 1)  # NaN lies beyond all
        return values.gather(1, index)

    def _fit(self, rows: Rows) -> Fit:
        fitted = [self._fit_column(column) for column in _columns(rows)]
        learned = {name: _filled(parts) for name, parts in zip(self.learned, zip(*fitted, strict=True), strict=True)}
        learned["values"].clamp_(FLOOR, 1.0)
        return Fit(learned)

    def _map(self, logits: Tensor) -> Tensor:
        p = logits.to(wide_dtype(logits)).softmax(1).T.contiguous()
        q = self._look_up(p, self.knots.to(p.dtype), self.values.to(p.dtype))
        q = torch.where(p.isnan(), p, q)
        return (q / q.sum(0)).log().T.to(logits.dtype)


class HistogramBinning(_ClasswiseMap):
    """For each class, the frequency of the class in bins of its probability; then normalised (Zadrozny & Elkan, 2001).

    Args:
        num_bins: for each class.
        bins: ``"mass"``, of equal size, or ``"width"``.
        smoothing: samples that are added to each bin, of the class as often as its overall frequency says, so that no
            class is ruled out because a bin has not seen it. 0: the plain frequency, with a floor of 1e-12.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> logits = 3 * torch.randn(5000, 3, generator=generator)
    >>> target = torch.multinomial(logits.div(3).softmax(1), 1, generator=generator)[:, 0]
    >>> report = HistogramBinning().fit(logits, target).report
    >>> round(report.nll_before, 1), round(report.nll_after, 1)
    (1.2, 0.9)
    """

    def __init__(self, num_bins: int = 15, *, bins: str = "mass", smoothing: float = 1.0) -> None:
        check_count("num_bins", num_bins)
        check_choice("bins", bins, ("mass", "width"))
        check_number("smoothing", smoothing)
        super().__init__()
        self.num_bins, self.bins, self.smoothing = num_bins, bins, smoothing

    def _fit_column(self, column: Column) -> tuple[Floats, Floats]:
        width = np.arange(1, self.num_bins) / self.num_bins
        edges = column.equal_mass(self.num_bins)[0] if self.bins == "mass" else width
        count, hits = column.split(edges)
        ends = np.concatenate([[0.0], edges, [1.0]])
        # A bin without samples has nothing but its middle to go by.
        values = (hits + self.smoothing * column.frequency) / np.maximum(count + self.smoothing, FLOOR)
        return edges, np.where(count > 0, values, (ends[1:] + ends[:-1]) / 2)


class BayesianBinning(_ClasswiseMap):
    """For each class, an average over binnings of equal mass, weighted by their evidence: BBQ (Naeini et al., 2015).

    Binnings of N^(1/3) / 10 to 10 N^(1/3) bins, N / 5 at most; each bin has a beta prior around its middle, all bins of
    a binning together worth two samples. Those with less than a twentieth of the best one's evidence are left out
    (Occam's window). The average is a step function again, and is stored as one.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> logits = 3 * torch.randn(5000, 3, generator=generator)
    >>> target = torch.multinomial(logits.div(3).softmax(1), 1, generator=generator)[:, 0]
    >>> report = BayesianBinning().fit(logits, target).report
    >>> round(report.nll_before, 1), round(report.nll_after, 1)
    (1.2, 0.9)
    """

    def _fit_column(self, column: Column) -> tuple[Floats, Floats]:
        n = int(column.count.sum())
        root = n ** (1 / 3)
        sizes = np.arange(max(1, int(root / 10)), max(1, min(int(np.ceil(10 * root)), int(np.ceil(n / 5)))) + 1)
        edges, whose = column.equal_mass(sizes)
        per_model = np.bincount(whose, minlength=len(sizes)) + 1
        # All bins of all models in one row: the edges of a model, then its last bin.
        last = np.cumsum(per_model) - 1
        upper = np.insert(edges, last - np.arange(len(sizes)), 1.0)
        model = np.repeat(np.arange(len(sizes)), per_model)
        lower = np.concatenate([[0.0], upper[:-1]])
        lower[np.concatenate([[0], last[:-1] + 1])] = 0.0
        place = [np.searchsorted(column.p, ends, side="right") for ends in (lower, upper)]
        place[0][lower == 0.0] = 0
        place[1][last] = len(column.p)
        upto = [np.concatenate([[0], np.cumsum(of)]) for of in (column.count, column.hits)]
        count, hits = (of[place[1]] - of[place[0]] for of in upto)
        worth = EQUIVALENT / per_model[model]
        middle = np.clip((lower + upper) / 2, 1e-9, 1 - 1e-9)
        evidence = np.bincount(model, _log_evidence(count, hits, worth, middle), minlength=len(sizes))
        weight = np.exp(evidence - evidence.max())
        weight[weight < 1 / WINDOW] = 0
        weight /= weight.sum()

        mean = (hits + worth * middle) / (count + worth)
        kept = np.unique(edges[weight[whose] > 0])
        values = np.zeros(len(kept) + 1)
        for i in np.flatnonzero(weight):
            mine = slice(last[i] + 1 - per_model[i], last[i] + 1)
            values += weight[i] * mean[mine][np.searchsorted(upper[mine][:-1], np.append(kept, 1.0))]
        return kept, values


class IsotonicCalibration(_ClasswiseMap):
    """For each class, the non-decreasing function of its probability that fits best; then normalised.

    Zadrozny and Elkan, KDD 2002; linear between the blocks of equal value, as in scikit-learn.

    Args:
        smoothing: samples that are added to each block of equal values, of the class as often as its overall frequency
            says, so that no class is ruled out because a block has not seen it. 0: none, with a floor of 1e-12.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> logits = 3 * torch.randn(5000, 3, generator=generator)
    >>> target = torch.multinomial(logits.div(3).softmax(1), 1, generator=generator)[:, 0]
    >>> report = IsotonicCalibration().fit(logits, target).report
    >>> round(report.nll_before, 1), round(report.nll_after, 1)
    (1.2, 0.9)
    """

    def __init__(self, *, smoothing: float = 1.0) -> None:
        check_number("smoothing", smoothing)
        super().__init__()
        self.smoothing = smoothing

    def _fit_column(self, column: Column) -> tuple[Floats, Floats]:
        # Late: torch and numpy are all that importing us may need.
        from scipy.optimize import isotonic_regression

        count, hits = column.count.astype(np.float64), column.hits.astype(np.float64)
        blocks = isotonic_regression(hits / count, weights=count).blocks
        first, end = blocks[:-1], blocks[1:]
        weight = np.add.reduceat(count, first) + self.smoothing
        values = (np.add.reduceat(hits, first) + self.smoothing * column.frequency) / weight
        # A small block moves further towards that frequency than a large one: a second run restores the order.
        values = isotonic_regression(values, weights=weight).x
        knots = np.stack([column.p[first], column.p[end - 1]], axis=1).ravel()
        return knots, np.repeat(values, 2)

    def _look_up(self, p: Tensor, knots: Tensor, values: Tensor) -> Tensor:
        right = torch.searchsorted(knots, p).clamp_(1, knots.shape[1] - 1)
        x0, x1, y0, y1 = (of.gather(1, at) for of in (knots, values) for at in (right - 1, right))
        share = ((p - x0) / (x1 - x0)).nan_to_num_(1.0).clamp_(0, 1)
        return y0 + share * (y1 - y0)


def _columns(rows: Rows) -> Iterator[Column]:
    values, wide = rows.values, wide_dtype(rows.values)
    check_logits(values.amax(1))
    log_total = torch.cat([values[part].to(wide).logsumexp(1) for part in tile_parts(values)])
    order = rows.target.argsort()
    ends = torch.bincount(rows.target, minlength=rows.num_classes).cumsum(0).tolist()
    step = max(1, COLUMNS // len(rows))
    for start in range(0, rows.num_classes, step):
        block = (values[:, start : start + step].to(wide) - log_total[:, None]).exp_().T.contiguous()
        for k, p in enumerate(block, start):
            hits = p[order[ends[k - 1] if k else 0 : ends[k]]].cpu().numpy().astype(np.float64)
            ordered = np.sort(p.cpu().numpy().astype(np.float64))
            # Equal predictions whose logits differ by a shift round differently: they are one value all the same.
            at = np.flatnonzero(np.concatenate([[True], ordered[1:] > ordered[:-1] * (1 + SAME)]))
            place = np.searchsorted(ordered[at], hits, side="right") - 1
            count = np.diff(np.append(at, len(ordered)))
            yield Column(ordered[at], count, np.bincount(place, minlength=len(at)))


def _filled(parts: tuple[Any, ...]) -> Tensor:
    """Rows of different length as one tensor, short ones filled up with their last number."""
    longest = max(1, *map(len, parts))
    rows = [np.pad(part, (0, longest - len(part)), mode="edge") if len(part) else np.ones(longest) for part in parts]
    return torch.from_numpy(np.stack(rows))


def _log_evidence(count: Floats, hits: Floats, worth: Floats, middle: Floats) -> Floats:
    """Of each bin under its beta-binomial model."""
    n, m, a, b = map(torch.from_numpy, (count, hits, worth * middle, worth * (1 - middle)))
    both = a + b
    result = both.lgamma() - (n + both).lgamma()
    result += (m + a).lgamma() - a.lgamma() + (n - m + b).lgamma() - b.lgamma()
    return result.numpy()
