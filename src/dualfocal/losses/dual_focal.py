"""The dual focal loss: Tao, Dong, Xu, ICML 2023, arXiv:2305.13665, Eq. 3."""

from torch import Tensor

from dualfocal._tensors import Weight
from dualfocal.checks import check_choice
from dualfocal.losses._flat import flatten, gamma_of_rows
from dualfocal.losses._modulated import IMPLS, modulated_loss
from dualfocal.losses._module import ClassificationLoss
from dualfocal.losses._two_classes import warn_two_classes
from dualfocal.losses.rival import check_rival


def dual_focal_loss(
    logits: Tensor,
    target: Tensor,
    gamma: float | Tensor = 5.0,
    *,
    rival: str | float = "next",
    weight: Weight | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    impl: str = "auto",
) -> Tensor:
    r"""Dual focal loss.

    $$L = -(1 - p_k + p_j)^\gamma \log p_k$$

    Here p = softmax(logits), $p_k$ is the probability of the target, and $p_j$, the rival, is the largest probability
    strictly below $p_k$ (0 if there is none). Gradients flow through both. Unlike focal loss, which depends on $p_k$
    only, the margin $p_k - p_j$ distinguishes a hard sample from an under-confident one.

    The function is a drop-in replacement for ``F.cross_entropy``, which it equals for gamma = 0, with two exceptions:
    half-precision logits give a float32 loss, and the mean over no samples is 0 with zero gradient instead of NaN.
    Differences from the authors' code: their default is gamma = 0 with a sum; here the rival is chosen on logits, so
    rounding creates no ties; value and gradient are finite also for gamma < 1 at p_k = 1, where theirs are NaN; of
    exactly tied rivals the one with the lowest index receives the gradient.

    The loss is discontinuous where the target overtakes a rival, so use the NLL, not this loss, to compare models and
    for early stopping.

    Args:
        logits: scores of shape ``(C,)``, ``(N, C)`` or ``(N, C, d1, ...)``, any floating dtype.
        target: class indices of shape ``()``, ``(N,)`` or ``(N, d1, ...)``; or class probabilities y of the shape of
            ``logits``, for which $L = -\sum_i y_i (1 - p_i + p_{j(i)})^\gamma \log p_i$, with j(i) the rival of i.
        gamma: focusing parameter, at least 0: a number, or a tensor with one value per target, of shape ``(N,)`` or
            ``(N, 1)``. The paper uses 5 for ResNet-50 on CIFAR-10 and CIFAR-100.
        rival: definition of p_j. ``"next"`` (default) is the published method. The paper's ablation has ``"2nd"`` and
            ``"3rd"`` for the second and third largest probability below p_k; ``"mean2"``, ``"mean3"`` and
            ``"mean_all"`` for the mean of the largest two, three or all of them; or a constant in [0, 1]. The prefix
            ``"batch_"`` averages the rival over the batch, as in the authors' ablation code.
        weight: weight of each class, shape ``(C,)``: a tensor, a list or a numpy array.
        ignore_index: class index to ignore (class indices only).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``. The mean is weighted by the class weights of the targets; for
            class probabilities it divides by the number of rows.
        label_smoothing: probability eps that is spread over all K classes, y' = (1 - eps) y + eps / K, in [0, 1].
        impl: ``"auto"`` uses a fused kernel on CUDA and a closed-form gradient elsewhere, where possible; ``"torch"``
            always uses autograd; ``"triton"`` uses the kernel or says why it cannot. All give the same values, and
            support double backward (except through ``torch.compile``).

    Returns:
        The loss in float32, or float64 for float64 logits: a scalar, or the shape of the class indices for
        ``reduction="none"``.

    Raises:
        ValueError: an argument has an invalid shape, dtype or value. Values are checked on eager CPU tensors only.
        IndexError: a class index is out of range (eager CPU tensors only).

    >>> import torch
    >>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]], requires_grad=True)
    >>> loss = dual_focal_loss(logits, torch.tensor([0, 1]), gamma=2.0)
    >>> loss.backward()
    >>> loss
    tensor(0.0746, grad_fn=<MeanBackward0>)
    """
    check_choice("impl", impl, IMPLS)
    check_rival(rival)
    flat = flatten(logits, target, weight, ignore_index, reduction, label_smoothing)
    gamma = gamma_of_rows(gamma, flat)
    is_cross_entropy = isinstance(gamma, float) and gamma == 0
    if isinstance(rival, str) and not is_cross_entropy:
        warn_two_classes(flat.logits)
    return modulated_loss(flat, gamma, reduction, rival=rival, impl=impl)


class DualFocalLoss(ClassificationLoss):
    r"""Dual focal loss as a Module, $L = -(1 - p_k + p_j)^\gamma \log p_k$; see :func:`dual_focal_loss`.

    $p_k$ is the probability of the target, $p_j$ the largest probability strictly below it.

    Args:
        gamma: focusing parameter, at least 0: a number, or a scalar tensor or parameter. 0 is cross-entropy.
        rival: definition of p_j. ``"next"`` (default) is the published method; see :func:`dual_focal_loss` for the
            variants of the paper's ablation.
        weight: weight of each class, shape ``(C,)``: a tensor, a list or a numpy array.
        ignore_index: class index to ignore (class indices only).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: probability that is spread over all classes, as in ``F.cross_entropy``, in [0, 1].
        impl: ``"auto"``, ``"torch"`` or ``"triton"``, see :func:`dual_focal_loss`.

    >>> import torch
    >>> criterion = DualFocalLoss(gamma=5.0)
    >>> criterion(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]))
    tensor(0.0266)
    >>> DualFocalLoss(gamma=3.0, reduction="sum")
    DualFocalLoss(gamma=3.0, rival='next', impl='auto', reduction='sum')
    """

    function = staticmethod(dual_focal_loss)

    def __init__(
        self,
        gamma: float | Tensor = 5.0,
        *,
        rival: str | float = "next",
        weight: Weight | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        impl: str = "auto",
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        check_choice("impl", impl, IMPLS)
        check_rival(rival)
        self.set_options(gamma=gamma, rival=rival, impl=impl, label_smoothing=label_smoothing)
        self.per_sample = not str(rival).startswith("batch_")
