"""Modulated cross-entropy for class indices, with its gradient in closed form.

One sweep over the logits finds the largest logit, the sum of exponentials and the rival of each row. The gradient is
one number per row times softmax, with two entries overwritten. No other (M, C) matrix is stored.

The same functions compute small inputs as numpy arrays, large inputs in chunks of rows that fit into the cache, and all
rows at once under ``torch.compile`` and on other devices. Only ``_take``, ``_put`` and ``next_below`` distinguish
these cases. Row vectors have shape (M, 1), as gather, scatter and broadcasting need it.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dualfocal._tensors import compute_dtype, in_batched_backward
from dualfocal.losses._expression import NLL_LIMIT, Gamma, differentiable, modulating_base, resolve
from dualfocal.losses._flat import Flat

# Number of logits per chunk: about 1 MB of scratch memory, within the L2 cache of a core.
CHUNK = 2**18
# Up to this many logits, calls cost more than arithmetic: numpy calls are cheaper than torch calls, and the gradient is
# computed together with the loss.
SMALL = 2**13
Array = Any  # a tensor, or a numpy array


class Sweep(NamedTuple):
    """What one pass over the logits z of each row finds, with t the target and j its rival; (M, 1) each."""

    top: Array  # largest logit
    distance: Array  # top - z_t
    rest: Array  # exp(z - top), summed over all classes but t
    e_t: Array  # exp(z_t - top)
    e_j: Array  # exp(z_j - top); 0 without a rival
    j: Array  # class of the rival; t without a rival


class RowGradient(NamedTuple):
    """Gradient of the logits of each row: scale * exp(z - top), except at the rival and at the target; (M, 1) each."""

    scale: Array
    at_j: Array
    at_t: Array


def closed_form(flat: Flat, gamma: Gamma, dual: bool) -> Tensor:
    """Loss of each row, (M,); ``dual``: whether there is a rival (dual focal loss)."""
    compiling = torch.compiler.is_compiling()
    if isinstance(gamma, Tensor) and gamma.ndim == 1:
        gamma = gamma[:, None]
    if flat.logits.is_cpu and not compiling and flat.logits.numel() <= SMALL:
        return _closed_form_numpy(flat, gamma, dual)
    z, target, keep = flat.logits.detach(), flat.target[:, None], flat.keep
    parts = chunks(z)
    work = None if len(parts) == 1 else torch.empty_like(z[parts[0]], dtype=compute_dtype(z))
    sweeps = [_sweep(torch, z[part].to(compute_dtype(z)), target[part], dual, work) for part in parts]
    sweep = Sweep(*map(torch.cat, zip(*sweeps, strict=True)))
    gamma, loss, row_gradient = _row_terms(torch, gamma, sweep)
    if keep is not None:  # ignored rows must not reach the gradient, not even as NaN
        row_gradient = RowGradient(*(term.masked_fill(~keep[:, None], 0.0) for term in row_gradient))
    recompute = None if compiling else differentiable(flat, gamma, dual)
    saved = (keep, target, sweep.j if dual else None, sweep.top, *row_gradient)
    return attach_gradient(flat.logits, loss[:, 0], recompute, _gradient_of_rows, gamma, *saved)


@np.errstate(all="ignore")
def _closed_form_numpy(flat: Flat, gamma: Gamma, dual: bool) -> Tensor:
    z, target = flat.z.detach().numpy(), flat.target.numpy()[:, None]
    sweep = _sweep(np, z, target, dual)
    gamma, loss, row_gradient = _row_terms(np, gamma, sweep)
    d_z = torch.from_numpy(_gradient(np, z, target, sweep.j if dual else None, sweep.top, row_gradient))
    recompute, loss = differentiable(flat, gamma, dual), torch.from_numpy(loss[:, 0])
    return attach_gradient(flat.logits, loss, recompute, stored_gradient, gamma, flat.target, d_z)


def chunks(z: Tensor) -> list[slice]:
    """Chunks of rows; one chunk under ``torch.compile`` and on other devices than the CPU."""
    if torch.compiler.is_compiling() or z.device.type != "cpu":
        return [slice(None)]
    step = max(1, CHUNK // z.shape[1])
    return [slice(i, i + step) for i in range(0, max(len(z), 1), step)]


def _sweep(xp: ModuleType, z: Array, target: Array, dual: bool, work: Array | None = None) -> Sweep:
    """One pass over the logits; ``work`` is an optional scratch array with the shape of z or more rows."""
    work = None if work is None else work[: len(z)]
    z_t = _take(z, target)
    top = z.amax(1, keepdim=True) if isinstance(z, Tensor) else _take(z, argmax(z))  # of numpy, argmax is faster
    e_t, e_j, j = xp.exp(z_t - top), xp.zeros_like(z_t), target
    if dual:
        z_j, j = next_below(xp, z, z_t, target, work)
        e_j = xp.exp(z_j - top)
    e = xp.subtract(z, top, out=work)
    rest = _put(xp.exp(e, out=e), target, 0.0).sum(1, keepdims=True)
    return Sweep(top, top - z_t, rest, e_t, e_j, j)


def _row_terms(xp: ModuleType, gamma: Gamma, sweep: Sweep) -> tuple[Gamma, Array, RowGradient]:
    """Gamma of each row, its loss and its gradient."""
    total = sweep.rest + sweep.e_t
    p_t, q, p_j = sweep.e_t / total, sweep.rest / total, sweep.e_j / total
    # Equal to log(total) + top - z_t, but accurate also for p_t close to 1.
    nll = xp.log1p(sweep.rest + (sweep.e_t - 1)) + sweep.distance
    gamma, a, b, c = gradient_terms(xp, gamma, p_t, q, p_j, nll)
    return gamma, b * nll, RowGradient(scale=c / total, at_j=(c + a) * p_j, at_t=-(c * q + a * p_j))


def gradient_terms(
    xp: ModuleType, gamma: Gamma, p_t: Array, q: Array, p_j: Array, nll: Array
) -> tuple[float | Tensor, Array, Array, Array]:
    """Gamma, and the terms A, B and C of the gradient, from p_t, q = 1 - p_t, p_j and -log p_t, elementwise.

    With b = 1 - s (p_t - p_j), B = b^|g|, A = g b^(|g| - 1) (-log p_t) and C = A (p_t - p_j) + B:

        dL/dz_k = C p_k                   k not in {t, j}
        dL/dz_j = (C + A) p_j
        dL/dz_t = -(C (1 - p_t) + A p_j)

    A is computed as g B (-log p_t / b). As b -> 0 the last factor tends to q / (q + p_j), between 1/2 and 1, so there
    is no singularity for gamma < 1.
    """
    gamma = resolve(gamma, p_t, p_j)
    g: Any = gamma.numpy() if isinstance(gamma, Tensor) and xp is np else gamma
    base = modulating_base(xp, g, p_t, q, p_j) + float(xp.finfo(p_t.dtype).tiny)  # never 0, because it is a divisor
    b = base ** abs(g)
    # For p_t = 0, A p_t and A p_j tend to 0, so any finite A gives the gradient of cross-entropy.
    bounded = np.minimum(nll, NLL_LIMIT) if xp is np else nll.clamp_max(NLL_LIMIT)
    a = g * b * (bounded / base)
    return gamma, a, b, a * (p_t - p_j) + b


class _AttachGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        loss: Tensor,
        recompute: Callable[[Tensor], Tensor] | None,
        gradient: Callable[..., Tensor],
        gamma: Gamma,
        *saved: Tensor | None,
    ) -> Tensor:
        ctx.recompute, ctx.gradient = recompute, gradient
        ctx.save_for_backward(logits, gamma if isinstance(gamma, Tensor) else None, *saved)
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, _, *saved = ctx.saved_tensors
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # create_graph=True
            (d_logits,) = torch.autograd.grad(ctx.recompute(logits), logits, grad, create_graph=True)
        else:
            d_logits = ctx.gradient(grad, logits, *saved)
        return d_logits, *[None] * (4 + len(saved))


# Attach the gradient ``gradient(d_loss, logits, *saved)`` to a loss. ``recompute`` is the loss as a differentiable
# function of the logits, for second derivatives. It uses gamma and the target; both are saved, so that torch raises an
# error if they are modified in place.
attach_gradient: Callable[..., Tensor] = _AttachGradient.apply


def stored_gradient(grad: Tensor, logits: Tensor, target: Tensor, grads: Tensor) -> Tensor:
    """Gradient that was computed in the forward pass."""
    return (grads * grad[:, None]).to(logits.dtype)


def _gradient_of_rows(
    grad: Tensor, z: Tensor, keep: Tensor | None, target: Tensor, j: Tensor | None, top: Tensor, *terms: Tensor
) -> Tensor:
    """Gradient of the logits, times the gradient of each row's loss; the terms are those of a RowGradient."""
    if not torch.compiler.is_compiling() and in_batched_backward(grad):
        return grad[:, None] * _gradient_of_rows(torch.ones_like(top[:, 0]), z, keep, target, j, top, *terms)

    scaled = [term * grad[:, None] for term in terms]

    def gradient(part: slice, out: Tensor | None) -> Tensor:
        row_gradient = RowGradient(*(term[part] for term in scaled))
        rival = None if j is None else j[part]
        d_z: Tensor = _gradient(torch, z[part].to(top.dtype), target[part], rival, top[part], row_gradient, out)
        # The mask is the scale instead of keep, because inductor's loops are faster with it.
        return d_z if keep is None else torch.where(row_gradient.scale == 0, 0.0, d_z)

    parts = chunks(z)
    if len(parts) == 1:
        return gradient(parts[0], None).to(z.dtype)
    d_z = torch.empty(z.shape, dtype=z.dtype, device=z.device)
    for part in parts:
        out = d_z[part]
        result = gradient(part, out if out.dtype == top.dtype else None)
        if result is not out:
            out.copy_(result)
    return d_z


def _gradient(
    xp: ModuleType,
    z: Array,
    target: Array,
    j: Array | None,
    top: Array,
    row_gradient: RowGradient,
    out: Array | None = None,
) -> Array:
    """Gradient of the logits of each row."""
    grad = xp.subtract(z, top, out=out)
    xp.exp(grad, out=grad)
    grad *= row_gradient.scale
    if j is not None:
        grad = _put(grad, j, row_gradient.at_j)
    return _put(grad, target, row_gradient.at_t)  # last, because j may equal t


def _take(x: Array, index: Array) -> Array:
    """Entry of each row at ``index``."""
    return x.gather(1, index) if isinstance(x, Tensor) else x.take(_row_starts(*x.shape) + index)


def _put(x: Array, index: Array, value: Array | float) -> Array:
    """Overwrite the entry of each row at ``index``; a mask is used in compiled code, because it fuses with x."""
    if not isinstance(x, Tensor):
        x.put(_row_starts(*x.shape) + index, value)
        return x
    if torch.compiler.is_compiling():
        return torch.where(_class_numbers(x) == index.to(x.dtype), value, x)
    return x.scatter_(1, index, value)


def next_below(xp: ModuleType, z: Array, z_t: Array, target: Array, work: Array | None = None) -> tuple[Array, Array]:
    """Largest logit below z_t and the first class that has it.

    If there is none, the logit is -inf and the class is the target, or, in compiled code, one that gets no gradient.
    """
    if torch.compiler.is_compiling():  # inductor's argmax is slower
        z_j = torch.where(z < z_t, z, -torch.inf).amax(1, keepdim=True)
        return z_j, torch.where(z == z_j, _class_numbers(z), z.shape[1]).amin(1, keepdim=True)
    below = np.where(z < z_t, z, -np.inf) if xp is np else _below(z, z_t, work)
    j = argmax(below)
    z_j = _take(below, j)
    return z_j, xp.where(z_j == -np.inf, target, j)


def _below(z: Tensor, z_t: Tensor, work: Tensor | None) -> Tensor:
    """Return z where z < z_t, and -inf elsewhere.

    Unlike torch's masks, this arithmetic is vectorised. The sign of a difference is exact; sign + 1 is 0, 1 or 2, so
    4 (sign + 1) times the largest number is 0 or infinite.
    """
    penalty = torch.sub(z, z_t, out=work).sign_().add_(1).mul_(-torch.finfo(z.dtype).max)
    return torch.add(z, penalty, alpha=4, out=penalty)


@functools.lru_cache
def _row_starts(num_rows: int, num_classes: int) -> Array:
    return np.arange(0, num_rows * num_classes, num_classes)[:, None]


def argmax(x: Array) -> Array:
    """First largest entry of each row, (M, 1)."""
    if isinstance(x, Tensor):
        # numpy's argmax is vectorised, torch's is not.
        return torch.from_numpy(argmax(x.numpy())) if x.is_cpu else x.argmax(1, keepdim=True)
    return x.argmax(1)[:, None]


def _class_numbers(x: Tensor) -> Tensor:
    """0, 1, ..., C - 1 as floats, computed by a cumulative sum on the CPU.

    Inductor would recompute an ``arange`` inside every inner loop, but stores the result of a scan in a buffer.
    """
    numbers = torch.arange(x.shape[1], dtype=x.dtype, device=x.device)
    return numbers.clamp(max=1).cumsum(0) if x.is_cpu else numbers
