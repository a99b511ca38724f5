"""Label smoothing in its two forms: alpha spread over the other classes (the paper's), or over all (torch's)."""

from torch import Tensor

from dualfocal.losses._common import check_choice, check_number, flatten, reduce
from dualfocal.losses._module import ClassificationLoss
from dualfocal.losses.cross_entropy import soft_nll

SPREADS = ("others", "all")


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
    one_hot = flat.one_hot
    num_classes = one_hot.shape[1]
    if spread == "all" or num_classes == 1:
        smoothed = one_hot * (1 - alpha) + alpha / num_classes
    else:
        smoothed = one_hot * (1 - alpha) + (1 - one_hot) * (alpha / (num_classes - 1))
    mass = smoothed if flat.weight is None else smoothed * flat.weight
    return reduce(soft_nll(mass, flat.z).sum(1), flat, reduction, weighted=True)


class LabelSmoothingLoss(ClassificationLoss):
    """Module form of :func:`label_smoothing_loss`."""

    options = ("alpha", "spread")

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
        self.alpha = alpha
        self.spread = spread

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """See :func:`label_smoothing_loss`."""
        return label_smoothing_loss(
            logits,
            target,
            self.alpha,
            spread=self.spread,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )


def _check(alpha: float, spread: str) -> None:
    check_number("alpha", alpha, 0.0, 1.0)
    check_choice("spread", spread, SPREADS)
