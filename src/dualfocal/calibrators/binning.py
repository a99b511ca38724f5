"""Histogram binning, Bayesian binning (BBQ) and isotonic regression of each class's probability, then normalised.

The output of all three is log-probabilities.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal._tensors import check_number, wide_dtype
from dualfocal.calibrators._base import Calibrator
from dualfocal.calibrators._fit_report import Fit
from dualfocal.calibrators._tiles import tile_slices
from dualfocal.checks import check_choice, check_count
from dualfocal.metrics.inputs import check_logits
from dualfocal.metrics.samples import Samples

FLOOR = 1e-12  # smallest probability before normalisation
SAME = 1e-10  # probabilities with a smaller relative difference count as equal
COLUMNS = 1 << 23  # number of elements of the columns that are processed together
EQUIVALENT = 2.0  # equivalent sample size of the prior of a binning, over all its bins
WINDOW = 20.0  # binnings with less than 1 / WINDOW of the best evidence are dropped

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Column:
    """Distinct probabilities of one class, ascending, with their number of samples and of samples of the class."""

    p: Floats
    count: NDArray[np.int64]
    hits: NDArray[np.int64]

    @property
    def frequency(self) -> float:
        """Share of samples of the class, with half a sample added to both outcomes."""
        return (int(self.hits.sum()) + 0.5) / (int(self.count.sum()) + 1)

    def split(self, edges: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Number of samples and of hits in each bin ``(lo, hi]`` between the inner edges."""
        ends = np.concatenate([[0], np.searchsorted(self.p, edges, side="right"), [len(self.p)]])
        count, hits = (np.diff(_running_sum(n)[ends]) for n in (self.count, self.hits))
        return count, hits

    def equal_mass(self, num_bins: int | NDArray[np.int64]) -> tuple[Floats, NDArray[np.int64]]:
        """Inner edges of bins with about equal numbers of samples, and the index of the binning of each edge."""
        sizes = np.atleast_1d(num_bins)
        binning = np.repeat(np.arange(len(sizes)), sizes - 1)
        rank = np.arange(len(binning)) - np.repeat(np.cumsum(sizes - 1) - (sizes - 1), sizes - 1) + 1
        total = np.cumsum(self.count)
        index = np.searchsorted(total, rank * total[-1] / sizes[binning])  # of the probability below each edge
        fits = index < len(self.p) - 1
        index, binning = index[fits], binning[fits]
        new = np.ones(len(index), dtype=bool)
        new[1:] = (index[1:] != index[:-1]) | (binning[1:] != binning[:-1])  # equal probabilities share a bin
        index, binning = index[new], binning[new]
        return (self.p[index] + self.p[index + 1]) / 2, binning


class _ClasswiseMap(Calibrator):
    """Map the probability of each class by a function of one variable, then normalise."""

    learned = ("knots", "values")
    by_class = "knots"
    offset = "removed"
    knots: Tensor  # (C, M), ascending; short rows are padded
    values: Tensor  # (C, M) or (C, M + 1)

    @abstractmethod
    def _fit_column(self, column: Column) -> tuple[Floats, Floats]:
        """Knots and values of one class."""

    def _look_up(self, p: Tensor, knots: Tensor, values: Tensor) -> Tensor:
        """Evaluate the function at (C, n) probabilities. This one is constant between knots."""
        index = torch.searchsorted(knots, p).clamp_(max=values.shape[1] - 1)  # NaN is sorted last
        return values.gather(1, index)

    def _fit(self, samples: Samples) -> Fit:
        fitted = [self._fit_column(column) for column in _columns(samples)]
        learned = {name: pad_rows(parts) for name, parts in zip(self.learned, zip(*fitted, strict=True), strict=True)}
        learned["values"].clamp_(FLOOR, 1.0)
        return Fit(learned)

    def _map(self, logits: Tensor) -> Tensor:
        p = logits.to(wide_dtype(logits)).softmax(1).T.contiguous()
        q = self._look_up(p, self.knots.to(p.dtype), self.values.to(p.dtype))
        q = torch.where(p.isnan(), p, q)
        return (q / q.sum(0)).log().T.to(logits.dtype)

    def _sensitivity(self, logits: Tensor, margin: float) -> Tensor:
        p = logits.to(wide_dtype(logits)).softmax(1).T.contiguous()
        knots, values = self.knots.to(p.dtype), self.values.to(p.dtype)
        tiny = torch.finfo(p.dtype).tiny  # numbers below may be rounded to 0
        ends = ((p * (1 - margin) - tiny).clamp(min=0), p, p * (1 + margin) + tiny)
        q = torch.stack([self._look_up(end, knots, values) for end in ends])
        return ((q.amax(0) - q.amin(0)).sum(0) / q.amin(0).sum(0)).nan_to_num(0.0)  # rows with NaN stay NaN anyway


class HistogramBinning(_ClasswiseMap):
    """Histogram binning: the frequency of each class in bins of its probability, then normalised.

    Zadrozny and Elkan, ICML 2001.

    Args:
        num_bins: number of bins per class.
        bins: ``"mass"`` for bins with equal numbers of samples, ``"width"`` for bins of equal width.
        smoothing: number of pseudo-samples added to each bin, distributed like the overall class frequency, so that a
            bin without samples of a class does not rule the class out. 0 disables smoothing.

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
        # An empty bin predicts its midpoint.
        values = (hits + self.smoothing * column.frequency) / np.maximum(count + self.smoothing, FLOOR)
        return edges, np.where(count > 0, values, (ends[1:] + ends[:-1]) / 2)


class BayesianBinning(_ClasswiseMap):
    """Bayesian binning into quantiles (BBQ): equal-mass binnings, averaged by their evidence (Naeini et al., 2015).

    The binnings have N^(1/3) / 10 to 10 N^(1/3) bins, at most N / 5. Each bin has a beta prior around its midpoint;
    the priors of a binning together count as two samples. Binnings with less than 1/20 of the best evidence are
    dropped (Occam's window). The average is stored as one step function.

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
        edges, binning = column.equal_mass(sizes)
        per_model = np.bincount(binning, minlength=len(sizes)) + 1
        # The bins of all binnings in one array: the edges of a binning, then its last bin.
        last = np.cumsum(per_model) - 1
        upper = np.insert(edges, last - np.arange(len(sizes)), 1.0)
        model = np.repeat(np.arange(len(sizes)), per_model)
        lower = np.concatenate([[0.0], upper[:-1]])
        lower[np.concatenate([[0], last[:-1] + 1])] = 0.0
        first, end = (np.searchsorted(column.p, edge, side="right") for edge in (lower, upper))
        first[lower == 0.0] = 0
        end[last] = len(column.p)
        count, hits = (_running_sum(n)[end] - _running_sum(n)[first] for n in (column.count, column.hits))
        worth = EQUIVALENT / per_model[model]
        middle = np.clip((lower + upper) / 2, 1e-9, 1 - 1e-9)
        evidence = np.bincount(model, _log_evidence(count, hits, worth, middle), minlength=len(sizes))
        weight = np.exp(evidence - evidence.max())
        weight[weight < 1 / WINDOW] = 0
        weight /= weight.sum()

        mean = (hits + worth * middle) / (count + worth)
        kept = np.unique(edges[weight[binning] > 0])
        values = np.zeros(len(kept) + 1)
        for i in np.flatnonzero(weight):
            bins = slice(last[i] + 1 - per_model[i], last[i] + 1)
            values += weight[i] * mean[bins][np.searchsorted(upper[bins][:-1], np.append(kept, 1.0))]
        return kept, values


class IsotonicCalibration(_ClasswiseMap):
    """Isotonic regression of each class on its probability, then normalised (Zadrozny and Elkan, KDD 2002).

    The map is linear between blocks of equal values, as in scikit-learn.

    Args:
        smoothing: number of pseudo-samples added to each block, distributed like the overall class frequency, so that
            a block without samples of a class does not rule the class out. 0 disables smoothing.

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
        return isotonic_column(column, self.smoothing)

    def _look_up(self, p: Tensor, knots: Tensor, values: Tensor) -> Tensor:
        return interpolate(p, knots, values)


def isotonic_column(column: Column, smoothing: float) -> tuple[Floats, Floats]:
    """Knots and values of the isotonic regression of one class, see :class:`IsotonicCalibration`."""
    # Imported late: only torch and numpy may be needed at import.
    from scipy.optimize import isotonic_regression

    count, hits = column.count.astype(np.float64), column.hits.astype(np.float64)
    blocks = isotonic_regression(hits / count, weights=count).blocks
    first, end = blocks[:-1], blocks[1:]
    weight = np.add.reduceat(count, first) + smoothing
    values = (np.add.reduceat(hits, first) + smoothing * column.frequency) / weight
    # Smoothing moves small blocks more than large ones; a second regression restores the order.
    values = isotonic_regression(values, weights=weight).x
    knots = np.stack([column.p[first], column.p[end - 1]], axis=1).ravel()
    return knots, np.repeat(values, 2)


def interpolate(p: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """Evaluate functions that are linear between knots, (C, M), at (C, n) probabilities; constant beyond the ends."""
    right = torch.searchsorted(knots, p).clamp_(1, knots.shape[1] - 1)
    x0, x1, y0, y1 = (column.gather(1, at) for column in (knots, values) for at in (right - 1, right))
    share = ((p - x0) / (x1 - x0)).nan_to_num_(1.0, posinf=1.0, neginf=0.0).clamp_(0, 1)
    return y0 + share * (y1 - y0)


def _columns(samples: Samples) -> Iterator[Column]:
    values, wide = samples.values, wide_dtype(samples.values)
    check_logits(values.amax(1))
    log_total = torch.cat([values[part].to(wide).logsumexp(1) for part in tile_slices(values)])
    order = samples.target.argsort()
    ends = torch.bincount(samples.target, minlength=samples.num_classes).cumsum(0).tolist()
    step = max(1, COLUMNS // len(samples))
    for start in range(0, samples.num_classes, step):
        block = (values[:, start : start + step].to(wide) - log_total[:, None]).exp_().T.contiguous()
        for k, p in enumerate(block, start):
            hits = p[order[ends[k - 1] if k else 0 : ends[k]]].cpu().numpy().astype(np.float64)
            yield column_of(p.cpu().numpy().astype(np.float64), hits)


def column_of(p: Floats, hits: Floats) -> Column:
    """Distinct probabilities of a class, from those of all samples and those of the samples of the class."""
    ordered = np.sort(p)
    # Predictions whose logits differ by a shift are equal up to rounding, and are merged into one value.
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] > ordered[:-1] * (1 + SAME)]))
    distinct, count = ordered[first], np.diff(np.append(first, len(ordered)))
    hit_index = np.searchsorted(distinct, hits, side="right") - 1
    return Column(distinct, count, np.bincount(hit_index, minlength=len(distinct)))


def _running_sum(n: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sums of the first 0, 1, 2, ... entries."""
    return np.concatenate([[0], np.cumsum(n)])


def pad_rows(parts: tuple[Any, ...]) -> Tensor:
    """Stack rows of different lengths, padding short ones with their last value."""
    longest = max(1, *map(len, parts))
    rows = [np.pad(part, (0, longest - len(part)), mode="edge") if len(part) else np.ones(longest) for part in parts]
    return torch.from_numpy(np.stack(rows))


def _log_evidence(count: NDArray[np.int64], hits: NDArray[np.int64], worth: Floats, middle: Floats) -> Floats:
    """Log evidence of each bin under a beta-binomial model."""
    n, m, a, b = map(torch.from_numpy, (count, hits, worth * middle, worth * (1 - middle)))
    both = a + b
    result = both.lgamma() - (n + both).lgamma()
    result += (m + a).lgamma() - a.lgamma() + (n - m + b).lgamma() - b.lgamma()
    return result.numpy()
