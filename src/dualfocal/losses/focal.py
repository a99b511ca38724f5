"""Focal loss, its sample-dependent schedule FLSD-53, and inverse focal loss."""

from collections.abc import Sequence

from torch import Tensor

from dualfocal._tensors import WEIGHT_HINT, Weight, check_number
from dualfocal.losses._expression import GammaBins
from dualfocal.losses._flat import flatten, gamma_of_rows
from dualfocal.losses._modulated import modulated_loss
from dualfocal.losses._module import ClassificationLoss


def focal_loss(
    logits: Tensor,
    target: Tensor,
    gamma: float | Tensor = 3.0,
    *,
    weight: Weight | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    r"""Focal loss. Lin et al., ICCV 2017, arXiv:1708.02002.

    $$L = -(1 - p_k)^\gamma \log p_k$$

    Args:
        logits: scores of shape ``(C,)``, ``(N, C)`` or ``(N, C, d1, ...)``, any floating dtype.
        target: class indices of shape ``()``, ``(N,)`` or ``(N, d1, ...)``, or class probabilities of the shape of
            ``logits``, for which L = -sum_i y_i (1 - p_i)^gamma log p_i.
        gamma: focusing parameter, at least 0: a number, or a tensor with one value per target, of shape ``(N,)`` or
            ``(N, 1)``. 0 is cross-entropy.
        weight: weight of each class, shape ``(C,)``: a tensor, a list or a numpy array ("alpha" in other libraries).
        ignore_index: class index to ignore (class indices only).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``. The mean is weighted by the class weights of the targets; for
            class probabilities it divides by the number of rows.
        label_smoothing: probability eps that is spread over all K classes, y' = (1 - eps) y + eps / K, in [0, 1].

    Returns:
        The loss in float32, or float64 for float64 logits: a scalar, or the shape of the class indices for
        ``reduction="none"``.

    >>> import torch
    >>> focal_loss(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]), gamma=2.0)
    tensor(0.0457)
    """
    flat = flatten(logits, target, weight, ignore_index, reduction, label_smoothing)
    return modulated_loss(flat, gamma_of_rows(gamma, flat), reduction)


def inverse_focal_loss(
    logits: Tensor,
    target: Tensor,
    gamma: float | Tensor = 2.0,
    *,
    weight: Weight | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    r"""Inverse focal loss. Wang et al., NeurIPS 2021.

    $$L = -(1 + p_k)^\gamma \log p_k$$

    Args:
        logits: scores of shape ``(C,)``, ``(N, C)`` or ``(N, C, d1, ...)``, any floating dtype.
        target: class indices of shape ``()``, ``(N,)`` or ``(N, d1, ...)``, or class probabilities of the shape of
            ``logits``.
        gamma: exponent, at least 0: a number, or a tensor with one value per target, of shape ``(N,)`` or ``(N, 1)``.
            The paper tunes it on validation data.
        weight: weight of each class, shape ``(C,)``: a tensor, a list or a numpy array.
        ignore_index: class index to ignore (class indices only).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``. The mean is weighted by the class weights of the targets; for
            class probabilities it divides by the number of rows.
        label_smoothing: probability eps that is spread over all K classes, y' = (1 - eps) y + eps / K, in [0, 1].

    Returns:
        The loss in float32, or float64 for float64 logits: a scalar, or the shape of the class indices for
        ``reduction="none"``.

    >>> import torch
    >>> inverse_focal_loss(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]), gamma=2.0)
    tensor(1.1303)
    """
    flat = flatten(logits, target, weight, ignore_index, reduction, label_smoothing)
    return modulated_loss(flat, -gamma_of_rows(gamma, flat), reduction)


def flsd_loss(
    logits: Tensor,
    target: Tensor,
    gammas: Sequence[float] = (5.0, 3.0),
    *,
    thresholds: Sequence[float] = (0.2,),
    weight: Weight | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    r"""Focal loss with a sample-dependent gamma; FLSD-53 by default. Mukhoti et al., NeurIPS 2020, arXiv:2002.09437.

    $$L = -(1 - p_k)^{\gamma(p_k)} \log p_k$$

    gamma is ``gammas[i]`` for $p_k$ in [``thresholds[i - 1]``, ``thresholds[i]``).
    FLSD-53 has gamma = 5 for $p_k < 0.2$ and 3 otherwise. gamma is not differentiated.

    Args:
        logits: scores of shape ``(C,)``, ``(N, C)`` or ``(N, C, d1, ...)``, any floating dtype.
        target: class indices of shape ``()``, ``(N,)`` or ``(N, d1, ...)``, or class probabilities of the shape of
            ``logits``; then each class i uses the gamma of its own p_i.
        gammas: values of gamma, each at least 0; one more than ``thresholds``.
        thresholds: increasing values of p_k, in [0, 1].
        weight: weight of each class, shape ``(C,)``: a tensor, a list or a numpy array.
        ignore_index: class index to ignore (class indices only).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``. The mean is weighted by the class weights of the targets; for
            class probabilities it divides by the number of rows.
        label_smoothing: probability eps that is spread over all K classes, y' = (1 - eps) y + eps / K, in [0, 1].

    Returns:
        The loss in float32, or float64 for float64 logits: a scalar, or the shape of the class indices for
        ``reduction="none"``.

    >>> import torch
    >>> flsd_loss(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]))
    tensor(0.0153)
    """
    _check_schedule(gammas, thresholds)
    flat = flatten(logits, target, weight, ignore_index, reduction, label_smoothing)
    return modulated_loss(flat, GammaBins(tuple(gammas), tuple(thresholds)), reduction)


class FocalLoss(ClassificationLoss):
    r"""Focal loss as a Module, $L = -(1 - p_k)^\gamma \log p_k$; see :func:`focal_loss`.

    Args:
        gamma: focusing parameter, at least 0: a number, or a scalar tensor or parameter. 0 is cross-entropy.
        weight: weight of each class, shape ``(C,)``: a tensor, a list or a numpy array.
        ignore_index: class index to ignore (class indices only).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: probability that is spread over all classes, as in ``F.cross_entropy``, in [0, 1].

    >>> FocalLoss(gamma=2.0)
    FocalLoss(gamma=2.0)
    """

    function = staticmethod(focal_loss)

    def __init__(
        self,
        gamma: float | Tensor = 3.0,
        *,
        weight: Weight | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        self.set_options(gamma=gamma, label_smoothing=label_smoothing)


class InverseFocalLoss(ClassificationLoss):
    r"""Inverse focal loss as a Module, $L = -(1 + p_k)^\gamma \log p_k$; see :func:`inverse_focal_loss`.

    Args:
        gamma: exponent, at least 0: a number, or a scalar tensor or parameter. 0 is cross-entropy.
        weight: weight of each class, shape ``(C,)``: a tensor, a list or a numpy array.
        ignore_index: class index to ignore (class indices only).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: probability that is spread over all classes, as in ``F.cross_entropy``, in [0, 1].

    >>> InverseFocalLoss(gamma=1.0)
    InverseFocalLoss(gamma=1.0)
    """

    function = staticmethod(inverse_focal_loss)

    def __init__(
        self,
        gamma: float | Tensor = 2.0,
        *,
        weight: Weight | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        self.set_options(gamma=gamma, label_smoothing=label_smoothing)


class FLSDLoss(ClassificationLoss):
    """Focal loss with a sample-dependent gamma (FLSD-53 by default) as a Module; see :func:`flsd_loss`.

    Args:
        gammas: values of gamma, each at least 0; one more than ``thresholds``.
        thresholds: increasing values of p_k at which gamma changes, in [0, 1].
        weight: weight of each class, shape ``(C,)``: a tensor, a list or a numpy array.
        ignore_index: class index to ignore (class indices only).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: probability that is spread over all classes, as in ``F.cross_entropy``, in [0, 1].

    >>> FLSDLoss()
    FLSDLoss(gammas=(5.0, 3.0), thresholds=(0.2,))
    """

    function = staticmethod(flsd_loss)

    def __init__(
        self,
        gammas: Sequence[float] = (5.0, 3.0),
        *,
        thresholds: Sequence[float] = (0.2,),
        weight: Weight | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        _check_schedule(gammas, thresholds)
        self.set_options(gammas=tuple(gammas), thresholds=tuple(thresholds), label_smoothing=label_smoothing)


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
            f"thresholds must increase, and there must be one more gamma than thresholds; got {len(thresholds)} "
            f"thresholds {thresholds} and {len(gammas)} gammas {gammas}"
        )
