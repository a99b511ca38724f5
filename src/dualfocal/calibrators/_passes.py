"""Passes over logits in tiles that stay in cache: large data are never copied as a whole."""

from collections.abc import Iterator

import torch
from torch import Tensor

from dualfocal._tensors import compute_dtype, wide_dtype
from dualfocal.metrics.rows import FEW_CLASSES, Rows, check_logits

TILE_CPU, TILE_DEVICE = 1 << 16, 1 << 25  # elements in float64 worked on at a time


def tile_rows(values: Tensor, tiles: int = 1) -> int:
    """Rows of (N, C) values that make up so many tiles, at least one."""
    return max(1, tiles * (TILE_CPU if values.is_cpu else TILE_DEVICE) // values.shape[1])


def tile_parts(values: Tensor, step: int | None = None) -> Iterator[slice]:
    """All rows, a tile (or so many rows) at a time."""
    step = tile_rows(values) if step is None else step
    return (slice(start, min(start + step, len(values))) for start in range(0, len(values), step))


class Shifted:
    """Logits less the largest of their row, d = z - max z: what temperature needs, and what never overflows.

    Differences of neighbouring floats are exact, so that nothing is lost in the precision of the logits.

    Raises:
        ValueError: a row holds NaN, +inf or nothing finite.
    """

    def __init__(self, rows: Rows, dtype: torch.dtype | None = None, most_rows: int | None = None) -> None:
        self.rows = rows
        self.dtype = compute_dtype(rows.values) if dtype is None else dtype
        self.dim = 0 if rows.values.is_cpu and rows.num_classes < FEW_CLASSES else 1  # along which classes lie
        tiles = 8 // self.dtype.itemsize  # those of float64 fill the cache
        self.step = min(tile_rows(rows.values, tiles), most_rows or len(rows), len(rows))  # rows of a tile
        self._scratch = torch.empty(self.step * rows.num_classes, dtype=self.dtype, device=rows.values.device)
        self._peak = torch.empty(len(rows), dtype=self.dtype, device=rows.values.device)
        self.of_target = torch.empty_like(self._peak)  # d of the true class, (N,)
        for part, tile in self._tiles():
            torch.amax(tile, self.dim, out=self._peak[part])
            torch.gather(
                tile, self.dim, rows.target[part].unsqueeze(self.dim), out=self.of_target[part].unsqueeze(self.dim)
            )
        check_logits(self._peak)
        self.of_target -= self._peak

    def __len__(self) -> int:
        return len(self.rows)

    def tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """The rows and their d, (C, n) where ``dim`` is 0, else (n, C); the memory is used again by the next."""
        for part, tile in self._tiles():
            yield part, tile.sub_(self._peak[part].unsqueeze(self.dim))

    def scratch(self, tile: Tensor) -> Tensor:
        """Memory of the shape of a tile, the same for all."""
        return self._scratch[: tile.numel()].view(tile.shape)

    def _tiles(self) -> Iterator[tuple[slice, Tensor]]:
        values = self.rows.values
        buffer = torch.empty_like(self._scratch)
        for part in tile_parts(values, step=self.step):
            some = values[part].T if self.dim == 0 else values[part]
            yield part, buffer[: some.numel()].view(some.shape).copy_(some)

    def log_likelihood(self, beta: float) -> Tensor:
        """Of each true class at temperature 1 / beta, (N,) in float64."""
        result = torch.empty(len(self), dtype=wide_dtype(self._peak), device=self._peak.device)
        for part, d in self.tiles():
            total = d.mul_(beta).clamp_(min=exponent_floor(d.dtype)).exp_().sum(self.dim)
            result[part] = self.of_target[part] * beta - total.log()
        return result


def exponent_floor(dtype: torch.dtype) -> float:
    """An exponent whose exponential counts as nothing beside 1, and whose square is not a denormal number yet.

    Arithmetic on those takes a hundred times as long.
    """
    return -40.0 if dtype == torch.float32 else -350.0
