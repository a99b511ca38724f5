"""Confidences in whole units of 2^-32, and the bins that they fall into."""

import numpy as np
import torch
from torch import Tensor

from dualfocal._tensors import wide_dtype
from dualfocal.checks import check_count

ONE = 1 << 32  # confidence 1


def equal_edges(num_bins: int, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu") -> Tensor:
    """Return the edges k/B, rounded to ``dtype`` but stored as float64."""
    check_count("num_bins", num_bins)
    edges = (torch.arange(num_bins + 1, dtype=torch.float64, device="cpu") / num_bins).to(dtype)
    return edges.to(torch.float32 if torch.device(device).type == "mps" else torch.float64).to(device)


def check_edges(edges: Tensor) -> None:
    """Raise a ValueError unless the edges, float64, increase from 0 to 1."""
    ends = edges[[0, -1]].tolist() if edges.ndim == 1 and len(edges) > 1 else []
    if ends != [0, 1] or not bool((edges.diff() >= 0).all()):
        raise ValueError(f"edges must increase from 0 to 1, got {edges.tolist()}")


class Binner:
    """Find the bin ``(lo, hi]`` of confidences in units of 2^-32; 0 is in the first bin.

    >>> import torch
    >>> Binner(equal_edges(4))(torch.tensor([0, ONE // 4, ONE // 4 + 1, ONE]))
    tensor([0, 0, 1, 3])
    """

    def __init__(self, edges: Tensor) -> None:
        self.edges = edges
        self.num_bins = len(edges) - 1
        self.bounds = to_units(edges)
        self.equal_width = self.exact_to_unit = False
        if edges.is_cpu and self.num_bins < 1 << 20:  # on a GPU a search is as fast as arithmetic
            exact = torch.arange(self.num_bins + 1, dtype=torch.float64, device="cpu") * (ONE / self.num_bins)
            rounding = float((self.bounds - exact).abs().max())
            self.equal_width, self.exact_to_unit = rounding * self.num_bins < 1e-3 * ONE, rounding <= 0.5

    def __call__(self, units: Tensor) -> Tensor:
        """Return the bin index of each confidence, int64; ``units`` are whole numbers, int64 or float64."""
        if not self.equal_width:
            return torch.bucketize(units, self.bounds[1:-1].to(units.dtype))
        # Ten times faster than a search, and exact: bounds are whole units, so a value minus half a unit is never on a
        # bound, and the product has fewer than 53 bits. numpy is faster here than torch.
        position = np.subtract(units.numpy(), 0.5)
        position *= self.num_bins / ONE
        index = np.ceil(position, out=position).astype(np.int64)
        index -= 1
        np.clip(index, 0, self.num_bins - 1, out=index)  # softmax in float32 can give 1.0000001
        if not self.exact_to_unit:  # edges were rounded to a narrow dtype: correct the index by comparing with them
            low, high = self.bounds.numpy().copy(), self.bounds.numpy()[1:].copy()
            low[0], high[-1] = -1, 2 * ONE
            index -= units.numpy() <= low[index]
            index += units.numpy() > high[index]
        return torch.from_numpy(index)


def to_units(confidence: Tensor) -> Tensor:
    """Round confidences to int64 multiples of 2^-32."""
    return (confidence.to(wide_dtype(confidence)) * ONE).round().long()


def from_units(units: Tensor) -> Tensor:
    """Convert units of 2^-32 back to confidences."""
    return units.to(wide_dtype(units)) / ONE


def scatter_sum(index: Tensor, values: Tensor, size: int) -> Tensor:
    """Sum values by index; exact for integers, in any order."""
    return torch.zeros(size, dtype=values.dtype, device=index.device).index_add_(0, index, values)
