"""Label smoothing: alpha is spread over the other classes (as in the paper) or over all classes (as in torch)."""

from torch import Tensor

from dualfocal._tensors import Weight, check_number
from dualfocal.checks import check_choice
from dualfocal.losses._flat import flatten
from dualfocal.losses._module import ClassificationLoss
from dualfocal.losses.cross_entropy import smoothed_cross_entropy


def label_smoothing_loss(
    logits: Tensor,
    target: Tensor,
    alpha: float = 0.05,
    *,
    spread: str = "others",
    weight: Weight | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    r"""Cross-entropy against a smoothed target.

    $$L = -\sum_i y'_i \log p_i$$

    ``spread="others"``: y'_k = 1 - alpha, and alpha / (K - 1) for each other class, as in the public code behind the
    paper's tables. ``spread="all"``: y'_k = 1 - alpha + alpha / K, and alpha / K for the others, equal to
    ``F.cross_entropy(label_smoothing=alpha)``, also with class weights. Every class has positive mass, so a class
    masked with -inf makes the loss infinite.

    Args:
        logits: scores of shape ``(C,)``, ``(N, C)`` or ``(N, C, d1, ...)``, any floating dtype.
        target: class indices of shape ``()``, ``(N,)`` or ``(N, d1, ...)``, or class probabilities of the shape of
            ``logits``, which are smoothed in the same way.
        alpha: probability mass taken from the target, in [0, 1].
        spread: classes that receive the mass, ``"others"`` or ``"all"``.
        weight: weight of each class, shape ``(C,)``: a tensor, a list or a numpy array.
        ignore_index: class index to ignore (class indices only).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``. The mean is weighted by the class weights of the targets; for
            class probabilities it divides by the number of rows.

    Returns:
        The loss in float32, or float64 for float64 logits: a scalar, or the shape of the class indices for
        ``reduction="none"``.

    >>> import torch
    >>> label_smoothing_loss(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]))
    tensor(0.4826)
    """
    _check(alpha, spread)
    flat = flatten(logits, target, weight, ignore_index, reduction)
    num_classes = flat.logits.shape[1]
    everywhere = alpha / num_classes if spread == "all" or num_classes == 1 else alpha / (num_classes - 1)
    extra = 1 - alpha if spread == "all" or num_classes == 1 else 1 - alpha - everywhere  # more mass on the target
    return smoothed_cross_entropy(flat, extra, everywhere, reduction)


class LabelSmoothingLoss(ClassificationLoss):
    """Cross-entropy with label smoothing as a Module; see :func:`label_smoothing_loss`.

    Args:
        alpha: probability mass taken from the target, in [0, 1].
        spread: classes that receive the mass, ``"others"`` or ``"all"`` (as in ``F.cross_entropy``).
        weight: weight of each class, shape ``(C,)``: a tensor, a list or a numpy array.
        ignore_index: class index to ignore (class indices only).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    >>> LabelSmoothingLoss(alpha=0.1)
    LabelSmoothingLoss(alpha=0.1, spread='others')
    """

    function = staticmethod(label_smoothing_loss)

    def __init__(
        self,
        alpha: float = 0.05,
        *,
        spread: str = "others",
        weight: Weight | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        _check(alpha, spread)
        self.set_options(alpha=alpha, spread=spread)


def _check(alpha: float, spread: str) -> None:
    check_number("alpha", alpha, 0.0, 1.0)
    check_choice("spread", spread, ("others", "all"))
