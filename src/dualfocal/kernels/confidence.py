"""Confidence, correctness and scores of rows of logits on a GPU, in one pass over the logits.

Arithmetic is float32: a confidence is accurate to about 1e-7. Nothing here waits for the GPU. The numbers of a row do
not depend on the other rows of the batch, so any split into batches gives the same bits.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dualfocal.kernels import _confidence_triton
from dualfocal.kernels._launch import Launcher, blocks, next_power_of_2

MOST_FEW = 16  # classes of rows that one thread reads
FEW_ROWS = 128  # such rows of a program
LONGEST_TILE = 4096  # classes of rows that are held in registers
TILE_ELEMENTS = 4096  # of a program
ROW_BLOCK = 4096  # classes that a program of a long row reads at a time
ROW_WARPS, ROW_STAGES = 8, 4
BAD_LOGITS, BAD_TARGET = 1, 2  # as in the kernels
NOTHING = -(1 << 63)  # an ignore_index that is never met

_few, _tile, _row = map(
    Launcher, (_confidence_triton.few_kernel, _confidence_triton.tile_kernel, _confidence_triton.row_kernel)
)


class RowNumbers(NamedTuple):
    """Results of :func:`scan_rows`, (N,) each."""

    confidence: Tensor  # int64 units of 2^-32
    right: Tensor  # bool, whether the target is the first class with the largest logit
    uncertainty: Tensor  # float64, 1 / confidence; NaN if the row has NaN, +inf or no finite logit
    nll: Tensor  # float64, empty unless scores are wanted
    brier: Tensor  # float64, empty unless scores are wanted


def scan_rows(values: Tensor, target: Tensor, *, scores: bool) -> RowNumbers:
    """Compute the numbers of each row of logits (N, C); targets must be class indices."""
    n, device = len(values), values.device
    confidence = torch.empty(n, dtype=torch.int64, device=device)
    right = torch.empty(n, dtype=torch.bool, device=device)
    numbers = torch.empty(3 if scores else 1, n, dtype=torch.float64, device=device)
    _launch(values, target, (confidence, right, numbers, None, None, None, None), scores, NOTHING, 0)
    nll, brier = numbers[1:] if scores else (numbers[0, :0], numbers[0, :0])
    return RowNumbers(confidence, right, numbers[0], nll, brier)


def add_to_bins(
    values: Tensor,
    target: Tensor,
    bounds: Tensor,
    counts: Tensor,
    totals: Tensor,
    hits: Tensor | None,
    brier: bool,
    invalid: Tensor,
    ignore_index: int,
) -> None:
    """Add each row of logits (N, C) to the bin of its confidence; changes int64 tensors on the same device in place.

    Args:
        values: logits.
        target: class indices, (N,).
        bounds: (B + 1,) in units of 2^-32: bin b is ``(bounds[b], bounds[b + 1]]``.
        counts: number of rows in each bin, (B,), or one number for one bin.
        totals: sum of their confidences in units of 2^-32, like ``counts``.
        hits: number of rows whose target is the first class with the largest logit, like ``counts`` (None: not wanted).
        brier: whether to bin and sum Brier terms instead of confidences.
        invalid: one number, set to BAD_LOGITS or BAD_TARGET if there is such a row. It is not added to any bin.
        ignore_index: target of rows to leave out.
    """
    _launch(values, target, (None, hits, None, bounds, counts, totals, invalid), brier, ignore_index, counts.numel())


def _launch(
    values: Tensor,
    target: Tensor,
    results: tuple[Tensor | None, ...],
    scores: bool,
    ignore_index: int,
    num_bins: int,
) -> None:
    n, num_classes = values.shape
    if not n:
        return
    values = values if values.stride(1) == 1 else values.contiguous()
    stride, width, device = values.stride(0), next_power_of_2(num_classes), values.get_device()
    tensors = (values, target.contiguous(), *results)
    if num_classes <= MOST_FEW:
        arguments = (*tensors, n, stride, ignore_index, num_bins)
        _few(blocks(n, FEW_ROWS), device, arguments, 4, SCORES=scores, C=num_classes, BLOCK_M=FEW_ROWS)
    elif width <= LONGEST_TILE:
        height = max(1, TILE_ELEMENTS // width)
        # Whole vectors of 16 bytes or none: otherwise the order of a sum would depend on where a batch starts.
        vector = 16 // values.itemsize
        vector = 1 if num_classes % vector or stride % vector else vector
        arguments = (*tensors, n, num_classes // vector, stride // vector, ignore_index, num_bins)
        _tile(blocks(n, height), device, arguments, 4, SCORES=scores, VECTOR=vector, BLOCK_M=height, BLOCK_C=width)
    else:
        arguments = (*tensors, n, num_classes, stride, ignore_index, num_bins)
        _row(n, device, arguments, ROW_WARPS, SCORES=scores, BLOCK=ROW_BLOCK, STAGES=ROW_STAGES)
