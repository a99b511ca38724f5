"""The metrics as torchmetrics classes, for evaluation loops, ``MetricCollection``, Lightning and several processes.

States are sums of integers, so any split of the samples over batches and processes gives the same bits. Their size
depends on the number of bins, not of samples, except for adaptive bins, whose edges are known only at the end. In a
``MetricCollection``, metrics with the same options share a state.

On CUDA, the calibration error of the predicted class and the Brier score add a batch of logits by one kernel and do not
wait for it. Only the first batch is checked at once; NaN or a wrong target in a later one raises an error in
``compute``.
"""

import functools
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torchmetrics.utilities import dim_zero_cat

from dualfocal.checks import check_count
from dualfocal.metrics._sorting import SortedConfidences
from dualfocal.metrics._stream import Streaming, Sums
from dualfocal.metrics.bins import SUMS, BinStats
from dualfocal.metrics.calibration import top_bins
from dualfocal.metrics.rows import Rows
from dualfocal.metrics.scan import scan
from dualfocal.metrics.units import ONE, equal_edges, from_units, to_units


class _Binned(Streaming):
    plot_upper_bound = 1.0
    count: Tensor
    correct: Tensor

    def __init__(self, *shape: int, num_bins: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_count("num_bins", num_bins)
        self.num_bins = num_bins
        for name in SUMS:
            self.add_state(name, torch.zeros(*shape, num_bins, dtype=torch.int64), dist_reduce_fx="sum")

    @property
    def bins(self) -> BinStats:
        """Bins of the samples that this process has added since the last reset."""
        return self._bins().to(self.count.device, copy=True)  # on CUDA, the states are changed in place

    def _bins(self) -> BinStats:
        """Return the bins, from CUDA on the CPU, which computes a result sooner than it could launch the kernels."""
        count, whole, units, correct = self._fetch(self.count, self.whole, self.units, self.correct)
        return BinStats.from_sums(count, units, correct, _edges(self.num_bins, count.device), whole)

    @abstractmethod
    def _bin(self, rows: Rows) -> BinStats: ...

    def _add(self, rows: Rows) -> None:
        bins = self._bin(rows)
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(bins, name))


class ExpectedCalibrationError(_Binned):
    """Streaming :func:`~dualfocal.metrics.ece`. The state is four vectors of ``num_bins`` integers.

    Args:
        num_bins: number of bins.
        input: ``"logits"`` or ``"probs"``, whichever ``update`` gets. None means logits, and raises an error if a batch
            looks like probabilities (on a GPU, only the first batch is checked).
        ignore_index: target value of samples to leave out.
        binary: see :func:`~dualfocal.metrics.ece`.
        kwargs: arguments of ``torchmetrics.Metric``.

    >>> import torch
    >>> metric = ExpectedCalibrationError(input="probs")
    >>> metric.update(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]))
    >>> metric.update(torch.tensor([[0.6, 0.4]]), torch.tensor([0]))
    >>> metric.compute()
    tensor(0.4333, dtype=torch.float64)
    """

    def __init__(
        self,
        num_bins: int = 15,
        *,
        input: str | None = None,
        ignore_index: int = -100,
        binary: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_bins=num_bins, input=input, ignore_index=ignore_index, binary=binary, **kwargs)

    def _bin(self, rows: Rows) -> BinStats:
        return top_bins(scan(rows), rows, self.num_bins, None)

    def _sums(self) -> Sums:
        bounds = _bounds(self.num_bins, self.count.device)
        return Sums(bounds, self.count, self.units, self.correct, brier=False)

    def compute(self) -> Tensor:
        """Return the error of all samples so far, of all processes; NaN without samples."""
        return self._bins().ece().to(self.device)


class MaximumCalibrationError(ExpectedCalibrationError):
    """Streaming :func:`~dualfocal.metrics.mce`, with the arguments and state of :class:`ExpectedCalibrationError`."""

    def compute(self) -> Tensor:
        """Return the error of all samples so far, of all processes; NaN without samples."""
        return self._bins().mce().to(self.device)


class ClasswiseCalibrationError(_Binned):
    """Streaming :func:`~dualfocal.metrics.classwise_ece`. The state is four ``(num_classes, num_bins)`` matrices.

    Args:
        num_classes: number of classes.
        num_bins: number of bins per class.
        input: see :class:`ExpectedCalibrationError`.
        ignore_index: see :class:`ExpectedCalibrationError`.
        kwargs: arguments of ``torchmetrics.Metric``.

    >>> import torch
    >>> metric = ClasswiseCalibrationError(num_classes=2, input="probs")
    >>> metric.update(torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), torch.tensor([0, 0, 0]))
    >>> metric.compute()
    tensor(0.4333, dtype=torch.float64)
    """

    def __init__(
        self, num_classes: int, num_bins: int = 15, *, input: str | None = None, ignore_index: int = -100, **kwargs: Any
    ) -> None:
        check_count("num_classes", num_classes, 2)
        super().__init__(num_classes, num_bins=num_bins, input=input, ignore_index=ignore_index, **kwargs)
        self.num_classes = num_classes

    def _bin(self, rows: Rows) -> BinStats:
        if rows.num_classes != self.num_classes:
            raise ValueError(f"num_classes is {self.num_classes}, but a batch has {rows.num_classes} classes")
        return scan(rows, num_bins=self.num_bins, classwise=True).classes

    def compute(self) -> Tensor:
        """Return the error of all samples so far, of all processes; NaN without samples."""
        return self._bins().ece().mean().to(self.device)


class AdaptiveCalibrationError(Streaming):
    """Streaming :func:`~dualfocal.metrics.adaptive_ece`, with the arguments of :class:`ExpectedCalibrationError`.

    The edges depend on every confidence, so the state keeps 8 bytes per sample, gathered from all processes.
    """

    plot_upper_bound = 1.0
    keys: list[Tensor]

    def __init__(
        self,
        num_bins: int = 15,
        *,
        input: str | None = None,
        ignore_index: int = -100,
        binary: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(input=input, ignore_index=ignore_index, binary=binary, **kwargs)
        check_count("num_bins", num_bins)
        self.num_bins = num_bins
        self.add_state("keys", [], dist_reduce_fx="cat")  # twice the confidence in units, plus 1 if correct

    def _add(self, rows: Rows) -> None:
        stats = scan(rows)
        self.keys.append(2 * stats.confidence + stats.correct)

    def _sync_dist(self, *args: Any, **kwargs: Any) -> None:
        # torchmetrics gathers an empty list as float32, which does not match the int64 of other processes.
        if not self.keys:
            self.keys = [torch.empty(0, dtype=torch.int64, device=self.device)]
        super()._sync_dist(*args, **kwargs)

    def compute(self) -> Tensor:
        """Return the error of all samples so far, of all processes; NaN without samples."""
        if not len(self.keys) or not len(keys := dim_zero_cat(self.keys)):
            return torch.tensor(torch.nan, dtype=torch.float64, device=self.device)
        return SortedConfidences.from_units(keys >> 1, keys & 1).adaptive_bins(self.num_bins).ece()


class BrierScore(Streaming):
    """Streaming :func:`~dualfocal.metrics.brier_score`. The state is three integers.

    Args:
        root: whether to return the square root (RBS).
        input: see :class:`ExpectedCalibrationError`.
        ignore_index: see :class:`ExpectedCalibrationError`.
        binary: see :class:`ExpectedCalibrationError`.
        kwargs: arguments of ``torchmetrics.Metric``.

    >>> import torch
    >>> metric = BrierScore(input="probs")
    >>> metric.update(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 1]))
    >>> metric.compute()
    tensor(0.0500, dtype=torch.float64)
    """

    plot_upper_bound = 2.0
    count: Tensor

    def __init__(
        self,
        *,
        root: bool = False,
        input: str | None = None,
        ignore_index: int = -100,
        binary: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(input=input, ignore_index=ignore_index, binary=binary, **kwargs)
        self.root = root
        for name in ("count", "whole", "units"):
            self.add_state(name, torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def _add(self, rows: Rows) -> None:
        self.units = self.units + to_units(scan(rows, scores=True).brier).sum()
        self.count = self.count + len(rows)

    def _sums(self) -> Sums:
        return Sums(_one_bin(self.count.device), self.count, self.units, None, brier=True)

    def compute(self) -> Tensor:
        """Return the score of all samples so far, of all processes; NaN without samples."""
        count, whole, units = self._fetch(self.count, self.whole, self.units)
        score = ((whole + from_units(units)) / count).to(self.device)
        return score.sqrt() if self.root else score


# Small tensors on a device, kept because copying them there waits for it.


@functools.lru_cache(maxsize=64)
def _edges(num_bins: int, device: torch.device) -> Tensor:
    return equal_edges(num_bins, device=device)


@functools.lru_cache(maxsize=64)
def _bounds(num_bins: int, device: torch.device) -> Tensor:
    return to_units(equal_edges(num_bins, device=device))


@functools.lru_cache(maxsize=64)
def _one_bin(device: torch.device) -> Tensor:
    return torch.tensor([-1, 4 * ONE], device=device)  # of all Brier terms
