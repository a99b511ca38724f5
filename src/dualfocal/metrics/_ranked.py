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
        n = len(self)
        wrong = (1 - self.correct.flip(0)).cumsum(0).double()
        units = self.units.flip(0)
        count = torch.arange(1, n + 1, dtype=torch.float64, device=units.device)
        new = units[1:] != units[:-1]
        if not bool(new.all()):
            # Within a run of equal confidences the expected number of errors grows linearly from end to end.
            run = torch.cat([new.new_zeros(1), new]).cumsum(0)
            last = torch.cat([new.nonzero()[:, 0], run.new_tensor([n - 1])])
            end, errors = (torch.cat([of.new_zeros(1), of[last]]) for of in (count, wrong))
            slope = errors.diff() / end.diff()
            wrong = errors[run] + slope[run] * (count - end[run])
        return float((wrong / count).mean())
