"""Cross-entropy, the baseline loss (called "weight decay" in the paper's tables)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from dualfocal.losses._common import Flat, flatten, reduce
from dualfocal.losses._module import ClassificationLoss


def cross_entropy_rows(flat: Flat, z: Tensor) -> Tensor:
    """Cross-entropy of each row, (M,), for ``z = flat.z``; class weights are included for soft targets only."""
    if not flat.soft:
        return F.cross_entropy(z, flat.target, reduction="none")
    if flat.eager and z.is_cpu and z.numel() and bool(z.detach().amin() > -torch.inf):  # cheaper than masking
        return F.cross_entropy(z, flat.target.to(z.dtype), weight=flat.weight, reduction="none")
    return soft_nll(flat.mass, z).sum(1)


def soft_nll(mass: Tensor, z: Tensor) -> Tensor:
    """mass * -log p of each class, (M, C); a masked class (logit -inf) with mass 0 contributes 0."""
    nll = -z.log_softmax(1)
    return mass * nll.masked_fill((mass == 0) & (nll == torch.inf), 0.0)


def cross_entropy_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Cross-entropy, L = -log p_k.

    Equal to ``F.cross_entropy`` with three exceptions: half-precision logits give a float32 loss, the mean over no
    samples is 0 instead of NaN, and a masked class (logit -inf) with target probability 0 contributes 0.

    Args:
        logits: scores of shape ``(C,)``, ``(N, C)`` or ``(N, C, d1, ...)``, any floating dtype.
        target: class indices of shape ``()``, ``(N,)`` or ``(N, d1, ...)``, or class probabilities of the shape of
            ``logits``.
        weight: weight of each class, shape ``(C,)``.
        ignore_index: class index to ignore (class indices only).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``. The mean is weighted by the class weights of the targets; for
            class probabilities it divides by the number of rows.

    Returns:
        The loss in float32, or float64 for float64 logits: a scalar, or the shape of the class indices for
        ``reduction="none"``.

    >>> import torch
    >>> cross_entropy_loss(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]))
    tensor(0.4076)
    """
    flat = flatten(logits, target, weight, ignore_index, reduction)
    return reduce(cross_entropy_rows(flat, flat.z), flat, reduction)


class CrossEntropyLoss(ClassificationLoss):
    """Cross-entropy as a Module, L = -log p_k; see :func:`cross_entropy_loss`.

    Args:
        weight: weight of each class, shape ``(C,)``.
        ignore_index: class index to ignore (class indices only).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    >>> CrossEntropyLoss(reduction="sum")
    CrossEntropyLoss(reduction='sum')
    """

    function = staticmethod(cross_entropy_loss)
