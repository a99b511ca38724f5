"""Modulated cross-entropy of class indices on a GPU: one pass over the logits gives the loss and its gradient.

The gradient is written together with the loss, while the logits are in registers or in the L2 cache, so that forward
and backward together read the logits and write the gradient once. The backward pass multiplies it by the upstream
gradient, which costs nothing if that is 1. Rows with ``reduction="none"`` have upstream gradients of their own; their
gradient is computed in the backward pass. So it is under ``torch.compile``, where the kernels are opaque operators.

The specification is ``losses._expression``. Nothing here waits for the GPU.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from dualfocal._tensors import in_batched_backward
from dualfocal.kernels._modulated_triton import row_kernel, scale_kernel, tile_kernel, total_weight_kernel

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NUMBER, SCALAR, PER_ROW, BINS_OF_P, BINS_OF_MARGIN = range(5)  # as in the kernels
LONGEST_TILE = 4096  # classes of rows that are held in registers
TILE_ELEMENTS = 4096  # of a program
ALONE_ELEMENTS = 8192  # up to so many, one program does everything
ROW_BLOCK = 8192  # classes that a program of long rows reads at a time
MAX_PARTIALS = 128
H200_SMS = 132  # assumed without a CUDA device


class Bins(NamedTuple):
    """One gamma per bin [lo, hi) of p_k, or of the margin p_k - p_j."""

    values: Tensor  # (B,), signed
    edges: Tensor  # (B - 1,)
    of_margin: bool


Gamma = float | Tensor | Bins  # a number, or a tensor with one value or one per row


class Rows(NamedTuple):
    """Arguments of the loss of a matrix of logits."""

    logits: Tensor  # (M, C), adjacent classes adjacent in memory
    target: Tensor  # (M,), class indices
    weight: Tensor | None  # (C,)
    gamma: Gamma
    dual: bool  # whether there is a rival
    ignore_index: int
    reduction: str

    def tensors(self) -> list[Tensor | None]:
        """Return all tensors but the logits."""
        values, edges = (*self.gamma[:2],) if isinstance(self.gamma, Bins) else (self.gamma, None)
        return [self.target, self.weight, values if isinstance(values, Tensor) else None, edges]


def compute(
    rows: Rows, *, with_loss: bool = True, with_grad: bool = False, upstream: Tensor | None = None
) -> tuple[Tensor | None, Tensor | None]:
    """Compute the reduced loss, or the losses (M,), and the gradient of the logits; ``upstream`` is a factor per row."""
    logits, num_rows, num_classes = rows.logits, *rows.logits.shape
    block_c = triton.next_power_of_2(num_classes)
    reduced, mean = rows.reduction != "none", rows.reduction == "mean"
    alone = reduced and block_c <= LONGEST_TILE and triton.next_power_of_2(num_rows) * block_c <= ALONE_ELEMENTS
    shape = () if alone else (num_rows,)
    loss = torch.empty(shape, dtype=torch.float32, device=logits.device) if with_loss else None
    grad = torch.empty((num_rows, num_classes), dtype=logits.dtype, device=logits.device) if with_grad else None
    with torch.cuda.device(logits.get_device()):
        partial = _partial_weights(rows) if mean and not alone else None
        mode, number, values, edges = _gamma_arguments(rows.gamma)
        arguments = (
            *(logits, rows.target, rows.weight, values, edges, partial, upstream, loss, grad),
            *(num_rows, num_classes, logits.stride(0), number, 0 if edges is None else len(edges)),
            *(0 if partial is None else len(partial), rows.ignore_index),
        )
        options = {"GAMMA": mode, "DUAL": rows.dual, "MEAN": mean, "PARTIALS": MAX_PARTIALS}
        if block_c <= LONGEST_TILE:
            block_m = triton.next_power_of_2(num_rows) if alone else max(1, TILE_ELEMENTS // block_c)
            tile_kernel[(triton.cdiv(num_rows, block_m),)](
                *arguments, **options, ALONE=alone, BLOCK_M=block_m, BLOCK_C=block_c, num_warps=4
            )
        else:
            programs = min(num_rows, 2 * _num_sms(logits.device))
            row_kernel[(programs,)](*arguments, **options, BLOCK=min(block_c, ROW_BLOCK), num_warps=16)
    if loss is not None and reduced and not alone:
        loss = loss.sum()
    return loss, grad


def _gamma_arguments(gamma: Gamma) -> tuple[int, float, Tensor | None, Tensor | None]:
    if isinstance(gamma, Bins):
        return BINS_OF_MARGIN if gamma.of_margin else BINS_OF_P, 0.0, gamma.values, gamma.edges
    if isinstance(gamma, Tensor):
        return SCALAR if gamma.ndim == 0 else PER_ROW, 0.0, gamma, None
    return NUMBER, gamma, None, None


def _partial_weights(rows: Rows) -> Tensor:
    """Sums of the weights of all rows that are not ignored, to be added up."""
    count, block = len(rows.target), 1024
    programs = min(MAX_PARTIALS, triton.cdiv(count, block))
    partial = torch.empty(programs, dtype=torch.float32, device=rows.logits.device)
    total_weight_kernel[(programs,)](
        rows.target, rows.weight, partial, rows.ignore_index, count, rows.logits.shape[1], BLOCK=block
    )
    return partial


def _scale(grad: Tensor, factor: Tensor) -> Tensor:
    """Multiply in place by a number on the device."""
    block = 4096
    programs = min(triton.cdiv(grad.numel(), block), 8 * _num_sms(grad.device))
    with torch.cuda.device(grad.get_device()):
        scale_kernel[(programs,)](grad, factor, grad.numel(), BLOCK=block)
    return grad


class _ModulatedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, rows: Rows, recompute: Callable[[Tensor], Tensor]) -> Tensor:
        reduced = rows.reduction != "none"
        loss, ctx.grad = compute(rows, with_grad=reduced and ctx.needs_input_grad[0])
        ctx.rows, ctx.recompute = rows, recompute
        ctx.save_for_backward(logits, *rows.tensors())  # so that torch raises an error if they are modified in place
        return loss  # type: ignore[return-value]

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        logits = ctx.saved_tensors[0]
        rows = ctx.rows
        if torch.is_grad_enabled():  # create_graph=True
            (grad,) = torch.autograd.grad(ctx.recompute(logits), logits, upstream, create_graph=True)
        elif in_batched_backward(upstream):
            grad = compute(rows, with_loss=False, with_grad=True)[1]
            grad = grad * (upstream[:, None] if rows.reduction == "none" else upstream).to(grad.dtype)
        elif rows.reduction == "none":
            grad = compute(rows, with_loss=False, with_grad=True, upstream=upstream.contiguous())[1]
        else:
            # The stored gradient is given away; a second backward through the same graph computes it again.
            grad, ctx.grad = ctx.grad, None
            grad = compute(rows, with_loss=False, with_grad=True)[1] if grad is None else grad
            grad = _scale(grad, upstream)
        return grad, None, None


def modulated_loss(rows: Rows, recompute: Callable[[Tensor], Tensor]) -> Tensor:
    """Compute the loss; ``recompute`` is the same as a differentiable function of the logits."""
    loss: Tensor = _ModulatedLoss.apply(rows.logits, rows, recompute)  # type: ignore[no-untyped-call]
    return loss


@functools.cache
def _num_sms(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else H200_SMS
