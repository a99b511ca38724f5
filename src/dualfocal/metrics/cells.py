"""Fine cells of confidences, nested in the bins: they stand in for sorted samples where no sample is kept."""

import torch
from torch import Tensor

from dualfocal.metrics.bins import ONE, SUMS, BinStats, to_units

CELLS = 256  # per bin, and per split of a topmost cell
SPLITS = 3  # of the topmost cell: most samples of a confident model lie there


def fine_edges(edges: Tensor) -> Tensor:
    """Return the edges of the fine cells, ``(256 B + 766,)``; those of the bins are among them.

    A range ``(lo, hi]`` of units is split into cells of equal width: a confidence of u units is in cell
    ``max(u - lo - 1, 0) * 256 // (hi - lo)``, from 0 to 255. Each bin is split in this way. Then the topmost cell of
    the last bin is split, the topmost of these cells, and once more: next to confidence 1, a cell holds one unit or,
    if units are wider than cells, none.

    All cells are numbered in ascending order: cell k of bin b < B - 1 is ``256 b + k``. With k1 to k4 the cells in the
    four levels of the last bin, the number there is ``256 (B - 1)`` plus k1, if k1 < 255; plus 255 + k2, if k2 < 255;
    plus 510 + k3, if k3 < 255; or plus 765 + k4.

    >>> from dualfocal.metrics.bins import equal_edges
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


def bins_of_cells(cells: BinStats, edges: Tensor) -> BinStats:
    """Merge the cells of each bin."""
    ends = CELLS * torch.arange(len(edges))
    ends[-1] = cells.num_bins
    count, whole, units, correct = (
        torch.cat([sums.new_zeros(1), sums.cumsum(0)])[ends].diff() for sums in (getattr(cells, name) for name in SUMS)
    )
    return BinStats.from_sums(count, units, correct, edges, whole)
