"""Iterate over large logits in tiles of rows that fit into the cache, without copying all of them."""

from collections.abc import Iterator

import torch
from torch import Tensor

from dualfocal._tensors import compute_dtype, wide_dtype
from dualfocal.metrics.inputs import FEW_CLASSES, check_logits
from dualfocal.metrics.samples import Samples

TILE_CPU, TILE_DEVICE = 1 << 16, 1 << 25  # float64 elements per tile


def tile_rows(values: Tensor, tiles: int = 1) -> int:
    """Number of rows in ``tiles`` tiles of (N, C) values, at least one."""
    return max(1, tiles * (TILE_CPU if values.is_cpu else TILE_DEVICE) // values.shape[1])


def tile_slices(values: Tensor, step: int | None = None) -> Iterator[slice]:
    """Slices that cover all rows, one tile (or ``step`` rows) each."""
    step = tile_rows(values) if step is None else step
    return (slice(start, min(start + step, len(values))) for start in range(0, len(values), step))


class ShiftedLogits:
    """Logits minus their row maximum, d = z - max z, tile by tile, so that exp(d) cannot overflow.

    Differences of close floats are exact, so the shift loses no precision.

    Args:
        rows: logits and class indices.
        dtype: of the tiles. Default: float32, or float64 for float64 logits.
        most_rows: maximum number of rows per tile.

    Raises:
        ValueError: a row holds NaN or +inf, or no finite value.
    """

    def __init__(self, samples: Samples, dtype: torch.dtype | None = None, most_rows: int | None = None) -> None:
        self.samples = samples
        self.dtype = compute_dtype(samples.values) if dtype is None else dtype
        self.dim = 0 if samples.values.is_cpu and samples.num_classes < FEW_CLASSES else 1  # dimension of the classes
        tiles = 8 // self.dtype.itemsize  # a float64 tile fills the cache
        self.step = min(tile_rows(samples.values, tiles), most_rows or len(samples), len(samples))  # rows per tile
        self._scratch = torch.empty(self.step * samples.num_classes, dtype=self.dtype, device=samples.values.device)
        self._peak = torch.empty(len(samples), dtype=self.dtype, device=samples.values.device)
        self.target_logit = torch.empty_like(self._peak)  # d of the true class, (N,)
        for part, tile in self._tiles():
            torch.amax(tile, self.dim, out=self._peak[part])
            torch.gather(
                tile,
                self.dim,
                samples.target[part].unsqueeze(self.dim),
                out=self.target_logit[part].unsqueeze(self.dim),
            )
        check_logits(self._peak)
        self.target_logit -= self._peak

    def __len__(self) -> int:
        return len(self.samples)

    def tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """Pairs of a row slice and its d, (C, n) if ``dim`` is 0, else (n, C). All tiles share one buffer."""
        for part, tile in self._tiles():
            yield part, tile.sub_(self._peak[part].unsqueeze(self.dim))

    def scratch(self, tile: Tensor) -> Tensor:
        """Scratch buffer of the shape of a tile, shared by all tiles."""
        return self._scratch[: tile.numel()].view(tile.shape)

    def _tiles(self) -> Iterator[tuple[slice, Tensor]]:
        values = self.samples.values
        buffer = torch.empty_like(self._scratch)
        for part in tile_slices(values, step=self.step):
            tile = values[part].T if self.dim == 0 else values[part]
            yield part, buffer[: tile.numel()].view(tile.shape).copy_(tile)

    def log_likelihood(self, beta: float) -> Tensor:
        """Log-likelihood of each true class at temperature 1 / beta, (N,) in float64."""
        result = torch.empty(len(self), dtype=wide_dtype(self._peak), device=self._peak.device)
        for part, d in self.tiles():
            total = d.mul_(beta).clamp_(min=exponent_floor(d.dtype)).exp_().sum(self.dim)
            result[part] = self.target_logit[part] * beta - total.log()
        return result


def exponent_floor(dtype: torch.dtype) -> float:
    """Exponent x with exp(x) negligible beside 1, but exp(2 x) not yet denormal.

    Arithmetic on denormal numbers is about a hundred times slower.
    """
    return -40.0 if dtype == torch.float32 else -350.0
