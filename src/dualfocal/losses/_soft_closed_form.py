"""Modulated cross-entropy for class probabilities, with its gradient in closed form, for eager tensors.

With y_i the target probability of class i times its weight, j(i) its rival, and A_i, B_i, C_i as in ``_closed_form``,
the gradient of the sum over all classes is

    dL/dz_k = p_k (sum_i y_i C_i + sum_{i: j(i) = k} y_i A_i) - y_k (A_k p_k + B_k)

The gradient is computed together with the loss, in chunks of rows, so that no other (N, C) matrix has to be stored.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from dualfocal._tensors import compute_dtype
from dualfocal.losses._closed_form import attach_gradient, chunks, stored_gradient
from dualfocal.losses._common import Flat
from dualfocal.losses._expression import Gamma, differentiable, modulating_base, resolve
from dualfocal.losses.rival import next_of_each_class


def soft_closed_form(flat: Flat, gamma: Gamma, dual: bool) -> Tensor:
    """Loss of each row, (M,); ``dual``: whether there is a rival (dual focal loss)."""
    dtype = compute_dtype(flat.logits)
    with_grads = torch.is_grad_enabled() and flat.logits.requires_grad
    loss = torch.empty(len(flat.logits), dtype=dtype, device=flat.logits.device)
    grads = torch.empty(flat.logits.shape if with_grads else (0, 0), dtype=dtype, device=flat.logits.device)
    with torch.no_grad():
        for part in chunks(flat.logits):
            chunk = flat._replace(logits=flat.logits[part], probabilities=flat.target[part])
            g = gamma[part, None] if isinstance(gamma, Tensor) and gamma.ndim == 1 else gamma
            _compute_chunk(chunk, g, dual, loss[part], grads[part] if with_grads else None)
    if not with_grads:
        return loss
    return attach_gradient(
        flat.logits, loss, differentiable(flat, gamma, dual), stored_gradient, gamma, flat.target, grads
    )


def _compute_chunk(flat: Flat, gamma: Gamma, dual: bool, loss: Tensor, grads: Tensor | None) -> None:
    """Write the losses to ``loss``, and the gradient to ``grads`` if given."""
    z, mass = flat.z, flat.mass
    top = z.max(1, keepdim=True)
    p = (z - top.values).exp_()
    e_top = p.gather(1, top.indices)
    rest = p.scatter(1, top.indices, 0.0).sum(1, keepdim=True)
    total = rest + e_top
    p /= total
    q = (1 - p).scatter_(1, top.indices, rest / total)
    nll = (top.values - z).add_(torch.log1p(rest + (e_top - 1)))
    if dual:
        j = next_of_each_class(z)
        p_j = F.pad(p, (0, 1)).gather(1, j)  # 0 for a class without a rival
    else:
        p_j = torch.zeros_like(p)

    gamma = resolve(gamma, p, p_j)
    base = modulating_base(torch, gamma, p, q, p_j).add_(torch.finfo(p.dtype).tiny)  # never 0, because it is a divisor
    y_b = base ** abs(gamma)
    y_b *= mass
    torch.sum(torch.where(y_b == 0, 0.0, y_b * nll), 1, out=loss)  # inf * 0 counts as 0
    if grads is None:
        return
    # As in _row_terms, the last factor is bounded as base -> 0, and for p = 0 any finite A is correct.
    y_a = y_b * gamma * nll.clamp_max_(1e30).div_(base)
    factor = (y_a * (p - p_j) + y_b).sum(1, keepdim=True) - y_a
    if dual:
        factor = F.pad(factor, (0, 1)).scatter_add_(1, j, y_a)[:, :-1]
    torch.mul(p, factor, out=grads).sub_(y_b)
