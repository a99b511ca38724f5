"""Training-mode batch norm with the residual sum and the ReLU that follow it, in two passes over the data each way.

A channels-last batch of images is a matrix of rows (M = N * H * W, C). One kernel reduces over its rows, another maps
its elements, and each reads it once. All arithmetic is float32. The rows are dealt out tile by tile, so that all
programs sweep the matrix from top to bottom together; the mapping kernels sweep from bottom to top, since the bottom is
what is still in the L2 cache.
"""

import functools
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn import functional as F

from dualfocal._tensors import in_batched_backward, under_transform
from dualfocal.kernels._batch_norm_triton import (
    apply_kernel,
    backward_apply_kernel,
    backward_sums_kernel,
    finish_statistics_kernel,
    finish_sums_kernel,
    statistics_kernel,
)

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MERGE = {"CHUNK": 64, "BLOCK_C": 16}  # splits and channels that are merged at a time
MAX_SPLITS = 128  # of a reduction
H200_SMS = 132  # assumed where there is no device to ask


class Plan(NamedTuple):
    """How a kernel cuts the (M, C) matrix. It decides the order of summation, and so the last bits of the result."""

    block_m: int  # rows and channels of a tile, powers of two
    block_c: int
    splits: int  # programs that share the rows of one block of channels
    num_warps: int
    num_stages: int = 1  # tiles under way at a time; above 1 they pass through shared memory


class Running(NamedTuple):
    """What a layer remembers of all batches; changed in place."""

    mean: Tensor
    var: Tensor
    batches: Tensor | None


@functools.cache
def plan_for(kernel: str, rows: int, channels: int, itemsize: int, sms: int = H200_SMS) -> Plan:
    """The plan of ``statistics``, ``apply``, ``backward_sums`` or ``backward_apply``.

    A function of the sizes alone, by what was fastest on an H200: to measure at run time would cost start-up, and make
    the bits depend on the clock.
    """
    reduces = kernel in ("statistics", "backward_sums")
    divisor = channels & -channels  # a power of two; lanes beyond the last channel would idle
    block_c = max(16, min(divisor if divisor >= 32 else triton.next_power_of_2(channels), 64))
    num_warps, per_sm = (8, 2) if reduces else (4, 8)  # programs on a multiprocessor
    # Two loads of 16 bytes by each thread make a tile.
    block_m = min(num_warps * 32 * 2 * (16 // itemsize) // block_c, triton.next_power_of_2(rows))
    tiles, blocks = triton.cdiv(rows, block_m), triton.cdiv(channels, block_c)
    splits = max(1, min(tiles, MAX_SPLITS if reduces else tiles, per_sm * sms // blocks))
    splits = triton.cdiv(tiles, triton.cdiv(tiles, splits))  # as many tiles for each; fewer programs take no longer
    return Plan(block_m, block_c, splits, num_warps, num_stages=3 if tiles > 2 * splits else 1)


def statistics(x: Tensor, weight: Tensor, bias: Tensor, running: Running, momentum: float, eps: float) -> Tensor:
    """Mean, 1 / std, scale and shift of each channel, (4, C); moves the running statistics."""
    rows, channels, plan, grid, options = _prepare("statistics", x)
    partial = torch.empty((2, plan.splits, channels), dtype=torch.float32, device=x.device)  # mean, squared deviations
    saved = torch.empty((4, channels), dtype=torch.float32, device=x.device)
    with torch.cuda.device(x.get_device()):
        statistics_kernel[grid](x, partial, rows, channels, RAGGED=rows % plan.block_m != 0, **options)
        finish_statistics_kernel[(triton.cdiv(channels, MERGE["BLOCK_C"]),)](
            *(partial, weight, bias, *running, saved),
            *(rows, channels, plan.splits, plan.block_m, momentum, eps),
            **MERGE,
        )
    return saved


def apply(x: Tensor, residual: Tensor | None, saved: Tensor, relu: bool) -> Tensor:
    """``relu(x * scale + shift + residual)``."""
    rows, channels, _, grid, options = _prepare("apply", x)
    out = torch.empty_like(x, memory_format=torch.channels_last)
    with torch.cuda.device(x.get_device()):
        apply_kernel[grid](x, residual, saved, out, rows, channels, RELU=relu, **options)
    return out


def backward_sums(
    dy: Tensor, more_dy: Tensor | None, x: Tensor, out: Tensor | None, saved: Tensor, relu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of weight and bias, (2, C) coefficients for ``backward_apply``, and the gradient behind the ReLU.

    The last is written if ``out`` or ``more_dy`` is given; otherwise it is dy, and has yet to pass the ReLU.
    """
    rows, channels, plan, grid, options = _prepare("backward_sums", x)
    partial = torch.empty((2, plan.splits, channels), dtype=torch.float32, device=x.device)
    d_weight, d_bias = (torch.empty(channels, dtype=torch.float32, device=x.device) for _ in range(2))
    slope = torch.empty((2, channels), dtype=torch.float32, device=x.device)
    wanted = out is not None or more_dy is not None
    g = torch.empty_like(x, memory_format=torch.channels_last) if wanted else None
    with torch.cuda.device(x.get_device()):
        backward_sums_kernel[grid](dy, more_dy, x, out, g, saved, partial, rows, channels, RELU=relu, **options)
        finish_sums_kernel[(triton.cdiv(channels, MERGE["BLOCK_C"]),)](
            partial, saved, d_weight, d_bias, slope, rows, channels, plan.splits, **MERGE
        )
    return d_weight, d_bias, slope, dy if g is None else g


def backward_apply(g: Tensor, x: Tensor, saved: Tensor, slope: Tensor, relu: bool) -> Tensor:
    """The gradient of x; with ``relu``, g has yet to pass it."""
    rows, channels, _, grid, options = _prepare("backward_apply", x)
    dx = torch.empty_like(x, memory_format=torch.channels_last)
    with torch.cuda.device(x.get_device()):
        backward_apply_kernel[grid](g, x, saved, slope, dx, rows, channels, RELU=relu, **options)
    return dx


class _BatchNormReLU(torch.autograd.Function):
    """Its output twice, as two tensors: a gradient for each, which are then added on the way, and not by a kernel."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        residual: Tensor | None,
        running: Running,
        momentum: float,
        eps: float,
        relu: bool,
    ) -> tuple[Tensor, Tensor]:
        saved = statistics(x, weight, bias, running, momentum, eps)
        out = apply(x, residual, saved, relu)
        ctx.relu, ctx.eps = relu, eps
        ctx.save_for_backward(x, saved, out if relu and residual is not None else None, weight, bias, residual)
        ctx.set_materialize_grads(False)
        return out, out.detach()

    @staticmethod
    def backward(ctx: Any, dy: Any, more_dy: Any) -> tuple[Tensor | None, ...]:  # one of the two may be None
        x, saved, out, weight, bias, residual = ctx.saved_tensors
        dy, more_dy = (more_dy, None) if dy is None else (dy, more_dy)
        if torch.is_grad_enabled() or in_batched_backward(dy):
            dy = dy if more_dy is None else dy + more_dy
            return *_differentiable_gradient(dy, x, weight, bias, residual, ctx.eps, ctx.relu), *[None] * 4
        dy, more_dy = _rows(dy), None if more_dy is None else _rows(more_dy)
        d_weight, d_bias, slope, g = backward_sums(dy, more_dy, x, out, saved, ctx.relu)
        dx = backward_apply(g, x, saved, slope, ctx.relu and g is dy)
        return dx, d_weight, d_bias, None if residual is None else g, *[None] * 4


def _differentiable_gradient(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, eps: float, relu: bool
) -> tuple[Tensor | None, ...]:
    """The same gradient by torch's own operations, for ``create_graph=True`` and for many gradients at once.

    Not by ``F.batch_norm``: on CUDA many gradients at once, channels-last, are too much for it.
    """
    with torch.enable_grad():
        leaves = [of if of.requires_grad else of.detach().requires_grad_() for of in (x, weight, bias)]
        wide = leaves[0].float()
        variance, mean = torch.var_mean(wide, (0, 2, 3), correction=0, keepdim=True)
        scale, shift = (of.view(-1, 1, 1) for of in leaves[1:])
        out = ((wide - mean) * torch.rsqrt(variance + eps) * scale + shift).to(x.dtype)
        if residual is not None:
            leaves.append(residual if residual.requires_grad else residual.detach().requires_grad_())
            out = out + leaves[3]
        out = F.relu(out) if relu else out
        grads = torch.autograd.grad(out, leaves, dy, create_graph=True)
    return *grads, *[None] * (4 - len(grads))


def batch_norm_relu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running: Running,
    *,
    momentum: float,
    eps: float,
    residual: Tensor | None = None,
    relu: bool = True,
) -> tuple[Tensor, Tensor]:
    """``relu(batch_norm(x) + residual)`` with batch statistics, as ``F.batch_norm(..., training=True)`` defines them.

    It comes as two tensors on the same memory, for two users of it: the sum of their gradients then costs nothing.
    Neither may be changed in place.

    ``x`` is (N, C, H, W), dense in channels-last order, in bfloat16, float16 or float32, of fewer than 2^31 elements,
    so that offsets fit 32 bits; the tensors of channels are float32. May be captured in a CUDA graph.
    """
    channels = x.shape[1] if x.ndim == 4 else 0
    if not (channels and x.dtype in DTYPES and _is_rows(x) and 2 * channels <= x.numel() < 2**31):
        raise ValueError(
            "x must be (N, C, H, W), dense in channels-last order, of dtype bfloat16, float16 or float32, with more "
            "than 1 value per channel and below 2^31 elements, "
            f"got {x.dtype} of shape {tuple(x.shape)} with strides {x.stride()}"
        )
    for name, value in {"weight": weight, "bias": bias, "mean": running.mean, "var": running.var}.items():
        if value.shape != (channels,) or value.dtype != torch.float32 or not value.is_contiguous():
            raise ValueError(
                f"{name} must be {channels} adjacent float32 values, got {value.dtype} of shape {tuple(value.shape)}"
            )
    if residual is not None:
        if residual.shape != x.shape:
            raise ValueError(f"residual must have the shape of x, {tuple(x.shape)}, got {tuple(residual.shape)}")
        residual = _rows(residual.to(x.dtype))
    both: tuple[Tensor, Tensor] = _BatchNormReLU.apply(x, weight, bias, residual, running, momentum, eps, relu)  # type: ignore[no-untyped-call]
    return both


def batch_norm_of(bn: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, relu: bool) -> tuple[Tensor, Tensor]:
    """``relu(bn(x) + residual)``, twice, where this ``applies``: there are running statistics and a momentum."""
    running = Running(bn.running_mean, bn.running_var, bn.num_batches_tracked)  # type: ignore[arg-type]
    momentum: Any = bn.momentum
    return batch_norm_relu(x, bn.weight, bn.bias, running, momentum=momentum, eps=bn.eps, residual=residual, relu=relu)


def applies(x: Tensor, bn: nn.Module) -> bool:
    """Whether ``batch_norm_relu`` can do what ``bn(x)`` would do now."""
    return (
        type(bn) is nn.BatchNorm2d
        and bn.training
        and bn.affine
        and bn.track_running_stats
        and bn.momentum is not None
        and bn.weight.dtype == torch.float32
        and not torch.compiler.is_compiling()
        and x.is_cuda
        and _is_recent(x.device)
        and x.ndim == 4
        and x.dtype in DTYPES
        and x.shape[1] == bn.num_features
        and 2 * x.shape[1] <= x.numel() < 2**31
        and _is_rows(x)
        and not under_transform()
    )


def try_out(device: torch.device) -> None:
    """Build and run the kernels once, both ways, whoever calls; raises whatever stands in the way."""
    with torch.inference_mode(False), torch.enable_grad():
        x = torch.ones(2, 16, 1, 1, device=device, requires_grad=True)
        weight, bias, mean, var = torch.ones(4, 16, device=device)
        batch_norm_relu(x, weight, bias, Running(mean, var, None), momentum=0.1, eps=1e-5)[0].sum().backward()  # type: ignore[no-untyped-call]


def _is_rows(x: Tensor) -> bool:
    """Whether memory holds the rows one after the other; sizes of 1 may have any stride."""
    return x.is_contiguous(memory_format=torch.channels_last)


def _rows(x: Tensor) -> Tensor:
    return x if _is_rows(x) else x.contiguous(memory_format=torch.channels_last)


@functools.cache
def _is_recent(device: torch.device) -> bool:
    """Whether the GPU is one that Triton is made for, and of a kind that the kernels have been run on."""
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


@functools.cache
def _num_sms(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else H200_SMS


def _prepare(kernel: str, x: Tensor) -> tuple[int, int, Plan, tuple[int, int], dict[str, Any]]:
    """Rows and channels of the matrix, the plan with no program left idle, the grid and options of the launch."""
    channels = x.shape[1]
    rows = x.numel() // channels
    plan = plan_for(kernel, rows, channels, x.element_size(), _num_sms(x.device))
    plan = plan._replace(splits=min(plan.splits, triton.cdiv(rows, plan.block_m)))
    options = {
        "BLOCK_M": plan.block_m,
        "BLOCK_C": plan.block_c,
        "STAGES": plan.num_stages,
        "num_warps": plan.num_warps,
        "enable_fp_fusion": True,  # said explicitly: the default differs between versions of triton
    }
    return rows, channels, plan, (triton.cdiv(channels, plan.block_c), plan.splits), options
