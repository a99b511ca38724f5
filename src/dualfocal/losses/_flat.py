"""Rows of logits with their targets, and the reduction of their losses, as defined by ``F.cross_entropy``.

Every loss calls ``flat = flatten(...)``, computes one number per row of ``flat.logits``, and returns
``reduce(per_row, flat, reduction)``.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dualfocal._tensors import WEIGHT_HINT, Weight, check_number, class_indices, compute_dtype, is_concrete
from dualfocal.checks import check_choice
from dualfocal.losses import _arguments


class Flat(NamedTuple):
    """Logits and target of any shape that ``F.cross_entropy`` takes, as rows."""

    logits: Tensor  # (M, C), in the original dtype
    labels: Tensor | None  # (M,) int64, class indices as given
    ignore_index: int | None  # None: no row is ignored
    probabilities: Tensor | None  # (M, C), if there are no labels, or from them by label smoothing
    weight: Tensor | None  # (C,) in the compute dtype
    shape: torch.Size  # shape of the unreduced loss
    eager: bool  # whether the logits are an ordinary eager tensor, see is_concrete

    @property
    def soft(self) -> bool:
        """Whether the target holds class probabilities, given or made by label smoothing."""
        return self.probabilities is not None

    @property
    def keep(self) -> Tensor | None:
        """(M,) bool, False for ignored rows; None: no row is ignored. Not stored, as kernels do without it."""
        return None if self.labels is None or self.ignore_index is None else self.labels != self.ignore_index

    @property
    def target(self) -> Tensor:
        """(M,) int64 with ignored rows set to 0, or (M, C) class probabilities."""
        return self.indices if self.probabilities is None else self.probabilities

    @property
    def indices(self) -> Tensor:
        """Class indices, (M,) int64, with ignored rows set to 0; only if there are labels."""
        assert self.labels is not None
        keep = self.keep
        return self.labels if keep is None else self.labels.masked_fill(~keep, 0)

    @property
    def z(self) -> Tensor:
        """Logits in the compute dtype, with ignored rows set to 0.

        Read it only once per loss: the gradients of two casts would be added in half precision.
        """
        return compute_logits(self.logits, self.keep)

    @property
    def mass(self) -> Tensor:
        """Target probability times class weight, (M, C)."""
        return self.one_hot if self.weight is None else self.one_hot * self.weight

    @property
    def one_hot(self) -> Tensor:
        """Target as class probabilities, (M, C)."""
        if self.soft:
            return self.target.to(compute_dtype(self.logits))
        classes = torch.arange(self.logits.shape[1], device=self.logits.device)
        return (classes == self.target[:, None]).to(compute_dtype(self.logits))


def compute_logits(logits: Tensor, keep: Tensor | None) -> Tensor:
    """Logits in the compute dtype, with ignored rows set to 0, so that they affect neither values nor gradients."""
    z = logits.to(compute_dtype(logits))
    return z if keep is None else z.masked_fill(~keep[:, None], 0.0)


def flatten(
    logits: Tensor,
    target: Tensor,
    weight: Weight | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float = 0.0,
) -> Flat:
    """Check the input and convert it to rows. Values are only checked on eager CPU tensors.

    Label smoothing makes the target class probabilities, (1 - eps) y + eps / K; labels stay for weights and
    ``ignore_index``, as in ``F.cross_entropy``.

    Raises:
        ValueError: an argument has an invalid shape, dtype or value.
        IndexError: a class index is out of range.
    """
    check_choice("reduction", reduction, _arguments.REDUCTIONS)
    check_number("label_smoothing", label_smoothing, 0.0, 1.0)
    _arguments.check_shapes(logits, target)
    if not isinstance(ignore_index, int):
        raise TypeError(f"ignore_index must be an integer, got {ignore_index!r}")
    eager = is_concrete(logits)
    readable = eager and target.is_cpu and type(target) is Tensor
    shape = logits.shape[:1] + logits.shape[2:] if logits.ndim > 1 else torch.Size()
    logits = _class_rows(logits)
    num_classes = logits.shape[1]
    weight = None if weight is None else _arguments.check_weight(weight, num_classes, logits)
    if target.is_floating_point():
        target = _class_rows(target)
        if readable:
            _arguments.check_probabilities(target)
        flat = Flat(logits, None, None, target, weight, shape, eager)
    else:
        labels = class_indices(target.reshape(-1))
        ignored: int | None = ignore_index
        if readable and _all_in_range(labels, num_classes, ignore_index):
            ignored = None
        elif readable:
            _arguments.check_labels(labels, num_classes, ignore_index)
        flat = Flat(logits, labels, ignored, None, weight, shape, eager)
    if not label_smoothing:
        return flat
    everywhere = label_smoothing / num_classes
    return flat._replace(probabilities=flat.one_hot * (1 - label_smoothing) + everywhere)


def _class_rows(x: Tensor) -> Tensor:
    """Rows (M, C) of a tensor (C,), (N, C) or (N, C, d1, ...)."""
    if x.ndim == 2:
        return x
    return x[None] if x.ndim == 1 else x.movedim(1, -1).reshape(-1, x.shape[1])


def _all_in_range(labels: Tensor, num_classes: int, ignore_index: int) -> bool:
    """Whether all labels are class indices and none is ignored: the common case, tested without a mask."""
    # As unsigned integers, negative indices are huge, so one reduction checks both bounds.
    within = np.maximum.reduce(labels.numpy().view(np.uint64), initial=0) < num_classes
    return bool(within) and not 0 <= ignore_index < num_classes


def gamma_of_rows(gamma: float | Tensor, flat: Flat) -> float | Tensor:
    """Check gamma, and return it as a float, a scalar tensor, or a tensor with one value per row, (M,).

    A tensor must have the shape of the unreduced loss, or that of the logits with one class. The first is an error if
    the tensor could be class weights passed in the place of gamma.
    """
    if isinstance(gamma, Tensor) and gamma.ndim > 0:
        num_classes = flat.logits.shape[1]
        beside_logits = (*flat.shape[:1], 1, *flat.shape[1:])
        could_be_weights = gamma.shape == (num_classes,) and num_classes > 1
        if gamma.shape != beside_logits and (gamma.shape != flat.shape or could_be_weights):
            raise ValueError(
                f"a gamma tensor must be a scalar or have one value per target, with shape {beside_logits}, or "
                f"{tuple(flat.shape)} if there are not as many targets as classes; got shape {tuple(gamma.shape)} for "
                f"{num_classes} classes; {WEIGHT_HINT}"
            )
        gamma = gamma.reshape(-1)
    return _arguments.check_gamma(gamma)


def reduce(loss: Tensor, flat: Flat, reduction: str, *, weighted: bool = False) -> Tensor:
    """Reduce the loss of each row, as ``F.cross_entropy`` does.

    With class indices each row has the weight ``weight[target]``, and the mean divides by the sum of the weights of the
    rows that are not ignored. With class probabilities the loss already includes the weights, and the mean divides by
    the number of rows, or, if they come from class indices by label smoothing, by the weights of these. Unlike in
    ``F.cross_entropy``, the mean over nothing is 0 with zero gradient.

    Args:
        loss: loss of each row, (M,).
        flat: the input of the loss.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weighted: whether the loss of class indices already includes the weights.
    """
    denominator, keep = None, flat.keep
    if flat.labels is not None and (keep is not None or flat.weight is not None):
        counts = torch.ones_like(loss) if flat.weight is None else flat.weight[flat.indices]
        if keep is not None:
            counts = counts * keep
        # A row that is ignored or has weight 0 contributes 0, even if its loss is infinite.
        if not (weighted or flat.soft):
            loss = torch.where(counts == 0, 0.0, loss if flat.weight is None else loss * counts)
        elif keep is not None:
            loss = torch.where(keep, loss, 0.0)
        denominator = counts.sum()
    if reduction == "none":
        return loss.reshape(flat.shape)
    if reduction == "sum" or loss.numel() == 0:
        return loss.sum()
    if denominator is None:
        return loss.mean()
    return torch.where(denominator == 0, 0.0, loss.sum() / denominator.masked_fill(denominator == 0, 1.0))


def weight_rows(loss: Tensor, flat: Flat) -> Tensor:
    """Multiply a loss without per-class terms by the expected class weight of soft targets."""
    return loss * flat.mass.sum(1) if flat.soft and flat.weight is not None else loss
