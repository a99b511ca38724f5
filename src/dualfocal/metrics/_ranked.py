"""Samples in the order of their confidence: what equal-mass bins, risk-coverage curves and resampling start from."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dualfocal.metrics.bins import ONE, BinStats

# Sums over the same numbers in another order differ by a few units in the last place, which are 2^-52.
ROUNDING = 2.0**-47


def runs(ordered: Tensor) -> Tensor:
    """The number, from 0, of the run of equal values that each of these ascending ones belongs to.

    Neighbours are equal where rounding may have made the difference: the same probabilities in another order of the
    classes are a tie. Not so in float32, where many a true difference is as small.
    """
    step = ordered[1:] - ordered[:-1]
    new = step > (ROUNDING * ordered[1:].abs() if ordered.dtype == torch.float64 else 0.0)
    return torch.cat([new.new_zeros(1), new]).cumsum(0)


def run_ends(ordered: Tensor) -> tuple[Tensor, Tensor]:
    """The first and the last place of the run of equal values that each belongs to."""
    new = ordered[1:] != ordered[:-1]
    run = torch.cat([new.new_zeros(1), new]).cumsum(0)
    bounds = torch.cat([run.new_zeros(1), new.nonzero()[:, 0] + 1, run.new_full((1,), len(ordered))])
    return bounds[run], bounds[run + 1] - 1


def risk_coverage(wrong: Tensor, weight: Tensor, ends: tuple[Tensor, Tensor] | None) -> Tensor:
    """Mean over samples, most confident first, each as often as its weight says, of the error among those up to it.

    ``ends`` are those of runs of equal confidence, where there are any: errors grow evenly through a run, as if its
    samples were in random order.
    """
    mass, wrong = weight.cumsum(0), (weight * wrong).cumsum(0)
    if ends is not None:
        first, last = ends
        mass_before, wrong_before = (torch.cat([of.new_zeros(1), of])[first] for of in (mass, wrong))
        rate = (wrong[last] - wrong_before) / (mass[last] - mass_before).clamp_min(1)
        wrong = wrong_before + rate * (mass - mass_before)
    return (weight * wrong / mass.clamp_min(1)).sum() / mass[-1]


@dataclass(frozen=True)
class Ranked:
    """Confidences in ascending order with whether each was right; among equal ones the wrong come first."""

    units: Tensor  # (N,) int64, of 2^-32
    correct: Tensor  # (N,) int64, 0 or 1

    @classmethod
    def of(cls, units: Tensor, correct: Tensor) -> "Ranked":
        """Sort both together: the answer rides in the lowest bit of the key."""
        key = 2 * units + correct
        key = torch.from_numpy(np.sort(key.numpy())) if key.is_cpu else key.sort().values  # np.sort is vectorised
        return cls(key >> 1, key & 1)

    @classmethod
    def by_certainty(cls, uncertainty: Tensor, correct: Tensor) -> "Ranked":
        """Rank by ``1 / confidence``; units are ranks only, then, and equal ones in any order."""
        bits = uncertainty.view(torch.int64 if uncertainty.dtype == torch.float64 else torch.int32)
        ranked = cls.of(-(bits.long() >> 1), correct)  # positive floats are ordered as their bits are
        ordered = (-ranked.units << 1).to(bits.dtype).view(uncertainty.dtype)
        return cls(-runs(ordered.flip(0)).flip(0), ranked.correct)

    def __len__(self) -> int:
        return len(self.units)

    def between(self, ranks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Count, units and correct of the samples between consecutive ranks."""
        units, correct = (torch.cat([of.new_zeros(1), of.cumsum(0)])[ranks] for of in (self.units, self.correct))
        return ranks.diff(), units.diff(), correct.diff()

    def adaptive_bins(self, num_bins: int, *, drop_lowest: bool = False) -> BinStats:
        """Bins of equal mass, ``(lo, hi]`` between interpolated quantiles; ``drop_lowest`` as the published code does.

        Equal confidences share a bin, so that bins can differ in size, or be empty.
        """
        n = len(self)
        place = torch.linspace(0, n, num_bins + 1, dtype=torch.float64, device=self.units.device).clamp_max_(n - 1)
        below = place.floor().long()
        low, high = self.units[below].double(), self.units[(below + 1).clamp_max_(n - 1)].double()
        edges = low + (place - below) * (high - low)  # in units
        ends = torch.searchsorted(self.units, edges.floor().long(), right=True)
        if not drop_lowest:
            ends[0] = 0
        return BinStats(*self.between(ends), edges / ONE)

    def aurc(self) -> float:
        """Mean over all coverages k/N of the error among the k most confident; equal ones in random order."""
        wrong, units = 1.0 - self.correct.flip(0).double(), self.units.flip(0)
        tied = bool((units[1:] == units[:-1]).any())
        return float(risk_coverage(wrong, torch.ones_like(wrong), run_ends(units) if tied else None))
