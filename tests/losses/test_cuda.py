"""The losses on a GPU give the same numbers as on the CPU, without synchronising the device."""

import pytest
import torch
from case_loops import for_each
from cases import PLAIN
from torch import Tensor

from dualfocal import AdaDualFocalLoss, losses

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def on_gpu(name: str, *tensors: Tensor) -> tuple[object, list[Tensor]]:
    loss = PLAIN[name]
    bins = {k: v.cuda() for k, v in getattr(loss, "keywords", {}).items() if isinstance(v, Tensor)}
    return (lambda z, t, **options: loss(z, t, **bins, **options)), [t.cuda() for t in tensors]


@for_each(name=PLAIN, dtype=[torch.float32, torch.bfloat16], soft=[False, True])
def test_equals_the_cpu(name: str, dtype: torch.dtype, soft: bool) -> None:
    logits = (torch.randn(64, 11) * 3).to(dtype)
    logits[:5] = logits[:5].round()  # ties
    target = torch.rand(64, 11).softmax(1) if soft else torch.randint(11, (64,))
    if not soft:
        target[::7] = -100
    weight = torch.rand(11)
    cpu = logits.clone().requires_grad_()
    true = PLAIN[name](cpu, target, weight=weight)
    true.backward()
    loss, (gpu, y, w) = on_gpu(name, logits, target, weight)
    gpu.requires_grad_()
    value = loss(gpu, y, weight=w)
    value.backward()
    torch.testing.assert_close(value.cpu(), true, rtol=1e-4, atol=1e-6)
    if dtype == torch.float32:
        torch.testing.assert_close(gpu.grad.cpu(), cpu.grad, rtol=1e-4, atol=1e-6)


def test_tf32_does_not_reach_the_kernels() -> None:
    logits, target = torch.randn(64, 11), torch.randint(11, (64,))
    true = losses.kde_xe_loss(logits.double(), target, strength=1.0)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        loss = losses.kde_xe_loss(logits.cuda(), target.cuda(), strength=1.0)
    finally:
        torch.set_float32_matmul_precision(before)
    torch.testing.assert_close(loss.cpu().double(), true, rtol=1e-5, atol=0)


@for_each(name=PLAIN)
def test_does_not_synchronise(name: str) -> None:
    logits = torch.randn(64, 11, device="cuda", requires_grad=True)
    target = torch.randint(11, (64,), device="cuda")
    soft = torch.rand(64, 11, device="cuda").softmax(1)
    weight = torch.ones(11, device="cuda")
    loss, _ = on_gpu(name)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for y in (target, soft):
            loss(logits, y, weight=weight).backward()
        if name == "kde_xe":
            losses.kde_xe_loss(logits, target, bandwidth="likelihood").backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_step_in_a_cuda_graph_sees_an_update() -> None:
    criterion = AdaDualFocalLoss().cuda()
    logits = torch.randn(64, 11, device="cuda", requires_grad=True)
    target = torch.randint(11, (64,), device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            logits.grad = None
            criterion(logits, target).backward()
    torch.cuda.current_stream().wait_stream(stream)
    logits.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = criterion(logits, target)
        loss.backward()
    criterion.update(logits.detach(), target)
    graph.replay()
    torch.testing.assert_close(loss, criterion(logits, target))


def test_compiled_on_the_gpu() -> None:
    logits = torch.randn(512, 1000, device="cuda", requires_grad=True)
    target = torch.randint(1000, (512,), device="cuda")
    target[::9] = -100
    true = losses.dual_focal_loss(logits, target)
    (true_grad,) = torch.autograd.grad(true, logits)
    loss = torch.compile(losses.dual_focal_loss, fullgraph=True)(logits, target)
    (grad,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(loss, true, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(grad, true_grad, rtol=1e-4, atol=1e-8)


def test_large_and_deterministic() -> None:
    """Two runs on large half-precision logits give the same bits."""
    logits = torch.randn(2048, 5000, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(5000, (2048,), device="cuda")
    torch.use_deterministic_algorithms(True)
    try:
        grads = [torch.autograd.grad(losses.dual_focal_loss(logits, target), logits)[0] for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(*grads)
    wide = logits.detach().double().cpu().requires_grad_()
    (true,) = torch.autograd.grad(losses.dual_focal_loss(wide, target.cpu()), wide)
    torch.testing.assert_close(grads[0].cpu().double(), true, rtol=1e-2, atol=1e-9)
