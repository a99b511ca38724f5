"""Checks of arguments, and the few questions about tensors that several subpackages ask."""

import difflib
import math
from collections.abc import Iterable
from numbers import Integral, Real

import torch
from torch import Tensor

# Where F.cross_entropy has its weights, the losses have a parameter of their own.
WEIGHT_HINT = "class weights are given as weight="


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise a ValueError that names the value and the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


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


def check_count(name: str, value: int, low: int = 1) -> None:
    """Raise an error that names the value and the rule."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")


def check_level(level: float) -> None:
    """Raise a ValueError that names the value and the rule."""
    if not 0.5 <= level < 1:
        raise ValueError(f"level must be at least 0.5 and below 1, got {level!r}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message: the name that is nearest, if one is near."""
    near = difflib.get_close_matches(name.lower(), known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


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
