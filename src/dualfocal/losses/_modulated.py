"""``(1 - s (p_k - p_j))^|gamma| * -log p_k``: the one expression under focal, inverse and dual focal losses.

gamma is signed: s = sign(gamma), so a negative gamma is the inverse form. p_j is the probability of the rival,
0 for focal losses (``rival=None``). Two implementations that agree:

- *closed form* (``impl="auto"``): a sweep over the logits finds, for each row, the largest logit, the sum of
  exponentials and the rival; the gradient is one number a row times softmax, with two entries overwritten
  (derivation at ``_coefficients``). Chunked on the CPU so that scratch stays in cache; traceable under
  ``torch.compile``.
- *expression* (``impl="torch"``): plain differentiable PyTorch. It serves ``torch.func`` transforms, double
  backward, soft targets and the ablation's rivals.

What keeps both finite: 1 - p_k is the sum over the other classes, never a difference; -log p_k is a log1p; the
rival is chosen on logits; and the modulating base is at least the smallest normal number.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualfocal.losses._common import Flat, compute_dtype, is_concrete
from dualfocal.losses._rival import rival_of_each_class, rival_of_target

IMPLS = ("auto", "torch")
Gamma = float | Tensor
Schedule = Callable[[Tensor, Tensor], Tensor]  # (p_k, p_j) -> signed gamma; never differentiated

# Rows are taken together up to this many logits: about 1 MB of scratch, within a core's L2 cache.
CHUNK = 2**18
# Class numbers travel as floats in the traced sweep; float32 is exact up to here.
MAX_TRACED_CLASSES = 2**24


def modulated_nll(flat: Flat, gamma: Gamma | Schedule, rival: str | float | None = None, impl: str = "auto") -> Tensor:
    """The modulated cross-entropy of each row, (M,), in float32 or better."""
    if isinstance(gamma, Tensor) and gamma.ndim > 0:
        gamma = gamma.reshape(-1)
    learns_gamma = isinstance(gamma, Tensor) and gamma.requires_grad
    closed_form = impl == "auto" and rival in (None, "next") and not flat.soft and not learns_gamma
    if closed_form and torch.compiler.is_compiling() and flat.logits.shape[1] <= MAX_TRACED_CLASSES:
        return _closed_form(flat, gamma, rival is not None, _sweep_traced)
    if closed_form and is_concrete(flat.logits):
        return _closed_form(flat, gamma, rival is not None, _sweep_eager)
    if flat.soft:
        return _soft_expression(flat, gamma, rival)
    return _expression(flat.logits, flat.target, gamma, rival, flat.keep)


# --- The expression --------------------------------------------------------------------------------------------


def _modulate(gamma: Gamma | Schedule, p: Tensor, q: Tensor, p_j: Tensor, nll: Tensor) -> Tensor:
    """Modulate -log p elementwise; q = 1 - p."""
    if not isinstance(gamma, float | Tensor):
        gamma = gamma(p.detach(), p_j.detach())
    if isinstance(gamma, Tensor):
        gamma = gamma.to(p.dtype)
        base = torch.where(gamma < 0, 1 + p - p_j, q + p_j)
    else:
        base = 1 + p - p_j if gamma < 0 else q + p_j
    factor = base.clamp_min(torch.finfo(base.dtype).tiny) ** abs(gamma)
    # p = 0 exactly: the loss is infinite, its gradient that of cross-entropy (the factor's part tends to 0).
    impossible = nll == torch.inf
    return torch.where(impossible, nll, factor * nll.masked_fill(impossible, 0.0))


def _expression(
    logits: Tensor, target: Tensor, gamma: Gamma | Schedule, rival: str | float | None, keep: Tensor | None
) -> Tensor:
    z = logits.to(compute_dtype(logits))  # (M, C)
    z_t = z.gather(1, target[:, None])  # (M, 1)
    top = z.detach().amax(1, keepdim=True)
    is_target = torch.arange(z.shape[1], device=z.device) == target[:, None]
    rest = (z - top).exp().masked_fill(is_target, 0.0).sum(1, keepdim=True)
    e_t = (z_t - top).exp()
    total = rest + e_t
    nll = torch.log1p(rest + (e_t - 1)) + (top - z_t)
    p_j = rival_of_target(z, z_t, top, total, rival, keep)
    return _modulate(gamma, (e_t / total)[:, 0], (rest / total)[:, 0], p_j, nll[:, 0])


def _soft_expression(flat: Flat, gamma: Gamma | Schedule, rival: str | float | None) -> Tensor:
    z = flat.z
    mass = flat.mass
    top = z.detach().max(1, keepdim=True)
    e = (z - top.values).exp()
    total = e.sum(1, keepdim=True)
    p = e / total
    is_top = torch.arange(z.shape[1], device=z.device) == top.indices
    q = torch.where(is_top, e.masked_fill(is_top, 0.0).sum(1, keepdim=True) / total, 1 - p)
    # A class that counts nothing must not answer inf * 0, in value or gradient.
    nll = (-z.log_softmax(1)).masked_fill(mass == 0, 0.0)
    p_j = rival_of_each_class(z.detach(), p, rival)
    if isinstance(gamma, Tensor) and gamma.ndim == 1:
        gamma = gamma[:, None]
    return (mass * _modulate(gamma, p, q, p_j, nll)).sum(1)


# --- The closed form -------------------------------------------------------------------------------------------

Sweep = Callable[[Tensor, Tensor, bool], tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]


def _closed_form(flat: Flat, gamma: Gamma | Schedule, dual: bool, sweep: Sweep) -> Tensor:
    logits, target = flat.logits, flat.target
    # One number a row: numpy is several times quicker than torch on vectors of a batch's length.
    on_numpy = sweep is _sweep_eager and logits.device.type == "cpu"
    xp: ModuleType = np if on_numpy else torch
    as_xp: Callable[[Tensor], Any] = Tensor.numpy if on_numpy else lambda t: t
    as_tensor: Callable[[Any], Tensor] = torch.from_numpy if on_numpy else lambda t: t

    with torch.no_grad(), np.errstate(all="ignore"):
        top, rest, z_t, z_j, j = sweep(logits.detach(), target, dual)
        p_t, q, p_j, total, nll = _at_target(xp, *map(as_xp, (top, rest, z_t, z_j)))
        if not isinstance(gamma, float | Tensor):
            gamma = gamma(as_tensor(p_t), as_tensor(p_j))
        if isinstance(gamma, Tensor):
            gamma = gamma.to(top.dtype)
        signed = as_xp(gamma) if isinstance(gamma, Tensor) else gamma
        tiny = torch.finfo(top.dtype).tiny
        row_terms = _coefficients(xp, tiny, signed, p_t, q, p_j, total, nll)
        loss, scale, at_t, at_j = map(as_tensor, row_terms)
    result: Tensor = _ModulatedNLL.apply(logits, target, j, gamma, dual, flat.keep, loss, top, scale, at_t, at_j)  # type: ignore[no-untyped-call]
    return result


def _at_target(xp: ModuleType, top: Any, rest: Any, z_t: Any, z_j: Any) -> tuple[Any, ...]:
    e_t = xp.exp(z_t - top)
    total = rest + e_t
    # Equal to log(total) + top - z_t, and exact however close p_t is to 1.
    nll = xp.log1p(rest + (e_t - 1)) + (top - z_t)
    return e_t / total, rest / total, xp.exp(z_j - top) / total, total, nll


def _coefficients(
    xp: ModuleType, tiny: float, gamma: Any, p_t: Any, q: Any, p_j: Any, total: Any, nll: Any
) -> tuple[Any, ...]:
    """The loss and its gradient with respect to the logits, as four numbers a row.

    With b = 1 - s (p_t - p_j), B = b^|g|, A = g b^(|g| - 1) (-log p_t) and C = A (p_t - p_j) + B:

        dL/dz_k = C p_k                   k not in {t, j}
        dL/dz_j = (C + A) p_j
        dL/dz_t = -(C (1 - p_t) + A p_j)

    A is taken as g B (-log p_t / b): as b -> 0 the last factor tends to q / (q + p_j), between 1/2 and 1, so
    that gamma < 1 has no singularity.
    """
    if isinstance(gamma, float):
        base = 1 + p_t - p_j if gamma < 0 else q + p_j
    else:
        base = xp.where(gamma < 0, 1 + p_t - p_j, q + p_j)
    base = xp.clip(base, tiny, None)
    factor = base ** abs(gamma)
    finite_nll = xp.where(xp.isinf(nll), 0.0, nll)
    a = gamma * factor * (finite_nll / base)
    c = a * (p_t - p_j) + factor
    return factor * nll, c / total, -(c * q + a * p_j), (c + a) * p_j


class _ModulatedNLL(torch.autograd.Function):
    """Ties a loss that is already computed to its closed-form gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        j: Tensor,
        gamma: Gamma,
        dual: bool,
        keep: Tensor | None,
        loss: Tensor,
        top: Tensor,
        scale: Tensor,
        at_t: Tensor,
        at_j: Tensor,
    ) -> Tensor:
        ctx.dual = dual
        ctx.gamma = None if isinstance(gamma, Tensor) else gamma
        gamma_rows = gamma if isinstance(gamma, Tensor) else None
        ctx.save_for_backward(logits, target, j, gamma_rows, keep, top, scale, at_t, at_j)
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, target, j, gamma_rows, keep, top, scale, at_t, at_j = ctx.saved_tensors
        rows = (target, j, keep, top, scale * grad, at_t * grad, at_j * grad)
        if torch.compiler.is_compiling():
            d_logits = _gradient_traced(logits, ctx.dual, *rows)
        elif torch.is_grad_enabled():  # create_graph=True: a gradient that can be differentiated again
            gamma = ctx.gamma if gamma_rows is None else gamma_rows
            loss = _expression(logits, target, gamma, "next" if ctx.dual else None, keep)
            (d_logits,) = torch.autograd.grad(loss, logits, grad, create_graph=True)
        else:
            d_logits = _gradient_eager(logits, ctx.dual, *rows)
        return d_logits, *[None] * 10


def _rows_a_chunk(z: Tensor) -> int:
    return max(1, CHUNK // z.shape[1]) if z.device.type == "cpu" else max(1, z.shape[0])


def _sweep_eager(z: Tensor, target: Tensor, dual: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Largest logit, sum of exp(z - largest) over k != t, the target's and the rival's logit, and the rival."""
    dtype = compute_dtype(z)
    size, step = z.shape[0], _rows_a_chunk(z)
    on_cpu = z.device.type == "cpu"
    huge = torch.finfo(dtype).max
    z_t = z.gather(1, target[:, None]).to(dtype)  # (M, 1)
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    scratch = torch.empty((min(step, size), z.shape[1]), dtype=dtype, device=z.device)
    for start in range(0, max(size, 1), step):  # once for an empty batch
        rows = slice(start, start + step)
        part = z[rows].to(dtype)
        work = scratch[: part.shape[0]]
        top = part.amax(1, keepdim=True)
        torch.sub(part, top, out=work).exp_().scatter_(1, target[rows, None], 0.0)
        rest = work.sum(1)
        j = target[rows]
        if dual:
            # z where z < z_t, about -huge elsewhere. Arithmetic is vectorised where masks are not, and the sign of
            # a difference is exact; sign + 1 is 0, 1 or 2.
            torch.sub(part, z_t[rows], out=work).sign_().add_(1)
            torch.add(part, work, alpha=-huge, out=work)
            j = torch.from_numpy(work.numpy().argmax(1)) if on_cpu else work.argmax(1)
        parts.append((top[:, 0], rest, j))
    top, rest, j = parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))
    z_t = z_t[:, 0]
    if not dual:
        return top, rest, z_t, torch.full_like(z_t, -torch.inf), target
    z_j = z.gather(1, j[:, None])[:, 0].to(dtype)
    none_below = ~(z_j < z_t)
    return top, rest, z_t, z_j.masked_fill_(none_below, -torch.inf), torch.where(none_below, target, j)


def _gradient_eager(
    z: Tensor,
    dual: bool,
    target: Tensor,
    j: Tensor,
    keep: Tensor | None,
    top: Tensor,
    scale: Tensor,
    at_t: Tensor,
    at_j: Tensor,
) -> Tensor:
    grad = torch.empty_like(z, memory_format=torch.contiguous_format)
    step = _rows_a_chunk(z)
    for start in range(0, z.shape[0], step):
        rows = slice(start, start + step)
        part = grad[rows] if z.dtype == top.dtype else torch.empty_like(grad[rows], dtype=top.dtype)
        torch.sub(z[rows], top[rows, None], out=part).exp_().mul_(scale[rows, None])
        if part.dtype != grad.dtype:
            grad[rows] = part
    if dual:
        grad.scatter_(1, j[:, None], at_j[:, None].to(grad.dtype))
    grad.scatter_(1, target[:, None], at_t[:, None].to(grad.dtype))  # last: j is t where no class is below
    if keep is not None:
        grad.masked_fill_(~keep[:, None], 0.0)
    return grad


def _sweep_traced(z: Tensor, target: Tensor, dual: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The same five as ``_sweep_eager``, in two fused passes under ``torch.compile``."""
    z = z.to(compute_dtype(z))
    number, t = _class_numbers(z), target[:, None].to(z.dtype)
    z_t = z.gather(1, target[:, None])
    top = z.amax(1, keepdim=True)
    rest = torch.where(number == t, 0.0, (z - top).exp()).sum(1)
    if not dual:
        return top[:, 0], rest, z_t[:, 0], torch.full_like(rest, -torch.inf), target
    z_j = torch.where(z < z_t, z, -torch.inf).amax(1, keepdim=True)
    j = torch.where(z == z_j, number, number.shape[0]).amin(1)
    j = torch.where(z_j[:, 0] > -torch.inf, j.long(), target)
    return top[:, 0], rest, z_t[:, 0], z_j[:, 0], j


def _gradient_traced(
    z: Tensor,
    dual: bool,
    target: Tensor,
    j: Tensor,
    keep: Tensor | None,
    top: Tensor,
    scale: Tensor,
    at_t: Tensor,
    at_j: Tensor,
) -> Tensor:
    number = _class_numbers(top.new_empty(z.shape))
    grad = (z.to(top.dtype) - top[:, None]).exp() * scale[:, None]
    if dual:
        grad = torch.where(number == j[:, None].to(top.dtype), at_j[:, None], grad)
    grad = torch.where(number == target[:, None].to(top.dtype), at_t[:, None], grad)
    if keep is not None:
        grad = torch.where(keep[:, None], grad, 0.0)
    return grad.to(z.dtype)


def _class_numbers(z: Tensor) -> Tensor:
    """0, 1, ..., C - 1 as floats, through a scan.

    Inductor would rebuild an ``arange`` inside every inner loop; a scan's result is a buffer that it loads
    (measured: forward 6.7 -> 4.4 ms at (4096, 1000)).
    """
    return torch.arange(z.shape[1], dtype=z.dtype, device=z.device).clamp(max=1).cumsum(0)
