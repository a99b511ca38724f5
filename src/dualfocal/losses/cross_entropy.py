"""Cross-entropy, the baseline loss (called "weight decay" in the paper's tables)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from dualfocal._tensors import Weight, check_number
from dualfocal.losses._flat import Flat, flatten, reduce
from dualfocal.losses._module import ClassificationLoss


def cross_entropy_rows(flat: Flat, z: Tensor) -> Tensor:
    """Cross-entropy of each row, (M,), for ``z = flat.z``; class weights are included for soft targets only."""
    if not flat.soft:
        return F.cross_entropy(z, flat.target, reduction="none")
    if flat.eager and z.is_cpu and z.numel() and bool(z.detach().amin() > -torch.inf):  # cheaper than masking
        return F.cross_entropy(z, flat.target.to(z.dtype), weight=flat.weight, reduction="none")
    return soft_nll(flat.mass, z).sum(1)


def smoothed_cross_entropy(flat: Flat, extra: float, everywhere: float, reduction: str) -> Tensor:
    """Cross-entropy against ``extra`` times the target plus ``everywhere`` for each class, reduced."""
    if flat.soft or extra <= 0:  # with extra <= 0 a target with logit -inf would give inf - inf
        smoothed = flat._replace(probabilities=flat.one_hot * extra + everywhere)
        rows = soft_nll(smoothed.mass, flat.z).sum(1)
    else:
        rows = _smoothed_rows(flat, extra, everywhere)
    return reduce(rows, flat, reduction, weighted=True)


def _smoothed_rows(flat: Flat, extra: float, everywhere: float) -> Tensor:
    """-(extra w_k log p_k + everywhere sum_i w_i log p_i) of each row, (M,), without a matrix of targets."""
    log_p = flat.z.log_softmax(1)
    rows = extra * log_p.gather(1, flat.target[:, None])[:, 0]
    if flat.weight is not None:  # a masked class (logit -inf) with weight 0 contributes 0
        target_weight = flat.weight[flat.target]
        rows = torch.where(target_weight == 0, 0.0, target_weight * rows)
        log_p = log_p.masked_fill(flat.weight == 0, 0.0) * flat.weight
    if everywhere:  # otherwise 0 * inf for a masked class
        rows = rows + everywhere * log_p.sum(1)
    return -rows


def soft_nll(mass: Tensor, z: Tensor) -> Tensor:
    """mass * -log p of each class, (M, C); a masked class (logit -inf) with mass 0 contributes 0."""
    nll = -z.log_softmax(1)
    return mass * nll.masked_fill((mass == 0) & (nll == torch.inf), 0.0)


def cross_entropy_loss(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Weight | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    r"""Cross-entropy.

    $$L = -\log p_k$$

    Equal to ``F.cross_entropy`` with three exceptions: half-precision logits give a float32 loss, the mean over no
    samples is 0 instead of NaN, and a masked class (logit -inf) with target probability 0 contributes 0.

    Args:
        logits: scores of shape ``(C,)``, ``(N, C)`` or ``(N, C, d1, ...)``, any floating dtype.
        target: class indices of shape ``()``, ``(N,)`` or ``(N, d1, ...)``, or class probabilities of the shape of
            ``logits``.
        weight: weight of each class, shape ``(C,)``: a tensor, a list or a numpy array.
        ignore_index: class index to ignore (class indices only).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``. The mean is weighted by the class weights of the targets; for
            class probabilities it divides by the number of rows.
        label_smoothing: probability eps that is spread over all K classes, y' = (1 - eps) y + eps / K, in [0, 1].

    Returns:
        The loss in float32, or float64 for float64 logits: a scalar, or the shape of the class indices for
        ``reduction="none"``.

    >>> import torch
    >>> cross_entropy_loss(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]))
    tensor(0.4076)
    """
    check_number("label_smoothing", label_smoothing, 0.0, 1.0)
    flat = flatten(logits, target, weight, ignore_index, reduction)
    if label_smoothing:  # not by flatten, which makes a matrix of targets
        return smoothed_cross_entropy(flat, 1 - label_smoothing, label_smoothing / flat.logits.shape[1], reduction)
    return reduce(cross_entropy_rows(flat, flat.z), flat, reduction)


class CrossEntropyLoss(ClassificationLoss):
    r"""Cross-entropy as a Module, $L = -\log p_k$; see :func:`cross_entropy_loss`.

    Args:
        weight: weight of each class, shape ``(C,)``: a tensor, a list or a numpy array.
        ignore_index: class index to ignore (class indices only).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: probability that is spread over all classes, as in ``F.cross_entropy``, in [0, 1].

    >>> CrossEntropyLoss(reduction="sum")
    CrossEntropyLoss(reduction='sum')
    """

    function = staticmethod(cross_entropy_loss)

    def __init__(
        self,
        weight: Weight | None = None,  # not keyword-only, as in nn.CrossEntropyLoss
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        self.set_options(label_smoothing=label_smoothing)
