"""The warning that dual focal loss is not suited for two classes."""

import functools
import sys
import warnings

import torch
from torch import Tensor

INTERNAL = ("dualfocal.losses", "torch.nn.modules")  # modules between the caller and the warning


def warn_two_classes(logits: Tensor) -> None:
    """Warn if logits, (M, C), have two classes; only once, and not in a trace."""
    if logits.shape[1] == 2 and not torch.compiler.is_compiling():
        _warn_once()


@functools.cache  # a warning raised as an error is not cached, so it is raised again
def _warn_once() -> None:
    # The warning shows the line that called the loss or its Module.
    stacklevel, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(INTERNAL):
        stacklevel, frame = stacklevel + 1, frame.f_back
    warnings.warn(
        "dual focal loss with two classes: the rival is 1 - p_k for p_k > 1/2 and does not exist below, so the loss "
        "jumps at p_k = 1/2 (for gamma 5 from 0.022 to 0.684) and rewards predictions just below 1/2. "
        "Consider focal_loss for binary problems.",
        stacklevel=stacklevel,
    )
