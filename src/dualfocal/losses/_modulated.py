"""``(1 - s (p_k - p_j))^|gamma| * -log p_k``: the one expression under focal, inverse and dual focal losses.

gamma is signed: s = sign(gamma), so a negative gamma is the inverse form. p_j is the probability of the rival,
0 for focal losses (``rival=None``). Two implementations that agree:

- the *closed form* (``impl="auto"``), the fast one (``benchmarks/loss_cpu.py``), eager or under ``torch.compile``;
- the *expression* (``impl="torch"``): plain differentiable PyTorch. It serves ``torch.func`` transforms, double
  backward, the ablation's rivals, and soft targets that are compiled or learnt.

Soft targets have a closed form of their own; those of a few classes a row (mixup, one-hot) are a sum of that for class
indices, where values may be looked at.

What keeps both finite: 1 - p_k is the sum over the other classes where p_k is large; -log p_k is a log1p; the
rival is chosen on logits; and the modulating base is never 0.
"""

import numpy as np
import torch
from torch import Tensor

from dualfocal._tensors import compute_dtype, under_transform
from dualfocal.losses._closed_form import closed_form
from dualfocal.losses._common import Flat, is_concrete, may_look
from dualfocal.losses._expression import Gamma, Schedule, expression, soft_expression
from dualfocal.losses._soft_closed_form import soft_closed_form
from dualfocal.losses.cross_entropy import cross_entropy_rows

IMPLS = ("auto", "torch")
# Class numbers travel as floats in the traced sweep; float32 is exact up to here.
MAX_TRACED_CLASSES = 2**24
# Classes of a soft target's row up to which a closed form for each is the faster way (4096 x 1000, CPU: measured).
FEW = 4


def modulated_nll(flat: Flat, gamma: Gamma | Schedule, rival: str | float | None = None, impl: str = "auto") -> Tensor:
    """The modulated cross-entropy of each row, (M,), in float32 or better."""
    if isinstance(gamma, Tensor) and gamma.ndim > 0:
        gamma = gamma.reshape(-1)
    compiling = torch.compiler.is_compiling()
    traceable = compiling and not under_transform() and flat.logits.shape[1] <= MAX_TRACED_CLASSES
    applies = impl == "auto" and rival in (None, "next") and not _learns(gamma) and (flat.eager or traceable)
    if flat.soft:
        return _soft(flat, gamma, rival, applies and not compiling)
    if applies:
        return closed_form(flat, gamma, rival is not None)
    return expression(flat, gamma, rival)


def _soft(flat: Flat, gamma: Gamma | Schedule, rival: str | float | None, closed_form_applies: bool) -> Tensor:
    classes = _classes_with_mass(flat) if closed_form_applies else None
    if classes is not None:
        mass = flat.target.gather(1, classes).to(compute_dtype(flat.logits))
        mass = mass if flat.weight is None else mass * flat.weight[classes]
        losses = [closed_form(flat._replace(target=target), gamma, rival is not None) for target in classes.T]
        # Where a row has fewer classes than others, or one without weight, an infinite loss counts nothing.
        return torch.where(mass == 0, 0.0, mass * torch.stack(losses, 1)).sum(1)
    if isinstance(gamma, float) and gamma == 0:
        return cross_entropy_rows(flat, flat.z)
    if closed_form_applies and not (_learns(flat.target) or _learns(flat.weight)):
        return soft_closed_form(flat, gamma, rival is not None)
    return soft_expression(flat, gamma, rival)


def _learns(tensor: object) -> bool:
    """Whether a derivative may be asked for: what is not concrete may carry a tangent of forward-mode AD."""
    if not isinstance(tensor, Tensor):
        return False
    return tensor.requires_grad or not (torch.compiler.is_compiling() or is_concrete(tensor))


def _classes_with_mass(flat: Flat) -> Tensor | None:
    """The classes of each row whose probability is not 0, (M, K); None: more than FEW, or values are not to be seen."""
    target = flat.target
    if target.requires_grad or not (flat.logits.is_cpu and may_look(target)) or target.numel() == 0:
        return None
    target = target.to(compute_dtype(flat.logits))
    most = int(np.count_nonzero(target.numpy(), axis=1).max())  # several times as fast as torch's
    return target.topk(most, dim=1).indices if most <= FEW else None
