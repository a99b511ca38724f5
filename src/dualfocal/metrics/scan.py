"""One pass over the rows, in tiles that stay in cache, in float64: everything the metrics need of them.

torch.softmax of float32 rows would cost several times as much for few classes, and round each confidence to 24 bits.
Here a tile is widened to float64 once, classes along the axis that vectorises, and read while it is hot.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dualfocal._tensors import wide_dtype
from dualfocal.metrics.bins import ONE, Binner, BinStats, equal_edges, scatter_sum, to_units
from dualfocal.metrics.rows import FEW_CLASSES, ROUNDING, Rows, check_logits

TILE_CPU, TILE_DEVICE = 1 << 17, 1 << 25  # elements widened at a time
BLOCK = 1 << 14  # rows at least whose single numbers are worked on together
LONG_ROW = 1 << 14  # classes; a longer row torch may split over threads, and so sum in another order
SUM_TOLERANCE = 1e-2  # of a row of probabilities: those of half precision, or of a csv of three decimals, pass


@dataclass(frozen=True)
class Scan:
    """What one pass leaves of each row, (N,) each, and of each class."""

    confidence: Tensor  # int64 units of 2^-32: of the predicted class, or of class 1 where the rows say "positive"
    correct: Tensor  # bool, whether that class is the true one
    uncertainty: Tensor  # float64, 1 / confidence of the predicted class: ranks what units would round to one
    right: Tensor  # bool: whether the predicted class is the true one, always; ties go to the first class
    # Empty unless they are asked for:
    nll: Tensor  # float64, -log p of the true class
    brier: Tensor  # float64, sum_c (p_c - y_c)^2; (p_1 - y)^2 where the rows say "positive"
    classes: BinStats  # (C, B): every row in the bins of every class


def scan(
    rows: Rows, *, num_bins: int = 15, scores: bool = False, classwise: bool = False, as_given: bool = False
) -> Scan:
    """Read the rows once.

    Args:
        rows: the input.
        num_bins: of the classwise bins.
        scores: whether NLL and Brier score are wanted.
        classwise: whether the classwise bins are.
        as_given: round confidences to the dtype of the values, as code that computes in it does.

    Raises:
        ValueError: a row holds NaN, an infinite maximum, or what is no probability.
    """
    n, num_classes, device = len(rows), rows.num_classes, rows.values.device
    on_cpu = device.type == "cpu"
    dim = 0 if on_cpu and num_classes < FEW_CLASSES else 1  # along which classes lie
    wide = wide_dtype(rows.values)
    step = max(1, (TILE_CPU if on_cpu else TILE_DEVICE) // num_classes)
    block = step * max(1, BLOCK // step)
    buffer = torch.empty(min(step, n) * num_classes, dtype=wide, device=device)
    scratch = torch.empty_like(buffer) if scores and not rows.positive else buffer

    right = torch.empty(n, dtype=torch.bool, device=device)
    seen = Scan(
        confidence=torch.empty(n, dtype=torch.int64, device=device),
        correct=rows.target == 1 if rows.positive else right,
        uncertainty=torch.empty(n, dtype=wide, device=device),
        right=right,
        nll=torch.empty(n if scores else 0, dtype=wide, device=device),
        brier=torch.empty(n if scores else 0, dtype=wide, device=device),
        classes=BinStats.empty(0, edges=equal_edges(num_bins, device=device)),
    )
    bins = _ClassBins(rows, num_bins, dim) if classwise else None

    for start in range(0, n, block):
        part = slice(start, min(start + block, n))
        # One number a row is cheap, but a call for each tile's few is not: they are worked on by block.
        # The largest value of each, that of its target, p of class 1 times the total; the total of p, and of p^2.
        numbers = peak, of_target, of_one, total, squares = torch.empty(5, part.stop - start, dtype=wide, device=device)
        for first in range(start, part.stop, step):
            here = slice(first, min(first + step, part.stop))
            local = slice(here.start - start, here.stop - start)
            values, target = rows.values[here], rows.target[here]
            tile = buffer[: values.numel()].view((num_classes, -1) if dim == 0 else values.shape)
            tile.copy_(values.T if dim == 0 else values)
            torch.gather(tile, dim, target.unsqueeze(dim), out=of_target[local].unsqueeze(dim))
            right[here] = _predict(values, tile, of_target[local], target, dim, peak=peak[local])
            # From here on the tile holds p times its total: with logits exp(z - max), whose largest entry is 1.
            if rows.input == "logits":
                tile.sub_(peak[local].unsqueeze(dim)).exp_()
            _sum(tile, dim, out=total[local])
            if rows.positive:
                of_one[local] = tile.select(dim, 1)
            elif scores:
                _sum(torch.mul(tile, tile, out=scratch[: tile.numel()].view_as(tile)), dim, out=squares[local])
            if rows.input == "probs":
                _check_probabilities(tile, peak[local], total[local], dim, first)
            if bins is not None:
                scale = ONE / total[local].unsqueeze(dim) if rows.input == "logits" else ONE
                bins.add(tile.mul_(scale).round_(), here)
        _write(seen, rows, part, numbers, scores=scores, as_given=as_given)
        if bins is not None:
            bins.flush()
    return seen if bins is None else replace(seen, classes=bins.stats())


def _write(seen: Scan, rows: Rows, part: slice, numbers: Tensor, *, scores: bool, as_given: bool) -> None:
    """Turn the numbers of a block into confidences and scores; the numbers are used up."""
    peak, of_target, of_one, total, squares = numbers
    if rows.input == "logits":
        check_logits(peak, part.start)
        of_target -= peak
        peak.fill_(1.0)
    else:
        peak.clamp_max_(1.0)
        total.fill_(1.0)
    seen.uncertainty[part] = total / peak
    p = (of_one if rows.positive else peak) / total
    seen.confidence[part] = to_units(p.to(rows.values.dtype) if as_given else p)
    if scores:
        logits = rows.input == "logits"
        seen.nll[part] = total.log() - of_target if logits else -of_target.log()
        if rows.positive:
            seen.brier[part] = (p - rows.target[part]).square_()
        else:
            of_target = of_target.exp_() if logits else of_target
            seen.brier[part] = squares.div_(total * total).sub_(of_target / total, alpha=2).add_(1).clamp_min_(0)


class _ClassBins:
    """Every row in the bins of every class: sums of all rows, less what does not lie in the first bin.

    Fewer than ``num_bins`` classes of a row can have a probability above 1 / num_bins, so that with many classes
    hardly anything needs to be looked up.
    """

    def __init__(self, rows: Rows, num_bins: int, dim: int) -> None:
        self.rows, self.dim, self.num_bins = rows, dim, num_bins
        self.binner = Binner(equal_edges(num_bins, rows.dtype, rows.values.device))
        self.first = float(self.binner.bounds[1])
        dtype = torch.int64 if rows.weight is None else torch.float64
        self.count = torch.zeros(rows.num_classes * num_bins, dtype=dtype, device=rows.values.device)
        self.confidence = torch.zeros_like(self.count)
        self.everywhere = self.count.new_zeros(rows.num_classes)  # confidence of all rows, by class
        self.of_target = torch.empty(len(rows), dtype=torch.int64, device=rows.values.device)
        self.waiting: list[tuple[Tensor, Tensor, Tensor]] = []  # (class, row, units) above the first bin
        self.sums: list[Tensor] = []  # of all rows by class, of each tile

    def add(self, units: Tensor, part: slice) -> None:
        """Add a tile of ``p * 2^32``, whole numbers in float64."""
        rows, dim = self.rows, self.dim
        self.of_target[part] = units.gather(dim, rows.target[part].unsqueeze(dim)).squeeze(dim)
        weighted = units if rows.weight is None else units * rows.weight[part].unsqueeze(dim)
        self.sums.append(weighted.sum(1 - dim))  # exact, being whole numbers
        of_class, row, some = _above(units, self.first, dim)
        self.waiting.append((of_class, row if rows.weight is None else row + part.start, some))

    def flush(self) -> None:
        """Look up the bins of what has been added."""
        of_class, row, some = (torch.cat(parts) for parts in zip(*self.waiting, strict=True))
        index = of_class.mul_(self.num_bins).add_(self.binner(some))
        once = torch.ones_like(index) if self.rows.weight is None else self.rows.weight[row]
        self.count.index_add_(0, index, once)
        self.confidence.index_add_(0, index, some.long() if self.rows.weight is None else some * once)
        self.everywhere += torch.stack(self.sums).sum(0).to(self.everywhere.dtype)
        self.waiting, self.sums = [], []

    def stats(self) -> BinStats:
        """What has been added."""
        rows, shape = self.rows, (self.rows.num_classes, self.num_bins)
        hits = rows.target * self.num_bins + self.binner(self.of_target)
        once = torch.ones_like(hits) if rows.weight is None else rows.weight
        correct = scatter_sum(hits, once, len(self.count)).view(shape)
        count, confidence = self.count.view(shape), self.confidence.view(shape)
        count[:, 0] = once.sum() - count.sum(1)
        confidence[:, 0] = self.everywhere - confidence.sum(1)
        return BinStats(count, confidence if rows.weight is None else confidence / ONE, correct, self.binner.edges)


def _sum(tile: Tensor, dim: int, out: Tensor) -> None:
    """Sum over classes, in an order that depends on their number alone: a row's sum has the same bits in any tile."""
    if dim == 1 and tile.is_cpu and tile.shape[1] > LONG_ROW:
        np.add.reduce(tile.numpy(), axis=1, out=out.numpy())
    elif dim == 1:
        torch.sum(tile, 1, out=out)
    else:
        torch.add(tile[0], tile[1], out=out)
        for of_class in tile[2:]:
            out += of_class


def _above(units: Tensor, first: float, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Class, row and value of every entry above ``first``."""
    if not units.is_cpu:
        major, minor = (units > first).nonzero(as_tuple=True)
        some = units[major, minor]
    else:  # numpy finds them five times as fast
        place = np.flatnonzero(units.numpy() > first)
        width = units.shape[1]
        # An integer division is slow; this one is exact, the half keeps it clear of whole numbers.
        major = torch.from_numpy(((place + 0.5) * (1 / width)).astype(np.int64))
        some = torch.from_numpy(units.view(-1).numpy()[place])
        minor = torch.from_numpy(place).sub_(major, alpha=width)
    return (major, minor, some) if dim == 0 else (minor, major, some)


def _predict(values: Tensor, tile: Tensor, of_target: Tensor, target: Tensor, dim: int, *, peak: Tensor) -> Tensor:
    """Write the largest value of each row to ``peak``; whether the target is the first class that has it."""
    if dim == 1:
        # A look at the caller's narrow numbers where numpy knows them: its argmax vectorises, and finds NaN.
        native = values if values.dtype in (torch.float32, torch.float64) else tile
        predicted = torch.from_numpy(native.numpy().argmax(1)) if tile.is_cpu else tile.argmax(1)
        torch.gather(tile, 1, predicted.unsqueeze(1), out=peak.unsqueeze(1))
        return predicted == target
    torch.amax(tile, 0, out=peak)
    if np.count_nonzero(np.equal(tile.numpy(), peak.numpy())) == len(target):  # no ties in this tile
        return of_target == peak
    return torch.from_numpy(tile.numpy().argmax(0) == target.numpy())


def _check_probabilities(tile: Tensor, peak: Tensor, total: Tensor, dim: int, start: int) -> None:
    """Raise for the first row that holds no probabilities. One answer crosses from a device."""
    lowest = tile.amin(dim)
    good = (lowest >= 0) & (peak <= 1 + ROUNDING) & ((total - 1).abs() <= SUM_TOLERANCE + ROUNDING)
    if not bool(good.all()):
        row = int((~good).nonzero()[0])
        raise ValueError(
            f"probabilities must sum to 1 (within {SUM_TOLERANCE:g}), lie in [0, 1] and not be NaN: row {start + row} "
            f"sums to {total[row]:.6g} and holds {lowest[row]:.6g} to {peak[row]:.6g}; are these logits?"
        )
