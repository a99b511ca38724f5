"""Modulated cross-entropy for class probabilities, with its gradient in closed form, for eager tensors.

With y_i the target probability of class i times its weight, j(i) its rival, and A_i, B_i, C_i as in ``_closed_form``,
the gradient of the sum over all classes is

    dL/dz_k = p_k sum_{i != k} y_i C_i - y_k (C_k (1 - p_k) + A_k p_j(k)) + p_k sum_{i: j(i) = k} y_i A_i

If each row has only a few classes with mass (mixup, one-hot), i runs over these, which saves the sort that finds the
rivals of all classes. The gradient is computed together with the loss, in chunks of rows, so that no other (M, C)
matrix has to be stored.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dualfocal._tensors import can_read_values, compute_dtype
from dualfocal.losses import _closed_form
from dualfocal.losses._closed_form import argmax, attach_gradient, chunks, gradient_terms, next_below, stored_gradient
from dualfocal.losses._expression import Gamma, differentiable
from dualfocal.losses._flat import Flat
from dualfocal.losses.rival import next_of_each_class

# Up to this many classes with mass per row, one search for each rival is faster than a sort (4096 x 1000 on a CPU).
MAX_SPARSE_CLASSES = 4


def classes_with_mass(flat: Flat) -> Tensor | None:
    """Classes with non-zero probability, (M, K); None if there are too many, or values cannot be read."""
    target = flat.target
    if target.requires_grad or not (flat.logits.is_cpu and can_read_values(target)) or target.numel() == 0:
        return None
    target = target.to(compute_dtype(flat.logits))
    most = int(np.count_nonzero(target.numpy(), axis=1).max())  # several times faster than torch
    return target.topk(most, dim=1).indices if most <= MAX_SPARSE_CLASSES else None


def soft_closed_form(flat: Flat, gamma: Gamma, dual: bool, classes: Tensor | None) -> Tensor:
    """Loss of each row, (M,).

    Args:
        flat: logits and class probabilities.
        gamma: focusing parameter.
        dual: whether there is a rival (dual focal loss).
        classes: the classes with mass, (M, K); None: all classes.
    """
    dtype = compute_dtype(flat.logits)
    with_grads = torch.is_grad_enabled() and flat.logits.requires_grad
    loss = torch.empty(len(flat.logits), dtype=dtype, device=flat.logits.device)
    grads = torch.empty(flat.logits.shape if with_grads else (0, 0), dtype=dtype, device=flat.logits.device)
    with torch.no_grad():
        for part in chunks(flat.logits):
            labels = None if flat.labels is None else flat.labels[part]
            chunk = flat._replace(logits=flat.logits[part], labels=labels, probabilities=flat.target[part])
            g = gamma[part, None] if isinstance(gamma, Tensor) and gamma.ndim == 1 else gamma
            few = None if classes is None else classes[part]
            _compute_chunk(chunk, g, dual, few, loss[part], grads[part] if with_grads else None)
    if not with_grads:
        return loss
    return attach_gradient(
        flat.logits, loss, differentiable(flat, gamma, dual), stored_gradient, gamma, flat.target, grads
    )


def _compute_chunk(
    flat: Flat, gamma: Gamma, dual: bool, few: Tensor | None, loss: Tensor, grads: Tensor | None
) -> None:
    """Write the losses to ``loss``, and the gradient to ``grads`` if given."""
    z, mass = flat.z, flat.mass
    top = argmax(z)
    z_top = z.gather(1, top)
    p = _exp_(z - z_top)
    e_top = p.gather(1, top)
    rest = p.scatter_(1, top, 0.0).sum(1, keepdim=True)
    total = rest + e_top
    p = p.scatter_(1, top, e_top).div_(total)

    # Of the classes i, (M, K): mass, logit, p, 1 - p and -log p.
    y, z_i, p_i = (mass, z, p) if few is None else (x.gather(1, few) for x in (mass, z, p))
    q, q_top = 1 - p_i, rest / total
    q = q.scatter_(1, top, q_top) if few is None else torch.where(few == top, q_top, q)
    nll = (z_top - z_i).add_(torch.log1p(rest + (e_top - 1)))
    p_j = torch.zeros_like(p_i)
    if dual:
        j = next_of_each_class(z) if few is None else _next_of_few(z, z_i, few)
        p_j = F.pad(p, (0, 1)).gather(1, j)  # 0 for a class without a rival

    _, a, b, c = gradient_terms(torch, gamma, p_i, q, p_j, nll)
    b *= y
    torch.sum(torch.where(b == 0, 0.0, b * nll), 1, out=loss)  # inf * 0 counts as 0
    if grads is None:
        return
    a *= y
    c *= y
    sum_c, at_j = c.sum(1, keepdim=True), a.mul_(p_j)
    at_i = (sum_c - c).mul_(p_i).sub_(c.mul_(q)).sub_(at_j)
    if few is None:
        grads.copy_(at_i)
    else:
        torch.mul(p, sum_c, out=grads).scatter_(1, few, at_i)
    if dual:
        grads.scatter_add_(1, j.clamp_max_(z.shape[1] - 1), at_j)


def _exp_(x: Tensor) -> Tensor:
    if x.is_cpu and x.numel() <= _closed_form.SMALL:  # torch's exp starts threads even for so few numbers
        with np.errstate(all="ignore"):
            np.exp(x.numpy(), out=x.numpy())
        return x
    return x.exp_()


def _next_of_few(z: Tensor, z_i: Tensor, few: Tensor) -> Tensor:
    """Index of the largest class strictly below each of a few classes, (M, K); C if there is none."""
    columns = [next_below(torch, z, z_i[:, k : k + 1], few[:, k : k + 1])[1] for k in range(few.shape[1])]
    j = torch.cat(columns, 1)
    return j.masked_fill_(j == few, z.shape[1])
