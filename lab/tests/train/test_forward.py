"""Copies of weights in half precision give what autocast computes, bit for bit."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dualfocal_lab.runs import Recipe
from dualfocal_lab.train.forward import Forward, HalfWeights, without_search


class Net(nn.Module):
    """Has a layer used twice, a weight shared with an embedding, a bare weight, a frozen layer and an unused one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.unused = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(2, 2)
        self.norm, self.scale = nn.BatchNorm1d(8), nn.Parameter(torch.ones(8, 1))
        self.fixed = nn.Linear(8, 8).requires_grad_(False)
        self.words, self.last = nn.Embedding(5, 8), nn.Linear(8, 5, bias=False)
        self.last.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.again(self.again(self.first(x))))
        x = self.fixed(self.norm(x)) * self.scale[:, 0]
        return self.last(x + self.words(torch.zeros(len(x), dtype=torch.long)))


def forward_of(model: nn.Module) -> Forward:
    recipe = Recipe(data="digits", model="small_cnn", precision="bfloat16").on(torch.device("cpu"))
    return Forward(model, recipe, torch.device("cpu"))


def test_copies_give_the_bits_of_autocast() -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(16, 6)
    halves, forward = HalfWeights(model), forward_of(model)
    assert set(halves.named) == {
        f"{layer}.{part}" for layer in ("again", "first", "unused") for part in ("bias", "weight")
    }
    for _ in range(2):
        grads = []
        for by_halves in (False, True):
            model.zero_grad()
            halves.refresh()
            logits = forward(x, halves.named if by_halves else None)
            assert logits.dtype == torch.float32
            logits.square().sum().backward()
            halves.return_gradients()
            grads.append((logits, {name: weight.grad for name, weight in model.named_parameters()}))
        (plain, one), (fast, other) = grads
        assert torch.equal(plain, fast)
        for name, grad in one.items():
            assert (grad is None) == (other[name] is None), name
            assert grad is None or (grad.dtype == torch.float32 and torch.equal(grad, other[name])), name
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.1)  # the copies follow


def test_gradients_of_a_step_without_copies_stay() -> None:
    """A step without the copies, between steps with them."""
    model, x = Net(), torch.randn(16, 6)
    halves, forward = HalfWeights(model), forward_of(model)
    halves.refresh()
    forward(x, halves.named).sum().backward()
    halves.return_gradients()
    model.zero_grad()
    forward(x).square().sum().backward()
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    halves.return_gradients()
    for name, grad in expected.items():
        assert torch.equal(model.get_parameter(name).grad, grad)


class Leaves(nn.Linear):
    """Leaves autocast."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return super().forward(x.float())


class Reads(nn.Module):
    """Uses the weight of a layer otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return x @ F.normalize(self.fc.weight).t()


class Changes(Reads):
    """Changes the weight of a layer."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.fc.weight.clamp_(-0.01, 0.01)
        return self.fc(x)


class Draws(Reads):
    """Draws on the host."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) * (random.random() + np.random.random())


class Inner(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.inner(x.float())


MODELS = {
    "plain": (lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 5)), True),
    "net": (Net, True),
    "custom layer": (lambda: Leaves(6, 5), True),  # not a plain layer, so it has no copy
    "hooked": (lambda: nn.utils.spectral_norm(nn.Linear(6, 5)), True),  # neither has this one
    "draws": (Draws, True),
    "leaves autocast": (lambda: Inner(nn.Linear(6, 5)), False),
    "reads": (Reads, False),
    "changes": (Changes, False),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_trial_finds_models_that_copies_would_change(name: str) -> None:
    torch.manual_seed(0)
    make, agrees = MODELS[name]
    model, x = make(), torch.randn(2, 6)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    states, python, numpy = torch.get_rng_state(), random.getstate(), repr(np.random.get_state(legacy=False))
    assert HalfWeights.agree(forward_of(model), lambda logits: logits.square().sum(), x) == agrees
    assert torch.equal(torch.get_rng_state(), states)
    assert random.getstate() == python
    assert repr(np.random.get_state(legacy=False)) == numpy
    assert not torch.backends.cudnn.deterministic
    for name, value in model.state_dict().items():
        assert torch.equal(before[name], value)
    assert all(weight.grad is None for weight in model.parameters())


def test_gradients_from_elsewhere_are_added_to() -> None:
    """Such as those of a part of the model that is run a second time."""
    model = nn.Linear(3, 2)
    halves = HalfWeights(model)
    halves.refresh()
    model.weight.grad = torch.ones(2, 3)
    halves.named["weight"].grad = torch.full((2, 3), 2.0, dtype=torch.bfloat16)
    halves.return_gradients()
    assert torch.equal(model.weight.grad, torch.full((2, 3), 3.0))


def test_copies_keep_the_memory_format_and_may_be_none_at_all() -> None:
    halves = HalfWeights(nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last))
    assert halves.named["weight"].is_contiguous(memory_format=torch.channels_last)
    halves = HalfWeights(nn.BatchNorm1d(3))
    halves.refresh()
    halves.return_gradients()
    assert halves.named == {}


def test_cudnn_does_not_search_for_algorithms_within() -> None:
    torch.backends.cudnn.benchmark = True
    try:
        with without_search():
            assert not torch.backends.cudnn.benchmark
            assert torch.backends.cudnn.enabled
        assert torch.backends.cudnn.benchmark
        with pytest.raises(KeyError), without_search():
            raise KeyError
        assert torch.backends.cudnn.benchmark
    finally:
        torch.backends.cudnn.benchmark = False
