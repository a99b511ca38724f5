"""Samples sorted by confidence, for equal-mass bins, risk-coverage curves and resampling."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dualfocal._tensors import wide_dtype
from dualfocal.metrics.bins import BinStats
from dualfocal.metrics.units import ONE

# Relative tolerance of ties: sums of the same numbers in another order differ by a few units of 2^-52.
ROUNDING = 2.0**-47
LEAST = 1e-300
QUANTILE_ROUNDING = 1e-9  # of sums of weights, relative to their total


def tie_groups(ordered: Tensor) -> Tensor:
    """Number the groups of tied values in an ascending tensor: 0 for the smallest value, 1 for the next, and so on.

    Float64 neighbours that differ by rounding only are tied, so that the order of the classes does not matter. Float32
    values are tied only if they are equal: true differences can be as small as rounding there.
    """
    step = ordered[1:] - ordered[:-1]
    new = step > (ROUNDING * ordered[1:].abs() if ordered.dtype == torch.float64 else 0.0)
    return torch.cat([new.new_zeros(1), new]).cumsum(0)


def tie_ends(ordered: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and the last index of the group of equal values that each value belongs to."""
    new = ordered[1:] != ordered[:-1]
    group = torch.cat([new.new_zeros(1), new]).cumsum(0)
    bounds = torch.cat([group.new_zeros(1), new.nonzero()[:, 0] + 1, group.new_full((1,), len(ordered))])
    return bounds[group], bounds[group + 1] - 1


def quantile_positions(n: int, num_bins: int) -> Tensor:
    """Return the positions of the quantiles between bins of equal mass, among n sorted samples."""
    return torch.linspace(0, n, num_bins + 1, dtype=torch.float64, device="cpu").clamp_max_(n - 1)


def risk_coverage(wrong: Tensor, weight: Tensor, ends: tuple[Tensor, Tensor] | None) -> Tensor:
    """Return the area under the risk-coverage curve of samples sorted by descending confidence.

    Args:
        wrong: (N,), 1.0 where the prediction is wrong.
        weight: (N,), weight of each sample, or how often it counts; not negative.
        ends: first and last index of the group of tied samples that each sample is in (None: no ties). Errors are
            spread evenly over a group, as if its samples were in random order.
    """
    mass, wrong = weight.cumsum(0), (weight * wrong).cumsum(0)
    if ends is not None:
        first, last = ends
        mass_before, wrong_before = (torch.cat([sums.new_zeros(1), sums])[first] for sums in (mass, wrong))
        rate = (wrong[last] - wrong_before) / (mass[last] - mass_before).clamp_min(LEAST)
        wrong = wrong_before + rate * (mass - mass_before)
    return (weight * wrong / mass.clamp_min(LEAST)).sum() / mass[-1]


@dataclass(frozen=True)
class SortedConfidences:
    """Confidences in ascending order, each with its correctness; among equal confidences, wrong samples come first."""

    units: Tensor  # (N,) int64, confidence in units of 2^-32
    correct: Tensor  # (N,) int64, 0 or 1
    weight: Tensor | None = None  # (N,) float64, mean 1

    @classmethod
    def from_units(cls, units: Tensor, correct: Tensor, weight: Tensor | None = None) -> "SortedConfidences":
        """Sort by confidence. The correctness is the lowest bit of the sort key."""
        key = 2 * units + correct
        if weight is not None:
            key, order = key.sort()
            return cls(key >> 1, key & 1, weight[order])
        key = torch.from_numpy(np.sort(key.numpy())) if key.is_cpu else key.sort().values  # np.sort is faster
        return cls(key >> 1, key & 1)

    @classmethod
    def from_uncertainty(
        cls, uncertainty: Tensor, correct: Tensor, weight: Tensor | None = None
    ) -> "SortedConfidences":
        """Sort by ``1 / confidence``. ``units`` are then ranks instead of confidences; ties are in any order."""
        bits = uncertainty.view(torch.int64 if uncertainty.dtype == torch.float64 else torch.int32)
        samples = cls.from_units(
            -(bits.long() >> 1), correct, weight
        )  # the bits of positive floats sort like the floats
        ordered = (-samples.units << 1).to(bits.dtype).view(uncertainty.dtype)
        return cls(-tie_groups(ordered.flip(0)).flip(0), samples.correct, samples.weight)

    def __len__(self) -> int:
        return len(self.units)

    def between(self, ranks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return count, sum of units and number correct of the samples between consecutive ranks."""
        units, correct = (torch.cat([x.new_zeros(1), x.cumsum(0)])[ranks] for x in (self.units, self.correct))
        return ranks.diff(), units.diff(), correct.diff()

    def cuts(self, most: int) -> np.ndarray:
        """Return ranks that cut the samples into about ``most`` groups of similar confidence."""
        n = len(self)
        return np.arange(n + 1) if n <= 2 * most else np.linspace(0, n, most + 1).astype(np.int64)

    def mean_confidence(self, ranks: np.ndarray) -> np.ndarray:
        """Return the mean confidence of the samples between consecutive ranks."""
        count, units, _ = self.between(torch.from_numpy(ranks).to(self.units.device))
        mean: np.ndarray = (units.to(wide_dtype(units)) / (ONE * count)).cpu().numpy()
        return mean

    def adaptive_bins(self, num_bins: int, *, drop_lowest: bool = False) -> BinStats:
        """Return bins of equal mass, ``(lo, hi]`` between interpolated quantiles.

        Equal confidences share a bin, so bins can differ in size, or be empty. With ``drop_lowest``, samples of the
        lowest confidence are in no bin, as in the published code.
        """
        if self.weight is not None:
            return self._weighted_bins(self.weight, num_bins, drop_lowest)
        n = len(self)
        position = quantile_positions(n, num_bins).to(self.units.device)
        below = position.floor().long()
        low, high = self.units[below].double(), self.units[(below + 1).clamp_max_(n - 1)].double()
        edges = low + (position - below) * (high - low)  # in units
        ends = torch.searchsorted(self.units, edges.floor().long(), right=True)
        if not drop_lowest:
            ends[0] = 0
        return BinStats.from_sums(*self.between(ends), edges / ONE)

    def _weighted_bins(self, weight: Tensor, num_bins: int, drop_lowest: bool) -> BinStats:
        """Return bins of equal weight: a bin ends with the last confidence that begins before its quantile of the sum.

        With whole weights, these are the bins of as many copies of each sample.
        """
        first, last = tie_ends(self.units)
        mass = torch.cat([weight.new_zeros(1), weight.cumsum(0)])
        share = torch.arange(num_bins + 1, dtype=mass.dtype, device=mass.device) / num_bins
        at = torch.searchsorted(mass[first], mass[-1] * (share + QUANTILE_ROUNDING), right=True) - 1
        ends = last[at] + 1
        if not drop_lowest:
            ends[0] = 0
        index = torch.searchsorted(ends, torch.arange(len(self), device=ends.device), right=True) - 1
        kept = index >= 0
        edges = self.units[last[at]].double() / ONE
        return BinStats.from_index(index[kept], self.units[kept], self.correct[kept], edges, weight[kept])

    def aurc(self) -> float:
        """Return the mean error among the k most confident samples, over all k; ties count as in random order.

        With weights, the mean over all samples of the weighted error among those that are at least as confident.
        """
        wrong, units = 1.0 - self.correct.flip(0).double(), self.units.flip(0)
        tied = bool((units[1:] == units[:-1]).any())
        if self.weight is not None:
            weight = self.weight.flip(0)
            if not tied:
                return float(risk_coverage(wrong, weight, None))
            first, last = tie_ends(units)
            total, errors = (torch.cat([x.new_zeros(1), x.cumsum(0)]) for x in (weight, weight * wrong))
            # Each of several tied samples counts the same, so that their order does not matter.
            rate = (errors[last + 1] - errors[first]) / (total[last + 1] - total[first])
            weight = (total[last + 1] - total[first]) / (last + 1 - first)
            return float(risk_coverage(rate, weight, None))
        return float(risk_coverage(wrong, torch.ones_like(wrong), tie_ends(units) if tied else None))
