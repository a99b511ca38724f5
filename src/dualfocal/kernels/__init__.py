"""Triton kernels for CUDA; no module in here is imported unless it is used, so that triton is needed only there."""

import functools
import importlib.util

import torch

__all__ = ["DTYPES", "available"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # of logits that the kernels read


@functools.cache
def available() -> bool:
    """Whether triton is installed, and the GPU, if there is one, is an NVIDIA GPU that is recent enough."""
    if importlib.util.find_spec("triton") is None:
        return False
    return not torch.cuda.is_available() or (torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 0))
