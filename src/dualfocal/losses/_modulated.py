"""Modulated cross-entropy ``(1 - s (p_k - p_j))^|gamma| * -log p_k``, the basis of focal, inverse and dual focal loss.

gamma is signed with s = sign(gamma), so a negative gamma is the inverse form. p_j is the probability of the rival, or 0
for focal loss (``rival=None``). There are four implementations with the same results:

- the *kernels* (:mod:`dualfocal.kernels.modulated`) compute class indices on CUDA;
- the *closed form* is fast elsewhere (``benchmarks/loss_cpu.py``), eager or with ``torch.compile``;
- the *soft closed form* does the same for class probabilities, eager only;
- the *expression* (``impl="torch"``) is plain differentiable PyTorch, the specification of the others. It is used for
  ``torch.func`` transforms, double backward, the rivals of the ablation, and soft targets that are compiled or need
  gradients.

All stay finite, because 1 - p_k is summed over the other classes if p_k is large, -log p_k uses log1p, the rival is
chosen on logits, and the modulating base is never 0.
"""

import os
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dualfocal import kernels
from dualfocal._tensors import constant_when_compiled, is_concrete, under_transform
from dualfocal.losses._closed_form import closed_form
from dualfocal.losses._expression import Gamma, GammaBins, expression
from dualfocal.losses._flat import Flat, reduce
from dualfocal.losses._soft_closed_form import classes_with_mass, soft_closed_form
from dualfocal.losses.cross_entropy import cross_entropy_rows

if TYPE_CHECKING:
    from dualfocal.kernels import modulated

IMPLS = ("auto", "torch", "triton")
# The traced sweep represents class indices as float32, which is exact up to this value.
MAX_TRACED_CLASSES = 2**24


def modulated_loss(
    flat: Flat, gamma: Gamma, reduction: str, *, rival: str | float | None = None, impl: str = "auto"
) -> Tensor:
    """Modulated cross-entropy, reduced, in float32 or float64.

    Args:
        flat: rows of logits with their targets.
        gamma: signed focusing parameter: a number, a tensor with one value or one per row, (M,), or bins.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        rival: definition of p_j, see :mod:`dualfocal.losses.rival`; None: there is none, p_j = 0.
        impl: ``"auto"``, ``"torch"`` or ``"triton"``.

    Raises:
        ValueError: ``impl="triton"``, but the kernels cannot be used.
    """
    if _takes_kernels(flat, gamma, rival, impl):
        return _by_kernels(flat, gamma, reduction, rival is not None)
    return reduce(_rows(flat, gamma, rival, impl), flat, reduction)


def _takes_kernels(flat: Flat, gamma: Gamma, rival: str | float | None, impl: str) -> bool:
    if impl == "torch" or (impl == "auto" and not flat.logits.is_cuda):
        return False
    reason = _reason_against_kernels(flat, gamma, rival)
    if reason and impl == "triton":
        raise ValueError(f"impl='triton' cannot be used: {reason}; impl='auto' chooses what can")
    return not reason


def _reason_against_kernels(flat: Flat, gamma: Gamma, rival: str | float | None) -> str:
    """Why the kernels cannot compute this; empty if they can."""
    logits = flat.logits
    parts = gamma[:2] if isinstance(gamma, GammaBins) else (gamma,)
    others = [tensor for tensor in (*parts, flat.weight) if isinstance(tensor, Tensor)]
    if flat.soft or flat.labels is None:
        return "the target holds class probabilities, as given or by label smoothing"
    if rival not in (None, "next"):
        return f"rival is {rival!r}"
    if logits.dtype not in kernels.DTYPES:
        return f"the logits are {logits.dtype}"
    if not logits.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return f"the logits are on {logits.device}"
    if any(tensor.device != logits.device for tensor in (flat.labels, *others)):
        return "the tensors are on different devices"
    if logits.numel() == 0:
        return "there are no logits"
    if under_transform() or not (flat.eager or torch.compiler.is_compiling()):
        return "a torch.func transform, a tracer or a tensor subclass is in use"
    if any(map(_may_need_grad, others)):
        return "gamma or weight needs a gradient"
    return "" if _has_kernels() else "triton is not installed, or the GPU is too old"


@constant_when_compiled
def _has_kernels() -> bool:
    return kernels.available()  # torch.compile would warn of its cache


def _kernel_rows(flat: Flat, gamma: Gamma, reduction: str, dual: bool) -> "modulated.Rows":
    from dualfocal.kernels import modulated  # imports triton

    logits = flat.logits if flat.logits.stride(1) == 1 else flat.logits.contiguous()
    ignore_index = -1 if flat.ignore_index is None else flat.ignore_index  # no class is negative
    bins = modulated.Bins(*gamma.tensors(logits.device), gamma.of_margin) if isinstance(gamma, GammaBins) else gamma
    assert flat.labels is not None
    return modulated.Rows(logits, flat.labels, flat.weight, bins, dual, ignore_index, reduction)


def _by_kernels(flat: Flat, gamma: Gamma, reduction: str, dual: bool) -> Tensor:
    from dualfocal.kernels import modulated

    rows = _kernel_rows(flat, gamma, reduction, dual)
    if torch.compiler.is_compiling():
        loss = modulated.traced_loss(rows)
    else:

        def recompute(logits: Tensor) -> Tensor:
            again = flat._replace(logits=logits)
            return reduce(expression(again, gamma, "next" if dual else None), again, reduction).reshape(loss.shape)

        loss = modulated.modulated_loss(rows, recompute)
    return loss.reshape(flat.shape) if reduction == "none" else loss


def dual_loss_and_gradient(flat: Flat, gamma: Gamma, impl: str = "auto") -> tuple[Tensor, Tensor]:
    """Sum of the dual focal losses of class indices, and the gradient of the logits, whose memory it may take."""
    if _takes_kernels(flat, gamma, "next", impl):
        from dualfocal.kernels import modulated

        return modulated.loss_and_gradient(_kernel_rows(flat, gamma, "sum", True), flat.logits), flat.logits
    with torch.enable_grad():
        logits = flat.logits.requires_grad_()
        loss = modulated_loss(flat, gamma, "sum", rival="next")
        return loss.detach(), torch.autograd.grad(loss, logits)[0]


def _rows(flat: Flat, gamma: Gamma, rival: str | float | None, impl: str) -> Tensor:
    """Modulated cross-entropy of each row, (M,)."""
    closed, dual = impl == "auto" and _has_closed_form(flat, gamma, rival), rival is not None
    if closed and not flat.soft:
        return closed_form(flat, gamma, dual)
    classes = classes_with_mass(flat) if closed else None
    is_cross_entropy = isinstance(gamma, float) and gamma == 0
    if flat.soft and is_cross_entropy and classes is None:
        return cross_entropy_rows(flat, flat.z)
    if closed and not (_may_need_grad(flat.target) or _may_need_grad(flat.weight)):
        return soft_closed_form(flat, gamma, dual, classes)
    return expression(flat, gamma, rival)


def _has_closed_form(flat: Flat, gamma: Gamma, rival: str | float | None) -> bool:
    """Whether the gradient of the logits can be computed in closed form."""
    if rival not in (None, "next") or _may_need_grad(gamma):
        return False
    if torch.compiler.is_compiling():
        return not flat.soft and not under_transform() and flat.logits.shape[1] <= MAX_TRACED_CLASSES
    return flat.eager


def _may_need_grad(tensor: object) -> bool:
    """Whether a derivative may be needed; a tensor that is not concrete may carry a forward-mode tangent."""
    if not isinstance(tensor, Tensor):
        return False
    return tensor.requires_grad or not (torch.compiler.is_compiling() or is_concrete(tensor))
