"""Initial weights, logits and gradients of the networks."""

import math

import pytest
import torch
from case_loops import for_each
from torch import Tensor, nn
from torch.nn import functional as F

from dualfocal_lab.models import MODELS

HE = ["wide_resnet26_10", "tiny_resnet50", "resnet110_kde", "resnet110_sd", "wide_resnet34_10", "densenet40"]
TORCH = ["resnet50", "resnet110", "densenet121", "text_cnn", "small_cnn"]


def some_input(name: str, batch: int = 4) -> Tensor:
    if name == "text_cnn":
        return torch.randn(batch, 100, 60)
    return torch.randn(batch, 3, 16, 16)


def check_norms(net: nn.Module) -> None:
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()


def check_default_init(weight: Tensor, fan_in: int) -> None:
    """Uniform in +- 1 / sqrt(fan_in): kaiming_uniform with a = sqrt(5)."""
    bound = 1 / math.sqrt(fan_in)
    assert weight.abs().max() <= bound
    if weight.numel() > 4000:
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)


@for_each(name=HE)
def test_he_normal_weights(name: str) -> None:
    net = MODELS[name]()
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            std = math.sqrt(2 / (module.kernel_size[0] ** 2 * module.out_channels))
            scaled = module.weight / std
            rough = 5 / math.sqrt(scaled.numel())  # five standard errors of the mean, seven of the std
            assert abs(scaled.mean()) < rough
            assert scaled.std().item() == pytest.approx(1, abs=rough)
            if scaled.numel() > 4000:
                assert (scaled.abs() > 1).float().mean().item() == pytest.approx(0.317, abs=0.04)  # uniform: .423
        elif isinstance(module, nn.Linear):
            check_default_init(module.weight, module.in_features)
    check_norms(net)


@for_each(name=TORCH)
def test_torchs_own_weights(name: str) -> None:
    net = MODELS[name]()
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Conv1d | nn.Linear):
            check_default_init(module.weight, module.weight[0].numel())
    check_norms(net)


@pytest.mark.parametrize(  # without shallower nets of the same blocks
    "name", [name for name in MODELS if name not in ("resnet50", "tiny_resnet50", "wide_resnet26_10", "resnet110_kde")]
)
def test_first_step(name: str) -> None:
    """Logits of a size to learn from, that differ between inputs; a gradient for every parameter."""
    net = MODELS[name]()
    for _ in range(14 if name == "resnet110_sd" else 1):  # a branch that is left out has no gradient
        logits = net(some_input(name))
        assert 0.01 < logits.std().item() < 3
        assert 0.001 < logits.std(dim=0).mean().item() < 3
        F.cross_entropy(logits, torch.arange(len(logits))).backward()
    for key, parameter in net.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().max() > 0, key


@for_each(name=["densenet40", "resnet110_sd", "small_cnn", "text_cnn"])
def test_the_seed_decides_the_weights(name: str) -> None:
    def weights(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(MODELS[name]().parameters())

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_small_cnn_is_the_net_of_the_digits_example() -> None:
    torch.manual_seed(3)
    net = MODELS["small_cnn"](num_classes=10, in_channels=1)
    after = torch.rand(())
    torch.manual_seed(3)
    example = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    assert torch.rand(()) == after  # as many draws
    for ours, theirs in zip(net.parameters(), example.parameters(), strict=True):
        assert torch.equal(ours, theirs)

    images, target = torch.rand(50, 1, 8, 8), torch.arange(50) % 10
    ours, theirs = net(images), example(images)
    assert torch.equal(ours, theirs)
    F.cross_entropy(ours, target).backward()
    F.cross_entropy(theirs, target).backward()
    for one, other in zip(net.parameters(), example.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
