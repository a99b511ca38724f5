"""Batch norm with the residual sum and the ReLU that follow it, by our own kernels where they apply."""

import os
import warnings
from functools import cache
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def normalize(norm: nn.Module, x: Tensor, residual: Tensor | None = None, *, relu: bool = True) -> Tensor:
    """``relu(norm(x) + residual)``, for batch norm or whatever stands in its place."""
    return normalize_for_two(norm, x, residual, relu=relu)[0]


def normalize_for_two(
    norm: nn.Module, x: Tensor, residual: Tensor | None = None, *, relu: bool = True
) -> tuple[Tensor, Tensor]:
    """The same, for two users of it.

    Training on CUDA in channels_last, kernels of our own do all of it in two passes, and its gradient in two; they add
    the gradients of both users as they read them.
    """
    kernels = kernels_on(x.device).module if x.is_cuda and not torch.compiler.is_compiling() else None
    if kernels is not None and kernels.applies(x, norm):
        both: tuple[Tensor, Tensor] = kernels.batch_norm_of(norm, x, residual, relu)
        return both
    out = norm(x) if residual is None else norm(x) + residual
    out = F.relu(out) if relu else out
    return out, out


class Kernels(NamedTuple):
    """Batch norm of our own on a device; if there is none that was not unwanted, why."""

    module: ModuleType | None
    problem: str | None = None


@cache
def kernels_on(device: torch.device) -> Kernels:
    """Where Triton is there, and can build them; ``DUALFOCAL_KERNELS=0`` in the environment does without."""
    if os.environ.get("DUALFOCAL_KERNELS") == "0":
        return Kernels(None)
    try:
        from dualfocal.kernels import batch_norm
    except ImportError:  # as on Windows
        return Kernels(None, "batch norm runs slower: there is no Triton")
    try:
        batch_norm.try_out(device)
    except torch.OutOfMemoryError:  # no verdict on them, and none to remember: the memory may be free next time
        raise
    except Exception as error:  # it needs a C compiler, and Python's headers
        problem = f"batch norm runs slower, Triton cannot build kernels: {' '.join(str(error).split())[:200]}"
        warnings.warn(problem, stacklevel=2)
        return Kernels(None, problem)
    return Kernels(batch_norm)
