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
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from dualfocal._checks import check_choice, check_count
from dualfocal.metrics._sorting import SortedConfidences
from dualfocal.metrics.bins import ONE, BinStats, equal_edges, to_units
from dualfocal.metrics.calibration import top_bins
from dualfocal.metrics.rows import BINARY, FIRST_ROWS, INPUTS, Array, Rows, are_probabilities, as_rows, as_tensor
from dualfocal.metrics.scan import fused_kernels, scan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


WRONG_TARGET = 2  # value of the state `invalid`; 1 stands for invalid logits


class _Sums(NamedTuple):
    """States that a kernel can add a batch to."""

    bounds: Tensor  # in units of 2^-32: bin b is (bounds[b], bounds[b + 1]]
    counts: Tensor
    totals: Tensor  # of confidences or Brier terms
    hits: Tensor | None  # number of right predictions (None: not wanted)
    brier: bool  # whether totals are of Brier terms


class _Streaming(Metric):
    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    plot_lower_bound = 0.0
    invalid: Tensor

    def __init__(
        self,
        *,
        input: str | None = None,
        ignore_index: int = -100,
        binary: str | None = None,
        **kwargs: Any,  # for torchmetrics.Metric: process_group, sync_on_compute, ...
    ) -> None:
        super().__init__(**kwargs)
        check_choice("input", input, (None, *INPUTS))
        check_choice("binary", binary, BINARY)
        self.input, self.ignore_index, self.binary = input, ignore_index, binary
        # A MetricCollection merges metrics whose states have the same names and, after the first batch, the same
        # values, even if their options differ. An empty state with the options in its name prevents that.
        self.add_state(f"of_{input}_{binary}_{ignore_index}".replace("-", "minus_"), [], dist_reduce_fx=None)
        # Set by a kernel that met NaN or a wrong target, see `_check_valid`.
        self.add_state("invalid", torch.zeros((), dtype=torch.int64), dist_reduce_fx="max")

    def update(self, logits: Array, target: Array) -> None:
        """Add a batch of predictions and targets, see :func:`~dualfocal.metrics.ece`."""
        target = as_tensor("target", target)
        if isinstance(logits, Tensor) and self._add_on_device(logits, target):
            return
        if not bool((target.long() == self.ignore_index).all()):  # long: -100 would wrap around in uint8
            # A check of every batch on a GPU would wait for it each time.
            later = as_tensor("logits", logits).device.type != "cpu" and self.update_count > 1
            kind = self.input or ("logits" if later else None)
            self._add(as_rows(logits, target, input=kind, ignore_index=self.ignore_index, binary=self.binary))

    @abstractmethod
    def _add(self, rows: Rows) -> None:
        """Add the samples of a batch to the state."""

    def _sums(self) -> _Sums | None:
        """States that a kernel can add to; None if this metric needs more than a kernel computes."""
        return None

    def _add_on_device(self, logits: Tensor, target: Tensor) -> bool:
        """Add a batch on CUDA without waiting for it; False, and nothing done, if ``as_rows`` has to look at it."""
        kernels = None if self.input == "probs" or self.binary is not None else fused_kernels(logits)
        sums = None if kernels is None else self._sums()
        if kernels is None or sums is None or not self._is_plain(logits, target):
            return False
        first = self.update_count <= 1
        if first and self.input is None and _may_be_probabilities(logits, target != self.ignore_index):
            return False
        states = (sums.counts, sums.totals, sums.hits, self.invalid) if first else ()
        before = [(state, state.clone()) for state in states if state is not None]
        kernels.add_to_bins(logits, target, *sums, self.invalid, self.ignore_index)
        if first and bool(self.invalid):
            for state, value in before:
                state.copy_(value)
            return False
        return True

    def _is_plain(self, logits: Tensor, target: Tensor) -> bool:
        """Whether shapes, dtypes and devices are those of most batches."""
        return (
            logits.ndim == 2
            and target.ndim == 1
            and target.numel() == logits.shape[0] > 0
            and logits.shape[1] > 1
            and target.dtype in (torch.int64, torch.int32)
            and target.device == logits.device == self.invalid.device
            and isinstance(self.ignore_index, int)
        )

    def _check_valid(self) -> None:
        """Raise an error if a kernel met an invalid sample."""
        problem = int(self.invalid)
        if problem == WRONG_TARGET:
            raise IndexError(
                "a target is out of range in a batch after the first: each must be a class index or equal "
                f"ignore_index = {self.ignore_index}. Update a metric on the CPU with the same batches to find it"
            )
        if problem:
            raise ValueError(
                "logits must not be NaN or +inf, and each row needs a finite value: a batch after the first breaks "
                "this rule. Update a metric on the CPU with the same batches to find the row"
            )

    def plot(
        self, val: Tensor | Sequence[Tensor] | None = None, ax: "Axes | None" = None
    ) -> "tuple[Figure | None, Axes | np.ndarray]":
        """Plot one value, or a sequence of values; see ``torchmetrics.Metric.plot``.

        Args:
            val: result of ``compute`` or ``forward``, or a sequence of results (None: call ``compute``).
            ax: axes to draw on (None: a new figure).

        Returns:
            The figure and its axes.
        """
        return self._plot(val, ax)

    def set_dtype(self, dst_type: str | torch.dtype) -> Self:
        """Do nothing: states are integers."""
        return self


class _Binned(_Streaming):
    plot_upper_bound = 1.0
    count: Tensor
    confidence: Tensor
    correct: Tensor

    def __init__(self, *shape: int, num_bins: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_count("num_bins", num_bins)
        self.num_bins = num_bins
        for name in ("count", "confidence", "correct"):
            self.add_state(name, torch.zeros(*shape, num_bins, dtype=torch.int64), dist_reduce_fx="sum")

    @property
    def bins(self) -> BinStats:
        """Bins of the samples that this process has added since the last reset."""
        self._check_valid()
        edges = _edges(self.num_bins, self.count.device)
        # Copies: on CUDA, the states are changed in place.
        return BinStats(self.count.clone(), self.confidence.clone(), self.correct.clone(), edges)

    @abstractmethod
    def _bin(self, rows: Rows) -> BinStats: ...

    def _add(self, rows: Rows) -> None:
        bins = self._bin(rows)
        self.count = self.count + bins.count
        self.confidence = self.confidence + bins.confidence
        self.correct = self.correct + bins.correct


class ExpectedCalibrationError(_Binned):
    """Streaming :func:`~dualfocal.metrics.ece`. The state is three vectors of ``num_bins`` integers.

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

    def _sums(self) -> _Sums:
        bounds = _bounds(self.num_bins, self.count.device)
        return _Sums(bounds, self.count, self.confidence, self.correct, brier=False)

    def compute(self) -> Tensor:
        """Return the error of all samples so far, of all processes; NaN without samples."""
        return self.bins.ece()


class MaximumCalibrationError(ExpectedCalibrationError):
    """Streaming :func:`~dualfocal.metrics.mce`, with the arguments and state of :class:`ExpectedCalibrationError`."""

    def compute(self) -> Tensor:
        """Return the error of all samples so far, of all processes; NaN without samples."""
        return self.bins.mce()


class ClasswiseCalibrationError(_Binned):
    """Streaming :func:`~dualfocal.metrics.classwise_ece`. The state is three ``(num_classes, num_bins)`` matrices.

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
        return self.bins.ece().mean()


class AdaptiveCalibrationError(_Streaming):
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


class BrierScore(_Streaming):
    """Streaming :func:`~dualfocal.metrics.brier_score`. The state is two integers.

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
    total: Tensor
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
        self.add_state("total", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")  # in units of 2^-32
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def _add(self, rows: Rows) -> None:
        self.total = self.total + to_units(scan(rows, scores=True).brier).sum()
        self.count = self.count + len(rows)

    def _sums(self) -> _Sums:
        return _Sums(_one_bin(self.count.device), self.count, self.total, None, brier=True)

    def compute(self) -> Tensor:
        """Return the score of all samples so far, of all processes; NaN without samples."""
        self._check_valid()
        score = self.total.double() / ONE / self.count
        return score.sqrt() if self.root else score


def _may_be_probabilities(values: Tensor, kept: Tensor) -> bool:
    """Whether the first rows that count are probabilities, or none of them counts; logits are not."""
    first = values[:FIRST_ROWS][kept[:FIRST_ROWS]]
    return not len(first) or are_probabilities(first)


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
