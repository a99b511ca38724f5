"""``(1 - s (p_k - p_j))^|gamma| * -log p_k``: the one expression under focal, inverse and dual focal losses.

gamma is signed: s = sign(gamma), so a negative gamma is the inverse form. p_j is the probability of the rival,
0 for focal losses (``rival=None``). Two implementations that agree:

- the *closed form* (``impl="auto"``), the fast one (``benchmarks/loss_cpu.py``), eager or under ``torch.compile``;
- the *expression* (``impl="torch"``): plain differentiable PyTorch. It serves ``torch.func`` transforms, double
  backward, soft targets and the ablation's rivals.

What keeps both finite: 1 - p_k is the sum over the other classes where p_k is large; -log p_k is a log1p; the
rival is chosen on logits; and the modulating base is never 0.
"""

import torch
from torch import Tensor

from dualfocal.losses._closed_form import closed_form
from dualfocal.losses._common import Flat, under_transform
from dualfocal.losses._expression import Gamma, Schedule, expression, soft_expression

IMPLS = ("auto", "torch")
# Class numbers travel as floats in the traced sweep; float32 is exact up to here.
MAX_TRACED_CLASSES = 2**24


def modulated_nll(flat: Flat, gamma: Gamma | Schedule, rival: str | float | None = None, impl: str = "auto") -> Tensor:
    """The modulated cross-entropy of each row, (M,), in float32 or better."""
    if isinstance(gamma, Tensor) and gamma.ndim > 0:
        gamma = gamma.reshape(-1)
    learns_gamma = isinstance(gamma, Tensor) and gamma.requires_grad
    applies = impl == "auto" and rival in (None, "next") and not flat.soft and not learns_gamma
    if torch.compiler.is_compiling():
        applies = applies and not under_transform() and flat.logits.shape[1] <= MAX_TRACED_CLASSES
    else:
        applies = applies and flat.eager
    if applies:
        return closed_form(flat, gamma, rival is not None)
    if flat.soft:
        return soft_expression(flat, gamma, rival)
    return expression(flat.logits, flat.target, gamma, rival, flat.keep)
