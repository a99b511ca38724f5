"""Channels last, bf16 autocast and ``torch.compile``, with one small network for each kind of block."""

from collections.abc import Callable

import pytest
import torch
from case_loops import for_each
from torch import Tensor, nn

from dualfocal_lab.models import MODELS
from dualfocal_lab.models._common import AveragePool
from dualfocal_lab.models.densenet import DenseNet
from dualfocal_lab.models.preact_resnet import PreActResNet
from dualfocal_lab.models.resnet import BasicBlock, Bottleneck, ResNet

SIZES = {"num_classes": 3, "in_channels": 3}
SMALL: dict[str, Callable[[], nn.Module]] = {
    "bottleneck": lambda: ResNet(Bottleneck, 8, (16, 32), (1, 1), **SIZES, grid=2),
    "basic": lambda: ResNet(BasicBlock, 8, (8, 16), (1, 1), **SIZES),
    "pre-activation": lambda: PreActResNet((16, 32), 1, **SIZES),
    "stochastic depth": lambda: PreActResNet((16, 32), 2, **SIZES, last_survival=0.5),
    "dense": lambda: DenseNet(8, 4, (2, 2), bottleneck=False, compression=1.0, **SIZES),
    "dense bottleneck": lambda: DenseNet(8, 4, (1, 1), bottleneck=True, compression=0.5, **SIZES),
    "text_cnn": lambda: MODELS["text_cnn"](**SIZES),
    "small_cnn": lambda: MODELS["small_cnn"](**SIZES),
}
IMAGES = [kind for kind in SMALL if kind != "text_cnn"]


def some_input(kind: str) -> Tensor:
    return torch.randn(4, 3, 24) if kind == "text_cnn" else torch.randn(4, 3, 16, 16)


def logits_and_gradient(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    torch.manual_seed(5)  # the same draws
    net.zero_grad()
    logits = net(x)
    logits.square().sum().backward()
    return logits.detach(), torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])


@for_each(kind=IMAGES)
def test_channels_last_computes_the_same_and_stays(kind: str) -> None:
    net, x = SMALL[kind](), some_input(kind)
    expected = logits_and_gradient(net, x)
    net.to(memory_format=torch.channels_last)
    (pool,) = (module for module in net.modules() if isinstance(module, AveragePool))
    channels_last: list[bool] = []
    pool.register_forward_pre_hook(
        lambda _, args: channels_last.append(args[0].is_contiguous(memory_format=torch.channels_last))
    )
    result = logits_and_gradient(net, x.to(memory_format=torch.channels_last))
    assert channels_last == [True]
    torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # torch warns of its own switch
@for_each(kind=SMALL)
def test_bf16_autocast_is_near_float32(kind: str) -> None:
    net, x = SMALL[kind](), some_input(kind)
    expected, gradient = logits_and_gradient(net, x)
    # Without oneDNN: in virtual machines that announce AMX but do not have it, its bf16 kernels end the process.
    with torch.backends.mkldnn.flags(enabled=False), torch.autocast("cpu", dtype=torch.bfloat16):
        logits, half_gradient = logits_and_gradient(net, x)
    assert logits.dtype == torch.bfloat16
    assert half_gradient.dtype == torch.float32
    assert (logits.float() - expected).norm() < 0.05 * expected.norm()
    assert (half_gradient - gradient).norm() < 0.3 * gradient.norm()


def test_compiles_to_one_graph() -> None:
    """Traced and differentiated by torch.compile without graph breaks, run by eager kernels; for the hardest net."""
    torch.compiler.reset()
    net, x = SMALL["stochastic depth"](), some_input("stochastic depth")
    expected = logits_and_gradient(net, x)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(logits_and_gradient(compiled, x), expected)

    net.eval()
    with torch.no_grad():
        compiled = torch.compile(net, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(x), net(x))


def test_compiled_stochastic_depth_draws_again_in_each_call() -> None:
    torch.compiler.reset()
    net = SMALL["stochastic depth"]()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    x = some_input("stochastic depth")
    with torch.no_grad():
        logits = [compiled(x) for _ in range(20)]
    assert len({tuple(output.flatten().tolist()) for output in logits}) > 3
