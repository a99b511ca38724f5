"""Modulated cross-entropy for class indices, with its gradient in closed form.

One sweep over the logits finds the largest logit, the sum of exponentials and the rival of each row. The gradient is
one number per row times softmax, with two entries overwritten. The eager CPU version works on chunks of rows that fit
into the cache, and allocates no (N, C) matrix other than the gradient; ``torch.compile`` fuses it into a few loops.

Outside ``_closed_form_numpy``, row vectors have shape (M, 1), as gather, scatter and broadcasting need it.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualfocal._tensors import compute_dtype, in_batched_backward
from dualfocal.losses._common import Flat
from dualfocal.losses._expression import Gamma, differentiable, modulating_base, resolve

# Number of logits per chunk: about 1 MB of scratch memory, within the L2 cache of a core.
CHUNK = 2**18
# Up to this many logits, calls cost more than arithmetic: numpy calls are cheaper than torch calls, and the gradient is
# computed together with the loss.
SMALL = 2**13
# Per row: the largest logit, its distance from the target's logit, exp(z - largest) summed over k != t, at t and at j,
# and the rival j. Without a rival, j is t and its exponential counts as 0.
Columns = tuple[Tensor, ...]


def closed_form(flat: Flat, gamma: Gamma, dual: bool) -> Tensor:
    """Loss of each row, (M,); ``dual``: whether there is a rival (dual focal loss)."""
    compiling, on_cpu = torch.compiler.is_compiling(), flat.logits.device.type == "cpu"
    if on_cpu and not compiling and flat.logits.numel() <= SMALL:
        return _closed_form_numpy(flat, gamma, dual)
    if isinstance(gamma, Tensor) and gamma.ndim == 1:
        gamma = gamma[:, None]
    z, target = flat.logits.detach(), flat.target[:, None]
    top, *columns, j = (_sweep_traced if compiling else _sweep_eager)(z, target, dual)
    if compiling or not on_cpu:
        gamma, loss, *grads = _row_terms(torch, gamma, *columns)
    else:
        # numpy is much faster than torch on these short vectors.
        with np.errstate(all="ignore"):
            gamma, *terms = _row_terms(np, gamma, *(column.numpy() for column in columns))
        loss, *grads = map(torch.from_numpy, terms)
    keep = flat.keep
    if keep is not None:  # ignored rows must not reach the gradient, not even as NaN
        grads = [grad.masked_fill(~keep[:, None], 0.0) for grad in grads]
    # Compiled code needs no mask, as the zeros above suffice, and inductor's loops are faster without it.
    keep, recompute = (None, None) if compiling else (keep, differentiable(flat, gamma, dual))
    rows = (target, j if dual else None, top, *grads)
    return attach_gradient(flat.logits, loss[:, 0], recompute, _gradient_of_rows, gamma, keep, *rows)


def _row_terms(
    xp: ModuleType, gamma: Gamma, distance: Any, rest: Any, e_t: Any, e_j: Any
) -> tuple[Gamma, Any, Any, Any, Any]:
    """Gamma, the loss, and its gradient: a factor of exp(z - top), and the values at j and at t; all (M, 1).

    With b = 1 - s (p_t - p_j), B = b^|g|, A = g b^(|g| - 1) (-log p_t) and C = A (p_t - p_j) + B:

        dL/dz_k = C p_k                   k not in {t, j}
        dL/dz_j = (C + A) p_j
        dL/dz_t = -(C (1 - p_t) + A p_j)

    A is computed as g B (-log p_t / b). As b -> 0 the last factor tends to q / (q + p_j), between 1/2 and 1, so there
    is no singularity for gamma < 1.
    """
    total = rest + e_t
    p_t, q, p_j = e_t / total, rest / total, e_j / total
    # Equal to log(total) + top - z_t, but accurate also for p_t close to 1.
    nll = xp.log1p(rest + (e_t - 1)) + distance

    gamma = resolve(gamma, p_t, p_j)
    g: Any = gamma.numpy() if isinstance(gamma, Tensor) and xp is np else gamma
    base = modulating_base(xp, g, p_t, q, p_j) + float(xp.finfo(p_t.dtype).tiny)  # never 0, because it is a divisor
    factor = base ** abs(g)
    # For p_t = 0, A p_t and A p_j tend to 0, so any finite A gives the gradient of cross-entropy.
    bounded = np.minimum(nll, 1e30) if xp is np else nll.clamp_max(1e30)
    a = g * factor * (bounded / base)
    c = a * (p_t - p_j) + factor
    return gamma, factor * nll, c / total, (c + a) * p_j, -(c * q + a * p_j)


@np.errstate(all="ignore")
def _closed_form_numpy(flat: Flat, gamma: Gamma, dual: bool) -> Tensor:
    z = flat.z.detach().contiguous().numpy()
    starts = np.arange(0, z.size, z.shape[1])
    z_flat, at = z.reshape(-1), starts + flat.target.numpy()
    z_t, top = z_flat[at], z_flat[starts + z.argmax(1)]
    e = np.exp(z - top[:, None])
    e_flat = e.reshape(-1)
    e_t = e_flat[at]
    e_flat[at] = 0.0
    at_rival = at
    if dual:
        below = np.where(z < z_t[:, None], z, -np.inf)
        below.reshape(-1)[at] = np.finfo(z.dtype).min  # chosen only if no class is below
        at_rival = starts + below.argmax(1)
    rest, e_j = np.add.reduce(e, 1), e_flat[at_rival]
    gamma, loss, scale, at_j, at_t = _row_terms(np, gamma, top - z_t, rest, e_t, e_j)
    e *= scale[:, None]
    e_flat[at_rival], e_flat[at] = at_j, at_t
    recompute, grads = differentiable(flat, gamma, dual), torch.from_numpy(e)
    return attach_gradient(flat.logits, torch.from_numpy(loss), recompute, stored_gradient, gamma, flat.target, grads)


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
    """Gradient of each row: scale * exp(z - top), with at_j at the rival and at_t at the target."""
    scale, at_j, at_t = (term * grad[:, None] for term in terms)
    if torch.compiler.is_compiling() or in_batched_backward(grad):
        return _gradient_traced(z, target, target if j is None else j, top, scale, at_j, at_t)
    step = rows_per_chunk(z)
    if len(z) <= step:
        d_z = torch.sub(z, top).exp_().mul_(scale).to(z.dtype)
    else:
        d_z = torch.empty(z.shape, dtype=z.dtype, device=z.device)
        for i in range(0, len(z), step):
            chunk = slice(i, i + step)
            out = d_z[chunk] if z.dtype == top.dtype else None
            part = torch.sub(z[chunk], top[chunk], out=out).exp_().mul_(scale[chunk])
            if out is None:
                d_z[chunk] = part
    if j is not None:
        d_z.scatter_(1, j, at_j.to(z.dtype))
    d_z.scatter_(1, target, at_t.to(z.dtype))  # last, because j may equal t
    return d_z if keep is None else d_z.masked_fill_(~keep[:, None], 0.0)


def rows_per_chunk(z: Tensor) -> int:
    """Number of rows per chunk; all rows on other devices than the CPU."""
    return max(1, CHUNK // z.shape[1]) if z.device.type == "cpu" else max(1, z.shape[0])


def _sweep_eager(z: Tensor, target: Tensor, dual: bool) -> Columns:
    step = rows_per_chunk(z)
    work = torch.empty((min(step, len(z)), z.shape[1]), dtype=compute_dtype(z), device=z.device)
    starts = range(0, max(len(z), 1), step)
    parts = [_sweep_chunk(z[i : i + step], target[i : i + step], dual, work) for i in starts]
    return parts[0] if len(parts) == 1 else tuple(map(torch.cat, zip(*parts, strict=True)))


def _sweep_chunk(z: Tensor, target: Tensor, dual: bool, work: Tensor) -> Columns:
    z, work = z.to(work.dtype), work[: len(z)]
    z_t = z.gather(1, target)
    top = z.amax(1, keepdim=True)
    j = target
    if dual:
        # z where z < z_t, about -huge elsewhere. Unlike masks, this arithmetic is vectorised, and the sign of a
        # difference is exact; sign + 1 is 0, 1 or 2.
        huge = torch.finfo(z.dtype).max
        torch.sub(z, z_t, out=work).sign_().add_(1)
        torch.add(z, work, alpha=-huge, out=work)
        work.scatter_(1, target, -huge / 2)  # chosen only if no class is below
        if z.device.type == "cpu":  # numpy's argmax is vectorised, torch's is not
            j = torch.from_numpy(work.numpy().argmax(1, keepdims=True))
        else:
            j = work.argmax(1, keepdim=True)
    torch.sub(z, top, out=work).exp_()
    e_t = work.gather(1, target)
    rest = work.scatter_(1, target, 0.0).sum(1, keepdim=True)
    return top, top - z_t, rest, e_t, work.gather(1, j), j


def _sweep_traced(z: Tensor, target: Tensor, dual: bool) -> Columns:
    """Like ``_sweep_eager``, in a form that inductor fuses. j is C, which matches no class, if there is no rival."""
    z = z.to(compute_dtype(z))
    number = _class_numbers(z.shape[1], z)
    z_t = z.gather(1, target)
    top = z.amax(1, keepdim=True)
    e_t = (z_t - top).exp()
    rest = torch.where(number == target.to(z.dtype), 0.0, (z - top).exp()).sum(1, keepdim=True)
    if not dual:
        return top, top - z_t, rest, e_t, torch.zeros_like(e_t), target.to(z.dtype)
    z_j = torch.where(z < z_t, z, -torch.inf).amax(1, keepdim=True)
    j = torch.where(z == z_j, number, z.shape[1]).amin(1, keepdim=True)
    return top, top - z_t, rest, e_t, (z_j - top).exp(), j


def _gradient_traced(
    z: Tensor, target: Tensor, j: Tensor, top: Tensor, scale: Tensor, at_j: Tensor, at_t: Tensor
) -> Tensor:
    number = _class_numbers(z.shape[1], top)
    grad = torch.where(scale == 0, 0.0, (z.to(top.dtype) - top).exp() * scale)
    grad = torch.where(number == j, at_j, grad)
    return torch.where(number == target.to(top.dtype), at_t, grad).to(z.dtype)


def _class_numbers(num_classes: int, like: Tensor) -> Tensor:
    """0, 1, ..., C - 1 as floats, computed by a cumulative sum on the CPU.

    Inductor would recompute an ``arange`` inside every inner loop, but stores the result of a scan in a buffer.
    """
    numbers = torch.arange(num_classes, dtype=like.dtype, device=like.device)
    return numbers.clamp(max=1).cumsum(0) if like.device.type == "cpu" else numbers
