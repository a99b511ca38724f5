"""What every metric takes, checked and laid out as rows: the only copy."""

import warnings
from dataclasses import dataclass, replace
from numbers import Integral

import numpy as np
import torch
from torch import Tensor

from dualfocal._checks import check_choice

Array = Tensor | np.ndarray

INPUTS = ("logits", "probs")
BINARY = ("top_label", "positive")
ROUNDING = 1e-6  # by which a probability may miss [0, 1]


@dataclass(frozen=True)
class Rows:
    """Any input of a metric, as rows without the ignored ones."""

    values: Tensor  # (N, C) logits or probabilities, N >= 1, C >= 2
    target: Tensor  # (N,) int64 in [0, C)
    weight: Tensor | None  # (N,) float64
    input: str  # what the values are: "logits" or "probs"
    positive: bool  # whether the confidence is that of class 1, not that of the predicted class
    dtype: torch.dtype  # the caller's: float64 made from his numbers does not sharpen them

    @property
    def num_classes(self) -> int:
        """Number of columns."""
        return self.values.shape[1]

    def __len__(self) -> int:
        return self.values.shape[0]

    def at(self, index: slice | Tensor) -> "Rows":
        """Some of the rows."""
        weight = None if self.weight is None else self.weight[index]
        return replace(self, values=self.values[index], target=self.target[index], weight=weight)


def as_rows(
    values: Array,
    target: Array,
    *,
    input: str,
    ignore_index: int = -100,
    binary: str | None = None,
    sample_weight: Array | None = None,
) -> Rows:
    """Check shapes, dtypes and labels. NaN, infinities and probabilities are checked by the scan, which reads them.

    Raises:
        TypeError: not arrays.
        ValueError: shapes, dtypes or options break a rule, or no sample is left.
        IndexError: a label is out of range.
    """
    check_choice("input", input, INPUTS)
    if binary is not None:
        check_choice("binary", binary, BINARY)
    if not isinstance(ignore_index, Integral):
        raise TypeError(f"ignore_index must be an integer, got {ignore_index!r}")
    name = "logits" if input == "logits" else "probabilities"
    values, target = as_tensor(name, values), as_tensor("target", target)
    if not values.is_floating_point():
        raise ValueError(f"{name} must be floating point, got {values.dtype}")
    if target.is_floating_point() or target.is_complex():
        raise ValueError(f"target must hold integer class indices, got {target.dtype}")
    if values.device != target.device:
        raise ValueError(f"{name} are on {values.device}, target is on {target.device}: move one to the other")
    dtype = values.dtype
    if binary is not None and values.ndim == 2 and values.shape[1] == 1:  # one score, as Keras has it
        values, target = values[:, 0], target[:, 0] if target.shape == values.shape else target
    values = _two_columns(values, input) if _is_one_score(values, target, name, binary) else values
    if values.ndim < 2 or values.shape[1] < 2:
        raise ValueError(
            f"{name} must have shape (N, C) or (N, C, d1, ...) with at least two classes, got {tuple(values.shape)}"
        )
    if binary is not None and values.shape[1] != 2:
        raise ValueError(f"binary={binary!r} is for two classes, the {name} have {values.shape[1]}")
    shape = values.shape[:1] + values.shape[2:]
    if target.shape == values.shape:
        raise ValueError(
            f"target has the shape of the {name}, {tuple(target.shape)}: multilabel and one-hot targets are not "
            "supported; give one class index per sample (multilabel problems: one binary call per label)"
        )
    if target.shape != shape:
        raise ValueError(
            f"target for {name} of shape {tuple(values.shape)} must have shape {tuple(shape)}, "
            f"got {tuple(target.shape)}"
        )
    weight = None
    if sample_weight is not None:
        weight = _check_weight(as_tensor("sample_weight", sample_weight), shape).to(values.device).reshape(-1)
    num_classes = values.shape[1]
    values = values.detach()
    if values.ndim > 2:
        values = values.movedim(1, -1).reshape(-1, num_classes)
    target = target.reshape(-1).long()
    values, target, weight = _drop_ignored(values, target, weight, ignore_index)
    if input == "probs" and values.numel():
        values = _without_rounding_below_0(values)
    if target.numel() == 0:
        why = (
            f": every target is ignore_index = {ignore_index}"
            if shape.numel()
            else f", target has shape {tuple(shape)}"
        )
        raise ValueError(f"no samples{why}")
    _check_labels(target, num_classes, ignore_index)
    return Rows(values, target, weight, input, binary == "positive", dtype if input == "probs" else torch.float64)


def as_tensor(name: str, array: Array) -> Tensor:
    """A tensor that shares the array's memory; it is never written to."""
    if isinstance(array, Tensor):
        return array
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} must be a tensor or a numpy array, got {type(array).__name__}")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.from_numpy(array if all(step > 0 for step in array.strides) else array.copy())
    except TypeError:
        raise ValueError(f"{name} must hold plain numbers, got {array.dtype}") from None


def _is_one_score(values: Tensor, target: Tensor, name: str, binary: str | None) -> bool:
    if values.ndim != 1:
        return False
    if target.ndim == 0:
        raise ValueError(
            f"{name} of shape {tuple(values.shape)} are one sample: give them as (1, C), its target as (1,)"
        )
    if binary is None:
        raise ValueError(
            f"{name} of shape {tuple(values.shape)} are one score per sample, a binary problem; say by binary=..., on "
            "the command line --binary ..., which confidence is meant: 'top_label' (of the predicted class) or "
            "'positive' (of class 1)"
        )
    return True


def _two_columns(values: Tensor, input: str) -> Tensor:
    """One score per sample as two columns: sigmoid(z) = softmax(0, z)[1]."""
    values = values if values.device.type == "mps" else values.double()
    return torch.stack([torch.zeros_like(values) if input == "logits" else 1 - values, values], dim=1)


def _without_rounding_below_0(probs: Tensor) -> Tensor:
    """-1e-10 is what 1 - p or a renormalisation leaves of 0; its logarithm would be NaN. More is no probability."""
    lowest = probs.min()
    return probs.clamp_min(0.0) if bool((lowest < 0) & (lowest >= -ROUNDING)) else probs


def _check_weight(weight: Tensor, shape: torch.Size) -> Tensor:
    if weight.shape != shape:
        raise ValueError(f"sample_weight must have shape {tuple(shape)}, as the target, got {tuple(weight.shape)}")
    weight = weight.detach().to(torch.float64)
    if not bool((weight.isfinite() & (weight >= 0)).all()) or not bool(weight.sum() > 0):
        raise ValueError("sample_weight must be finite, not negative, and not all 0")
    return weight


def _drop_ignored(
    values: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    keep = target != ignore_index
    if bool(keep.all()):
        return values, target, weight
    return values[keep], target[keep], None if weight is None else weight[keep]


def _check_labels(target: Tensor, num_classes: int, ignore_index: int) -> None:
    low, high = (int(end) for end in torch.aminmax(target))
    if low < 0 or high >= num_classes:
        hint = "; do the labels start at 1? Take 1 from each" if low == 1 and high == num_classes else ""
        raise IndexError(
            f"target {low if low < 0 else high} is out of range: a class index must lie in [0, {num_classes - 1}] or "
            f"equal ignore_index = {ignore_index}{hint}"
        )
