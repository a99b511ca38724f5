"""One pass over the predictions, in float64, that computes everything the metrics need from each row.

The rows are processed in tiles that stay in the cache: each tile is converted to float64 once, with the layout that
vectorises best. torch.softmax of float32 rows would take several times as long with few classes, and would round each
confidence to 24 bits.

Logits on CUDA are read by the kernels of :mod:`dualfocal.kernels.confidence` instead, where they apply. They compute in
float32; confidences differ from those of the CPU by about 1e-7.
"""

import functools
from dataclasses import dataclass, replace
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dualfocal import kernels
from dualfocal._tensors import wide_dtype
from dualfocal.metrics._class_bins import ClassBins, ClassMoments, MomentBins
from dualfocal.metrics.bins import BinStats
from dualfocal.metrics.rows import FEW_CLASSES, ROUNDING, RowError, Rows, check_logits
from dualfocal.metrics.units import ONE, equal_edges, to_units

TILE_CPU, TILE_DEVICE = 1 << 17, 1 << 25  # elements per tile
BLOCK = 1 << 14  # minimum number of rows whose per-row numbers are computed together
LONG_ROW = 1 << 14  # classes: torch may split a longer row over threads, and so sum it in another order
FUSED_DEVICE = "cuda"
SUM_TOLERANCE = 1e-2  # of the sum of a row of probabilities: allows half precision, or a csv with three decimals


@dataclass(frozen=True)
class Scan:
    """Result of :func:`scan`: numbers of each row, (N,) each, and the classwise bins."""

    confidence: Tensor  # int64 units of 2^-32: of the predicted class, or of class 1 if rows.positive
    correct: Tensor  # bool, whether that class is the true class
    uncertainty: Tensor  # float64, 1 / confidence of the predicted class: distinguishes confidences that round to 1
    right: Tensor  # bool, whether the predicted class is the true class, also if rows.positive; ties: the first class
    # Empty unless requested:
    nll: Tensor  # float64, -log p of the true class
    brier: Tensor  # float64, sum_c (p_c - y_c)^2; (p_1 - y)^2 if rows.positive
    classes: BinStats  # (C, B), every row in the bins of every class
    moments: ClassMoments | None = None  # the same, apart for rows that are predicted as the class, and with moments


def scan(
    rows: Rows,
    *,
    num_bins: int = 15,
    scores: bool = False,
    classwise: bool = False,
    moments: bool = False,
    as_given: bool = False,
) -> Scan:
    """Check the values of all rows and compute what the metrics need, in one pass.

    Args:
        rows: the predictions.
        num_bins: number of classwise bins.
        scores: whether to compute NLL and Brier score.
        classwise: whether to compute the classwise bins.
        moments: whether to compute the classwise bins with their moments; needs ``classwise``.
        as_given: whether to round confidences to the dtype of the values, like code that computes in that dtype.

    Raises:
        ValueError: a row holds NaN, an infinite maximum, or invalid probabilities.
    """
    fused = None if classwise or as_given else _fused(rows, num_bins, scores)
    if fused is not None:
        return fused
    dim = 0 if rows.values.is_cpu and rows.num_classes < FEW_CLASSES else 1
    bins = (MomentBins if moments else ClassBins)(rows, num_bins, dim) if classwise else None
    stats = _TiledScan(rows, num_bins, dim, bins, scores=scores, as_given=as_given).run()
    if bins is None:
        return stats
    classes = bins.stats()
    return replace(stats, classes=classes, moments=bins.moments(classes))


class _RowNumbers(NamedTuple):
    """Numbers of each row of a block, (T,) each."""

    peak: Tensor  # the largest value
    target_value: Tensor  # the value of the target
    class_one: Tensor  # p of class 1, times the total
    total: Tensor  # sum of p; for logits of exp(z - peak)
    squares: Tensor  # sum of their squares

    def at(self, part: slice) -> "_RowNumbers":
        return _RowNumbers(*(numbers[part] for numbers in self))


class _TiledScan:
    """The pass over all rows, in tiles that stay in the cache.

    The numbers of the rows are finished by block, which holds several tiles: a call for the few rows of each tile would
    be slow.

    Args:
        rows: the predictions.
        num_bins: number of classwise bins.
        dim: dimension of the classes in a tile.
        bins: where the classwise bins are collected (None: nowhere).
        scores: whether to compute NLL and Brier score.
        as_given: whether to round confidences to the dtype of the values.
    """

    def __init__(
        self, rows: Rows, num_bins: int, dim: int, bins: ClassBins | None, *, scores: bool, as_given: bool
    ) -> None:
        self.rows, self.dim, self.bins, self.scores, self.as_given = rows, dim, bins, scores, as_given
        n, device = len(rows), rows.values.device
        self.wide = wide_dtype(rows.values)
        self.step = max(1, (TILE_CPU if rows.values.is_cpu else TILE_DEVICE) // rows.num_classes)
        self.buffer = torch.empty(min(self.step, n) * rows.num_classes, dtype=self.wide, device=device)
        self.scratch = torch.empty_like(self.buffer) if scores and not rows.positive else self.buffer
        right = torch.empty(n, dtype=torch.bool, device=device)
        self.stats = Scan(
            confidence=torch.empty(n, dtype=torch.int64, device=device),
            correct=rows.target == 1 if rows.positive else right,
            uncertainty=torch.empty(n, dtype=self.wide, device=device),
            right=right,
            nll=torch.empty(n if scores else 0, dtype=self.wide, device=device),
            brier=torch.empty(n if scores else 0, dtype=self.wide, device=device),
            classes=BinStats.empty(0, edges=equal_edges(num_bins, device=device)),
        )

    def run(self) -> Scan:
        n, block = len(self.rows), self.step * max(1, BLOCK // self.step)
        for start in range(0, n, block):
            part = slice(start, min(start + block, n))
            shape = (len(_RowNumbers._fields), part.stop - start)
            numbers = _RowNumbers(*torch.empty(shape, dtype=self.wide, device=self.rows.values.device))
            for first in range(start, part.stop, self.step):
                here = slice(first, min(first + self.step, part.stop))
                self._read_tile(here, numbers.at(slice(here.start - start, here.stop - start)))
            self._write(part, numbers)
            if self.bins is not None:
                self.bins.flush()
        return self.stats

    def _read_tile(self, here: slice, numbers: _RowNumbers) -> None:
        """Compute the numbers of the rows of a tile, and add it to the classwise bins."""
        rows, dim, bins = self.rows, self.dim, self.bins
        values, target = rows.values[here], rows.target[here]
        tile = self.buffer[: values.numel()].view((rows.num_classes, -1) if dim == 0 else values.shape)
        tile.copy_(values.T if dim == 0 else values)
        torch.gather(tile, dim, target.unsqueeze(dim), out=numbers.target_value.unsqueeze(dim))
        predicted = None if bins is None or bins.predicted is None else bins.predicted[here]
        self.stats.right[here] = _predict(
            values, tile, numbers.target_value, target, dim, peak=numbers.peak, predicted=predicted
        )
        # From here on the tile holds p times the total; for logits exp(z - max), whose largest entry is 1.
        if rows.input == "logits":
            tile.sub_(numbers.peak.unsqueeze(dim)).exp_()
        _sum(tile, dim, out=numbers.total)
        if rows.positive:
            numbers.class_one.copy_(tile.select(dim, 1))
        elif self.scores:
            squared = torch.mul(tile, tile, out=self.scratch[: tile.numel()].view_as(tile))
            _sum(squared, dim, out=numbers.squares)
        if rows.input == "probs":
            _check_probabilities(tile, numbers.peak, numbers.total, dim, here.start)
        if bins is not None:
            scale = ONE / numbers.total.unsqueeze(dim) if rows.input == "logits" else ONE
            bins.add(tile.mul_(scale).round_(), here)

    def _write(self, part: slice, numbers: _RowNumbers) -> None:
        """Turn the numbers of the rows of a block into confidences and scores; overwrites the numbers."""
        rows, stats = self.rows, self.stats
        peak, target_value, class_one, total, squares = numbers
        logits = rows.input == "logits"
        if logits:
            check_logits(peak, part.start)
            target_value -= peak
            peak.fill_(1.0)
        else:
            peak.clamp_max_(1.0)
            total.fill_(1.0)
        stats.uncertainty[part] = total / peak
        p = (class_one if rows.positive else peak) / total
        stats.confidence[part] = to_units(p.to(rows.values.dtype) if self.as_given else p)
        if not self.scores:
            return
        stats.nll[part] = total.log() - target_value if logits else -target_value.log()
        if rows.positive:
            stats.brier[part] = (p - rows.target[part]).square_()
        else:
            target_value = target_value.exp_() if logits else target_value
            stats.brier[part] = squares.div_(total * total).sub_(target_value / total, alpha=2).add_(1).clamp_min_(0)


def fused_kernels(values: Tensor) -> ModuleType | None:
    """Return the module of the kernels for CUDA, or None if they cannot read the values."""
    return _kernels() if values.device.type == FUSED_DEVICE and values.dtype in kernels.DTYPES else None


@functools.cache
def _kernels() -> ModuleType | None:
    if not kernels.available():
        return None
    from dualfocal.kernels import confidence

    return confidence


def _fused(rows: Rows, num_bins: int, scores: bool) -> Scan | None:
    """Scan logits by the kernels; None if they do not apply, or if a row looks invalid: the caller checks it again."""
    fused = None if rows.positive or rows.input != "logits" else fused_kernels(rows.values)
    if fused is None:
        return None
    numbers = fused.scan_rows(rows.values, rows.target, scores=scores)
    if not bool(numbers.uncertainty.isfinite().all()):
        return None
    empty = BinStats.empty(0, edges=equal_edges(num_bins, device=rows.values.device))
    return Scan(
        numbers.confidence, numbers.right, numbers.uncertainty, numbers.right, numbers.nll, numbers.brier, empty
    )


def _sum(tile: Tensor, dim: int, out: Tensor) -> None:
    """Sum over classes in an order that depends only on their number, so that a row gives the same bits in any tile."""
    if dim == 1 and tile.is_cpu and tile.shape[1] > LONG_ROW:
        np.add.reduce(tile.numpy(), axis=1, out=out.numpy())
    elif dim == 1:
        torch.sum(tile, 1, out=out)
    else:
        torch.add(tile[0], tile[1], out=out)
        for row in tile[2:]:
            out += row


def _predict(
    values: Tensor,
    tile: Tensor,
    target_value: Tensor,
    target: Tensor,
    dim: int,
    *,
    peak: Tensor,
    predicted: Tensor | None,
) -> Tensor:
    """Write the largest value of each row to ``peak``; return whether the target is the first class with that value.

    Also write the first class with the largest value to ``predicted``, if it is given.
    """
    if dim == 1:
        # numpy's argmax is vectorised and finds NaN; the caller's dtype, if numpy has it, is narrower than the tile's.
        native = values if values.dtype in (torch.float32, torch.float64) else tile
        first = torch.from_numpy(native.numpy().argmax(1)) if tile.is_cpu else tile.argmax(1)
        torch.gather(tile, 1, first.unsqueeze(1), out=peak.unsqueeze(1))
        if predicted is not None:
            predicted.copy_(first)
        return first == target
    torch.amax(tile, 0, out=peak)
    if predicted is not None:
        for c in range(len(tile) - 1, -1, -1):
            predicted.masked_fill_(tile[c] == peak, c)
        return predicted == target
    if np.count_nonzero(np.equal(tile.numpy(), peak.numpy())) == len(target):  # no ties in this tile
        return target_value == peak
    return torch.from_numpy(tile.numpy().argmax(0) == target.numpy())


def _check_probabilities(tile: Tensor, peak: Tensor, total: Tensor, dim: int, start: int) -> None:
    """Raise a ValueError for the first row of invalid probabilities; synchronises with a device only once."""
    lowest = tile.amin(dim)
    good = (lowest >= 0) & (peak <= 1 + ROUNDING) & ((total - 1).abs() <= SUM_TOLERANCE + ROUNDING)
    if not bool(good.all()):
        row = int((~good).nonzero()[0])
        scores = bool((lowest[row] >= 0) & (peak[row] <= 1 + ROUNDING))
        question = (
            "are these probabilities of a multi-label problem? Then pass task='multilabel', in the command line --task "
            "multilabel"
            if scores
            else "are these logits?"
        )
        raise RowError(
            f"probabilities must sum to 1 (within {SUM_TOLERANCE:g}), lie in [0, 1] and not be NaN",
            start + row,
            f"sums to {total[row]:.6g} and holds {lowest[row]:.6g} to {peak[row]:.6g}; {question}",
        )
