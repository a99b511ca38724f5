"""The forward pass of a recipe: precision, memory format, and bfloat16 copies of the weights."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dualfocal_lab.runs import Recipe
from dualfocal_lab.train.host_state import host_generators_restored


@contextmanager
def without_search() -> Iterator[None]:
    """Turn off cuDNN's search for the fastest algorithm, which takes seconds: too long for a few batches."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@contextmanager
def float32_products(device: torch.device, precision: str | None) -> Iterator[None]:
    """Set the precision of float32 products on CUDA to ``"ieee"`` or ``"tf32"`` (None: leave it)."""
    # Only this API: torch raises if a program uses both this one and the older one.
    settings: list[Any] = [torch.backends.cudnn.conv, torch.backends.cudnn.rnn, torch.backends.cuda.matmul]  # type: ignore[attr-defined]
    settings = settings if device.type == "cuda" and precision is not None else []
    before = [backend.fp32_precision for backend in settings]
    for backend in settings:
        backend.fp32_precision = precision
    try:
        yield
    finally:
        for backend, earlier in zip(settings, before, strict=True):
            backend.fp32_precision = earlier


@dataclass
class Forward:
    """Call a model with the precision and memory format of a recipe."""

    model: nn.Module
    recipe: Recipe
    device: torch.device

    def __call__(self, inputs: Tensor, weights: dict[str, Tensor] | None = None) -> Tensor:
        """Return the logits, in float32 or float64; ``weights`` replace the model's weights of the same names."""
        if self.recipe.precision == "float64":
            inputs = inputs.double()
        if self.recipe.channels_last and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.precision == "bfloat16"):
            logits = functional_call(self.model, weights, (inputs,)) if weights else self.model(inputs)
        if not isinstance(logits, Tensor):
            raise TypeError(f"the model must return a tensor of logits, got {type(logits).__name__}")
        return logits if logits.dtype == torch.float64 else logits.float()


class HalfWeights:
    """bfloat16 copies of the weights of linear and convolutional layers, made at once instead of layer by layer.

    Autocast makes the same copies, one kernel per layer.

    Args:
        model: a model with float32 weights. A model that uses weights without calling their layers may give other
            results with the copies: see :meth:`agree`.
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
        """Copy the current weights, and clear the gradients of the copies."""
        for half in self.named.values():
            half.grad = None
        if self.named:
            torch._foreach_copy_(list(self.named.values()), list(self.whole.values()))

    @torch.no_grad()
    def return_gradients(self) -> None:
        """Move the gradients of the copies to the weights."""
        targets, sources = [], []
        for name, half in self.named.items():
            if half.grad is not None:
                whole = self.whole[name]
                if whole.grad is None:
                    whole.grad = torch.empty_like(whole)
                    targets.append(whole.grad)
                    sources.append(half.grad)
                else:
                    whole.grad += half.grad
                half.grad = None
        if sources:
            torch._foreach_copy_(targets, sources)

    @classmethod
    def agree(cls, forward: Forward, loss: Callable[[Tensor], Tensor], inputs: Tensor) -> bool:
        """Return whether the model gives the same bits with copies as without, on these inputs.

        The test uses a copy of the model. It fails for a model that reads or changes its weights itself, or that
        leaves autocast.
        """
        results = []
        device = [inputs.device] if inputs.is_cuda else []
        deterministic = torch.backends.cudnn.deterministic
        torch.backends.cudnn.deterministic = True
        try:
            for by_halves in (False, True):
                model = deepcopy(forward.model).train()
                halves = cls(model)
                halves.refresh()
                with torch.random.fork_rng(device), host_generators_restored(), without_search():
                    torch.manual_seed(0)
                    logits = replace(forward, model=model)(inputs, halves.named if by_halves else None)
                    loss(logits).backward()  # type: ignore[no-untyped-call]
                halves.return_gradients()
                grads = [weight.grad for weight in model.parameters()]
                results.append([logits.detach(), *model.state_dict().values(), *grads])
        except Exception:  # any user model; it has been tried without copies before
            return False
        finally:
            torch.backends.cudnn.deterministic = deterministic
        return all(_same(without, with_copies) for without, with_copies in zip(*results, strict=True))


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b if a is None or b is None else torch.equal(a, b)
