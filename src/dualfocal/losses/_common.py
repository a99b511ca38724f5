"""Shapes, checks, class weights and reductions of all losses, as defined by ``F.cross_entropy``.

Every loss calls ``flat = flatten(...)``, computes one number per row of ``flat.logits``, and returns
``reduce(per_row, flat, reduction)``.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd import forward_ad

from dualfocal._checks import check_choice
from dualfocal._tensors import WEIGHT_HINT, check_number, class_indices, compute_dtype, under_transform

REDUCTIONS = ("mean", "sum", "none")
# One logit z per label is the two-class problem with the logits 0 and z.
BINARY_HINT = (
    "for binary or multi-label targets with one logit z each, use two classes: logits "
    "torch.stack([torch.zeros_like(z), z], 1), and target.long() of the shape of z"
)
# Several labels of a sample are true at once.
MULTILABEL_HINT = (
    "if several labels can be true at once (multi-label), the classes do not compete, as those of a softmax must, and "
    "p_j, the runner-up of the true class, is undefined: train with torch.nn.BCEWithLogitsLoss, one logit per label, "
    "then calibrate and evaluate with task='multilabel'"
)

Weight = Tensor | Sequence[float] | NDArray[Any]


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
    dtype = compute_dtype(logits)
    z = logits if logits.dtype == dtype else logits.to(dtype)
    return z if keep is None else z.masked_fill(~keep[:, None], 0.0)


def is_concrete(tensor: Tensor) -> bool:
    """Whether this is an ordinary eager tensor: not a subclass, not traced, and not under a transform."""
    return (
        not torch.compiler.is_compiling()
        and type(tensor) in (Tensor, nn.Parameter)
        and not under_transform()
        and torch._C._len_torch_dispatch_stack() == 0  # fake tensors, make_fx, FLOP counters
        and torch._C._get_tracing_state() is None
        and forward_ad.unpack_dual(tensor).tangent is None  # type: ignore[no-untyped-call]
    )


def can_read_values(tensor: Tensor) -> bool:
    """Whether values may be read, which must not synchronise a device or break a trace."""
    return tensor.is_cpu and is_concrete(tensor)


def first_true(mask: Tensor) -> int | None:
    """Flat index of the first True, or None."""
    return int(mask.reshape(-1).nonzero()[0]) if mask.any() else None


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
    check_choice("reduction", reduction, REDUCTIONS)
    check_number("label_smoothing", label_smoothing, 0.0, 1.0)
    if not (isinstance(logits, Tensor) and isinstance(target, Tensor)):
        raise TypeError(
            f"logits and target must be tensors, got {type(logits).__name__} and {type(target).__name__}: convert "
            "arrays and lists of numbers with torch.as_tensor; number the classes of labels that are texts, 0, 1, ..."
        )
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
    wrong_dtype = target.dtype == torch.bool or target.is_complex()
    if wrong_dtype or target.shape != (logits.shape if soft else shape):
        raise ValueError(
            f"target must hold integer class indices of shape {tuple(shape)}, or floating-point class probabilities "
            f"of shape {tuple(logits.shape)}; got {target.dtype} of shape {tuple(target.shape)}"
            + _target_remedy(logits, target, num_classes)
        )
    if soft and num_classes == 1:
        raise ValueError(f"logits of shape {tuple(logits.shape)} have a single class, whose loss is 0; {BINARY_HINT}")
    weight = None if weight is None else _check_weight(weight, num_classes, logits)

    eager = is_concrete(logits)
    readable = eager and target.is_cpu and type(target) is Tensor
    if logits.ndim != 2:
        logits = logits.movedim(class_dim, -1).reshape(-1, num_classes)
    if soft:
        target = target if target.ndim == 2 else target.movedim(class_dim, -1).reshape(-1, num_classes)
        if readable:
            _check_probabilities(target)
        return _smoothed(Flat(logits, None, None, target, weight, shape, eager), label_smoothing)
    labels = class_indices(target if target.ndim == 1 else target.reshape(-1))
    if readable and _all_in_range(labels, num_classes, ignore_index):
        return _smoothed(Flat(logits, labels, None, None, weight, shape, eager), label_smoothing)
    flat = Flat(logits, labels, ignore_index, None, weight, shape, eager)
    if readable and (i := first_true((flat.target < 0) | (flat.target >= num_classes))) is not None:
        raise IndexError(
            f"target {int(labels[i])} (flat position {i}) is out of range: a class index must lie in "
            f"[0, {num_classes - 1}] or equal ignore_index = {ignore_index}"
            + (f"; {BINARY_HINT}" if num_classes == 1 else "")
        )
    return _smoothed(flat, label_smoothing)


def _target_remedy(logits: Tensor, target: Tensor, num_classes: int) -> str:
    """End of the message for a target of a wrong shape or dtype: what to change, for the usual mistakes."""
    if logits.ndim == 1 or num_classes == 1:
        return f"; {BINARY_HINT}"
    if target.shape == logits.shape:
        return f"; of one-hot labels, use target.argmax(1); {MULTILABEL_HINT}; {BINARY_HINT}"
    if target.shape == (len(logits), *logits.shape[2:]):
        return "; use target.long()"
    if target.shape == (len(logits), 1, *logits.shape[2:]):
        return "; use target.squeeze(1).long()"
    if target.shape == logits.shape[:-1]:
        return "; the classes must be dimension 1 of the logits: use logits.movedim(-1, 1)"
    return ""


def _smoothed(flat: Flat, label_smoothing: float) -> Flat:
    if not label_smoothing:
        return flat
    everywhere = label_smoothing / flat.logits.shape[1]
    return flat._replace(probabilities=flat.one_hot * (1 - label_smoothing) + everywhere)


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


def check_gamma(gamma: float | Tensor, flat: Flat) -> float | Tensor:
    """Check gamma: one value or one per target, finite and not negative.

    A tensor must have the shape of the unreduced loss, or that of the logits with one class. The first is an error if
    the tensor could be class weights passed in the place of gamma.
    """
    if isinstance(gamma, Tensor) and gamma.ndim > 0:
        beside_logits = (*flat.shape[:1], 1, *flat.shape[1:])
        could_be_weights = gamma.shape == flat.logits.shape[1:] and gamma.numel() > 1
        if gamma.shape != beside_logits and (gamma.shape != flat.shape or could_be_weights):
            raise ValueError(
                f"a gamma tensor must be a scalar or have one value per target, with shape {beside_logits}, or "
                f"{tuple(flat.shape)} if there are not as many targets as classes; got shape {tuple(gamma.shape)} for "
                f"{flat.logits.shape[1]} classes; {WEIGHT_HINT}"
            )
        gamma = gamma.reshape(flat.shape)
    return check_gamma_values(gamma)


def check_gamma_values(gamma: float | Tensor) -> float | Tensor:
    """Check that gamma is finite and not negative; return it as a float or a floating-point tensor."""
    if not isinstance(gamma, Tensor):
        check_number("gamma", gamma)
        return float(gamma)
    gamma = gamma if gamma.is_floating_point() else gamma.float()
    if can_read_values(gamma) and (i := first_true(~(gamma.isfinite() & (gamma >= 0)))) is not None:
        raise ValueError(f"gamma must be finite and at least 0, got {gamma.reshape(-1)[i].item()} at position {i}")
    return gamma


def as_weight(weight: Weight, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """Return class weights as a tensor; a tensor stays as it is.

    Raises:
        TypeError: the weights are not numbers.
    """
    if isinstance(weight, Tensor):
        return weight
    if not isinstance(weight, Sequence | np.ndarray) or isinstance(weight, str):
        raise TypeError(f"weight must be a tensor, a list or a numpy array with one number per class, got {weight!r}")
    try:
        # A copy, except in a trace, where an array is a tensor already.
        convert = torch.as_tensor if torch.compiler.is_compiling() else torch.tensor
        return convert(weight, dtype=dtype, device=device)
    except (TypeError, ValueError) as error:
        raise TypeError(f"weight must have one number per class, got {weight!r}") from error


def _check_weight(weight: Weight, num_classes: int, logits: Tensor) -> Tensor:
    """Return the checked weights in the compute dtype."""
    weight = as_weight(weight, compute_dtype(logits), logits.device)
    if not weight.is_floating_point() or weight.shape != (num_classes,):
        raise ValueError(
            f"weight must be a floating-point tensor of shape ({num_classes},), one number per class, "
            f"got {weight.dtype} of shape {tuple(weight.shape)}"
        )
    if can_read_values(weight) and (i := first_true(~(weight.isfinite() & (weight >= 0)))) is not None:
        raise ValueError(f"weight must be finite and not negative, got {weight[i].item()} for class {i}")
    if weight.device != logits.device:
        raise ValueError(
            f"weight is on {weight.device}, but logits are on {logits.device}; move it once, with weight.to(...) or "
            "criterion.to(...)"
        )
    return weight.to(compute_dtype(logits))


def _all_in_range(target: Tensor, num_classes: int, ignore_index: int) -> bool:
    """Whether all indices are valid and none is ignored: the common case, tested without a mask."""
    # As unsigned integers, negative indices are huge, so one reduction checks both bounds.
    within = np.maximum.reduce(target.numpy().view(np.uint64), initial=0) < num_classes
    return bool(within) and not 0 <= ignore_index < num_classes


def _check_probabilities(target: Tensor) -> None:
    # Allows for rows that were rounded to half precision at some point.
    tolerance = max(1e-2, 4 * torch.finfo(target.dtype).eps)
    wide = target.to(torch.promote_types(target.dtype, torch.float32))
    if wide.numel() and not bool(wide.amin() >= 0):  # also False for NaN
        i, c = (~(wide >= 0)).nonzero()[0].tolist()
        raise ValueError(f"class probabilities must not be negative, got {wide[i, c].item()} in row {i}, class {c}")
    if (i := first_true(~((wide.sum(1) - 1).abs() <= tolerance))) is not None:
        multi_hot = bool(((wide == 0) | (wide == 1)).all())
        raise ValueError(
            f"class probabilities must sum to 1 (within {tolerance:.2g}), row {i} sums to {wide[i].sum().item():.6g}; "
            f"{f'{MULTILABEL_HINT}; ' if multi_hot else ''}{BINARY_HINT}"
        )
