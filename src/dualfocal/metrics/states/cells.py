"""Fine cells of confidences, nested in the bins: they stand in for sorted samples where no sample is kept."""

import numpy as np
import torch
from scipy.special import digamma
from torch import Tensor

from dualfocal.metrics._sorting import quantile_positions
from dualfocal.metrics.bins import BinStats
from dualfocal.metrics.units import ONE, to_units

CELLS = 256  # per bin, and per split of a topmost cell
SPLITS = 3  # of the topmost cell: most samples of a confident model lie there
ROUNDING = 1e-12  # of sums in float64, added to each bound
ROUNDING_OF_QUANTILE = 2.0**-20  # relative to the distance of two samples


def fine_edges(edges: Tensor) -> Tensor:
    """Return the edges of the fine cells, ``(256 B + 766,)``; those of the bins are among them.

    A range ``(lo, hi]`` of units is split into cells of equal width: a confidence of u units is in cell
    ``max(u - lo - 1, 0) * 256 // (hi - lo)``, from 0 to 255. Each bin is split in this way. Then the topmost cell of
    the last bin is split, the topmost of these cells, and once more: next to confidence 1, a cell holds one unit or,
    if units are wider than cells, none.

    All cells are numbered in ascending order: cell k of bin b < B - 1 is ``256 b + k``. With k1 to k4 the cells in the
    four levels of the last bin, the number there is ``256 (B - 1)`` plus k1, if k1 < 255; plus 255 + k2, if k2 < 255;
    plus 510 + k3, if k3 < 255; or plus 765 + k4.

    >>> from dualfocal.metrics.units import equal_edges
    >>> edges = fine_edges(equal_edges(1))
    >>> len(edges), edges[1].item() * 256, (1 - edges[-3:]).mul(2**32).tolist()
    (1022, 1.0, [2.0, 1.0, 0.0])
    """
    bounds = to_units(edges.cpu())
    low, high = bounds[:-1, None], bounds[1:, None]
    upper = _split(low, high).flatten()
    for _ in range(SPLITS):
        upper = torch.cat([upper[:-1], _split(upper[-2], upper[-1])])
    return torch.cat([bounds[:1], upper]).double() / ONE


def _split(low: Tensor, high: Tensor) -> Tensor:
    """Return the upper bounds of the cells of ``(low, high]``, in units."""
    share = torch.arange(1, CELLS + 1) * (high - low)
    return low + (share + CELLS - 1) // CELLS


def number_of_bins(cells: BinStats) -> int:
    """Return the number of bins that fine cells are nested in."""
    return (cells.num_bins - SPLITS * (CELLS - 1)) // CELLS


def bins_of_cells(cells: BinStats, edges: Tensor) -> BinStats:
    """Merge the cells of each bin."""
    ends = CELLS * torch.arange(len(edges))
    ends[-1] = cells.num_bins
    return cells.map(lambda sums: _sums_between(sums, ends), edges)


def _sums_between(values: Tensor, ends: Tensor) -> Tensor:
    """Sum the values between consecutive indices."""
    return torch.cat([values.new_zeros(1), values.cumsum(0)])[ends].diff()


class CellConfidences:
    """Confidences of which only the fine cell is known, in place of sorted samples.

    Args:
        cells: the fine cells of all samples, at least one.
    """

    def __init__(self, cells: BinStats) -> None:
        full = cells.count > 0
        self.low, upper = cells.edges[:-1][full].numpy(), cells.edges[1:][full]
        self.cells = cells.map(lambda sums: sums[full], torch.cat([cells.edges[:1], upper]))
        self.count, self.correct, self.high = self.cells.count.numpy(), self.cells.correct.numpy(), upper.numpy()
        self.top = to_units(upper).numpy()  # the largest number of units in each cell
        self.ends = self.count.cumsum()  # rank after the last sample of each cell

    def __len__(self) -> int:
        return int(self.ends[-1])

    def cuts(self, most: int) -> np.ndarray:
        """Return ranks between cells that cut the samples into about ``most`` groups of similar confidence."""
        ranks = np.concatenate([[0], self.ends])
        if len(ranks) <= 2 * most:
            return ranks
        return np.unique(ranks[np.searchsorted(ranks, np.linspace(0, len(self), most + 1))])

    def mean_confidence(self, ranks: np.ndarray) -> np.ndarray:
        """Return the mean confidence of the samples between consecutive ranks, which must be ends of cells."""
        bins = self._merged(np.searchsorted(self.ends, ranks[1:]) + 1)
        mean: np.ndarray = bins.mean_confidence.numpy()
        return mean

    def _merged(self, ends: np.ndarray) -> BinStats:
        """Merge cells: each bin ends before the cell of this index; the first begins with cell 0."""
        bounds = torch.from_numpy(np.concatenate([[0], ends]))
        return self.cells.map(lambda sums: _sums_between(sums, bounds), self.cells.edges[bounds])

    def adaptive_bins(self, num_bins: int) -> tuple[BinStats, float]:
        """Return bins of equal mass, and a bound of the difference of their error to that from sorted samples.

        Samples of a cell share a bin, as equal confidences do. The quantile between two bins may lie within a cell,
        though. Then the samples of the cell above the quantile, at most m of them, belong to the next bin. Their gap,
        the sum of (confidence - correctness), lies between ``-(1 - lo) * min(m, correct)`` and ``hi * min(m, wrong)``,
        with the numbers of correct and wrong samples of the cell; :func:`_largest_change` follows from that. If several
        quantiles lie in one cell, its samples may belong to several bins. No sum of absolute gaps of its parts is
        larger than the sum of the two limits. A cell whose samples are all equal is not divided.
        """
        position = quantile_positions(len(self), num_bins).numpy()[1:]
        first = np.floor(position).astype(np.int64)
        # Rounding may move a quantile that is just below a sample to this sample.
        rank = np.minimum(first + (position - first > 1 - ROUNDING_OF_QUANTILE), len(self) - 1)
        cell = np.searchsorted(self.ends, rank, side="right")
        bins = self._merged(cell + 1)
        low, high, several = np.zeros(num_bins - 1), np.zeros(num_bins - 1), 0.0
        for j in np.unique(cell[:-1]).tolist():
            quantiles = np.flatnonzero(cell[:-1] == j)
            below = first[quantiles[0]]
            if self._all_equal(j) and below >= self.ends[j] - self.count[j]:
                continue
            above = self.ends[j] - below - 1
            wrong = float(self.high[j] * min(above, self.count[j] - self.correct[j]))
            right = float((1 - self.low[j]) * min(above, self.correct[j]))
            if len(quantiles) == 1:
                low[quantiles], high[quantiles] = -right, wrong
            else:
                several += max(wrong, right) + wrong + right
        bound = _largest_change(bins.gap.numpy(), low, high) + several
        return bins, bound / len(self) + ROUNDING

    def _all_equal(self, j: int) -> bool:
        """Whether the sum of a cell shows that all its confidences equal its upper bound."""
        return int(self.cells.whole[j]) * ONE + int(self.cells.units[j]) == int(self.count[j]) * int(self.top[j])

    def aurc(self) -> tuple[float, float]:
        """Return the area under the risk-coverage curve, as if the samples of a cell were in random order.

        Also return a bound of the difference to the area from sorted samples, which lies between that of the best and
        that of the worst order: there, the right or the wrong predictions of each cell come first. (Samples whose
        confidences differ by the rounding of float64 count as equal, also if they lie in two cells.)
        """
        count, wrong = (x[::-1].astype(np.float64) for x in (self.count, self.count - self.correct))
        n, w = count.cumsum() - count, wrong.cumsum() - wrong  # samples, and wrong ones, that are more confident
        rate = wrong / count
        even = wrong + (w - rate * n) * _reciprocals(n, count)
        best = w * _reciprocals(n, count - wrong) + wrong
        best += (w + wrong - n - count) * _reciprocals(n + count - wrong, wrong)
        worst = wrong + (w - n) * _reciprocals(n, wrong) + (w + wrong) * _reciprocals(n + wrong, count - wrong)
        value, low, high = (float(area.sum()) / len(self) for area in (even, best, worst))
        return value, max(value - low, high - value, 0.0) + ROUNDING


def _largest_change(gaps: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
    """Return a bound of the change of sum |gap| if a gap from low_k to high_k moves from each bin k to the next.

    The sum is convex in what moves, so it is largest at the ends of these ranges, which are tried bin by bin. It is at
    least sum_k s_k gap_k for any signs s_k, such as those of the gaps before.
    """
    step = np.sign(gaps[:-1]) - np.sign(gaps[1:])
    fall = float(np.maximum(step * low, step * high).sum())
    most, entering = np.zeros(1), np.zeros(1)
    for gap, leaving in zip(gaps, [*np.stack([low, high], axis=1), np.zeros(1)], strict=True):
        most = (most[:, None] + np.abs(gap - leaving + entering[:, None])).max(0)
        entering = leaving
    return max(float(most[0] - np.abs(gaps).sum()), fall)


def _reciprocals(n: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return the sum of 1 / k over the ``count`` numbers after n."""
    total: np.ndarray = digamma(n + count + 1) - digamma(n + 1)
    return total
