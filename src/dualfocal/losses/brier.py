"""The Brier score as a training loss."""

from torch import Tensor

from dualfocal._tensors import Weight
from dualfocal.losses._flat import flatten, reduce, weight_rows
from dualfocal.losses._module import ClassificationLoss


def brier_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Weight | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    r"""Brier score, in [0, 2]. Brier, 1950.

    $$L = \sum_c (p_c - y_c)^2$$

    Args:
        logits: scores of shape ``(C,)``, ``(N, C)`` or ``(N, C, d1, ...)``, any floating dtype.
        target: class indices of shape ``()``, ``(N,)`` or ``(N, d1, ...)``, or class probabilities of the shape of
            ``logits``.
        weight: weight of each class, shape ``(C,)``: a tensor, a list or a numpy array. With class
            probabilities y, a row has the weight sum_c y_c w_c.
        ignore_index: class index to ignore (class indices only).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``. The mean is weighted by the class weights of the targets; for
            class probabilities it divides by the number of rows.

    Returns:
        The loss in float32, or float64 for float64 logits: a scalar, or the shape of the class indices for
        ``reduction="none"``.

    >>> import torch
    >>> brier_loss(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]))
    tensor(0.1801)
    """
    flat = flatten(logits, target, weight, ignore_index, reduction)
    per_row = (flat.z.softmax(1) - flat.one_hot).square().sum(1)
    return reduce(weight_rows(per_row, flat), flat, reduction)


class BrierLoss(ClassificationLoss):
    r"""Brier score as a Module, $L = \sum_c (p_c - y_c)^2$; see :func:`brier_loss`.

    Args:
        weight: weight of each class, shape ``(C,)``: a tensor, a list or a numpy array.
        ignore_index: class index to ignore (class indices only).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    >>> BrierLoss(reduction="sum")
    BrierLoss(reduction='sum')
    """

    function = staticmethod(brier_loss)
