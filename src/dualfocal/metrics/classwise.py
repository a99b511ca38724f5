"""A test of the probabilities of all classes, not only of the confidence of the predicted class.

The labels are compared with labels drawn from the model's own probabilities. Three statistics find three kinds of
miscalibration. Each is turned into an approximate p-value, and the smallest of the three counts:

- *totals*: the number of samples of a class, among all samples and among those predicted as that class, beside the sum
  of its probabilities there. Of all these totals, the most extreme one counts, by its mid-p-value
  (:mod:`dualfocal.metrics.poisson_binomial`).
- *bins*: the class with the largest X_c = sum_b (O - E)^2 / V. O is the number of samples of class c in bin b, E the
  sum of the probabilities of c there, V the sum of p (1 - p). Bins are merged until V >= 5; classes with V < 5 in all
  are left out.
- *sum*: the sum of all X_c, which finds small errors of many classes. Classes with V < 5 are counted with V = 5.

The p-value of the test is the rank of that minimum among the draws, so the approximations affect the power of the test
but not its level. ``FIRST_DRAWS`` sets of labels are drawn, and more while the decision at 5 % is uncertain; for
small data also if the p-value is small. The same draws give the noise floor of the classwise ECE.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaincc
from torch import Tensor

from dualfocal.metrics.bins import ONE, Binner, equal_edges
from dualfocal.metrics.holm import holm
from dualfocal.metrics.poisson_binomial import approximate_mid_p, mid_p_value
from dualfocal.metrics.rows import Rows, first_maximum

FIRST_DRAWS, MOST_DRAWS = 200, 1000
FEW_LABELS = 1 << 25  # up to this many labels (rows x draws), small p-values are computed more precisely
UNCERTAIN = (0.006, 0.15)  # p-values for which 200 draws do not decide at 2.5 or 5 %
FEW_CLASSES = 32  # up to this many, labels are drawn by one comparison per class, which is faster than a search
TILE_CPU, TILE_DEVICE = 1 << 17, 1 << 24  # labels drawn at a time; those of a CPU stay in its cache
MOST_COUNTS = 1 << 24  # counts by draw, class and bin in memory at a time
LEAST_VARIANCE = 5.0  # of the number of samples of a class in a merged bin
SIGNIFICANCE = 0.05  # of all verdicts
MOST_GAPS = 10  # in a result
SAME = 1e-9  # relative tolerance of equal statistics
LEAST_P = 1e-300
FAR_BELOW = 1e-4  # a bound below this is used; so rarely met by chance that the level of the test stays the same

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ClassGap:
    """The mean probability of a class beside the share of samples that belong to it.

    Args:
        index: the class.
        among_predicted: whether only the samples predicted as this class are counted, instead of all samples.
        probability: mean probability of the class.
        share: share of the samples that belong to the class.
        p_value: p-value of the difference, Holm-adjusted for all classes.
    """

    index: int
    among_predicted: bool
    probability: float
    share: float
    p_value: float


@dataclass(frozen=True)
class ClasswiseTest:
    """Result of the class-wise test, see :mod:`dualfocal.metrics.classwise`.

    Args:
        p_value: p-value of the hypothesis that the probabilities of all classes are calibrated.
        gaps: the significant differences between probability and share of a class, the most significant first, at most
            ten.
        draws: number of times that all labels were drawn.
    """

    p_value: float
    gaps: tuple[ClassGap, ...]
    draws: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, as fractions."""
        return {"p_value": self.p_value, "gaps": [asdict(gap) for gap in self.gaps], "draws": self.draws}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read the output of :meth:`to_dict`."""
        return cls(content["p_value"], tuple(ClassGap(**gap) for gap in content["gaps"]), content["draws"])


def classwise_test(rows: Rows, num_bins: int = 15, seed: int = 0) -> tuple[ClasswiseTest, Tensor]:
    """Test the probabilities of all classes; also return the classwise ECE of each set of drawn labels."""
    labels = _Labels(rows, num_bins)
    statistics = _Statistics(labels)
    generator = torch.Generator(rows.values.device).manual_seed(seed)
    batch = max(1, min(FIRST_DRAWS, MOST_COUNTS // labels.expected.size))
    observed, bound = statistics.compute(labels.observed[None]), statistics.bonferroni()
    errors, drawn = list[Array](), list[tuple[Array, Array]]()
    p_value, draws = 1.0, 0
    lowest = 0.0 if len(rows) * MOST_DRAWS <= FEW_LABELS else UNCERTAIN[0]
    while draws < FIRST_DRAWS or (draws < MOST_DRAWS and lowest < p_value < UNCERTAIN[1]):
        counts = labels.draw(min(batch, MOST_DRAWS - draws), generator)
        errors.append(np.abs(counts - labels.expected)[:, :, :-1].sum((1, 2)) / (len(rows) * rows.num_classes))
        drawn.append(statistics.compute(counts))
        draws += len(counts)
        p_value = min(bound, _rank(observed, [np.concatenate(parts) for parts in zip(*drawn, strict=True)]))
    gaps = sorted(statistics.gaps(), key=lambda gap: (gap.p_value, -abs(gap.probability - gap.share)))
    significant = tuple(gap for gap in gaps[:MOST_GAPS] if gap.p_value <= SIGNIFICANCE)
    return ClasswiseTest(p_value, significant, draws), torch.from_numpy(np.concatenate(errors))


def class_gaps(rows: Rows) -> list[ClassGap]:
    """Compare the mean probability of each class with its share, for all samples and for those predicted as the class.

    Classes that are never predicted have no second entry.
    """
    return _Statistics(_Labels(rows, num_bins=1)).gaps()


def _rank(observed: tuple[Array, Array], drawn: list[Array]) -> float:
    """Return the share of draws, the data among them, that are as extreme as the data."""
    mean, variance = drawn[1].mean(), max(float(drawn[1].var()), LEAST_P)

    def smallest(single: Array, total: Array) -> Array:
        p_total = gammaincc(mean**2 / variance, np.maximum(total, 0.0) * mean / variance) if mean > 0 else 1.0
        smaller: Array = np.minimum(single, np.log(np.maximum(p_total, LEAST_P)))
        return smaller

    data, others = smallest(*observed), smallest(*drawn)
    return float((1 + (others <= data + SAME * np.abs(data)).sum()) / (1 + len(others)))


class _Statistics:
    """The three statistics of counts of labels by class and bin, see :class:`_Labels`."""

    def __init__(self, labels: "_Labels") -> None:
        self.labels = labels
        two = len(labels.expected) == 2
        self.tested = slice(1, 2) if two else slice(None)  # of two classes, one mirrors the other
        classes = np.arange(len(labels.expected))
        self.index = np.concatenate([classes[self.tested], classes])  # the class of each total
        self.cumulants = [self._totals(part) for part in (labels.expected, labels.variance, labels.third)]
        expected, variance = labels.expected[self.tested, :-1], labels.variance[self.tested, :-1]
        self.ends = _merged_ends(variance)
        self.variance, self.expected = (self._merge(part[None])[0] for part in (variance, expected))
        used = self.variance >= LEAST_VARIANCE
        self.variance = np.maximum(self.variance, LEAST_VARIANCE)  # a class with few samples counts less in the sum
        # X_c has this mean and about this variance: 2 per bin, and the fourth cumulant of a count with a small mean.
        self.freedom = used.sum(1).astype(np.float64)
        self.spread = 2 * self.freedom + (used / self.variance).sum(1)

    def _totals(self, counts: Array) -> Array:
        """Return the totals of (..., C, B + 1): all samples of each class, then those predicted as the class."""
        return np.concatenate([counts[..., self.tested, :-1].sum(-1), counts[..., -1]], axis=-1)

    def _merge(self, counts: Array) -> Array:
        """Sum the bins of (draws, C, B) to merged bins, (draws, C, G)."""
        total = np.pad(counts.cumsum(2), ((0, 0), (0, 0), (1, 0)))
        return np.diff(np.take_along_axis(total, self.ends[None], axis=2), axis=2, prepend=0.0)

    def compute(self, counts: Array) -> tuple[Array, Array]:
        """Return the log of the smaller p-value of totals and bins, and the sum of all X_c, of each draw."""
        totals = approximate_mid_p(self._totals(counts), *self.cumulants)
        merged = self._merge(counts[:, self.tested, :-1])
        x = ((merged - self.expected) ** 2 / self.variance).sum(2)
        tested = self.freedom > 0
        ratio = self.freedom[tested] / self.spread[tested]
        bins = gammaincc(ratio * self.freedom[tested], ratio * x[:, tested])
        smallest = np.minimum(totals.min(1) * totals.shape[1], bins.min(1, initial=1.0) * max(1, bins.shape[1]))
        log_p: Array = np.log(np.clip(smallest, LEAST_P, 1.0))
        return log_p, x.sum(1)

    def bonferroni(self) -> float:
        """Return an upper bound of the p-value from the observed totals, or 1 if the draws can tell as much."""
        bound = min(self.mid_p_values) * len(self.mid_p_values)
        return bound if bound < FAR_BELOW else 1.0

    def gaps(self) -> list[ClassGap]:
        """Compare all observed totals with their expectations."""
        labels, first = self.labels, len(self.index) - len(self.labels.expected)
        count = np.concatenate([np.full(first, len(labels.rows)), labels.predicted])
        adjusted, totals = holm(self.mid_p_values), self._totals(labels.observed)
        return [
            ClassGap(int(c), i >= first, self.cumulants[0][i] / n, totals[i] / n, adjusted[i])
            for i, (c, n) in enumerate(zip(self.index, count.tolist(), strict=True))
            if n
        ]

    @cached_property
    def mid_p_values(self) -> list[float]:
        """Mid-p-values of the observed totals; those that can be significant are exact."""
        totals = self._totals(self.labels.observed)
        p_values = approximate_mid_p(totals, *self.cumulants)
        first = len(self.index) - len(self.labels.expected)
        for i in np.flatnonzero(p_values * len(p_values) < 1):  # Holm's method multiplies the smallest by their number
            p = self.labels.column(int(self.index[i]), among_predicted=bool(i >= first))
            p_values[i] = mid_p_value(p, int(totals[i]))
        return [float(p) for p in p_values]


def _merged_ends(variance: Array) -> NDArray[np.int64]:
    """Return where each merged bin ends, (C, G); the variance of a merged bin is 5 or more, if that is possible.

    Merging depends on the probabilities alone, not on the labels. Classes with fewer merged bins have empty ones.
    """
    group, index = np.zeros(variance.shape, dtype=np.int64), np.zeros(len(variance), dtype=np.int64)
    total = np.zeros(len(variance))
    for b in range(variance.shape[1]):
        group[:, b] = index
        total += variance[:, b]
        full = total >= LEAST_VARIANCE
        index, total = index + full, np.where(full, 0.0, total)
    group = np.minimum(group, np.maximum(index - 1, 0)[:, None])  # what is left joins the last merged bin
    return np.stack([(group <= g).sum(1) for g in range(int(group.max()) + 1)], axis=1)


class _Labels:
    """Counts of labels by class: in each bin of its probability, and among the samples predicted as the class.

    Attributes are ``(C, B + 1)``: the number of observed labels, its expectation, variance and third cumulant.
    """

    def __init__(self, rows: Rows, num_bins: int) -> None:
        self.rows, self.num_bins, self.device = rows, num_bins, rows.values.device
        self.binner = Binner(equal_edges(num_bins, rows.dtype, self.device))
        self.width = num_bins + 1
        shape = (rows.num_classes, self.width)
        expected, squares, cubes, observed = torch.zeros(
            4, shape[0] * shape[1], dtype=torch.float64, device=self.device
        )
        self.guess = torch.empty(len(rows), dtype=torch.int64, device=self.device)  # the predicted class of each row
        self.total = torch.empty(len(rows), dtype=torch.float64, device=self.device)  # its normaliser, or the log of it
        for part, p, cell in self._tiles(max(1, (1 << 20) // rows.num_classes)):
            guess = self.guess[part] = first_maximum(rows.values[part])
            top, is_right = p.gather(1, guess[:, None])[:, 0], (guess == rows.target[part]).double()
            for power, sums in enumerate((expected, squares, cubes), start=1):
                sums.index_add_(0, cell.reshape(-1), (p**power).reshape(-1))
                sums.index_add_(0, guess * self.width + num_bins, top**power)
            observed.index_add_(0, cell.gather(1, rows.target[part, None])[:, 0], torch.ones_like(is_right))
            observed.index_add_(0, guess * self.width + num_bins, is_right)
            values = rows.values[part].double()
            self.total[part] = values.logsumexp(1) if rows.input == "logits" else values.sum(1)
        sums = [part.view(shape).cpu().numpy() for part in (expected, squares, cubes)]
        self.expected, self.observed = sums[0], observed.view(shape).cpu().numpy()
        self.variance = np.maximum(sums[0] - sums[1], 0.0)  # sum of p (1 - p)
        self.third = sums[0] - 3 * sums[1] + 2 * sums[2]  # sum of p (1 - p) (1 - 2 p)
        self.predicted = torch.bincount(self.guess, minlength=rows.num_classes).cpu().numpy()

    def column(self, c: int, *, among_predicted: bool) -> Array:
        """Return the probabilities of a class, of all rows or of those predicted as that class."""
        p = self.rows.values[:, c].double()
        p = (p - self.total).exp_() if self.rows.input == "logits" else p / self.total
        return (p[self.guess == c] if among_predicted else p).clamp_(0.0, 1.0).cpu().numpy()

    def _tiles(self, size: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield rows, their probabilities and the cell (class and bin) of each, (T, C)."""
        rows = self.rows
        offset = self.width * torch.arange(rows.num_classes, device=self.device)
        for start in range(0, len(rows), size):
            part = slice(start, min(start + size, len(rows)))
            p = rows.values[part].double()
            p = p.softmax(1) if rows.input == "logits" else p / p.sum(1, keepdim=True)
            yield part, p, offset + self.binner((p * ONE).round_().reshape(-1)).view_as(p)

    def draw(self, draws: int, generator: torch.Generator) -> Array:
        """Draw the labels of all rows ``draws`` times: counts by draw, class and bin."""
        size = max(1, (TILE_CPU if self.device.type == "cpu" else TILE_DEVICE) // draws)
        few = self.rows.num_classes <= FEW_CLASSES
        counts = (self._by_comparison if few else self._by_search)(draws, size, generator)
        return counts.view(draws, self.rows.num_classes, self.width).cpu().numpy()

    def _by_comparison(self, draws: int, size: int, generator: torch.Generator) -> Tensor:
        """Count labels with matrix products: u < cumulative probability, times the cells of two classes."""
        num_classes, width = self.rows.num_classes, self.width
        counts = torch.zeros(num_classes * width, draws, dtype=torch.float64, device=self.device)
        for part, p, cell in self._tiles(size):
            cumulative = p.cumsum(1).float()
            cumulative[:, -1] = 1.0  # above any u
            member = torch.zeros(len(p), num_classes * width, device=self.device).scatter_(1, cell, 1.0)
            member.scatter_(1, (self.guess[part] * width + self.num_bins)[:, None], 1.0)
            uniform = torch.rand(len(p), draws, generator=generator, device=self.device)
            below = torch.empty_like(uniform)
            for c in range(num_classes):
                torch.lt(uniform, cumulative[:, c, None], out=below)
                both = member[:, c * width : (c + 2) * width].T @ below
                counts[c * width : (c + 1) * width] += both[:width]
                counts[(c + 1) * width : (c + 2) * width] -= both[width:]
        return counts.T.contiguous()

    def _by_search(self, draws: int, size: int, generator: torch.Generator) -> Tensor:
        num_classes, num_cells = self.rows.num_classes, self.rows.num_classes * self.width
        counts = torch.zeros(draws * num_cells, dtype=torch.int32, device=self.device)
        offset = num_cells * torch.arange(draws, device=self.device)
        for part, p, cell in self._tiles(size):
            guess = self.guess[part, None]
            uniform = torch.rand(len(p), draws, generator=generator, device=self.device)
            label = torch.searchsorted(p.cumsum(1).float(), uniform, right=True).clamp_max_(num_classes - 1)
            hits = [(cell.gather(1, label) + offset).reshape(-1)]
            hits.append((guess * self.width + self.num_bins + offset)[label == guess])
            for index in hits:
                counts.index_add_(0, index, torch.ones_like(index, dtype=torch.int32))
        return counts.double()
