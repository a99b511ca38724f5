"""Networks on a GPU: bf16, channels last, reproducible, without synchronisation, in CUDA graphs."""

from collections.abc import Iterator

import pytest
import torch
from case_loops import for_each
from torch import Tensor, nn
from torch.nn import functional as F

from dualfocal_lab.models import MODELS
from dualfocal_lab.models.preact_resnet import PreActResNet

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def a_net(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]().to("cuda", memory_format=torch.channels_last)


def some_batch(name: str) -> tuple[Tensor, Tensor]:
    target = torch.arange(32, device="cuda") % 10
    if name == "text_cnn":
        return torch.randn(32, 100, 200, device="cuda"), target
    side = 64 if name == "tiny_resnet50" else 32
    return torch.randn(32, 3, side, side, device="cuda").to(memory_format=torch.channels_last), target


def step(net: nn.Module, x: Tensor, target: Tensor, dtype: torch.dtype) -> Tensor:
    """Logits of one training step; the gradients stay in the net."""
    with torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32):
        logits: Tensor = net(x)
        loss = F.cross_entropy(logits, target, reduction="sum")
    net.zero_grad()
    loss.backward()
    return logits.detach()


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
@for_each(name=MODELS, dtype=[torch.float32, torch.bfloat16])
def test_a_step_repeats_bit_by_bit(name: str, dtype: torch.dtype) -> None:
    """Torch raises an error for operations without a deterministic gradient, such as adaptive pooling."""
    x, target = some_batch(name)
    results = []
    for _ in range(2):
        net = a_net(name)
        logits = step(net, x, target, dtype)
        results.append([logits, *(p.grad for p in net.parameters())])
    assert all(tensor.isfinite().all() for tensor in results[0])
    assert all(torch.equal(first, second) for first, second in zip(*results, strict=True))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # torch calls it a prototype
@for_each(name=MODELS)
def test_a_step_does_not_synchronise(name: str) -> None:
    net, (x, target) = a_net(name), some_batch(name)
    step(net, x, target, torch.bfloat16)  # set-up may wait
    try:
        torch.cuda.set_sync_debug_mode("error")
        step(net, x, target, torch.bfloat16)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@for_each(name=MODELS)
def test_logits_equal_the_cpus(name: str) -> None:
    net, (x, _) = a_net(name).eval(), some_batch(name)
    with torch.no_grad():
        for _ in range(3):  # running statistics that fit the weights
            net.train()(x)
        net.eval()
        on_gpu, on_cpu = net(x[:4]).cpu(), net.cpu()(x[:4].cpu())
    assert (on_gpu - on_cpu).norm() < 2e-2 * on_cpu.norm()  # TF32 convolutions


def test_each_replay_of_a_cuda_graph_draws_stochastic_depth_again() -> None:
    net = PreActResNet((16, 16, 16), 2, num_classes=2, in_channels=3, last_survival=0.5).cuda()
    x = torch.randn(8, 3, 8, 8, device="cuda")
    with torch.no_grad():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            net(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = net(x)
        outputs = set()
        for _ in range(60):
            graph.replay()
            outputs.add(tuple(out.flatten().tolist()))
    assert 6 < len(outputs) <= 64


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # torch's own first, empty graph
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # advice
@for_each(last_survival=[0.5, 1.0])
def test_compiled_with_cuda_graphs(last_survival: float) -> None:
    """Stochastic depth draws again in each training step; in evaluation compiling does not change the logits."""
    net = PreActResNet((16, 32), 4, num_classes=10, in_channels=3, last_survival=last_survival).cuda()
    x, target = some_batch("small_cnn")
    compiled = torch.compile(net, fullgraph=True, mode="reduce-overhead")
    losses = []
    for _ in range(8):
        torch.compiler.cudagraph_mark_step_begin()
        logits = step(compiled, x, target, torch.bfloat16)
        losses.append(F.cross_entropy(logits.float(), target).item())
    # Without random draws the loss is constant; the first calls are not yet graphs and may round differently.
    assert len(set(losses)) > 3 if last_survival < 1 else len(set(losses[3:])) == 1
    net.eval()
    with torch.no_grad():
        expected, result = net(x), compiled(x).clone()
    assert (result - expected).norm() < 2e-2 * expected.norm()
