"""Shapes, checks, class weights and reductions, as ``F.cross_entropy`` defines them: the only copy.

Every loss here reads ``flat = flatten(...)``, computes one number per row of ``flat.logits``, and returns
``reduce(per_row, flat, reduction)``.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from dualfocal._checks import check_choice
from dualfocal._tensors import WEIGHT_HINT, check_number, compute_dtype, under_transform

REDUCTIONS = ("mean", "sum", "none")


class Flat(NamedTuple):
    """Any input ``F.cross_entropy`` takes, as rows."""

    logits: Tensor  # (M, C), the caller's dtype
    target: Tensor  # (M,) int64 with ignored rows set to 0, or (M, C) class probabilities
    keep: Tensor | None  # (M,) bool, False for ignored rows; None: every row is kept
    weight: Tensor | None  # (C,) in the compute dtype
    shape: torch.Size  # of the unreduced loss
    eager: bool  # whether all this is ordinary tensors, see is_concrete

    @property
    def soft(self) -> bool:
        """Whether targets are class probabilities."""
        return self.target.is_floating_point()

    @property
    def z(self) -> Tensor:
        """Logits in the compute dtype, ignored rows blanked. Take it once: gradients of two casts add up in half."""
        return as_computed(self.logits, self.keep)

    @property
    def mass(self) -> Tensor:
        """Target probability times class weight, (M, C): what each class's own loss counts."""
        return self.one_hot if self.weight is None else self.one_hot * self.weight

    @property
    def one_hot(self) -> Tensor:
        """Targets as probabilities, (M, C)."""
        if self.soft:
            return self.target.to(compute_dtype(self.logits))
        classes = torch.arange(self.logits.shape[1], device=self.logits.device)
        return (classes == self.target[:, None]).to(compute_dtype(self.logits))


def as_computed(logits: Tensor, keep: Tensor | None) -> Tensor:
    """Logits in the compute dtype, ignored rows blanked: what stands there reaches no value and no gradient."""
    dtype = compute_dtype(logits)
    z = logits if logits.dtype == dtype else logits.to(dtype)
    return z if keep is None else z.masked_fill(~keep[:, None], 0.0)


def is_concrete(tensor: Tensor) -> bool:
    """Whether this is an ordinary eager tensor: not traced, watched or transformed, not a subclass."""
    return (
        not torch.compiler.is_compiling()
        and type(tensor) in (Tensor, nn.Parameter)
        and not under_transform()
        and torch._C._len_torch_dispatch_stack() == 0  # fake tensors, make_fx, FLOP counters
        and torch._C._get_tracing_state() is None
        and forward_ad.unpack_dual(tensor).tangent is None  # type: ignore[no-untyped-call]
    )


def may_look(tensor: Tensor) -> bool:
    """Whether values may be inspected: only where that costs no device sync and breaks no trace."""
    return tensor.is_cpu and is_concrete(tensor)


def first_true(mask: Tensor) -> int | None:
    """The flat position of the first True, None if there is none."""
    return int(mask.reshape(-1).nonzero()[0]) if mask.any() else None


def flatten(logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str) -> Flat:
    """Check the input and lay it out as rows.

    Raises:
        ValueError: shapes, dtypes, weights, probabilities or ``reduction`` break a rule.
        IndexError: a class index is out of range. Values are only checked on eager CPU tensors.
    """
    check_choice("reduction", reduction, REDUCTIONS)
    if not (isinstance(logits, Tensor) and isinstance(target, Tensor)):
        raise TypeError(f"logits and target must be tensors, got {type(logits).__name__} and {type(target).__name__}")
    if not isinstance(ignore_index, int):
        raise TypeError(f"ignore_index must be an integer, got {ignore_index!r}")
    class_dim = min(logits.ndim - 1, 1)
    if not logits.is_floating_point() or logits.ndim == 0 or logits.shape[class_dim] == 0:
        raise ValueError(
            "logits must be floating point of shape (C,), (N, C) or (N, C, d1, ...) with at least one class, "
            f"got {logits.dtype} of shape {tuple(logits.shape)}"
        )
    num_classes = logits.shape[class_dim]
    shape = logits.shape[:1] if logits.ndim == 2 else logits.shape[:class_dim] + logits.shape[class_dim + 1 :]
    soft = target.is_floating_point()
    no_indices = target.dtype == torch.bool or target.is_complex()
    if no_indices or target.shape != (logits.shape if soft else shape):
        raise ValueError(
            f"target must hold integer class indices of shape {tuple(shape)}, or class probabilities, floating point "
            f"of shape {tuple(logits.shape)}; got {target.dtype} of shape {tuple(target.shape)}"
        )
    weight = None if weight is None else _check_weight(weight, num_classes).to(compute_dtype(logits))

    keep, eager = None, is_concrete(logits)
    look = eager and target.is_cpu and type(target) is Tensor
    if logits.ndim != 2:
        logits = logits.movedim(class_dim, -1).reshape(-1, num_classes)
    if soft:
        target = target if target.ndim == 2 else target.movedim(class_dim, -1).reshape(-1, num_classes)
        if look:
            _check_probabilities(target)
    else:
        target = (target if target.ndim == 1 else target.reshape(-1)).long()
        if not (look and _all_in_range(target, num_classes, ignore_index)):
            keep = target != ignore_index
            target = target.masked_fill(~keep, 0)
            if look and (i := first_true((target < 0) | (target >= num_classes))) is not None:
                raise IndexError(
                    f"target {int(target[i])} (flat position {i}) is out of range: a class index must lie in "
                    f"[0, {num_classes - 1}] or equal ignore_index = {ignore_index}"
                )
    return Flat(logits, target, keep, weight, shape, eager)


def reduce(loss: Tensor, flat: Flat, reduction: str, *, weighted: bool = False) -> Tensor:
    """Reduce one loss per row, as ``F.cross_entropy`` does.

    With class indices a row counts ``weight[target]`` (``weighted``: the loss has it in already) and the mean
    divides by the sum of what was kept; with class probabilities the loss has ``weight`` in and the mean divides by
    the number of rows. Unlike there, the mean of nothing (no row, all ignored, all weights 0) is 0 with zero gradient.
    """
    denominator: Tensor | None = None
    if not flat.soft and (flat.keep is not None or flat.weight is not None):
        counts = torch.ones_like(loss) if flat.weight is None else flat.weight[flat.target]
        if flat.keep is not None:
            counts = counts * flat.keep
        # A row that is ignored or has no weight counts nothing, even where its loss is infinite.
        if not weighted:
            loss = torch.where(counts == 0, 0.0, loss if flat.weight is None else loss * counts)
        elif flat.keep is not None:
            loss = torch.where(flat.keep, loss, 0.0)
        denominator = counts.sum()
    if reduction == "none":
        return loss.reshape(flat.shape)
    if reduction == "sum" or loss.numel() == 0:
        return loss.sum()
    if denominator is None:
        return loss.mean()
    return torch.where(denominator == 0, 0.0, loss.sum() / denominator.masked_fill(denominator == 0, 1.0))


def weight_rows(loss: Tensor, flat: Flat) -> Tensor:
    """Apply the expected class weight of soft targets to a loss that has no per-class terms."""
    return loss * flat.mass.sum(1) if flat.soft and flat.weight is not None else loss


def check_gamma(gamma: float | Tensor, flat: Flat) -> float | Tensor:
    """A focusing parameter: one number, or one for each target; finite, not negative.

    A tensor has the shape of the unreduced loss, or that of the logits with one class. The second cannot be class
    weights in the wrong place; the first is refused where it could be.
    """
    if isinstance(gamma, Tensor) and gamma.ndim > 0:
        beside_logits = (*flat.shape[:1], 1, *flat.shape[1:])
        could_be_weights = gamma.shape == flat.logits.shape[1:] and gamma.numel() > 1
        if gamma.shape != beside_logits and (gamma.shape != flat.shape or could_be_weights):
            raise ValueError(
                f"a gamma tensor must be a scalar or hold one value per target, as shape {beside_logits} or, with "
                f"more or fewer targets than classes, {tuple(flat.shape)}; got shape {tuple(gamma.shape)} for "
                f"{flat.logits.shape[1]} classes; {WEIGHT_HINT}"
            )
        gamma = gamma.reshape(flat.shape)
    return check_gamma_values(gamma)


def check_gamma_values(gamma: float | Tensor) -> float | Tensor:
    """What holds for a focusing parameter of any shape: a float, or floating point; finite, not negative."""
    if not isinstance(gamma, Tensor):
        check_number("gamma", gamma)
        return float(gamma)
    gamma = gamma if gamma.is_floating_point() else gamma.float()
    if may_look(gamma) and (i := first_true(~(gamma.isfinite() & (gamma >= 0)))) is not None:
        raise ValueError(f"gamma must be finite and at least 0, got {gamma.reshape(-1)[i].item()} at position {i}")
    return gamma


def _check_weight(weight: Tensor, num_classes: int) -> Tensor:
    if not isinstance(weight, Tensor):
        raise TypeError(f"weight must be a tensor of shape ({num_classes},), got {weight!r}")
    if not weight.is_floating_point() or weight.shape != (num_classes,):
        raise ValueError(
            f"weight must be a floating-point tensor of shape ({num_classes},), one number per class, "
            f"got {weight.dtype} of shape {tuple(weight.shape)}"
        )
    if may_look(weight) and (i := first_true(~(weight.isfinite() & (weight >= 0)))) is not None:
        raise ValueError(f"weight must be finite and not negative, got {weight[i].item()} for class {i}")
    return weight


def _all_in_range(target: Tensor, num_classes: int, ignore_index: int) -> bool:
    """Whether every row is plainly kept: the common case, decided without making a mask."""
    # Read as unsigned, a negative index is a huge one: one reduction answers both questions.
    within = np.maximum.reduce(target.numpy().view(np.uint64), initial=0) < num_classes
    return bool(within) and not 0 <= ignore_index < num_classes


def _check_probabilities(target: Tensor) -> None:
    # Wide enough for rows that were rounded to half precision, here or before they were cast back.
    tolerance = max(1e-2, 4 * torch.finfo(target.dtype).eps)
    wide = target.to(torch.promote_types(target.dtype, torch.float32))
    if wide.numel() and not bool(wide.amin() >= 0):  # NaN is the least of all
        i, c = (~(wide >= 0)).nonzero()[0].tolist()
        raise ValueError(f"class probabilities must not be negative, got {wide[i, c].item()} in row {i}, class {c}")
    if (i := first_true(~((wide.sum(1) - 1).abs() <= tolerance))) is not None:
        raise ValueError(
            f"class probabilities must sum to 1 (within {tolerance:.2g}), row {i} sums to {wide[i].sum().item():.6g}"
        )
