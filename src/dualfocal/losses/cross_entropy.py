"""Cross-entropy: the baseline, with this package's contract ("weight decay" in the paper's tables)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from dualfocal.losses._common import Flat, flatten, reduce
from dualfocal.losses._module import ClassificationLoss


def cross_entropy_rows(flat: Flat, z: Tensor) -> Tensor:
    """-log p_k of each row, (M,), z being ``flat.z``; of soft targets the weighted sum over classes."""
    if not flat.soft:
        return F.cross_entropy(z, flat.target, reduction="none")
    if flat.eager and z.is_cpu and z.numel() and bool(z.detach().amin() > -torch.inf):  # a look is cheaper than masks
        return F.cross_entropy(z, flat.target.to(z.dtype), weight=flat.weight, reduction="none")
    return soft_nll(flat.mass, z).sum(1)


def soft_nll(mass: Tensor, z: Tensor) -> Tensor:
    """Mass times -log p of each class, (M, C); a masked class (logit -inf) that counts nothing contributes 0."""
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

    ``F.cross_entropy`` but for three corners: half inputs give a float32 loss, the mean of no kept target is 0
    instead of NaN, and a masked class (logit -inf) whose target probability is 0 contributes 0.

    Args:
        logits: ``(C,)``, ``(N, C)`` or ``(N, C, d1, ...)``.
        target: class indices of shape ``()``, ``(N,)`` or ``(N, d1, ...)``, or class probabilities of the shape of
            ``logits``.
        weight: one weight per class, ``(C,)``.
        ignore_index: class index that is left out (class indices only).
        reduction: ``"mean"`` (divides by the sum of the kept targets' weights, or by the number of rows for class
            probabilities), ``"sum"`` or ``"none"``.

    Returns:
        The loss in float32, or float64 for float64 logits: a scalar, or the shape of the class indices.

    >>> import torch
    >>> cross_entropy_loss(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]))
    tensor(0.4076)
    """
    flat = flatten(logits, target, weight, ignore_index, reduction)
    return reduce(cross_entropy_rows(flat, flat.z), flat, reduction)


class CrossEntropyLoss(ClassificationLoss):
    """Module form of :func:`cross_entropy_loss`."""

    function = staticmethod(cross_entropy_loss)
