"""Sums of units of 2^-32 that do not fit into 64 bits."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from dualfocal.metrics.units import ONE, from_units


@dataclass(frozen=True, eq=False)
class WideSum:
    """Exact sums, ``whole + units / 2^32``, of any shape; ``a + b`` adds them."""

    whole: Tensor  # int64
    units: Tensor  # int64, at least 0 and below 2^32

    @classmethod
    def from_units(cls, units: Tensor, whole: Tensor | None = None) -> Self:
        """Make a sum from int64 units of any size, and an optional whole part."""
        carried = units >> 32
        return cls(carried if whole is None else carried + whole, units & (ONE - 1))

    def __add__(self, other: Self) -> Self:
        return self.from_units(self.units + other.units, self.whole + other.whole)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WideSum):
            return NotImplemented
        return torch.equal(self.whole, other.whole) and torch.equal(self.units, other.units)

    __hash__ = None  # type: ignore[assignment]

    def double(self) -> Tensor:
        """Return the sums as float64."""
        return self.whole + from_units(self.units)
