"""The way of a batch through a model, as the recipe wants it: precision, memory format, copies of weights."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dualfocal.runs import Recipe
from dualfocal.train.host import host_generators_kept


@contextmanager
def without_search() -> Iterator[None]:
    """For a few batches of another size: cuDNN does not time all its algorithms for them, which takes seconds."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def float32_products(device: torch.device, how: str | None) -> Iterator[None]:
    """Products of float32 numbers on CUDA in full, ``"ieee"``, or rounded to ``"tf32"``; None: as the caller has it."""
    # By this API alone: torch raises where a program has used it and the older one is asked.
    settings: list[Any] = [torch.backends.cudnn.conv, torch.backends.cudnn.rnn, torch.backends.cuda.matmul]  # type: ignore[attr-defined]
    settings = settings if device.type == "cuda" and how is not None else []
    before = [of.fp32_precision for of in settings]
    for of in settings:
        of.fp32_precision = how
    try:
        yield
    finally:
        for of, was in zip(settings, before, strict=True):
            of.fp32_precision = was


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
        model: with weights in float32. Those of plain convolutions and linear layers are copied. A model may use them
            otherwise than by calling its layers: see :meth:`agree`.
    """

    KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d)

    def __init__(self, model: nn.Module) -> None:
        plain = [
            module
            for module in model.modules()
            if type(module) in self.KINDS and not (module._forward_pre_hooks or module._forward_hooks)
        ]
        elsewhere = {weight for module in model.modules() if module not in plain for weight in module.parameters(False)}
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
                whole = self.whole[name]
                if whole.grad is None:
                    whole.grad = torch.empty_like(whole)
                    found.append(whole.grad)
                    owed.append(half.grad)
                else:
                    whole.grad += half.grad
                half.grad = None
        if owed:
            torch._foreach_copy_(found, owed)

    @classmethod
    def agree(cls, forward: Forward, loss: Callable[[Tensor], Tensor], inputs: Tensor) -> bool:
        """Whether a model gives the same bits with copies as without, tried on a few inputs and a copy of the model.

        Not so where it reads its weights itself, or changes them, or leaves autocast on its way.
        """
        found = []
        device = [inputs.device] if inputs.is_cuda else []
        deterministic = torch.backends.cudnn.deterministic
        torch.backends.cudnn.deterministic = True
        try:
            for by_halves in (False, True):
                model = deepcopy(forward.model).train()
                halves = cls(model)
                halves.refresh()
                with torch.random.fork_rng(device), host_generators_kept(), without_search():
                    torch.manual_seed(0)
                    logits = replace(forward, model=model)(inputs, halves.named if by_halves else None)
                    loss(logits).backward()  # type: ignore[no-untyped-call]
                halves.return_gradients()
                grads = [weight.grad for weight in model.parameters()]
                found.append([logits.detach(), *model.state_dict().values(), *grads])
        except Exception:  # a model may be anybody's code; without copies it has been tried before
            return False
        finally:
            torch.backends.cudnn.deterministic = deterministic
        return all(_same(one, other) for one, other in zip(*found, strict=True))


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)
