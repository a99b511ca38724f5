"""The few questions about numbers and tensors that several subpackages ask."""

import math
from numbers import Real

import torch
from torch import Tensor

# Where F.cross_entropy has its weights, the losses have a parameter of their own.
WEIGHT_HINT = "class weights are given as weight="


def check_number(name: str, value: float, low: float = 0.0, high: float = math.inf) -> None:
    """Raise a ValueError that names the value and the rule."""
    if isinstance(value, Tensor):
        raise TypeError(f"{name} must be a number, got a tensor of shape {tuple(value.shape)}; {WEIGHT_HINT}")
    if torch.compiler.is_compiling():  # the number may be symbolic
        return
    if not isinstance(value, float | Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not (math.isfinite(value) and low <= value <= high):
        rule = f"at least {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"
        raise ValueError(f"{name} must be finite and {rule}, got {value!r}")


def compute_dtype(logits: Tensor) -> torch.dtype:
    """float32, or float64 where the logits are: no loss is computed in half precision."""
    return logits.dtype if logits.dtype == torch.float64 else torch.float32


def wide_dtype(tensor: Tensor) -> torch.dtype:
    """float64, for sums that float32 cannot carry; float32 on the one device without it."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def under_transform() -> bool:
    """Whether a ``torch.func`` transform (grad, vmap, ...) is active. There is no public question for it."""
    return torch._C._are_functorch_transforms_active()


def in_batched_backward(grad: Tensor) -> bool:
    """Whether autograd maps the backward over many incoming gradients (``is_grads_batched``, Jacobians)."""
    return under_transform() or torch._C._functorch.is_legacy_batchedtensor(grad)
