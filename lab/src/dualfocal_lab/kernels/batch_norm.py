"""Training-mode batch norm fused with residual sum and ReLU: two passes over the data, forward and backward.

A channels-last batch of images is a matrix with rows (M = N * H * W, C). One kernel reduces over its rows, another maps
its elements, and each reads the matrix once. All arithmetic is float32. Tiles of rows are assigned to the programs in
turn, so that all programs sweep the matrix from top to bottom together; the mapping kernels sweep from bottom to top,
because the bottom is still in the L2 cache.
"""

import functools
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn import functional as F

from dualfocal_lab.kernels._batch_norm_triton import (
    apply_kernel,
    backward_apply_kernel,
    backward_sums_kernel,
    finish_statistics_kernel,
    finish_sums_kernel,
    statistics_kernel,
)

H200_SMS = 132  # multiprocessors; assumed without a CUDA device
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MERGE = {"CHUNK": 64, "BLOCK_C": 16}  # splits and channels merged at a time
MAX_SPLITS = 128  # maximum number of splits of a reduction


class Plan(NamedTuple):
    """Tiling of the (M, C) matrix. It determines the order of summation, and therefore the last bits of the result."""

    block_m: int  # rows and channels per tile, powers of two
    block_c: int
    splits: int  # number of programs that share the rows of one block of channels
    num_warps: int
    num_stages: int = 1  # tiles in flight; above 1 they are staged in shared memory


class Running(NamedTuple):
    """Running statistics of a layer, updated in place."""

    mean: Tensor
    var: Tensor
    batches: Tensor | None


@functools.cache
def plan_for(kernel: str, rows: int, channels: int, itemsize: int, sms: int = H200_SMS) -> Plan:
    """Plan of the kernel ``statistics``, ``apply``, ``backward_sums`` or ``backward_apply``.

    The plan depends only on the sizes, and was tuned on an H200. Autotuning at run time would slow down the start and
    make results irreproducible.
    """
    reduces = kernel in ("statistics", "backward_sums")
    divisor = channels & -channels  # a power of two, so that no lanes are idle
    block_c = max(16, min(divisor if divisor >= 32 else triton.next_power_of_2(channels), 64))
    num_warps, per_sm = (8, 2) if reduces else (4, 8)  # programs per multiprocessor
    # Each thread loads 2 x 16 bytes of a tile.
    block_m = min(num_warps * 32 * 2 * (16 // itemsize) // block_c, triton.next_power_of_2(rows))
    tiles, blocks = triton.cdiv(rows, block_m), triton.cdiv(channels, block_c)
    splits = max(1, min(tiles, MAX_SPLITS if reduces else tiles, per_sm * sms // blocks))
    splits = triton.cdiv(tiles, triton.cdiv(tiles, splits))  # equal numbers of tiles; fewer programs are as fast
    return Plan(block_m, block_c, splits, num_warps, num_stages=3 if tiles > 2 * splits else 1)


def statistics(x: Tensor, weight: Tensor, bias: Tensor, running: Running, momentum: float, eps: float) -> Tensor:
    """Compute mean, 1 / std, scale and shift of each channel, (4, C), and update the running statistics."""
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
    """Compute ``relu(x * scale + shift + residual)``."""
    rows, channels, _, grid, options = _prepare("apply", x)
    out = torch.empty_like(x, memory_format=torch.channels_last)
    with torch.cuda.device(x.get_device()):
        apply_kernel[grid](x, residual, saved, out, rows, channels, RELU=relu, **options)
    return out


def backward_sums(
    dy: Tensor, more_dy: Tensor | None, x: Tensor, out: Tensor | None, saved: Tensor, relu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of weight and bias, (2, C) coefficients for ``backward_apply``, and the gradient before the ReLU.

    The last is computed if ``out`` or ``more_dy`` is given; otherwise dy is returned, to which the ReLU mask must still
    be applied.
    """
    rows, channels, plan, grid, options = _prepare("backward_sums", x)
    partial = torch.empty((2, plan.splits, channels), dtype=torch.float32, device=x.device)
    d_weight, d_bias = (torch.empty(channels, dtype=torch.float32, device=x.device) for _ in range(2))
    slope = torch.empty((2, channels), dtype=torch.float32, device=x.device)
    write_g = out is not None or more_dy is not None
    g = torch.empty_like(x, memory_format=torch.channels_last) if write_g else None
    with torch.cuda.device(x.get_device()):
        backward_sums_kernel[grid](dy, more_dy, x, out, g, saved, partial, rows, channels, RELU=relu, **options)
        finish_sums_kernel[(triton.cdiv(channels, MERGE["BLOCK_C"]),)](
            partial, saved, d_weight, d_bias, slope, rows, channels, plan.splits, **MERGE
        )
    return d_weight, d_bias, slope, dy if g is None else g


def backward_apply(g: Tensor, x: Tensor, saved: Tensor, slope: Tensor, relu: bool) -> Tensor:
    """Compute the gradient of x; with ``relu``, the ReLU mask is still to be applied to g."""
    rows, channels, _, grid, options = _prepare("backward_apply", x)
    dx = torch.empty_like(x, memory_format=torch.channels_last)
    with torch.cuda.device(x.get_device()):
        backward_apply_kernel[grid](g, x, saved, slope, dx, rows, channels, RELU=relu, **options)
    return dx


class _BatchNormReLU(torch.autograd.Function):
    """Fused batch norm that returns its output as two tensors, whose gradients are added without a separate kernel."""

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
    def backward(ctx: Any, dy: Any, more_dy: Any) -> tuple[Tensor | None, ...]:  # one may be None
        x, saved, out, weight, bias, residual = ctx.saved_tensors
        dy, more_dy = (more_dy, None) if dy is None else (dy, more_dy)
        if torch.is_grad_enabled() or _under_transform() or torch._C._functorch.is_legacy_batchedtensor(dy):
            dy = dy if more_dy is None else dy + more_dy
            return *_differentiable_gradient(dy, x, weight, bias, residual, ctx.eps, ctx.relu), *[None] * 4
        dy, more_dy = _rows(dy), None if more_dy is None else _rows(more_dy)
        d_weight, d_bias, slope, g = backward_sums(dy, more_dy, x, out, saved, ctx.relu)
        dx = backward_apply(g, x, saved, slope, ctx.relu and g is dy)
        return dx, d_weight, d_bias, None if residual is None else g, *[None] * 4


def _differentiable_gradient(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, eps: float, relu: bool
) -> tuple[Tensor | None, ...]:
    """Gradient by plain torch operations, for ``create_graph=True`` and batched gradients.

    It does not use ``F.batch_norm``, which fails on CUDA for batched gradients in channels-last format.
    """
    with torch.enable_grad():
        leaves = [t if t.requires_grad else t.detach().requires_grad_() for t in (x, weight, bias)]
        wide = leaves[0].float()
        variance, mean = torch.var_mean(wide, (0, 2, 3), correction=0, keepdim=True)
        scale, shift = (leaf.view(-1, 1, 1) for leaf in leaves[1:])
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
    """Compute ``relu(batch_norm(x) + residual)`` with batch statistics, like ``F.batch_norm(..., training=True)``.

    Can be captured in a CUDA graph.

    Args:
        x: images (N, C, H, W), dense in channels-last order, in bfloat16, float16 or float32, with fewer than 2^31
            elements, so that offsets fit into 32 bits.
        weight: scale of each channel, float32.
        bias: shift of each channel, float32.
        running: running statistics, updated in place.
        momentum: momentum of the running statistics.
        eps: added to the variance.
        residual: tensor of the shape of ``x``, added before the ReLU.
        relu: whether to apply the ReLU.

    Returns:
        The result as two tensors that share memory, for two consumers, so that adding their gradients is free. Neither
        may be modified in place.
    """
    if not _fits(x):
        raise ValueError(
            "x must be (N, C, H, W), dense in channels-last order, of dtype bfloat16, float16 or float32, with more "
            "than 1 value per channel and below 2^31 elements, "
            f"got {x.dtype} of shape {tuple(x.shape)} with strides {x.stride()}"
        )
    channels = x.shape[1]
    for name, value in {"weight": weight, "bias": bias, "mean": running.mean, "var": running.var}.items():
        if value.shape != (channels,) or value.dtype != torch.float32 or not value.is_contiguous():
            raise ValueError(
                f"{name} must be {channels} contiguous float32 values, got {value.dtype} of shape {tuple(value.shape)}"
            )
    if residual is not None:
        if residual.shape != x.shape:
            raise ValueError(f"residual must have the shape of x, {tuple(x.shape)}, got {tuple(residual.shape)}")
        residual = _rows(residual.to(x.dtype))
    both: tuple[Tensor, Tensor] = _BatchNormReLU.apply(x, weight, bias, residual, running, momentum, eps, relu)  # type: ignore[no-untyped-call]
    return both


def batch_norm_of(bn: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, relu: bool) -> tuple[Tensor, Tensor]:
    """Compute ``relu(bn(x) + residual)`` as two tensors; ``applies(x, bn)`` must be True."""
    running = Running(bn.running_mean, bn.running_var, bn.num_batches_tracked)  # type: ignore[arg-type]
    momentum: Any = bn.momentum
    return batch_norm_relu(x, bn.weight, bn.bias, running, momentum=momentum, eps=bn.eps, residual=residual, relu=relu)


def applies(x: Tensor, bn: nn.Module) -> bool:
    """Whether ``batch_norm_relu`` can replace ``bn(x)``."""
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
        and _fits(x)
        and x.shape[1] == bn.num_features
        and not _under_transform()
    )


def try_out(device: torch.device) -> None:
    """Compile and run the kernels once, forward and backward; raises if that fails."""
    with torch.inference_mode(False), torch.enable_grad():
        x = torch.ones(2, 16, 1, 1, device=device, requires_grad=True)
        weight, bias, mean, var = torch.ones(4, 16, device=device)
        batch_norm_relu(x, weight, bias, Running(mean, var, None), momentum=0.1, eps=1e-5)[0].sum().backward()  # type: ignore[no-untyped-call]


def _fits(x: Tensor) -> bool:
    """Whether the kernels can read these images."""
    if x.ndim != 4 or x.dtype not in DTYPES or not _is_rows(x):
        return False
    return 0 < 2 * x.shape[1] <= x.numel() < 2**31  # offsets of 32 bits; two values per channel


def _is_rows(x: Tensor) -> bool:
    """Whether the rows are contiguous in memory."""
    return x.is_contiguous(memory_format=torch.channels_last)


def _rows(x: Tensor) -> Tensor:
    return x if _is_rows(x) else x.contiguous(memory_format=torch.channels_last)


@functools.cache
def _is_recent(device: torch.device) -> bool:
    """Whether the GPU is of a generation that Triton supports and the kernels were tested on."""
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


def _prepare(kernel: str, x: Tensor) -> tuple[int, int, Plan, tuple[int, int], dict[str, Any]]:
    """Rows and channels of the matrix, the plan without idle programs, and the launch grid and options."""
    channels = x.shape[1]
    rows = x.numel() // channels
    plan = plan_for(kernel, rows, channels, x.element_size(), _num_sms(x.get_device()))
    plan = plan._replace(splits=min(plan.splits, triton.cdiv(rows, plan.block_m)))
    options = {
        "BLOCK_M": plan.block_m,
        "BLOCK_C": plan.block_c,
        "STAGES": plan.num_stages,
        "num_warps": plan.num_warps,
        "enable_fp_fusion": True,  # explicit, because the default depends on the version of triton
    }
    return rows, channels, plan, (triton.cdiv(channels, plan.block_c), plan.splits), options


def _under_transform() -> bool:
    """Whether a ``torch.func`` transform (grad, vmap, ...) is active. Torch has no public function for this."""
    return torch._C._are_functorch_transforms_active()


@functools.cache
def _num_sms(device: int) -> int:
    """Return the number of multiprocessors of a CUDA device; -1, the interpreter: of an H200."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device >= 0 else H200_SMS
