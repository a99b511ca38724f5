"""Losses whose gamma follows the validation set, bin by bin: AdaFocal, and its dual.

AdaFocal: Ghosh, Schaaf, Gormley, NeurIPS 2022, arXiv:2211.11838. AdaDualFocal: Tao et al., ICML 2023.
"""

from typing import ClassVar

import torch
from torch import Tensor

from dualfocal._checks import check_choice, check_count
from dualfocal._tensors import check_number, wide_dtype
from dualfocal.losses._common import first_true, flatten, may_look, reduce
from dualfocal.losses._expression import Schedule
from dualfocal.losses._modulated import modulated_nll
from dualfocal.losses._module import ClassificationLoss
from dualfocal.losses.dual_focal import warn_of_two_classes


def ada_focal_loss(
    logits: Tensor,
    target: Tensor,
    bin_gamma: Tensor,
    bin_edges: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Focal loss with a gamma for each bin of p_k, L = -(1 - s p_k)^|gamma| log p_k, s = sign(gamma).

    A negative gamma is the inverse form. gamma is not differentiated.

    Args:
        logits: as :func:`~dualfocal.losses.dual_focal_loss`.
        target: likewise.
        bin_gamma: ``(B,)``, signed.
        bin_edges: ``(B - 1,)`` inner edges that do not decrease; bins are [lo, hi), the first and last open-ended.
        weight: likewise.
        ignore_index: likewise.
        reduction: likewise.

    Returns:
        As :func:`~dualfocal.losses.dual_focal_loss`.

    >>> import torch
    >>> gamma, edges = torch.tensor([5.0, 3.0]), torch.tensor([0.2])  # FLSD-53
    >>> ada_focal_loss(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]), gamma, edges)
    tensor(0.0153)
    """
    _check_bins(bin_gamma, bin_edges)
    flat = flatten(logits, target, weight, ignore_index, reduction)
    return reduce(modulated_nll(flat, _look_up(bin_gamma, bin_edges)), flat, reduction)


def ada_dual_focal_loss(
    logits: Tensor,
    target: Tensor,
    bin_gamma: Tensor,
    bin_edges: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Dual focal loss with a gamma for each bin of p_k - p_j, L = -(1 - s (p_k - p_j))^|gamma| log p_k.

    Args:
        logits: as :func:`~dualfocal.losses.dual_focal_loss`.
        target: likewise.
        bin_gamma: ``(B,)``, signed; a negative gamma is the inverse form.
        bin_edges: as :func:`ada_focal_loss`, of the margin.
        weight: likewise.
        ignore_index: likewise.
        reduction: likewise.

    Returns:
        As :func:`~dualfocal.losses.dual_focal_loss`.

    >>> import torch
    >>> gamma, edges = torch.tensor([5.0, 3.0]), torch.tensor([0.2])
    >>> ada_dual_focal_loss(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]), gamma, edges)
    tensor(0.0793)
    """
    _check_bins(bin_gamma, bin_edges)
    flat = flatten(logits, target, weight, ignore_index, reduction)
    warn_of_two_classes(flat)
    return reduce(modulated_nll(flat, _look_up(bin_gamma, bin_edges, margin=True), "next"), flat, reduction)


class AdaFocalLoss(ClassificationLoss):
    """Focal loss that learns its gammas from validation data, bin by bin; see :func:`ada_focal_loss`.

    Train an epoch, then call :meth:`update` with the validation logits. It forms bins of equal mass and multiplies
    each bin's gamma by exp(rate * gap), gap = confidence - accuracy there: over-confidence raises gamma. With
    ``variant="switch"`` a gamma that falls below ``switch`` in size changes sign, to the inverse form and back, where
    under-confidence lowers it; ``"no_switch"`` is the older form the dual focal paper compared with.

    ``gamma`` and ``edges`` are buffers, changed in place: they are in ``state_dict``, and captured graphs see them.

    Args:
        gamma: what every bin starts from; by default 1, 5 for AdaDualFocal.
        num_bins: bins are of equal width until the first update.
        rate: the lambda of the update.
        gamma_min: lower limit (``"switch"`` only).
        gamma_max: upper limit.
        switch: where the sign changes.
        variant: ``"switch"`` or ``"no_switch"``.
        frozen: never update. AdaDualFocal with ``frozen=True`` and gamma 6 or 7 is what the paper's row shows: its
            update was never reached in the authors' run.
        weight: as :func:`ada_focal_loss`.
        ignore_index: likewise.
        reduction: likewise.

    >>> import torch
    >>> criterion = AdaFocalLoss(num_bins=2)
    >>> wrong_and_sure = torch.tensor([[9.0, 0.0, 0.0]]).repeat(4, 1)
    >>> criterion.update(wrong_and_sure, torch.tensor([1, 1, 2, 2]))
    >>> criterion.gamma
    tensor([2.7176, 1.0000])
    """

    options = ("num_bins", "rate", "gamma_min", "gamma_max", "switch", "variant", "frozen")
    gamma: Tensor
    edges: Tensor
    function = staticmethod(ada_focal_loss)
    dual: ClassVar[bool] = False
    default_gamma: ClassVar[float] = 1.0

    def __init__(
        self,
        gamma: float | None = None,
        *,
        num_bins: int = 15,
        rate: float = 1.0,
        gamma_min: float = -2.0,
        gamma_max: float = 20.0,
        switch: float = 0.2,
        variant: str = "switch",
        frozen: bool = False,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        check_count("num_bins", num_bins)
        check_number("rate", rate)
        check_number("switch", switch)
        check_number("gamma_max", gamma_max)
        check_number("gamma_min", gamma_min, -gamma_max, 0.0)
        gamma = self.default_gamma if gamma is None else gamma
        check_number("gamma", gamma, 0.0, gamma_max)
        self.initial_gamma = float(gamma)
        check_choice("variant", variant, ("switch", "no_switch"))
        self.num_bins, self.rate, self.variant, self.frozen = num_bins, rate, variant, frozen
        self.gamma_min, self.gamma_max, self.switch = gamma_min, gamma_max, switch
        dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)  # never half, whatever the model is
        self.register_buffer("gamma", torch.full((num_bins,), self.initial_gamma, dtype=dtype))
        self.register_buffer("edges", torch.linspace(0, 1, num_bins + 1, dtype=dtype)[1:-1].contiguous())

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss with the present gammas."""
        return self.function(
            logits,
            target,
            self.gamma,
            self.edges,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
        )

    @torch.no_grad()
    def update(self, val_logits: Tensor, val_target: Tensor) -> None:
        """Move each bin's gamma by its gap between confidence and accuracy, and the edges to equal mass.

        Args:
            val_logits: of the validation set, same shapes as in training; ``ignore_index`` applies.
            val_target: class indices or class probabilities.
        """
        flat = flatten(val_logits, val_target, None, self.ignore_index, "none")
        p, classes = flat.z.softmax(1).topk(min(2, flat.z.shape[1]), dim=1)
        confidence = p[:, 0].contiguous()
        score = p[:, 0] - p[:, 1] if self.dual and p.shape[1] > 1 else confidence
        correct = flat.one_hot.gather(1, classes[:, :1])[:, 0]
        if flat.keep is not None:
            confidence, score, correct = confidence[flat.keep], score[flat.keep], correct[flat.keep]
        if confidence.numel() == 0:
            raise ValueError("update needs at least one validation sample that is not ignored, got none")
        if may_look(score) and (i := first_true(~score.isfinite())) is not None:
            raise ValueError(
                f"validation logits must be finite (or -inf), row {i} of those kept gives {score[i].item()}"
            )
        if self.frozen:
            return
        edges = _equal_mass_edges(score, self.num_bins)
        place = torch.bucketize(score, edges)  # (lo, hi] here and [lo, hi) in training, as published
        totals = torch.zeros(3, self.num_bins, dtype=wide_dtype(score), device=score.device)
        totals.index_add_(1, place, torch.stack([torch.ones_like(score), confidence, correct]).to(totals.dtype))
        gap = (totals[1] - totals[2]) / totals[0].clamp_min(1)
        gamma = self._moved(gap.to(self.gamma))
        # Where values may not be looked at, a NaN must still not enter the state.
        sound = score.isfinite().all()
        self.gamma.copy_(torch.where(sound, gamma, self.gamma))
        self.edges.copy_(torch.where(sound, edges, self.edges))

    def extra_repr(self) -> str:
        """As it was constructed; what was learnt since is in the buffers."""
        return f"gamma={self.initial_gamma}, {super().extra_repr()}"

    def _moved(self, gap: Tensor) -> Tensor:
        if self.variant == "no_switch":
            return (self.gamma * (self.rate * gap).exp()).clamp_max(self.gamma_max)
        positive = self.gamma > 0
        gamma = self.gamma * (self.rate * torch.where(positive, gap, -gap)).exp()
        other_side = torch.where(positive, -self.switch, self.switch)
        gamma = torch.where(gamma.abs() < self.switch, other_side, gamma)
        return gamma.clamp(self.gamma_min, self.gamma_max)


class AdaDualFocalLoss(AdaFocalLoss):
    """Dual focal loss that learns its gammas from validation data; see :class:`AdaFocalLoss`.

    Bins are of the margin p_k - p_j in training, and of top-1 minus top-2 on the validation set, with the gap
    between confidence and accuracy in each. Published start values of gamma: 3 to 9.
    """

    function = staticmethod(ada_dual_focal_loss)
    dual = True
    default_gamma = 5.0


def _look_up(bin_gamma: Tensor, bin_edges: Tensor, margin: bool = False) -> Schedule:
    edges = bin_edges.contiguous()

    def schedule(p_k: Tensor, p_j: Tensor) -> Tensor:
        score = p_k - p_j if margin else p_k
        return bin_gamma.detach()[torch.bucketize(score.contiguous(), edges.to(score.dtype), right=True)]

    return schedule


def _equal_mass_edges(score: Tensor, num_bins: int) -> Tensor:
    """Inner edges that cut the sorted scores into parts of equal size, interpolating between neighbours."""
    ordered = score.sort().values
    last = len(ordered) - 1
    at = torch.linspace(0, last + 1, num_bins + 1, dtype=wide_dtype(score), device=score.device)[1:-1].clamp_max(last)
    low = at.floor().long()
    high = (low + 1).clamp_max(last)
    return torch.lerp(ordered[low], ordered[high], (at - low).to(score.dtype))


def _check_bins(bin_gamma: Tensor, bin_edges: Tensor) -> None:
    if bin_gamma.ndim != 1 or bin_edges.ndim != 1 or len(bin_gamma) != len(bin_edges) + 1:
        raise ValueError(
            f"B gammas need B - 1 inner edges, both 1-D, got shapes {tuple(bin_gamma.shape)} "
            f"and {tuple(bin_edges.shape)}"
        )
    if may_look(bin_gamma) and not bin_gamma.isfinite().all():
        raise ValueError(f"bin_gamma must be finite, got {bin_gamma.tolist()}")
    if may_look(bin_edges) and not (bin_edges.diff() >= 0).all():
        raise ValueError(f"bin_edges must not decrease, got {bin_edges.tolist()}")
