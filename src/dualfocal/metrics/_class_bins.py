"""Bins of the probabilities of every class, and their moments, collected tile by tile during a scan."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dualfocal.metrics._wide import WideSum
from dualfocal.metrics.bins import BinStats
from dualfocal.metrics.rows import Rows
from dualfocal.metrics.units import ONE, Binner, equal_edges, scatter_sum


@dataclass(frozen=True)
class ClassMoments:
    """Bins of every class, ``(C, 2, B)``; second axis: 1 for rows predicted as the class, 0 for the others.

    Squares and cubes of a probability of u units are floor(u * u / 2^32) and floor(square * u / 2^32), also in units.
    """

    bins: BinStats
    squares: WideSum
    cubes: WideSum


class ClassBins:
    """Bins of all rows for every class.

    Only entries above the first bin are looked up; the first bin is the total minus the other bins. Fewer than
    ``num_bins`` classes of a row can have a probability above 1 / num_bins, so with many classes few entries are looked
    up.
    """

    def __init__(self, rows: Rows, num_bins: int, dim: int) -> None:
        self.rows, self.dim, self.num_bins = rows, dim, num_bins
        self.binner = Binner(equal_edges(num_bins, rows.dtype, rows.values.device))
        self.first = float(self.binner.bounds[1]) if num_bins > 1 else math.inf  # a probability can be 1.0000001
        dtype = torch.int64 if rows.weight is None else torch.float64
        self.count = torch.zeros(rows.num_classes * num_bins, dtype=dtype, device=rows.values.device)
        self.confidence = torch.zeros_like(self.count)
        self.total = self.count.new_zeros(rows.num_classes)  # sum of confidences of all rows, by class
        self.target_units = torch.empty(len(rows), dtype=torch.int64, device=rows.values.device)
        self.waiting: list[tuple[Tensor, Tensor, Tensor]] = []  # (class, row, units) above the first bin
        self.sums: list[Tensor] = []  # sum of confidences by class, of each tile
        self.predicted: Tensor | None = None  # the predicted class of each row, written by the scan if it is given

    def add(self, units: Tensor, part: slice) -> None:
        """Add a tile of ``p * 2^32``, whole numbers in float64."""
        rows, dim = self.rows, self.dim
        self.target_units[part] = units.gather(dim, rows.target[part].unsqueeze(dim)).squeeze(dim)
        weighted = units if rows.weight is None else units * rows.weight[part].unsqueeze(dim)
        self.sums.append(weighted.sum(1 - dim))  # exact: whole numbers
        label, row, value = _above(units, self.first, dim)
        self.waiting.append((label, row if rows.weight is None else row + part.start, value))

    def flush(self) -> None:
        """Look up the bins of the entries added since the last flush."""
        label, row, value = (torch.cat(parts) for parts in zip(*self.waiting, strict=True))
        index = label.mul_(self.num_bins).add_(self.binner(value))
        weight = torch.ones_like(index) if self.rows.weight is None else self.rows.weight[row]
        self._add_entries(index, value)
        self.count.index_add_(0, index, weight)
        self.confidence.index_add_(0, index, value.long() if self.rows.weight is None else value * weight)
        self.total += torch.stack(self.sums).sum(0).to(self.total.dtype)
        self.waiting, self.sums = [], []

    def _add_entries(self, index: Tensor, units: Tensor) -> None:
        """Take note of entries above the first bin, given by the index of class and bin."""

    def moments(self, stats: BinStats) -> ClassMoments | None:
        """Return the bins with their moments, if they were collected; ``stats`` is the result of :meth:`stats`."""
        return None

    def stats(self) -> BinStats:
        """Return the bins of all rows added so far."""
        rows, shape = self.rows, (self.rows.num_classes, self.num_bins)
        hits = rows.target * self.num_bins + self.binner(self.target_units)
        weight = torch.ones_like(hits) if rows.weight is None else rows.weight
        correct = scatter_sum(hits, weight, len(self.count)).view(shape)
        count, confidence = self.count.view(shape), self.confidence.view(shape)
        count[:, 0] = weight.sum() - count.sum(1)
        confidence[:, 0] = self.total - confidence.sum(1)
        if rows.weight is not None:
            return BinStats(count, confidence / ONE, torch.zeros_like(confidence), correct, self.binner.edges)
        return BinStats.from_sums(count, confidence, correct, self.binner.edges)


class MomentBins(ClassBins):
    """Class bins with squares and cubes, apart for rows that are predicted as the class."""

    def __init__(self, rows: Rows, num_bins: int, dim: int) -> None:
        super().__init__(rows, num_bins, dim)
        self.predicted = torch.zeros_like(rows.target)  # of a row of NaN, which is found later, it stays 0
        self.predicted_units = torch.empty_like(rows.target)  # the probability of that class
        self.powers = torch.zeros(2, len(self.count), dtype=torch.int64, device=rows.values.device)  # squares, cubes
        self.power_totals = torch.zeros(2, rows.num_classes, dtype=torch.int64, device=rows.values.device)
        self.buffer = torch.empty(0)

    def add(self, units: Tensor, part: slice) -> None:
        """Add a tile of ``p * 2^32``, whole numbers in float64; ``predicted`` must hold the classes of its rows."""
        super().add(units, part)
        assert self.predicted is not None
        self.predicted_units[part] = units.gather(self.dim, self.predicted[part].unsqueeze(self.dim)).squeeze(self.dim)
        if len(self.buffer) < units.numel():
            self.buffer = torch.empty_like(units).view(-1)
        power = self.buffer[: units.numel()].view_as(units).copy_(units)
        for total in self.power_totals:
            total += next_power(power, units).sum(1 - self.dim).long()

    def _add_entries(self, index: Tensor, units: Tensor) -> None:
        power = units.clone()
        for sums in self.powers:
            sums += scatter_sum(index, next_power(power, units), len(sums)).long()

    def moments(self, stats: BinStats) -> ClassMoments:
        """Return the bins with their moments; ``stats`` is the result of :meth:`stats`."""
        rows, num_bins, shape = self.rows, self.num_bins, stats.count.shape
        assert self.predicted is not None
        index = self.predicted * num_bins + self.binner(self.predicted_units)
        units = self.predicted_units.double()
        power, is_right = units.clone(), (self.predicted == rows.target).long()
        sums = [torch.ones_like(index), self.predicted_units, is_right]
        sums += [next_power(power, units).long() for _ in self.powers]
        top = [scatter_sum(index, values, stats.count.numel()).view(shape) for values in sums]
        totals = [stats.count, stats.units + (stats.whole << 32), stats.correct]
        for entries, total in zip(self.powers, self.power_totals, strict=True):
            matrix = entries.view(shape)
            matrix[:, 0] = total - matrix.sum(1)
            totals.append(matrix)
        count, confidence, correct, squares, cubes = (
            torch.stack([total - part, part], dim=1).cpu() for total, part in zip(totals, top, strict=True)
        )
        bins = BinStats.from_sums(count, confidence, correct, stats.edges.cpu())
        return ClassMoments(bins, WideSum.from_units(squares), WideSum.from_units(cubes))


def next_power(power: Tensor, units: Tensor) -> Tensor:
    """Multiply a power of p by p, in place; both are whole numbers of units of 2^-32 in float64.

    The product is rounded down, which databases can repeat exactly: they disagree on how to round a half.
    """
    return power.mul_(units).mul_(1 / ONE).floor_()


def _above(units: Tensor, first: float, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return class, row and value of every entry above ``first``."""
    if not units.is_cpu:
        major, minor = (units > first).nonzero(as_tuple=True)
        value = units[major, minor]
    else:  # numpy is five times as fast here
        position = np.flatnonzero(units.numpy() > first)
        width = units.shape[1]
        # Faster than an integer division, and exact: adding 0.5 keeps the quotient away from whole numbers.
        major = torch.from_numpy(((position + 0.5) * (1 / width)).astype(np.int64))
        value = torch.from_numpy(units.view(-1).numpy()[position])
        minor = torch.from_numpy(position).sub_(major, alpha=width)
    return (major, minor, value) if dim == 0 else (minor, major, value)
