"""Focal loss, its sample-dependent schedule FLSD-53, and inverse focal loss."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dualfocal._tensors import WEIGHT_HINT, check_number
from dualfocal.losses._common import check_gamma, flatten, reduce
from dualfocal.losses._modulated import modulated_nll
from dualfocal.losses._module import ClassificationLoss


def focal_loss(
    logits: Tensor,
    target: Tensor,
    gamma: float | Tensor = 3.0,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Focal loss, L = -(1 - p_k)^gamma log p_k. Lin et al., ICCV 2017, arXiv:1708.02002.

    Args:
        logits: as :func:`~dualfocal.losses.dual_focal_loss`.
        target: likewise; class probabilities y give -sum_i y_i (1 - p_i)^gamma log p_i.
        gamma: focusing parameter, at least 0, likewise.
        weight: one weight per class, ``(C,)`` (the "alpha" of other libraries).
        ignore_index: class index that is left out.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Returns:
        As :func:`~dualfocal.losses.dual_focal_loss`.

    >>> import torch
    >>> focal_loss(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]), gamma=2.0)
    tensor(0.0457)
    """
    flat = flatten(logits, target, weight, ignore_index, reduction)
    return reduce(modulated_nll(flat, check_gamma(gamma, flat)), flat, reduction)


def inverse_focal_loss(
    logits: Tensor,
    target: Tensor,
    gamma: float | Tensor = 2.0,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Inverse focal loss, L = -(1 + p_k)^gamma log p_k. Wang et al., NeurIPS 2021.

    Args:
        logits: as :func:`~dualfocal.losses.dual_focal_loss`.
        target: likewise.
        gamma: at least 0. The paper tunes it on validation data.
        weight: likewise.
        ignore_index: likewise.
        reduction: likewise.

    Returns:
        As :func:`~dualfocal.losses.dual_focal_loss`.

    >>> import torch
    >>> inverse_focal_loss(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]), gamma=2.0)
    tensor(1.1303)
    """
    flat = flatten(logits, target, weight, ignore_index, reduction)
    return reduce(modulated_nll(flat, -check_gamma(gamma, flat)), flat, reduction)


def flsd_loss(
    logits: Tensor,
    target: Tensor,
    gammas: Sequence[float] = (5.0, 3.0),
    *,
    thresholds: Sequence[float] = (0.2,),
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Focal loss with a sample-dependent gamma; by default FLSD-53. Mukhoti et al., NeurIPS 2020, arXiv:2002.09437.

    L = -(1 - p_k)^gamma(p_k) log p_k, gamma = ``gammas[i]`` for p_k in [``thresholds[i - 1]``, ``thresholds[i]``):
    5 below 0.2, else 3. gamma itself is not differentiated.

    Args:
        logits: as :func:`~dualfocal.losses.dual_focal_loss`.
        target: likewise; with class probabilities each class has the gamma of its own p_i.
        gammas: one more than thresholds, each at least 0.
        thresholds: increasing, in [0, 1].
        weight: likewise.
        ignore_index: likewise.
        reduction: likewise.

    Returns:
        As :func:`~dualfocal.losses.dual_focal_loss`.

    >>> import torch
    >>> flsd_loss(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]))
    tensor(0.0153)
    """
    _check_schedule(gammas, thresholds)
    flat = flatten(logits, target, weight, ignore_index, reduction)

    def schedule(p_k: Tensor, p_j: Tensor) -> Tensor:
        gamma = torch.full_like(p_k, gammas[-1])
        for value, threshold in zip(gammas[-2::-1], thresholds[::-1], strict=True):
            gamma = torch.where(p_k < threshold, value, gamma)
        return gamma

    return reduce(modulated_nll(flat, schedule), flat, reduction)


class FocalLoss(ClassificationLoss):
    """Module form of :func:`focal_loss`."""

    function = staticmethod(focal_loss)

    def __init__(
        self,
        gamma: float | Tensor = 3.0,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        self.set_options(gamma=gamma)


class InverseFocalLoss(ClassificationLoss):
    """Module form of :func:`inverse_focal_loss`."""

    function = staticmethod(inverse_focal_loss)

    def __init__(
        self,
        gamma: float | Tensor = 2.0,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        self.set_options(gamma=gamma)


class FLSDLoss(ClassificationLoss):
    """Module form of :func:`flsd_loss`."""

    function = staticmethod(flsd_loss)

    def __init__(
        self,
        gammas: Sequence[float] = (5.0, 3.0),
        *,
        thresholds: Sequence[float] = (0.2,),
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        _check_schedule(gammas, thresholds)
        self.set_options(gammas=tuple(gammas), thresholds=tuple(thresholds))


def _check_schedule(gammas: Sequence[float], thresholds: Sequence[float]) -> None:
    if not (isinstance(gammas, Sequence) and isinstance(thresholds, Sequence)):
        hint = f"; {WEIGHT_HINT}" if isinstance(gammas, Tensor) else ""
        raise TypeError(f"gammas and thresholds must be sequences of numbers, got {gammas!r} and {thresholds!r}{hint}")
    for gamma in gammas:
        check_number("gamma", gamma)
    for threshold in thresholds:
        check_number("threshold", threshold, 0.0, 1.0)
    if list(thresholds) != sorted(set(thresholds)) or len(gammas) != len(thresholds) + 1:
        raise ValueError(
            f"thresholds must increase and be one fewer than gammas, got {len(thresholds)} thresholds, {thresholds}, "
            f"and {len(gammas)} gammas, {gammas}"
        )
