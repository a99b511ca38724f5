"""Modulated cross-entropy of class indices on a GPU: one pass over the logits gives the loss and its gradient.

The gradient is written together with the loss, while the logits are in registers or in the L2 cache, so that forward
and backward together read the logits and write the gradient once. The backward pass multiplies it by the upstream
gradient, which costs nothing if that is 1. The gradient is computed in the backward pass if every row has an upstream
gradient of its own (``reduction="none"``), if the logits are float16, where small gradients must be scaled before they
are rounded, and under ``torch.compile``, where the kernels are opaque operators.

The specification is ``losses._expression``. Nothing here waits for the GPU.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dualfocal._tensors import in_batched_backward
from dualfocal.kernels import _modulated_triton
from dualfocal.kernels._launch import Launcher, blocks, next_power_of_2, num_sms

NUMBER, SCALAR, PER_ROW, BINS_OF_P, BINS_OF_MARGIN = range(5)  # as in the kernels
LONGEST_TILE = 4096  # classes of rows that are held in registers
TILE_ELEMENTS = 1024  # of a program, or one row
WARP_ELEMENTS = 512  # of a tile
ALONE_ELEMENTS = 8192  # up to so many, one program does everything
MAX_PARTIALS = 128
MOST_TARGETS = 2**23  # that all programs read together, before a kernel of its own sums the weights

_tile, _row, _total_weight, _multiply = map(
    Launcher,
    (
        _modulated_triton.tile_kernel,
        _modulated_triton.row_kernel,
        _modulated_triton.total_weight_kernel,
        _modulated_triton.scale_kernel,
    ),
)


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
        return [self.target, self.weight, *_gamma_arguments(self.gamma)[2:]]


def loss_and_gradient(rows: Rows, grad: Tensor | None) -> Tensor:
    """Compute the reduced loss, or the losses (M,), and write the gradient of the logits to ``grad`` unless it is None.

    ``grad`` may be ``rows.logits`` itself.
    """
    alone = _is_alone(rows)
    loss = torch.empty(() if alone else rows.logits.shape[:1], dtype=torch.float32, device=rows.logits.device)
    _launch(rows, loss, grad, None, alone)
    return loss if alone or rows.reduction == "none" else loss.sum()


def gradient(rows: Rows, grad: Tensor, upstream: Tensor | None = None) -> Tensor:
    """Write the gradient of the logits to ``grad``; that of each row is multiplied by ``upstream``, (M,)."""
    _launch(rows, None, grad, upstream, _is_alone(rows))
    return grad


def _empty_gradient(rows: Rows) -> Tensor:
    return torch.empty_like(rows.logits, memory_format=torch.contiguous_format)


def _is_alone(rows: Rows) -> bool:
    """Whether one program computes everything, the sum of the losses too."""
    height, width = rows.logits.shape
    return (
        rows.reduction != "none"
        and width <= LONGEST_TILE
        and next_power_of_2(height) * next_power_of_2(width) <= ALONE_ELEMENTS
    )


def _launch(rows: Rows, loss: Tensor | None, grad: Tensor | None, upstream: Tensor | None, alone: bool) -> None:
    logits, (num_rows, num_classes), device = rows.logits, rows.logits.shape, rows.logits.get_device()
    mean, width, stride = rows.reduction == "mean", next_power_of_2(num_classes), logits.stride(0)
    mode, number, values, edges = _gamma_arguments(rows.gamma)
    height = vector = 1
    if in_registers := width <= LONGEST_TILE:
        height = next_power_of_2(num_rows) if alone else max(1, TILE_ELEMENTS // width)
        vector = math.gcd(num_classes, stride, 16 // logits.itemsize)
    programs = blocks(num_rows, height)
    partial = _partial_weights(rows) if mean and programs * num_rows > MOST_TARGETS else None
    arguments = (
        *(logits, rows.target, rows.weight, values, edges, partial, upstream, loss, grad),
        *(num_rows, num_classes // vector, stride // vector, number, 0 if edges is None else len(edges)),
        *(0 if partial is None else len(partial), rows.ignore_index),
    )
    options = {"GAMMA": mode, "DUAL": rows.dual, "MEAN": mean}
    options["PARTIALS"] = 1 if partial is None else next_power_of_2(len(partial))
    if in_registers:
        options |= {"ALONE": alone, "VECTOR": vector, "BLOCK_M": height, "BLOCK_C": width}
        _tile(programs, device, arguments, max(1, height * width // WARP_ELEMENTS), **options)
    else:
        block, num_warps, maxnreg = _row_settings(num_classes, logits.itemsize)
        options |= {"BLOCK": block, "BLOCKS": next_power_of_2(blocks(num_classes, block))}
        _row(programs, device, arguments, num_warps, maxnreg, **options)


def _row_settings(num_classes: int, itemsize: int) -> tuple[int, int, int | None]:
    """Classes read at a time, warps and registers that were the fastest on an H200.

    All rows that are being read should fit into its L2 cache, for the second sweep. So longer rows have fewer and
    larger programs.
    """
    if num_classes <= 2**16:
        return (2048, 8, 80) if itemsize == 2 else (2048, 16, 64)
    return 2**14 // itemsize, 32, None


def _gamma_arguments(gamma: Gamma) -> tuple[int, float, Tensor | None, Tensor | None]:
    if isinstance(gamma, Bins):
        return BINS_OF_MARGIN if gamma.of_margin else BINS_OF_P, 0.0, gamma.values, gamma.edges
    if isinstance(gamma, Tensor):
        return SCALAR if gamma.ndim == 0 else PER_ROW, 0.0, gamma, None
    return NUMBER, gamma, None, None


def _partial_weights(rows: Rows) -> Tensor:
    """Sums of the weights of all rows that are not ignored, to be added up."""
    count, block = len(rows.target), 4096
    programs = min(MAX_PARTIALS, blocks(count, block))
    partial = torch.empty(programs, dtype=torch.float32, device=rows.logits.device)
    arguments = rows.target, rows.weight, partial, rows.ignore_index, count, rows.logits.shape[1]
    _total_weight(programs, rows.logits.get_device(), arguments, 8, BLOCK=block)
    return partial


def scale(grad: Tensor, factor: Tensor, out: Tensor) -> Tensor:
    """Multiply by a number on the device; ``out`` may have another dtype, or be ``grad``. Both must be contiguous."""
    block, device = 4096, grad.get_device()
    programs = min(blocks(grad.numel(), block), 8 * num_sms(device))
    _multiply(programs, device, (grad, factor, out, grad.numel()), 4, IN_PLACE=out is grad, BLOCK=block)
    return out


class _ModulatedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, rows: Rows, recompute: Callable[[Tensor], Tensor]) -> Tensor:
        now = ctx.needs_input_grad[0] and rows.reduction != "none" and logits.dtype != torch.float16
        ctx.grad = _empty_gradient(rows) if now else None
        loss = loss_and_gradient(rows, ctx.grad)
        ctx.rows, ctx.recompute = rows, recompute
        ctx.save_for_backward(logits, *rows.tensors())
        return loss

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        rows, grad = ctx.rows, ctx.grad
        if torch.is_grad_enabled():  # create_graph=True
            logits = ctx.saved_tensors[0]
            (grad,) = torch.autograd.grad(ctx.recompute(logits), logits, upstream, create_graph=True)
        elif in_batched_backward(upstream):
            factor = upstream[:, None] if rows.reduction == "none" else upstream
            grad = gradient(rows, _empty_gradient(rows)) * factor.to(rows.logits.dtype)
        elif grad is not None:
            ctx.grad = None  # given away
            scale(grad, upstream, grad)
        else:
            # Not computed in the forward pass, or given away by a first backward through the same graph.
            _ = ctx.saved_tensors  # raises an error if they were modified in place
            grad = gradient(rows, _empty_gradient(rows), upstream.expand(len(rows.logits)).contiguous())
        return grad, None, None


def modulated_loss(rows: Rows, recompute: Callable[[Tensor], Tensor]) -> Tensor:
    """Compute the loss; ``recompute`` is the same as a differentiable function of the logits."""
    loss: Tensor = _ModulatedLoss.apply(rows.logits, rows, recompute)  # type: ignore[no-untyped-call]
    return loss


# Operators for torch.compile, which sees only their names and the shapes of their results.


@torch.library.custom_op("dualfocal::modulated_loss", mutates_args=())
def _loss_op(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    gamma: float,
    values: Tensor | None,
    edges: Tensor | None,
    of_margin: bool,
    dual: bool,
    ignore_index: int,
    reduction: str,
) -> Tensor:
    rows = Rows(logits, target, weight, _gamma(gamma, values, edges, of_margin), dual, ignore_index, reduction)
    return loss_and_gradient(rows, None)


@torch.library.custom_op("dualfocal::modulated_gradient", mutates_args=())
def _gradient_op(
    upstream: Tensor,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    gamma: float,
    values: Tensor | None,
    edges: Tensor | None,
    of_margin: bool,
    dual: bool,
    ignore_index: int,
    reduction: str,
) -> Tensor:
    rows = Rows(logits, target, weight, _gamma(gamma, values, edges, of_margin), dual, ignore_index, reduction)
    return gradient(rows, _empty_gradient(rows), upstream.expand(len(logits)).contiguous())


def _gamma(gamma: float, values: Tensor | None, edges: Tensor | None, of_margin: bool) -> Gamma:
    if values is None:
        return gamma
    return values if edges is None else Bins(values, edges, of_margin)


@_loss_op.register_fake
def _(logits: Tensor, *args: Any) -> Tensor:
    return logits.new_empty(logits.shape[:1] if args[-1] == "none" else (), dtype=torch.float32)


@_gradient_op.register_fake
def _(upstream: Tensor, logits: Tensor, *args: Any) -> Tensor:
    return logits.new_empty(logits.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    logits, target, weight, gamma, values, edges, *ctx.options = inputs
    ctx.gamma = gamma
    ctx.save_for_backward(logits, target, weight, values, edges)


def _backward_op(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
    logits, target, weight, values, edges = ctx.saved_tensors
    return _gradient_op(upstream, logits, target, weight, ctx.gamma, values, edges, *ctx.options), *[None] * 9


_loss_op.register_autograd(_backward_op, setup_context=_setup_context)


def traced_loss(rows: Rows) -> Tensor:
    """Compute the loss by an operator that ``torch.compile`` can trace."""
    _, number, values, edges = _gamma_arguments(rows.gamma)
    of_margin = isinstance(rows.gamma, Bins) and rows.gamma.of_margin
    loss: Tensor = _loss_op(
        *(rows.logits, rows.target, rows.weight, number, values, edges, of_margin),
        *(rows.dual, rows.ignore_index, rows.reduction),
    )
    return loss
