"""The way of a batch through a model, as the recipe wants it: precision and memory format."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dualfocal.train.recipe import Recipe


@contextmanager
def without_search() -> Iterator[None]:
    """For a few batches of another size: cuDNN does not time all its algorithms for them, which takes seconds."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@dataclass
class Forward:
    """Calls a model on inputs as the data give them."""

    model: nn.Module
    recipe: Recipe
    device: torch.device

    def __post_init__(self) -> None:
        half = self.recipe.precision == "bfloat16"
        self.context = torch.autocast(self.device.type, torch.bfloat16) if half else nullcontext()

    def __call__(self, inputs: Tensor) -> Tensor:
        """Logits, float32 or float64."""
        if self.recipe.precision == "float64":
            inputs = inputs.double()
        if self.recipe.channels_last and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        with self.context:
            logits = self.model(inputs)
        if not isinstance(logits, Tensor):
            raise TypeError(f"a model must give a tensor of logits, got {type(logits).__name__}")
        return logits if logits.dtype == torch.float64 else logits.float()
