"""Losses that adapt gamma to the calibration of each bin of the validation set: AdaFocal and AdaDualFocal.

AdaFocal: Ghosh, Schaaf, Gormley, NeurIPS 2022, arXiv:2211.11838. AdaDualFocal: Tao et al., ICML 2023.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from dualfocal._tensors import Weight, can_read_values, check_number, first_true, wide_dtype
from dualfocal.checks import check_choice, check_count
from dualfocal.losses._expression import GammaBins
from dualfocal.losses._flat import flatten
from dualfocal.losses._modulated import modulated_loss
from dualfocal.losses._module import COMMON, ClassificationLoss
from dualfocal.losses._two_classes import warn_two_classes


def ada_focal_loss(
    logits: Tensor,
    target: Tensor,
    bin_gamma: Tensor,
    bin_edges: Tensor,
    *,
    weight: Weight | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    r"""Focal loss with one gamma per bin of $p_k$.

    $$L = -(1 - s p_k)^{|\gamma|} \log p_k, \quad s = \operatorname{sign}(\gamma)$$

    A negative gamma gives the inverse focal loss. gamma is not differentiated.

    Args:
        logits: scores of shape ``(C,)``, ``(N, C)`` or ``(N, C, d1, ...)``, any floating dtype.
        target: class indices of shape ``()``, ``(N,)`` or ``(N, d1, ...)``, or class probabilities of the shape of
            ``logits``.
        bin_gamma: signed gamma of each bin, shape ``(B,)``.
        bin_edges: non-decreasing inner edges of the bins [lo, hi), shape ``(B - 1,)``.
        weight: weight of each class, shape ``(C,)``: a tensor, a list or a numpy array.
        ignore_index: class index to ignore (class indices only).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``. The mean is weighted by the class weights of the targets; for
            class probabilities it divides by the number of rows.
        label_smoothing: probability eps that is spread over all K classes, y' = (1 - eps) y + eps / K, in [0, 1].

    Returns:
        The loss in float32, or float64 for float64 logits: a scalar, or the shape of the class indices for
        ``reduction="none"``.

    >>> import torch
    >>> gamma, edges = torch.tensor([5.0, 3.0]), torch.tensor([0.2])  # FLSD-53
    >>> ada_focal_loss(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]), gamma, edges)
    tensor(0.0153)
    """
    _check_bins(bin_gamma, bin_edges)
    flat = flatten(logits, target, weight, ignore_index, reduction, label_smoothing)
    return modulated_loss(flat, GammaBins(bin_gamma, bin_edges), reduction)


def ada_dual_focal_loss(
    logits: Tensor,
    target: Tensor,
    bin_gamma: Tensor,
    bin_edges: Tensor,
    *,
    weight: Weight | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    r"""Dual focal loss with one gamma per bin of $p_k - p_j$.

    $$L = -(1 - s (p_k - p_j))^{|\gamma|} \log p_k, \quad s = \operatorname{sign}(\gamma)$$

    A negative gamma gives the inverse form. gamma is not differentiated.

    Args:
        logits: scores of shape ``(C,)``, ``(N, C)`` or ``(N, C, d1, ...)``, any floating dtype.
        target: class indices of shape ``()``, ``(N,)`` or ``(N, d1, ...)``, or class probabilities of the shape of
            ``logits``.
        bin_gamma: signed gamma of each bin, shape ``(B,)``.
        bin_edges: non-decreasing inner edges of the bins [lo, hi) of the margin p_k - p_j, shape ``(B - 1,)``.
        weight: weight of each class, shape ``(C,)``: a tensor, a list or a numpy array.
        ignore_index: class index to ignore (class indices only).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``. The mean is weighted by the class weights of the targets; for
            class probabilities it divides by the number of rows.
        label_smoothing: probability eps that is spread over all K classes, y' = (1 - eps) y + eps / K, in [0, 1].

    Returns:
        The loss in float32, or float64 for float64 logits: a scalar, or the shape of the class indices for
        ``reduction="none"``.

    >>> import torch
    >>> gamma, edges = torch.tensor([5.0, 3.0]), torch.tensor([0.2])
    >>> ada_dual_focal_loss(torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0]), gamma, edges)
    tensor(0.0793)
    """
    _check_bins(bin_gamma, bin_edges)
    flat = flatten(logits, target, weight, ignore_index, reduction, label_smoothing)
    warn_two_classes(flat.logits)
    return modulated_loss(flat, GammaBins(bin_gamma, bin_edges, of_margin=True), reduction, rival="next")


class AdaFocalLoss(ClassificationLoss):
    """Focal loss that adapts one gamma per bin to validation data; see :func:`ada_focal_loss`.

    Call :meth:`update` with the validation logits after each epoch. It forms bins of equal mass and multiplies the
    gamma of each bin by exp(rate * gap), where gap = confidence - accuracy, so over-confidence raises gamma. With
    ``variant="switch"``, a gamma whose absolute value falls below ``switch`` changes sign, to the inverse focal loss
    and back. ``"no_switch"`` is the older form, which the dual focal loss paper compared with.

    ``gamma`` and ``edges`` are buffers that are updated in place, so they are in the ``state_dict`` and visible to
    captured CUDA graphs.

    Args:
        gamma: initial value of all bins. Default: 1, or 5 for :class:`AdaDualFocalLoss`.
        num_bins: number of bins, which have equal width until the first update.
        rate: learning rate lambda of the update.
        gamma_min: lower limit of gamma (``"switch"`` only).
        gamma_max: upper limit of gamma.
        switch: absolute value of gamma below which its sign changes.
        variant: ``"switch"`` or ``"no_switch"``.
        drop_lowest: leave samples of the lowest confidence out of the gap of the first bin, as the public code does.
        frozen: never update gamma. The AdaDualFocal rows of the paper correspond to ``frozen=True`` with gamma 6 or 7,
            because the authors' run never reached the update.
        weight: weight of each class, shape ``(C,)``: a tensor, a list or a numpy array.
        ignore_index: class index to ignore (class indices only).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: probability that is spread over all classes, as in ``F.cross_entropy``, in [0, 1].

    >>> import torch
    >>> criterion = AdaFocalLoss(num_bins=2)
    >>> overconfident = torch.tensor([[9.0, 0.0, 0.0]]).repeat(4, 1)
    >>> criterion.update(overconfident, torch.tensor([1, 1, 2, 2]))
    >>> criterion.gamma
    tensor([2.7176, 1.0000])
    """

    options = (
        "num_bins",
        "rate",
        "gamma_min",
        "gamma_max",
        "switch",
        "variant",
        "drop_lowest",
        "frozen",
        "label_smoothing",
    )
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
        drop_lowest: bool = False,
        frozen: bool = False,
        weight: Weight | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        check_count("num_bins", num_bins)
        check_number("rate", rate)
        check_number("switch", switch)
        check_number("label_smoothing", label_smoothing, 0.0, 1.0)
        check_choice("variant", variant, ("switch", "no_switch"))
        check_number("gamma_max", gamma_max)
        check_number("gamma_min", gamma_min, -gamma_max, 0.0)
        gamma = self.default_gamma if gamma is None else gamma
        check_number("gamma", gamma, 0.0, gamma_max)
        self.initial_gamma = float(gamma)
        self.num_bins, self.rate, self.variant = num_bins, rate, variant
        self.drop_lowest, self.frozen, self.label_smoothing = drop_lowest, frozen, label_smoothing
        self.gamma_min, self.gamma_max, self.switch = gamma_min, gamma_max, switch
        dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)  # never half precision
        self.register_buffer("gamma", torch.full((num_bins,), self.initial_gamma, dtype=dtype))
        self.register_buffer("edges", torch.linspace(0, 1, num_bins + 1, dtype=dtype)[1:-1].contiguous())

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of ``function``, with the current gammas."""
        common = {name: getattr(self, name) for name in (*COMMON, "label_smoothing")}
        return {"bin_gamma": self.gamma, "bin_edges": self.edges, **common}

    @torch.no_grad()
    def update(self, val_logits: Tensor, val_target: Tensor) -> None:
        """Update the gamma of each bin by its gap between confidence and accuracy, and the edges to equal mass.

        Args:
            val_logits: logits of the validation set, in the shapes used for training.
            val_target: class indices or class probabilities; ``ignore_index`` applies.

        Raises:
            ValueError: there are no samples, or the logits are not finite (eager CPU tensors only).
        """
        confidence, score, correct = self._validation_scores(val_logits, val_target)
        if self.frozen:
            return
        edges = _equal_mass_edges(score, self.num_bins)
        gamma = self._updated_gamma(self._gaps(confidence, score, correct, edges).to(self.gamma))
        # Values are not checked on devices or in traces, so a NaN is kept out of the state here.
        finite = score.isfinite().all()
        self.gamma.copy_(torch.where(finite, gamma, self.gamma))
        self.edges.copy_(torch.where(finite, edges, self.edges))

    def _validation_scores(self, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Confidence, score that is binned, and correctness of each sample that is not ignored."""
        flat = flatten(logits, target, None, self.ignore_index, "none")
        p, classes = flat.z.softmax(1).topk(min(2, flat.z.shape[1]), dim=1)
        confidence = p[:, 0].contiguous()
        score = p[:, 0] - p[:, 1] if self.dual and p.shape[1] > 1 else confidence
        correct = flat.one_hot.gather(1, classes[:, :1])[:, 0]
        if flat.keep is not None:
            confidence, score, correct = confidence[flat.keep], score[flat.keep], correct[flat.keep]
        if confidence.numel() == 0:
            raise ValueError("update needs at least one validation sample that is not ignored, got none")
        if can_read_values(score) and (i := first_true(~score.isfinite())) is not None:
            raise ValueError(
                f"validation logits must be finite or -inf, but row {i} (without ignored rows) gives {score[i].item()}"
            )
        return confidence, score, correct

    def _gaps(self, confidence: Tensor, score: Tensor, correct: Tensor, edges: Tensor) -> Tensor:
        """Mean confidence minus accuracy in each bin of the score; 0 in empty bins."""
        index = torch.bucketize(score, edges)  # (lo, hi] here, but [lo, hi) in training, as published
        counted = score > score.min() if self.drop_lowest else torch.ones_like(score)
        terms = torch.stack([torch.ones_like(score), confidence, correct]) * counted
        totals = torch.zeros(3, self.num_bins, dtype=wide_dtype(score), device=score.device)
        totals.index_add_(1, index, terms.to(totals))
        return (totals[1] - totals[2]) / totals[0].clamp_min(1)

    def extra_repr(self) -> str:
        """Constructor arguments, for ``repr``; the adapted gammas are in the buffers."""
        return f"gamma={self.initial_gamma}, {super().extra_repr()}"

    def _updated_gamma(self, gap: Tensor) -> Tensor:
        if self.variant == "no_switch":
            return (self.gamma * (self.rate * gap).exp()).clamp_max(self.gamma_max)
        positive = self.gamma > 0
        gamma = self.gamma * (self.rate * torch.where(positive, gap, -gap)).exp()
        other_side = torch.where(positive, -self.switch, self.switch)
        gamma = torch.where(gamma.abs() < self.switch, other_side, gamma)
        return gamma.clamp(self.gamma_min, self.gamma_max)


class AdaDualFocalLoss(AdaFocalLoss):
    """Dual focal loss that adapts one gamma per bin to validation data; see :func:`ada_dual_focal_loss`.

    Like :class:`AdaFocalLoss`, with bins of the margin p_k - p_j in training and of top-1 minus top-2 probability on
    the validation set.

    Args:
        gamma: initial value of all bins. Default: 5; the paper uses 3 to 9.
        num_bins: number of bins, which have equal width until the first update.
        rate: learning rate lambda of the update.
        gamma_min: lower limit of gamma (``"switch"`` only).
        gamma_max: upper limit of gamma.
        switch: absolute value of gamma below which its sign changes.
        variant: ``"switch"`` or ``"no_switch"``.
        drop_lowest: leave samples of the lowest margin out of the gap of the first bin.
        frozen: never update gamma.
        weight: weight of each class, shape ``(C,)``: a tensor, a list or a numpy array.
        ignore_index: class index to ignore (class indices only).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: probability that is spread over all classes, as in ``F.cross_entropy``, in [0, 1].
    """

    function = staticmethod(ada_dual_focal_loss)
    dual = True
    default_gamma = 5.0


def _equal_mass_edges(score: Tensor, num_bins: int) -> Tensor:
    """Inner edges of bins with equal numbers of scores, interpolated between neighbours."""
    ordered = score.sort().values
    last = len(ordered) - 1
    ranks = torch.linspace(0, last + 1, num_bins + 1, dtype=wide_dtype(score), device=score.device)
    rank = ranks[1:-1].clamp_max(last)
    low = rank.floor().long()
    high = (low + 1).clamp_max(last)
    return torch.lerp(ordered[low], ordered[high], (rank - low).to(score.dtype))


def _check_bins(bin_gamma: Tensor, bin_edges: Tensor) -> None:
    if bin_gamma.ndim != 1 or bin_edges.ndim != 1 or len(bin_gamma) != len(bin_edges) + 1:
        raise ValueError(
            f"bin_gamma must have shape (B,) and bin_edges (B - 1,), got {tuple(bin_gamma.shape)} "
            f"and {tuple(bin_edges.shape)}"
        )
    if can_read_values(bin_gamma) and not bin_gamma.isfinite().all():
        raise ValueError(f"bin_gamma must be finite, got {bin_gamma.tolist()}")
    if can_read_values(bin_edges) and not (bin_edges.diff() >= 0).all():
        raise ValueError(f"bin_edges must not decrease, got {bin_edges.tolist()}")
