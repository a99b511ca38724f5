"""Outputs of the networks: blocks, training and evaluation mode, stochastic depth, texts."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dualfocal_lab.models import MODELS
from dualfocal_lab.models.densenet import DenseLayer, DenseNet
from dualfocal_lab.models.preact_resnet import PreActBlock, PreActResNet
from dualfocal_lab.models.resnet import BasicBlock, Bottleneck
from dualfocal_lab.models.small import MIN_LENGTH


def some_input(name: str, batch: int) -> Tensor:
    return torch.randn(batch, 100, 40) if name == "text_cnn" else torch.randn(batch, 3, 8, 8)


# ---- training and evaluation -------------------------------------------------------------------------------
@pytest.mark.parametrize(  # one of each architecture
    "name", ["resnet50", "wide_resnet26_10", "densenet40", "resnet110_sd", "text_cnn", "small_cnn"]
)
def test_training_moves_batch_norm_and_evaluation_judges_each_input_alone(name: str) -> None:
    dtype, tolerance = (torch.float32, 1e-4) if "wide" in name else (torch.float64, 1e-10)  # float64 is slow there
    net, x = MODELS[name]().to(dtype), some_input(name, 4).to(dtype)
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    with torch.no_grad():
        net(x)
        assert all(norm.num_batches_tracked == 1 for norm in norms)
        assert all((norm.running_mean != 0).any() and (norm.running_var != 1).any() for norm in norms)

        net.eval()
        before = {key: value.clone() for key, value in net.state_dict().items()}
        logits = net(x)
        assert logits.dtype == dtype
        assert torch.equal(net(x), logits)
        torch.testing.assert_close(net(x[1:2]), logits[1:2], rtol=tolerance, atol=tolerance)
        assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


# ---- blocks ------------------------------------------------------------------------------------------------
def test_post_activation_blocks_without_a_branch() -> None:
    """With the branch's last norm at 0 a block is the ReLU of its shortcut."""
    x = torch.randn(3, 16, 6, 6)
    for same in (Bottleneck(16, 16, 1), BasicBlock(16, 16, 1)):
        nn.init.zeros_((same.bn3 if isinstance(same, Bottleneck) else same.bn2).weight)
        torch.testing.assert_close(same((x, x))[0], x.relu())
    for other in (Bottleneck(16, 32, 2), BasicBlock(16, 32, 2)):
        nn.init.zeros_((other.bn3 if isinstance(other, Bottleneck) else other.bn2).weight)
        projected = F.conv2d(x, other.shortcut[0].weight, stride=2)
        norm = F.batch_norm(projected, None, None, training=True)
        torch.testing.assert_close(other((x, x))[0], norm.relu())


def test_pre_activation_block_passes_its_input_on() -> None:
    x = torch.randn(3, 16, 6, 6)
    same, other = PreActBlock(16, 16), PreActBlock(16, 32, 2)
    for block in (same, other):
        nn.init.zeros_(block.conv2.weight)
    assert torch.equal(same(x), x)  # not activated
    assert other.projection is not None
    active = F.batch_norm(x, None, None, training=True).relu()
    torch.testing.assert_close(other(x), F.conv2d(active, other.projection.weight, stride=2))


def test_pre_activation_branch() -> None:
    x = torch.randn(3, 16, 6, 6)
    block = PreActBlock(16, 16)
    inner = F.conv2d(F.batch_norm(x, None, None, training=True).relu(), block.conv1.weight, padding=1)
    inner = F.conv2d(F.batch_norm(inner, None, None, training=True).relu(), block.conv2.weight, padding=1)
    torch.testing.assert_close(block(x), x + inner)


def test_dense_layer_keeps_its_input_and_adds_to_it() -> None:
    x = torch.randn(3, 16, 6, 6)
    for bottleneck in (False, True):
        layer = DenseLayer(16, 8, bottleneck)
        inner = x
        if layer.narrow is not None:
            inner = F.conv2d(F.batch_norm(x, None, None, training=True).relu(), layer.narrow[2].weight)
            assert inner.shape[1] == 32
        added = F.conv2d(F.batch_norm(inner, None, None, training=True).relu(), layer.conv.weight, padding=1)
        out = layer(x)
        assert torch.equal(out[:, :16], x)
        torch.testing.assert_close(out[:, 16:], added)


def test_transition_halves_the_channels_and_averages() -> None:
    net = DenseNet(8, 4, (2, 2), bottleneck=False, compression=0.5, num_classes=2, in_channels=3)
    transition, x = net.blocks[1], torch.randn(3, 16, 6, 6)
    (conv,) = (module for module in transition.modules() if isinstance(module, nn.Conv2d))
    narrowed = F.conv2d(F.batch_norm(x, None, None, training=True).relu(), conv.weight)
    assert narrowed.shape[1] == 8
    torch.testing.assert_close(transition(x), narrowed.unfold(2, 2, 2).unfold(3, 2, 2).mean(dim=(-1, -2)))


# ---- stochastic depth --------------------------------------------------------------------------------------
def test_survival_falls_linearly_to_a_half() -> None:
    with torch.device("meta"):
        blocks = [m for m in MODELS["resnet110_sd"]().modules() if isinstance(m, PreActBlock)]
        plain = [m for m in MODELS["resnet110_kde"]().modules() if isinstance(m, PreActBlock)]
    assert [block.survival for block in blocks] == [1 - place / 108 for place in range(1, 55)]
    assert {block.survival for block in plain} == {1.0}


def test_a_branch_is_kept_or_left_out_for_the_whole_batch() -> None:
    torch.manual_seed(1)
    block = PreActBlock(4, 4, survival=0.7)
    full = PreActBlock(4, 4)
    full.load_state_dict(block.state_dict())
    x = torch.randn(5, 4, 3, 3)
    kept, draws = 0, 800
    with torch.no_grad():
        whole = full(x)
        for _ in range(draws):
            out = block(x)
            assert torch.equal(out, whole) or torch.equal(out, x)
            kept += torch.equal(out, whole)
    assert kept / draws == pytest.approx(0.7, abs=4 * math.sqrt(0.7 * 0.3 / draws))
    assert block.bn2.num_batches_tracked == draws  # the norms see every batch


def test_evaluation_scales_the_branch_by_its_survival() -> None:
    """The expectation of what training does."""
    block = PreActBlock(4, 4, survival=0.7).double()
    full = PreActBlock(4, 4).double()
    full.load_state_dict(block.state_dict())
    x = torch.randn(5, 4, 3, 3, dtype=torch.float64)
    out, whole = block.eval()(x), full.eval()(x)
    torch.testing.assert_close(out, x + 0.7 * (whole - x), rtol=1e-12, atol=1e-12)


def test_blocks_draw_independently_and_the_seed_decides() -> None:
    net = PreActResNet((4, 4, 4), 2, num_classes=2, in_channels=1, last_survival=0.5)
    x = torch.randn(4, 1, 8, 8)

    def dropped(seed: int) -> list[bool]:
        torch.manual_seed(seed)
        net.zero_grad()
        net(x).sum().backward()
        return [not block.conv2.weight.grad.any() for block in net.blocks]

    patterns = [dropped(seed) for seed in range(40)]
    assert patterns == [dropped(seed) for seed in range(40)]
    assert len({tuple(pattern) for pattern in patterns}) > 10
    assert sum(pattern[-1] for pattern in patterns) > sum(pattern[0] for pattern in patterns)  # .5 against .08


# ---- texts -------------------------------------------------------------------------------------------------
def text_oracle(net: nn.Module, x: Tensor) -> Tensor:
    """One window of five words after another. x is (length, width)."""
    first, second, third = (module for module in net.modules() if isinstance(module, nn.Conv1d))
    hidden, last = (module for module in net.modules() if isinstance(module, nn.Linear))
    for place, conv in enumerate((first, second, third)):
        windows = [x[i : i + 5] for i in range(len(x) - 4)]
        x = torch.stack([torch.einsum("tw,owt->o", window, conv.weight) + conv.bias for window in windows]).relu()
        if place < 2:
            x = torch.stack([x[i : i + 5].max(dim=0).values for i in range(len(x) - 4)])
    x = (hidden.weight @ x.max(dim=0).values + hidden.bias).relu()
    return last.weight @ x + last.bias


def test_text_cnn_by_its_equations() -> None:
    net = MODELS["text_cnn"](num_classes=3, in_channels=6).double().eval()
    for length in (MIN_LENGTH, 33):
        x = torch.randn(2, 6, length, dtype=torch.float64)
        expected = torch.stack([text_oracle(net, text.T) for text in x])
        torch.testing.assert_close(net(x), expected, rtol=1e-10, atol=1e-12)


def test_text_cnn_drops_thirty_percent_in_training_only() -> None:
    net = MODELS["text_cnn"]()
    pairs: list[tuple[Tensor, Tensor]] = []
    (dropout,) = (module for module in net.modules() if isinstance(module, nn.Dropout))
    dropout.register_forward_hook(lambda _, args, out: pairs.append((args[0], out)))
    x = torch.randn(200, 100, MIN_LENGTH)
    net(x)
    net.eval()(x)
    (before, after), (same, alike) = pairs
    assert torch.equal(same, alike)
    active = before > 0
    kept = after != 0
    assert kept[active].float().mean().item() == pytest.approx(0.7, abs=0.02)
    torch.testing.assert_close(after[kept], before[kept] / 0.7)


def test_text_cnn_refuses_texts_too_short() -> None:
    net = MODELS["text_cnn"]()
    with pytest.raises(ValueError, match="at least 21 words, got 20"):
        net(torch.zeros(2, 100, 20))
