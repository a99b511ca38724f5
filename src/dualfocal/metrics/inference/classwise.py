"""A test of the probabilities of all classes, not only of the confidence of the predicted class.

The labels are compared with labels drawn from the model's own probabilities. Three statistics find three kinds of
miscalibration. Each is turned into an approximate p-value, and the smallest of the three counts:

- *totals*: the number of samples of a class, among all samples and among those predicted as that class, beside the sum
  of its probabilities there. Of all these totals, the most extreme one counts, by its mid-p-value
  (:mod:`dualfocal.metrics.inference.poisson_binomial`).
- *bins*: the class with the largest X_c = sum_b (O - E)^2 / V. O is the number of samples of class c in bin b, E the
  sum of the probabilities of c there, V the sum of p (1 - p). Bins are merged until V >= 5; classes with V < 5 in all
  are left out.
- *sum*: the sum of all X_c, which finds small errors of many classes. Classes with V < 5 are counted with V = 5.

The p-value of the test is the rank of that minimum among the draws, so the approximations affect the power of the test
but not its level. ``FIRST_DRAWS`` sets of labels are drawn, and more while the decision at 5 % is uncertain; for
small data also if the p-value is small. The same draws give the noise floor of the classwise ECE.

Where the rows are not kept, the numbers of labels in the cells of
:class:`~dualfocal.metrics.inference.label_counts.CellLabels` are drawn instead of labels.
``benchmarks/binned_inference.py`` compares the two tests.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaincc
from torch import Tensor

from dualfocal.metrics.inference.holm import holm
from dualfocal.metrics.inference.label_counts import LabelCounts, RowLabels
from dualfocal.metrics.inference.poisson_binomial import approximate_mid_p
from dualfocal.metrics.rows import Rows

FIRST_DRAWS, MOST_DRAWS = 200, 1000
FEW_LABELS = 1 << 25  # up to this many random numbers (rows x draws), small p-values are computed more precisely
UNCERTAIN = (0.006, 0.15)  # p-values for which 200 draws do not decide at 2.5 or 5 %
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
    """Result of the class-wise test, see :mod:`dualfocal.metrics.inference.classwise`.

    Args:
        p_value: p-value of the hypothesis that the probabilities of all classes are calibrated.
        gaps: the significant differences between probability and share of a class, the largest first, at most ten.
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


def classwise_test(labels: LabelCounts) -> tuple[ClasswiseTest, Tensor]:
    """Test the probabilities of all classes; also return the classwise ECE of each set of drawn labels."""
    statistics = _Statistics(labels)
    batch = max(1, min(FIRST_DRAWS, MOST_COUNTS // labels.expected.size))
    observed, bound = statistics.compute(labels.observed[None]), statistics.bonferroni()
    errors, drawn = list[Array](), list[tuple[Array, Array]]()
    p_value, draws = 1.0, 0
    lowest = 0.0 if labels.draw_size * MOST_DRAWS <= FEW_LABELS else UNCERTAIN[0]
    scale = labels.num_samples * len(labels.expected)
    while draws < FIRST_DRAWS or (draws < MOST_DRAWS and lowest < p_value < UNCERTAIN[1]):
        counts = labels.draw(min(batch, MOST_DRAWS - draws))
        errors.append(np.abs(counts - labels.expected)[:, :, :-1].sum((1, 2)) / scale)
        drawn.append(statistics.compute(counts))
        draws += len(counts)
        single, total = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
        p_value = min(bound, _rank(observed, [single, _spread(total, labels.sum_variance)]))
    return ClasswiseTest(p_value, largest_gaps(statistics.gaps()), draws), torch.from_numpy(np.concatenate(errors))


def largest_gaps(gaps: Iterable[ClassGap]) -> tuple[ClassGap, ...]:
    """Return the significant gaps, the largest first, at most ten."""
    significant = (gap for gap in gaps if gap.p_value <= SIGNIFICANCE)
    return tuple(sorted(significant, key=lambda gap: -abs(gap.probability - gap.share))[:MOST_GAPS])


def class_gaps(rows: Rows) -> list[ClassGap]:
    """Compare the mean probability of each class with its share, for all samples and for those predicted as the class.

    Classes that are never predicted have no second entry.
    """
    return _Statistics(RowLabels(rows, num_bins=1)).gaps()


def _rank(observed: tuple[Array, Array], drawn: list[Array]) -> float:
    """Return the share of draws, the data among them, that are as extreme as the data."""
    mean, variance = drawn[1].mean(), max(float(drawn[1].var()), LEAST_P)

    def smallest(single: Array, total: Array) -> Array:
        p_total = gammaincc(mean**2 / variance, np.maximum(total, 0.0) * mean / variance) if mean > 0 else 1.0
        smaller: Array = np.minimum(single, np.log(np.maximum(p_total, LEAST_P)))
        return smaller

    data, others = smallest(*observed), smallest(*drawn)
    return float((1 + (others <= data + SAME * np.abs(data)).sum()) / (1 + len(others)))


def _spread(values: Array, variance: float) -> Array:
    """Multiply the variance of values by a factor."""
    mean = values.mean()
    return values if variance == 1 else mean + np.sqrt(variance) * (values - mean)


class _Statistics:
    """The three statistics of counts of labels by class and bin, see :class:`LabelCounts`."""

    def __init__(self, labels: LabelCounts) -> None:
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
        count = np.concatenate([np.full(first, labels.num_samples), labels.predicted])
        adjusted, totals = holm(self.mid_p_values), self._totals(labels.observed)
        return [
            ClassGap(int(c), i >= first, self.cumulants[0][i] / n, totals[i] / n, adjusted[i])
            for i, (c, n) in enumerate(zip(self.index, count.tolist(), strict=True))
            if n
        ]

    @cached_property
    def mid_p_values(self) -> list[float]:
        """Mid-p-values of the observed totals; those that can be significant are exact, where the rows are known."""
        totals = self._totals(self.labels.observed)
        p_values = approximate_mid_p(totals, *self.cumulants)
        first = len(self.index) - len(self.labels.expected)
        for i in np.flatnonzero(p_values * len(p_values) < 1):  # Holm's method multiplies the smallest by their number
            exact = self.labels.mid_p_value(int(self.index[i]), int(totals[i]), among_predicted=bool(i >= first))
            p_values[i] = p_values[i] if exact is None else exact
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
