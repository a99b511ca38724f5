"""The Brier score as a training loss."""

from torch import Tensor

from dualfocal.losses._common import flatten, reduce, weight_rows
from dualfocal.losses._module import ClassificationLoss


def brier_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Squared error of the probabilities, L = sum_c (p_c - y_c)^2, in [0, 2]. Brier, 1950.

    Args:
        logits: as :func:`~dualfocal.losses.cross_entropy_loss`.
        target: likewise.
        weight: likewise; the loss has no per-class terms, so class probabilities y weigh a row by sum_c y_c w_c.
        ignore_index: likewise.
        reduction: likewise.

    Returns:
        As :func:`~dualfocal.losses.cross_entropy_loss`.

    >>> import torch
    >>> brier_loss(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]))
    tensor(0.1801)
    """
    flat = flatten(logits, target, weight, ignore_index, reduction)
    per_row = (flat.z.softmax(1) - flat.one_hot).square().sum(1)
    return reduce(weight_rows(per_row, flat), flat, reduction)


class BrierLoss(ClassificationLoss):
    """Module form of :func:`brier_loss`."""

    function = staticmethod(brier_loss)
