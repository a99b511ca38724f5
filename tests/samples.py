"""Samples that tests draw: one definition of each, imported by all."""

import torch
from torch import Tensor


def draw_logits(
    num_samples: int,
    num_classes: int,
    *,
    seed: int = 0,
    scale: float = 2.0,
    overconfidence: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Random logits and labels drawn from ``softmax(logits / overconfidence)``: calibrated if that is 1."""
    generator = torch.Generator().manual_seed(seed)
    logits = (scale * torch.randn(num_samples, num_classes, generator=generator)).to(dtype)
    target = torch.multinomial((logits.float() / overconfidence).softmax(1), 1, generator=generator)[:, 0]
    return logits, target
