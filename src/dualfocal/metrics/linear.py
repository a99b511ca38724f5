"""Calibration of a linear head, without the logits of all samples in memory."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dualfocal._tensors import check_head, class_indices
from dualfocal.metrics.cells import BinStats, equal_edges
from dualfocal.metrics.inputs import check_target
from dualfocal.metrics.samples import Samples
from dualfocal.metrics.scan import Scan, scan

CHUNK_BYTES = 2**28  # of logits at a time


@dataclass(frozen=True)
class LinearCalibration:
    """Result of :func:`linear_calibration`, as fractions."""

    num_samples: int
    error: float
    nll: float
    brier: float
    bins: BinStats  # bins of the ECE

    @property
    def ece(self) -> float:
        """Expected calibration error."""
        return float(self.bins.ece())


def linear_calibration(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    *,
    num_bins: int = 15,
    ignore_index: int = -100,
) -> LinearCalibration:
    """Compute error, NLL, Brier score and bins of ``F.linear(hidden, weight, bias)``, without storing the logits.

    Equal to :func:`~dualfocal.metrics.evaluate` of the logits, but only a slice of them is in memory at any time, which
    matters for large vocabularies. The logits are rounded to the dtype that ``F.linear`` returns: for a bfloat16 head,
    to bfloat16.

    Args:
        hidden: inputs of the head, shape ``(N, H)`` or ``(N, T, H)``.
        weight: weight of the head, shape ``(C, H)``, as in ``nn.Linear``.
        target: class indices, shape ``(N,)`` or ``(N, T)``.
        bias: bias of the head, shape ``(C,)``.
        num_bins: number of bins of equal width.
        ignore_index: target value of samples to leave out.

    Raises:
        ValueError: a shape is invalid, no sample is left, or a logit is NaN or infinite.
        IndexError: a target is not a class index.

    >>> import torch
    >>> hidden, weight = torch.eye(3), torch.tensor([[2.0, 0.0, 1.0], [1.0, 3.0, 0.0]])
    >>> result = linear_calibration(hidden, weight, torch.tensor([0, 1, 1]))
    >>> round(result.error, 4), round(result.nll, 4), round(result.ece, 4)
    (0.3333, 0.5584, 0.1698)
    """
    check_head(hidden, weight, target)
    if weight.shape[0] < 2 or target.is_floating_point():
        raise ValueError(
            f"weight must have at least two rows, and target must hold class indices, got {weight.shape[0]} rows and "
            f"{target.dtype}"
        )
    edges = equal_edges(num_bins)
    hidden, target = hidden.detach().reshape(-1, hidden.shape[-1]), class_indices(target.reshape(-1))
    keep = target != ignore_index
    if not bool(keep.all()):
        hidden, target = hidden[keep], target[keep]
    check_target(target, weight.shape[0], ignore_index)
    step = max(1, CHUNK_BYTES // (len(weight) * torch.promote_types(hidden.dtype, weight.dtype).itemsize))
    parts = [
        _scan_chunk(hidden[start : start + step], weight, target[start : start + step], bias, start)
        for start in range(0, len(hidden), step)
    ]
    confidence, right, nll, brier = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("confidence", "right", "nll", "brier")
    )
    bins = BinStats.collect(confidence, right, edges)
    return LinearCalibration(len(hidden), 1 - float(right.mean()), float(nll.mean()), float(brier.mean()), bins)


@torch.no_grad()
def _scan_chunk(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, start: int) -> Scan:
    logits = torch.nn.functional.linear(hidden, weight, bias)
    try:
        return scan(Samples(logits, target), scores=True)
    except ValueError as error:
        error.add_note(f"rows are counted from sample {start}, without ignored samples")
        raise
