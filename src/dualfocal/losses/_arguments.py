"""Checks of the arguments that all losses share. Values are only read on eager CPU tensors, see ``can_read_values``."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dualfocal._tensors import WEIGHT_HINT, Weight, can_read_values, check_number, compute_dtype, first_true

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


def check_shapes(logits: Tensor, target: Tensor) -> None:
    """Raise an error unless logits and target have the dtypes and shapes that ``F.cross_entropy`` takes."""
    if not (isinstance(logits, Tensor) and isinstance(target, Tensor)):
        raise TypeError(
            f"logits and target must be tensors, got {type(logits).__name__} and {type(target).__name__}: convert "
            "arrays and lists of numbers with torch.as_tensor; number the classes of labels that are texts, 0, 1, ..."
        )
    if logits.device != target.device:
        raise ValueError(
            f"logits are on {logits.device}, but target is on {target.device}; use target.to(logits.device)"
        )
    class_dim = min(logits.ndim - 1, 1)
    if not logits.is_floating_point() or logits.ndim == 0 or logits.shape[class_dim] == 0:
        raise ValueError(
            "logits must be floating point of shape (C,), (N, C) or (N, C, d1, ...) with at least one class, "
            f"got {logits.dtype} of shape {tuple(logits.shape)}"
        )
    num_classes = logits.shape[class_dim]
    soft = target.is_floating_point()
    shape = logits.shape[:class_dim] + logits.shape[class_dim + 1 :]
    wrong_dtype = target.dtype == torch.bool or target.is_complex()
    if wrong_dtype or target.shape != (logits.shape if soft else shape):
        raise ValueError(
            f"target must hold integer class indices of shape {tuple(shape)}, or floating-point class probabilities "
            f"of shape {tuple(logits.shape)}; got {target.dtype} of shape {tuple(target.shape)}"
            + _target_remedy(logits, target, num_classes)
        )
    if soft and num_classes == 1:
        raise ValueError(f"logits of shape {tuple(logits.shape)} have a single class, whose loss is 0; {BINARY_HINT}")


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


def check_labels(labels: Tensor, num_classes: int, ignore_index: int) -> None:
    """Raise an IndexError unless all labels, (M,), are class indices or ignored."""
    outside = (labels != ignore_index) & ((labels < 0) | (labels >= num_classes))
    if (i := first_true(outside)) is not None:
        raise IndexError(
            f"target {int(labels[i])} (flat position {i}) is out of range: a class index must lie in "
            f"[0, {num_classes - 1}] or equal ignore_index = {ignore_index}"
            + (f"; {BINARY_HINT}" if num_classes == 1 else "")
        )


def check_probabilities(target: Tensor) -> None:
    """Raise a ValueError unless the rows of ``target``, (M, C), are probabilities."""
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


def as_weight(weight: Weight, dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
    """Return class weights as a tensor; a floating-point tensor stays as it is.

    Raises:
        TypeError: the weights are not numbers.
    """
    if isinstance(weight, Tensor):
        return weight if weight.is_floating_point() or weight.is_complex() else weight.to(dtype)
    if not isinstance(weight, Sequence | np.ndarray) or isinstance(weight, str):
        raise TypeError(f"weight must be a tensor, a list or a numpy array with one number per class, got {weight!r}")
    try:
        # A copy, except in a trace, where an array is a tensor already.
        convert = torch.as_tensor if torch.compiler.is_compiling() else torch.tensor
        return convert(weight, dtype=dtype, device=device)
    except (TypeError, ValueError) as error:
        raise TypeError(f"weight must have one number per class, got {weight!r}") from error


def check_weight(weight: Weight, num_classes: int, logits: Tensor) -> Tensor:
    """Return the checked class weights as a tensor in the compute dtype."""
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


def check_gamma(gamma: float | Tensor) -> float | Tensor:
    """Check that gamma is finite and not negative; return it as a float or a floating-point tensor."""
    if isinstance(gamma, list | tuple | np.ndarray):
        raise TypeError(
            f"gamma must be a number or a tensor, got {gamma!r}: for one gamma per target, use torch.as_tensor(gamma); "
            f"{WEIGHT_HINT}"
        )
    if not isinstance(gamma, Tensor):
        check_number("gamma", gamma)
        return float(gamma)
    gamma = gamma if gamma.is_floating_point() else gamma.float()
    if can_read_values(gamma) and (i := first_true(~(gamma.isfinite() & (gamma >= 0)))) is not None:
        raise ValueError(f"gamma must be finite and at least 0, got {gamma.reshape(-1)[i].item()} at position {i}")
    return gamma


def check_module_gamma(gamma: float | Tensor) -> None:
    """Raise an error unless gamma is a valid option of a module: a number or a scalar tensor."""
    if isinstance(gamma, Tensor) and gamma.ndim > 0:
        raise ValueError(
            f"gamma of a module must be a number or a scalar tensor, got shape {tuple(gamma.shape)}; "
            f"{WEIGHT_HINT}; one gamma per target can be passed to the function"
        )
    check_gamma(gamma)
