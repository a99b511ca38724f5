"""Checks of numbers and tensors shared by several subpackages."""

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd import forward_ad

Function = TypeVar("Function", bound=Callable[..., Any])
Weight = Tensor | Sequence[float] | NDArray[Any]  # weight of each class
# The first argument of F.cross_entropy's Module is weight; here it is a parameter such as gamma.
WEIGHT_HINT = "pass class weights as weight="


def check_number(name: str, value: float, low: float = 0.0, high: float = math.inf) -> None:
    """Raise an error unless ``value`` is a finite number between ``low`` and ``high``."""
    if isinstance(value, Tensor):
        raise TypeError(f"{name} must be a number, got a tensor of shape {tuple(value.shape)}; {WEIGHT_HINT}")
    if torch.compiler.is_compiling():  # value may be symbolic
        return
    if not isinstance(value, float | Real) or isinstance(value, bool):
        hint = f"; {WEIGHT_HINT}" if isinstance(value, list | tuple | np.ndarray) else ""
        raise TypeError(f"{name} must be a number, got {value!r}{hint}")
    if not (math.isfinite(value) and low <= value <= high):
        rule = f"at least {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"
        raise ValueError(f"{name} must be finite and {rule}, got {value!r}")


def compute_dtype(logits: Tensor) -> torch.dtype:
    """Dtype of the computation: float64 for float64 logits, otherwise float32 (never half precision)."""
    return logits.dtype if logits.dtype == torch.float64 else torch.float32


def wide_dtype(tensor: Tensor) -> torch.dtype:
    """Dtype of long sums: float64, or float32 on mps, which has no float64."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def constant_when_compiled(function: Function) -> Function:
    """Let torch.compile call a function once and keep its result, as ``torch.compiler.assume_constant_result`` does.

    That decorator imports the compiler, which doubles the time of ``import dualfocal``.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def under_transform() -> bool:
    """Whether a ``torch.func`` transform (grad, vmap, ...) is active. Torch has no public function for this."""
    return torch._C._are_functorch_transforms_active()


def in_batched_backward(grad: Tensor) -> bool:
    """Whether the backward is batched over many gradients (``is_grads_batched``, Jacobians)."""
    return under_transform() or torch._C._functorch.is_legacy_batchedtensor(grad)


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


def class_indices(target: Tensor) -> Tensor:
    """Integers of any dtype as int64; raises an IndexError for those of uint64 that would become negative."""
    labels = target.long()
    if target.dtype == torch.uint64 and not torch.compiler.is_compiling() and bool((labels < 0).any()):
        raise IndexError(f"target {int(labels.min()) + 2**64} is out of range: class indices must be below 2**63")
    return labels


def check_head(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None = None) -> None:
    """Raise an error unless these are inputs, weight, targets and bias of a linear head."""
    head = {"hidden": hidden, "weight": weight, "target": target} | ({} if bias is None else {"bias": bias})
    for name, tensor in head.items():
        if not isinstance(tensor, Tensor):
            hint = ": pass head.weight and head.bias" if isinstance(tensor, nn.Module) else ""
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}{hint}")
    if hidden.ndim < 2 or weight.ndim != 2 or hidden.shape[-1] != weight.shape[1] or target.shape != hidden.shape[:-1]:
        raise ValueError(
            "hidden must have shape (N, H) or (N, T, H), weight (C, H) and target that of hidden without H, got "
            f"{tuple(hidden.shape)}, {tuple(weight.shape)} and {tuple(target.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must have shape ({len(weight)},), one value per class, got {tuple(bias.shape)}")
    dtypes = [tensor.dtype for name, tensor in head.items() if name != "target"]
    if len(set(dtypes)) > 1 and not torch.is_autocast_enabled(hidden.device.type):
        raise ValueError(
            f"hidden, weight and bias must have one dtype, got {', '.join(map(str, dtypes))}: convert with "
            f"hidden.to(weight.dtype), or use torch.autocast"
        )
