"""The dual focal loss: Tao, Dong, Xu, ICML 2023, arXiv:2305.13665, Eq. 3."""

import functools
import inspect
import itertools
import traceback
import warnings

import torch
from torch import Tensor

from dualfocal._checks import check_choice
from dualfocal.losses._common import Flat, check_gamma, flatten, reduce
from dualfocal.losses._modulated import IMPLS, modulated_nll
from dualfocal.losses._module import ClassificationLoss
from dualfocal.losses.rival import check_rival


def dual_focal_loss(
    logits: Tensor,
    target: Tensor,
    gamma: float | Tensor = 5.0,
    *,
    rival: str | float = "next",
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    impl: str = "auto",
) -> Tensor:
    """Dual focal loss, L = -(1 - p_k + p_j)^gamma log p_k.

    p = softmax(logits), p_k the target's probability, p_j the largest probability strictly below it (0 if there is
    none). Gradients flow through both. Where focal loss sees only p_k, the margin p_k - p_j tells a hard sample
    from an under-confident one.

    Drop-in for ``F.cross_entropy``; gamma = 0 is cross-entropy. Differences from it: half inputs give a float32
    loss, and the mean of no kept target is 0 with zero gradient instead of NaN. Differences from the authors' code:
    the default is the method (theirs is gamma = 0, summed); the rival is chosen on logits, so that rounding makes no
    ties; value and gradient are finite also for gamma < 1 at p_k = 1, where theirs are NaN;
    of exactly tied rivals the lowest index receives the gradient.

    The loss jumps where the target overtakes a rival: compare models and stop early by NLL, not by this value.

    Args:
        logits: ``(C,)``, ``(N, C)`` or ``(N, C, d1, ...)``, any floating dtype.
        target: class indices of shape ``()``, ``(N,)`` or ``(N, d1, ...)``; or class probabilities y of the shape of
            ``logits``: L = -sum_i y_i (1 - p_i + p_j(i))^gamma log p_i, with j(i) the largest class below i.
        gamma: focusing parameter, at least 0: a number or a tensor with one value per target, of shape ``(N,)`` or
            ``(N, 1)``, the latter never taken for class weights. Published: 5 for ResNet-50 on CIFAR-10 and CIFAR-100.
        rival: ``"next"`` is the method. The paper's ablation: ``"2nd"``, ``"3rd"`` largest below p_k, ``"mean2"``,
            ``"mean3"``, ``"mean_all"`` of those below, a constant in [0, 1], or any name with ``"batch_"`` before it
            for one scalar per batch, the form the authors ran.
        weight: one weight per class, ``(C,)``.
        ignore_index: class index that is left out (class indices only).
        reduction: ``"mean"`` (divides by the sum of the kept targets' weights, or by the number of rows for class
            probabilities), ``"sum"`` or ``"none"``.
        impl: ``"auto"`` takes the closed-form gradient where it applies; ``"torch"`` is plain autograd throughout.
            They agree, and both can be differentiated twice (a second backward through ``torch.compile`` raises).

    Returns:
        The loss in float32, or float64 for float64 logits: a scalar, or the shape of the class indices.

    Raises:
        ValueError, IndexError: naming the value and the rule. Values are checked on eager CPU tensors only.

    >>> import torch
    >>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]], requires_grad=True)
    >>> loss = dual_focal_loss(logits, torch.tensor([0, 1]), gamma=2.0)
    >>> loss.backward()
    >>> loss
    tensor(0.0746, grad_fn=<MeanBackward0>)
    """
    check_choice("impl", impl, IMPLS)
    check_rival(rival)
    flat = flatten(logits, target, weight, ignore_index, reduction)
    gamma = check_gamma(gamma, flat)
    if isinstance(rival, str) and not (isinstance(gamma, float) and gamma == 0):
        warn_of_two_classes(flat)
    return reduce(modulated_nll(flat, gamma, rival, impl), flat, reduction)


class DualFocalLoss(ClassificationLoss):
    """Module form of :func:`dual_focal_loss`.

    >>> DualFocalLoss(gamma=3.0, reduction="sum")
    DualFocalLoss(gamma=3.0, rival='next', impl='auto', reduction='sum')
    """

    function = staticmethod(dual_focal_loss)

    def __init__(
        self,
        gamma: float | Tensor = 5.0,
        *,
        rival: str | float = "next",
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        impl: str = "auto",
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        check_choice("impl", impl, IMPLS)
        check_rival(rival)
        self.set_options(gamma=gamma, rival=rival, impl=impl)
        self.per_sample = not str(rival).startswith("batch_")


def warn_of_two_classes(flat: Flat) -> None:
    """Say once why a dual focal loss makes little sense for two classes."""
    if flat.logits.shape[1] == 2 and not torch.compiler.is_compiling():
        _warn_once()


@functools.cache  # an error is not cached: as such the warning comes again
def _warn_once() -> None:
    ours = ("dualfocal.losses", "torch.nn.modules")
    frames = (frame for frame, _ in traceback.walk_stack(inspect.currentframe()))
    inside = itertools.takewhile(lambda frame: frame.f_globals.get("__name__", "").startswith(ours), frames)
    warnings.warn(
        "dual focal loss with two classes: the runner-up is always 1 - p_k or nothing, so the loss jumps at p_k = 1/2 "
        "(gamma 5: 0.022 at 0.499, 0.684 at 0.501) and rewards predictions just below it. "
        "Consider focal_loss for binary problems.",
        stacklevel=1 + len(list(inside)),  # the line that called the loss, or the Module of it
    )
