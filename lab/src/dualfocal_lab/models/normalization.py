"""Batch norm with residual sum and ReLU, using the fused Triton kernels where they apply."""

import os
import warnings
from functools import cache
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def normalize(norm: nn.Module, x: Tensor, residual: Tensor | None = None, *, relu: bool = True) -> Tensor:
    """Compute ``relu(norm(x) + residual)`` for any normalisation layer."""
    return normalize_for_two(norm, x, residual, relu=relu)[0]


def normalize_for_two(
    norm: nn.Module, x: Tensor, residual: Tensor | None = None, *, relu: bool = True
) -> tuple[Tensor, Tensor]:
    """Compute ``relu(norm(x) + residual)`` twice, for two consumers.

    In training on CUDA with channels_last, fused kernels need two passes over the data for the output and two for the
    gradient, and add the gradients of both consumers on the fly.
    """
    kernels = kernels_on(x.device).module if x.is_cuda and not torch.compiler.is_compiling() else None
    if kernels is not None and kernels.applies(x, norm):
        both: tuple[Tensor, Tensor] = kernels.batch_norm_of(norm, x, residual, relu)
        return both
    out = norm(x) if residual is None else norm(x) + residual
    out = F.relu(out) if relu else out
    return out, out


class Kernels(NamedTuple):
    """Fused batch norm of a device: the module with the kernels, or None and the problem that prevents their use."""

    module: ModuleType | None
    problem: str | None = None


@cache
def kernels_on(device: torch.device) -> Kernels:
    """Fused kernels for a device, if Triton can build them and ``DUALFOCAL_KERNELS`` is not 0."""
    if os.environ.get("DUALFOCAL_KERNELS") == "0":
        return Kernels(None)
    try:
        from dualfocal_lab.kernels import batch_norm
    except ImportError:  # for example on Windows
        return Kernels(None, "batch norm runs slower: Triton is not installed")
    try:
        batch_norm.try_out(device)
    except torch.OutOfMemoryError:  # not cached: the memory may be free next time
        raise
    except Exception as error:  # Triton needs a C compiler and Python's headers
        problem = f"batch norm runs slower: Triton cannot build its kernels: {' '.join(str(error).split())[:200]}"
        warnings.warn(problem, stacklevel=2)
        return Kernels(None, problem)
    return Kernels(batch_norm)
