"""The way of a batch through a model, as the recipe wants it: precision, memory format, copies of weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

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

    def __call__(self, inputs: Tensor, weights: dict[str, Tensor] | None = None) -> Tensor:
        """Logits, float32 or float64; with ``weights`` in the place of some of the model's, by name."""
        if self.recipe.precision == "float64":
            inputs = inputs.double()
        if self.recipe.channels_last and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.precision == "bfloat16"):
            logits = functional_call(self.model, weights, (inputs,)) if weights else self.model(inputs)
        if not isinstance(logits, Tensor):
            raise TypeError(f"a model must give a tensor of logits, got {type(logits).__name__}")
        return logits if logits.dtype == torch.float64 else logits.float()


class HalfWeights:
    """bfloat16 copies of the weights that autocast would copy layer by layer: all at once, and their gradients back.

    Args:
        model: with weights in float32. Those of convolutions and linear layers are copied, if they are used nowhere
            else.
    """

    KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d)

    def __init__(self, model: nn.Module) -> None:
        elsewhere = {
            weight
            for module in model.modules()
            if type(module) not in self.KINDS
            for weight in module.parameters(False)
        }
        self.whole = {
            name: weight
            for name, weight in model.named_parameters()
            if weight.requires_grad and weight.dtype == torch.float32 and weight not in elsewhere
        }
        self.named = {
            name: torch.empty_like(weight, dtype=torch.bfloat16).requires_grad_() for name, weight in self.whole.items()
        }

    @torch.no_grad()
    def refresh(self) -> None:
        """Take the present values; forget gradients."""
        for half in self.named.values():
            half.grad = None
        if self.named:
            torch._foreach_copy_(list(self.named.values()), list(self.whole.values()))

    @torch.no_grad()
    def return_gradients(self) -> None:
        """Give the weights the gradients of their copies, if there are any since :meth:`refresh`."""
        found, owed = [], []
        for name, half in self.named.items():
            if half.grad is not None:
                self.whole[name].grad = grad = torch.empty_like(self.whole[name])
                found.append(grad)
                owed.append(half.grad)
                half.grad = None
        if owed:
            torch._foreach_copy_(found, owed)
