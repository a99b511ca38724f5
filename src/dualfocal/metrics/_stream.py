"""Base of the streaming metrics: a batch becomes rows, or is added by a kernel that nothing waits for."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from dualfocal._tensors import class_indices
from dualfocal.checks import check_choice
from dualfocal.metrics.arrays import Array, as_tensor, class_targets
from dualfocal.metrics.rows import BINARY, FIRST_ROWS, INPUTS, ROUNDING, Rows, are_probabilities, as_rows
from dualfocal.metrics.scan import fused_kernels
from dualfocal.metrics.units import ONE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CARRY_AFTER = 1 << 20  # samples
WRONG_TARGET = 2  # value of the state `invalid`; 1 stands for invalid logits


class Sums(NamedTuple):
    """States that a kernel can add a batch to."""

    bounds: Tensor  # in units of 2^-32: bin b is (bounds[b], bounds[b + 1]]
    counts: Tensor
    totals: Tensor  # of confidences or Brier terms
    hits: Tensor | None  # number of right predictions (None: not wanted)
    brier: bool  # whether totals are of Brier terms


class Streaming(Metric):
    """A metric of logits or probabilities and targets."""

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    plot_lower_bound = 0.0
    invalid: Tensor
    whole: Tensor  # sums of confidences or Brier terms are whole + units / 2^32, where they are states
    units: Tensor
    _uncarried = 0  # samples added since the last carry from units to whole

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
        # Set by a kernel that met NaN or a wrong target, see `_fetch`.
        self.add_state("invalid", torch.zeros((), dtype=torch.int64), dist_reduce_fx="max")

    def update(self, logits: Array, target: Array) -> None:
        """Add a batch of predictions and targets, see :func:`~dualfocal.metrics.ece`.

        On CUDA, ``compute`` raises the errors of batches after the first, where a kernel adds them.
        """
        target = as_tensor("target", class_targets(logits, target))
        if isinstance(logits, Tensor) and self._add_on_device(logits, target):
            self._carry(len(logits))
        elif not bool((class_indices(target) == self.ignore_index).all()):  # long: -100 would wrap around in uint8
            # A check of every batch on a GPU would wait for it each time.
            later = as_tensor("logits", logits).device.type != "cpu" and self.update_count > 1
            kind = self.input or ("logits" if later else None)
            rows = as_rows(logits, target, input=kind, ignore_index=self.ignore_index, binary=self.binary)
            self._add(rows)
            self._carry(len(rows))

    def _carry(self, num_samples: int) -> None:
        """Keep units far below 2^63, also if many processes are added up."""
        self._uncarried += num_samples
        if self._uncarried >= CARRY_AFTER and "units" in self._defaults:
            self.whole, self.units, self._uncarried = self.whole + (self.units >> 32), self.units & (ONE - 1), 0

    @abstractmethod
    def _add(self, rows: Rows) -> None:
        """Add the samples of a batch to the state."""

    def _sums(self) -> Sums | None:
        """States that a kernel can add to; None if this metric needs more than a kernel computes."""
        return None

    def _add_on_device(self, logits: Tensor, target: Tensor) -> bool:
        """Add a batch on CUDA without waiting for it; False, and nothing done, if ``as_rows`` has to look at it."""
        kernels = None if self.input == "probs" or self.binary is not None else fused_kernels(logits)
        sums = None if kernels is None else self._sums()
        if kernels is None or sums is None or not self._is_plain(logits, target):
            return False
        if self.update_count > 1:
            kernels.add_to_bins(logits, target, *sums, self.invalid, self.ignore_index)
            return True
        states = [state for state in (sums.counts, sums.totals, sums.hits, self.invalid) if state is not None]
        before = _packed(states)
        kernels.add_to_bins(logits, target, *sums, self.invalid, self.ignore_index)
        if self._is_valid(logits, target):
            return True
        for state, value in zip(states, _unpacked(before, states), strict=True):
            state.copy_(value)
        return False

    def _is_valid(self, logits: Tensor, target: Tensor) -> bool:
        """Whether a kernel met no invalid sample, and the batch does not look like probabilities. Waits once."""
        if self.input is not None:
            return not bool(self.invalid)
        first, kept = logits[:FIRST_ROWS], target[:FIRST_ROWS] != self.ignore_index
        range_of = torch.aminmax(torch.where(kept[:, None], first, 0.5))
        low, high, invalid = torch.stack((*range_of, self.invalid.to(first.dtype))).tolist()
        looks_like = low >= 0 and high <= 1 + ROUNDING
        return not (invalid or (looks_like and (not bool(kept.any()) or are_probabilities(first[kept]))))

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

    def _fetch(self, *states: Tensor) -> list[Tensor]:
        """Return integer states, from CUDA by one copy to the CPU; raise an error if a kernel met an invalid sample."""
        fetched = [*states, self.invalid]
        if self.invalid.is_cuda:
            fetched = _unpacked(_packed(fetched).cpu(), fetched)
        problem = int(fetched.pop())
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
        return fetched

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


def _packed(tensors: list[Tensor]) -> Tensor:
    """All values as one vector."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _unpacked(values: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """The inverse of :func:`_packed`, with the shapes of ``tensors``."""
    parts = values.split([tensor.numel() for tensor in tensors])  # type: ignore[no-untyped-call]
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
