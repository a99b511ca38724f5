"""The metrics as torchmetrics classes, for evaluation loops, ``MetricCollection``, Lightning and several processes.

States are sums, float64, of a size that depends on the number of bins, not of samples. In a ``MetricCollection``,
metrics with the same options share a state.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from dualfocal._tensors import class_indices
from dualfocal.checks import check_choice, check_count
from dualfocal.metrics.arrays import Array, as_tensor, class_targets
from dualfocal.metrics.cells import BinStats, equal_edges
from dualfocal.metrics.inputs import BINARY, INPUTS
from dualfocal.metrics.samples import Samples
from dualfocal.metrics.scan import scan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STATES = ("count", "confidence", "correct")


class _Streaming(Metric):
    """A metric of logits or probabilities and targets."""

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

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

    def update(self, logits: Array, target: Array) -> None:
        """Add a batch of predictions and targets, see :func:`~dualfocal.metrics.ece`."""
        target = as_tensor("target", class_targets(logits, target))
        if not bool((class_indices(target) == self.ignore_index).all()):  # long: -100 would wrap around in uint8
            self._add(
                Samples.from_arrays(
                    logits, target, input=self.input, ignore_index=self.ignore_index, binary=self.binary
                )
            )

    @abstractmethod
    def _add(self, samples: Samples) -> None:
        """Add the samples of a batch to the state."""

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
        """Do nothing: states are float64."""
        return self


class _Binned(_Streaming):
    count: Tensor
    confidence: Tensor
    correct: Tensor

    def __init__(self, *shape: int, num_bins: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_count("num_bins", num_bins)
        self.num_bins = num_bins
        for name in STATES:
            self.add_state(name, torch.zeros(*shape, num_bins, dtype=torch.float64), dist_reduce_fx="sum")

    @property
    def bins(self) -> BinStats:
        """Bins of the samples that this process has added since the last reset; without the variances."""
        count, confidence, correct = (getattr(self, name).cpu().numpy() for name in STATES)
        nothing = np.zeros_like(count)
        return BinStats(count, confidence, correct, nothing, count, correct, equal_edges(self.num_bins))

    @abstractmethod
    def _bin(self, samples: Samples) -> BinStats: ...

    def _add(self, samples: Samples) -> None:
        bins = self._bin(samples)
        for name in STATES:
            state = getattr(self, name)
            setattr(self, name, state + torch.from_numpy(getattr(bins, name)).to(state.device))

    def _result(self, value: Any) -> Tensor:
        return torch.tensor(float(value), dtype=torch.float64, device=self.device)


class ExpectedCalibrationError(_Binned):
    """Streaming :func:`~dualfocal.metrics.ece`. The state is three vectors of ``num_bins`` numbers.

    Args:
        num_bins: number of bins.
        input: ``"logits"`` or ``"probs"``, whichever ``update`` gets. None means logits, and raises an error if a batch
            looks like probabilities.
        ignore_index: target value of samples to leave out.
        binary: see :meth:`~dualfocal.metrics.Samples.from_arrays`.
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

    def _bin(self, samples: Samples) -> BinStats:
        return scan(samples).bins(self.num_bins)

    def compute(self) -> Tensor:
        """Return the error of all samples so far, of all processes; NaN without samples."""
        return self._result(self.bins.ece())


class MaximumCalibrationError(ExpectedCalibrationError):
    """Streaming :func:`~dualfocal.metrics.mce`, with the arguments and state of :class:`ExpectedCalibrationError`."""

    def compute(self) -> Tensor:
        """Return the error of all samples so far, of all processes; NaN without samples."""
        return self._result(self.bins.mce())


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

    def _bin(self, samples: Samples) -> BinStats:
        if samples.num_classes != self.num_classes:
            raise ValueError(f"num_classes is {self.num_classes}, but a batch has {samples.num_classes} classes")
        classes = scan(samples, num_bins=self.num_bins, classwise=True).classes
        assert classes is not None
        return classes.sum(1)

    def compute(self) -> Tensor:
        """Return the error of all samples so far, of all processes; NaN without samples."""
        return self._result(self.bins.ece().mean())


class BrierScore(_Streaming):
    """Streaming :func:`~dualfocal.metrics.brier_score`. The state is two numbers.

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
    total: Tensor

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
        for name in ("count", "total"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def _add(self, samples: Samples) -> None:
        self.total = self.total + float(scan(samples, scores=True).brier.sum())
        self.count = self.count + len(samples)

    def compute(self) -> Tensor:
        """Return the score of all samples so far, of all processes; NaN without samples."""
        score = self.total / self.count
        return score.sqrt() if self.root else score
