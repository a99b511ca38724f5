"""Label smoothing in its two forms: alpha spread over the other classes (the paper's), or over all (torch's)."""

import torch
from torch import Tensor

from dualfocal._checks import check_choice
from dualfocal._tensors import check_number
from dualfocal.losses._common import Flat, flatten, reduce
from dualfocal.losses._module import ClassificationLoss
from dualfocal.losses.cross_entropy import soft_nll


def label_smoothing_loss(
    logits: Tensor,
    target: Tensor,
    alpha: float = 0.05,
    *,
    spread: str = "others",
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Cross-entropy against a smoothed target, L = -sum_i y'_i log p_i.

    ``spread="others"``: y'_k = 1 - alpha and alpha / (K - 1) on each other class, as in the public code behind the
    paper's tables. ``spread="all"``: y'_k = 1 - alpha + alpha / K and alpha / K, equal to
    ``F.cross_entropy(label_smoothing=alpha)``, class weights included. Every class has some mass, so one masked
    with -inf makes the loss infinite, as there.

    Args:
        logits: as :func:`~dualfocal.losses.cross_entropy_loss`.
        target: likewise; class probabilities y are smoothed the same way.
        alpha: the mass taken from the target, in [0, 1].
        spread: who receives it.
        weight: likewise.
        ignore_index: likewise.
        reduction: likewise.

    Returns:
        As :func:`~dualfocal.losses.cross_entropy_loss`.

    >>> import torch
    >>> label_smoothing_loss(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]))
    tensor(0.4826)
    """
    _check(alpha, spread)
    flat = flatten(logits, target, weight, ignore_index, reduction)
    num_classes = flat.logits.shape[1]
    everywhere = alpha / num_classes if spread == "all" or num_classes == 1 else alpha / (num_classes - 1)
    extra = 1 - alpha if spread == "all" or num_classes == 1 else 1 - alpha - everywhere  # on the target, besides
    if flat.soft or extra <= 0:  # not above 0 an impossible target would be inf - inf
        smoothed = flat._replace(target=flat.one_hot * extra + everywhere)
        rows = soft_nll(smoothed.mass, flat.z).sum(1)
    else:
        rows = _smoothed_rows(flat, extra, everywhere)
    return reduce(rows, flat, reduction, weighted=True)


def _smoothed_rows(flat: Flat, extra: float, everywhere: float) -> Tensor:
    """-(extra w_k log p_k + everywhere sum_i w_i log p_i) of each row, (M,), without a matrix of targets."""
    log_p = flat.z.log_softmax(1)
    rows = extra * log_p.gather(1, flat.target[:, None])[:, 0]
    if flat.weight is not None:  # a masked class (logit -inf) without weight counts nothing
        own = flat.weight[flat.target]
        rows = torch.where(own == 0, 0.0, own * rows)
        log_p = log_p.masked_fill(flat.weight == 0, 0.0) * flat.weight
    if everywhere:  # else 0 * inf for a masked class
        rows = rows + everywhere * log_p.sum(1)
    return -rows


class LabelSmoothingLoss(ClassificationLoss):
    """Module form of :func:`label_smoothing_loss`."""

    function = staticmethod(label_smoothing_loss)

    def __init__(
        self,
        alpha: float = 0.05,
        *,
        spread: str = "others",
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        _check(alpha, spread)
        self.set_options(alpha=alpha, spread=spread)


def _check(alpha: float, spread: str) -> None:
    check_number("alpha", alpha, 0.0, 1.0)
    check_choice("spread", spread, ("others", "all"))
