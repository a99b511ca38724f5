"""Checks of predictions, targets, clusters and weights, as arrays of any library."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal._tensors import first_true, wide_dtype
from dualfocal.metrics.arrays import Array, as_numpy, as_tensor, class_targets
from dualfocal.metrics.rounding import are_rounded_probabilities

INPUTS = ("logits", "probs")
BINARY = (None, "top_label", "positive")
FEW_CLASSES = 64  # with fewer classes, tiles are transposed: rows are too short to vectorise along
ROUNDING = 1e-6  # a probability may lie outside [0, 1] by this much
FIRST_ROWS = 256  # looked at first
EQUAL = 1e-12  # relative tolerance of equal weights

INDEPENDENT = "none"  # clusters of samples that are independent
VOID = 255  # label of pixels without a class in many data sets


class RowError(ValueError):
    """A row of the predictions is invalid.

    Args:
        rule: what must hold for all rows.
        row: the row, without ignored samples.
        problem: what the row holds instead.
    """

    def __init__(self, rule: str, row: int, problem: str) -> None:
        super().__init__(f"{rule}: row {row} {problem}")
        self.rule, self.row, self.problem = rule, row, problem


def check_independent(clusters: str) -> None:
    """Raise a ValueError unless a text in place of clusters says that samples are independent."""
    if clusters != INDEPENDENT:
        raise ValueError(f'clusters must be an array with one entry per sample, or "none", got {clusters!r}')


def checked_arrays(
    values: Array, target: Array, input: str, binary: str | None, class_names: Sequence[str] | None
) -> tuple[Tensor, Tensor, torch.dtype, bool]:
    """Check shapes and dtypes.

    Returns values (N, C, d1, ...), target (N, d1, ...), the dtype that edges have, and whether there is one score per
    sample.
    """
    name = "logits" if input == "logits" else "probabilities"
    target = as_tensor("target", class_targets(values, target, class_names))
    values = as_tensor(name, values).detach()
    if not values.is_floating_point():
        swapped = target.is_floating_point() and target.ndim > values.ndim
        hint = f"; the predictions come first, then the labels: ({name}, target)" if swapped else ""
        raise ValueError(f"{name} must be floating point, got {values.dtype}{hint}")
    if target.is_floating_point() or target.is_complex():
        raise ValueError(f"target must hold integer class indices, got {target.dtype}{_float_hint(target)}")
    if values.device != target.device:
        raise ValueError(f"{name} are on {values.device}, target is on {target.device}: move one to the other")
    dtype = values.dtype if input == "probs" else torch.float64
    if binary is not None and values.ndim == 2 and values.shape[1] == 1:  # one score per sample, in the layout of Keras
        values, target = values[:, 0], target[:, 0] if target.shape == values.shape else target
    one_score = values.ndim == 1
    if one_score:
        values = _two_columns(values, input, name, binary)
    if values.ndim < 2 or values.shape[1] < 2:
        raise ValueError(
            f"{name} must have shape (N, C) or (N, C, d1, ...) with at least two classes, got {tuple(values.shape)}"
        )
    if binary is not None and values.shape[1] != 2:
        raise ValueError(f"binary={str(binary)!r} needs two classes, but {name} have {values.shape[1]}")
    shape = values.shape[:1] + values.shape[2:]
    if target.shape != shape:
        hint = (
            "use target.squeeze(1)"
            if target.shape == (*shape[:1], 1, *shape[1:])
            else "one class index per sample (one-hot labels: target.argmax(1); several labels per sample: "
            "task='multilabel')"
        )
        raise ValueError(
            f"target for {name} of shape {tuple(values.shape)} must have shape {tuple(shape)}, got "
            f"{tuple(target.shape)}: {hint}"
        )
    return values, target, dtype, one_score


def no_labels(values: Tensor) -> Tensor:
    """Return a target of zeros for predictions, in the shape that labels would have."""
    single = values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1)
    shape = values.shape[:1] if single else values.shape[:1] + values.shape[2:]
    return torch.zeros(shape, dtype=torch.int64, device=values.device)


def _float_hint(target: Tensor) -> str:
    """Return the remedy for floating-point labels, for an error."""
    if target.ndim > 1:
        return "; of one-hot labels, use target.argmax(1)"
    if (missing := first_true(target.isnan())) is not None:
        return f", and entry {missing} is missing: leave out such samples, or set their labels to ignore_index"
    if target.is_floating_point() and bool((target == target.floor()).all()):
        return "; use target.long(), of a numpy array target.astype(int)"
    return "; a regression target has no classes and cannot be evaluated"


def are_probabilities(values: Tensor) -> bool:
    """Whether all rows of (N, C) values lie in [0, 1] and sum to 1, up to the rounding to a dtype or to decimals."""
    tolerance = 1e-2 if values.dtype in (torch.float16, torch.bfloat16) else 1e-3
    for part in (values[:FIRST_ROWS], values[FIRST_ROWS:]):  # of logits, the first part is enough
        low, high = (part.amin(1), part.amax(1)) if len(part) else (part[:, 0], part[:, 0])
        total = part.sum(1, dtype=wide_dtype(part))
        in_range = (low >= 0) & (high <= 1 + ROUNDING)
        if not bool((in_range & ((total - 1).abs() <= tolerance)).all()):
            return bool(in_range.all()) and are_rounded_probabilities(values)
    return len(values) > 0


def cluster_codes(clusters: Array, shape: Sequence[int]) -> tuple[NDArray[Any], Tensor]:
    """Return what :func:`cluster_names` returns, or raise a ValueError if there is only one cluster.

    >>> cluster_codes(["b", "a"], (2, 3))[1]
    tensor([1, 1, 1, 0, 0, 0])
    """
    names, codes = cluster_names(clusters, shape)
    if len(names) < 2:
        raise ValueError(
            f"clusters must hold at least two different values, got only {names.tolist()}: one cluster does not show "
            "how much clusters differ"
        )
    return names, codes


def cluster_names(clusters: Array, shape: Sequence[int]) -> tuple[NDArray[Any], Tensor]:
    """Return the names of the clusters, sorted, and the index of the name of each sample, ``(N,)``.

    Of dense predictions, clusters of images are repeated for their pixels.
    """
    names = clusters.cpu().numpy() if isinstance(clusters, Tensor) else as_numpy("clusters", clusters)
    if names.shape not in (tuple(shape), tuple(shape[:1])):
        raise ValueError(f"clusters must have one entry per sample, shape {tuple(shape[:1])}, got shape {names.shape}")
    if names.dtype.kind in "fOT":
        missing = [name is None or name != name for name in names.ravel().tolist()]
        if any(missing):
            raise ValueError(
                f"clusters must name the cluster of every sample, but entry {missing.index(True)} is missing: leave "
                "out such samples, or give each of them a cluster of its own"
            )
    if names.dtype.kind == "f" and bool((names == np.floor(names)).all()):
        names = names.astype(np.int64)
    if names.dtype.kind not in "iubUOT":
        raise ValueError(f"clusters must be whole numbers or texts, got {names.dtype}, such as {names.flat[0]}")
    unique, codes = np.unique(names.astype(np.str_) if names.dtype.kind in "OT" else names, return_inverse=True)
    codes = codes.reshape(*names.shape, *[1] * (len(shape) - names.ndim))
    return unique, torch.from_numpy(np.broadcast_to(codes, tuple(shape)).reshape(-1).copy())


def checked_weights(sample_weight: Array, shape: Sequence[int]) -> Tensor:
    """Check the weights of samples of this shape, and return them relative to the largest, (N,), float64.

    Of dense predictions, weights of images are repeated.
    """
    weight = as_tensor("sample_weight", sample_weight).detach()
    if weight.shape not in (tuple(shape), tuple(shape[:1])):
        raise ValueError(
            f"sample_weight must have one entry per sample, shape {tuple(shape)}, got shape {tuple(weight.shape)}"
        )
    if weight.is_complex():
        raise ValueError(f"sample_weight must hold real numbers, got {weight.dtype}")
    weight = weight.to("cpu", torch.float64)
    good = (weight >= 0) & weight.isfinite()
    if not bool(good.all()):
        first = int((~good).reshape(-1).nonzero()[0])
        value = float(weight.reshape(-1)[first])
        raise ValueError(f"sample_weight must be finite and not negative, but entry {first} is {value:g}")
    if not bool((weight > 0).any()):
        raise ValueError("sample_weight must not be 0 for all samples: no sample is left")
    weight = weight / weight.max()
    return weight.view(*weight.shape, *[1] * (len(shape) - weight.ndim)).expand(tuple(shape)).reshape(-1)


def with_mean_one(weight: Tensor | None) -> Tensor | None:
    """Return the weights with mean 1: only their ratios matter. Equal weights are no weights."""
    if weight is None or not len(weight) or float(weight.max() - weight.min()) <= EQUAL * float(weight.max()):
        return None
    return weight / weight.mean()


def _two_columns(values: Tensor, input: str, name: str, binary: str | None) -> Tensor:
    """Turn one score per sample into two columns: sigmoid(z) = softmax(0, z)[1]."""
    if binary is None:
        raise ValueError(
            f"{name} of shape {tuple(values.shape)} are one score per sample, a binary problem: choose the confidence "
            "to score with binary='top_label' (of the predicted class) or binary='positive' (of class 1). A single "
            "sample has shape (1, C), its target (1,)"
        )
    values = values if values.device.type == "mps" else values.double()
    return torch.stack([torch.zeros_like(values) if input == "logits" else 1 - values, values], dim=1)


def check_scores(scores: Tensor) -> None:
    """Raise an error unless each score, (N,), is a probability of class 1."""
    good = (scores >= -ROUNDING) & (scores <= 1 + ROUNDING)
    if not bool(good.all()):
        row = int((~good).nonzero()[0])
        rule = "probabilities of class 1 must lie in [0, 1] and not be NaN"
        raise RowError(rule, row, f"holds {float(scores[row]):.6g}; are these logits?")


def check_target(target: Tensor, num_classes: int, ignore_index: int) -> None:
    """Raise an error unless there are class indices (N,), and all are in range."""
    if not len(target):
        raise ValueError(f"no samples: the input is empty, or every target is ignore_index = {ignore_index}")
    low, high = (int(end) for end in torch.aminmax(target))
    if low < 0 or high >= num_classes:
        hint = ""
        if low >= 1 and high == num_classes:
            hint = "; if the labels start at 1, subtract 1"
        if high == VOID:
            hint = f"; if {VOID} marks samples without a class, leave them out with ignore_index={VOID}"
        raise IndexError(
            f"target {low if low < 0 else high} is out of range: a class index must lie in [0, {num_classes - 1}] "
            f"or equal ignore_index = {ignore_index}{hint}"
        )


def check_logits(peak: Tensor, start: int = 0) -> None:
    """Raise a ValueError for the first row of invalid logits, given the maximum of each row.

    NaN in a row makes its maximum NaN. -inf is allowed: it rules out a class.
    """
    good = peak.isfinite()
    if not bool(good.all()):
        row = int((~good).nonzero()[0])
        problem = "NaN" if bool(peak[row].isnan()) else "no finite value" if peak[row] < 0 else "+inf"
        rule = "logits must not be NaN or +inf, and each row needs a finite value"
        raise RowError(rule, start + row, f"holds {problem}")
