"""The losses under torch.compile, torch.func and autocast, and on the meta device."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from case_loops import for_each
from cases import PLAIN, WITH_SMOOTHED
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from dualfocal import losses as L


def problem(n: int = 12, c: int = 6, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    logits = (torch.randn(n, c) * 3).to(dtype)
    logits[0] = logits[0].sort().values  # so that a target may be the first or last of its row
    logits[1, :] = 1.0  # all tied
    logits[2, 2:4] = -torch.inf
    target = torch.randint(c, (n,))
    target[0], target[1], target[2], target[5], target[6] = c - 1, 2, 1, -100, -100
    logits[5], logits[6] = torch.nan, torch.inf  # ignored rows
    return logits.requires_grad_(), target


def both(loss: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    return loss.detach(), torch.autograd.grad(loss, logits)[0]


# One loss of each implementation: the other focal losses differ by their gamma, cross-entropy is torch's own.
COMPILED = [
    *((name, torch.float32) for name in ("label_smoothing", "brier", "mmce", "kde_xe")),
    *((name, torch.float32) for name in ("inverse_focal", "dual_focal", "ada_dual_focal")),
    ("dual_focal", torch.bfloat16),
    ("dual_focal-smoothed", torch.float32),
]


@pytest.mark.parametrize(("name", "dtype"), COMPILED)
def test_compiles_to_one_graph(name: str, dtype: torch.dtype) -> None:
    """aot_eager traces forward and backward like inductor, but without compiling C++."""
    logits, target = problem(dtype=dtype)
    if name in ("label_smoothing", "kde_xe", "mmce", "brier", "dual_focal-smoothed"):
        logits = logits.detach().nan_to_num(nan=torch.nan, posinf=torch.inf, neginf=-9.0).requires_grad_()
    compiled = torch.compile(WITH_SMOOTHED[name], backend="aot_eager", fullgraph=True, dynamic=False)
    value, gradient = both(compiled(logits, target), logits)
    true_value, true_gradient = both(WITH_SMOOTHED[name](logits, target), logits)
    torch.testing.assert_close(value, true_value)
    torch.testing.assert_close(gradient, true_gradient)
    torch.compiler.reset()


@pytest.mark.parametrize("convert", [torch.tensor, list, np.array])
def test_compiles_to_one_graph_with_weights(convert: Callable[[list[float]], Any]) -> None:
    logits, target = problem()
    weight = convert([0.5, 2.0, 0.0, 1.5, 1.0, 3.0])
    compiled = torch.compile(L.focal_loss, backend="aot_eager", fullgraph=True, dynamic=False)
    value, gradient = both(compiled(logits, target, weight=weight), logits)
    true_value, true_gradient = both(L.focal_loss(logits, target, weight=weight), logits)
    torch.testing.assert_close(value, true_value)
    torch.testing.assert_close(gradient, true_gradient)
    torch.compiler.reset()


def test_compiled_double_backward_raises() -> None:
    logits, target = problem()
    loss = torch.compile(L.dual_focal_loss, backend="aot_eager", fullgraph=True)(logits, target)
    (gradient,) = torch.autograd.grad(loss, logits, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(gradient.sum(), logits)
    torch.compiler.reset()


@pytest.mark.parametrize("name", ["dual_focal", "ada_dual_focal"])
def test_func_transforms_inside_a_compiled_function(name: str) -> None:
    logits, target = torch.randn(7, 5), torch.randint(5, (7,))

    def rows(z: Tensor) -> Tensor:
        return vmap(grad(PLAIN[name]))(z, target)

    def whole(z: Tensor) -> Tensor:
        return grad(lambda a: PLAIN[name](a, target))(z)

    for f in (rows, whole):
        compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(logits), f(logits))
        assert compiled(logits).abs().max() > 1e-3
        torch.compiler.reset()


@for_each(name=PLAIN)
def test_functional_gradients_and_forward_mode(name: str) -> None:
    logits, target, direction = torch.randn(7, 5), torch.randint(5, (7,)), torch.randn(7, 5)
    leaf = logits.clone().requires_grad_()
    _, gradient = both(PLAIN[name](leaf, target), leaf)
    torch.testing.assert_close(grad(lambda z: PLAIN[name](z, target))(logits), gradient)
    if name not in ("mmce", "kde_xe"):  # where rows do not depend on each other
        torch.testing.assert_close(vmap(grad(PLAIN[name]))(logits, target), 7 * gradient)
    with forward_ad.dual_level():
        loss = PLAIN[name](forward_ad.make_dual(logits, direction), target)
        torch.testing.assert_close(forward_ad.unpack_dual(loss).tangent, (gradient * direction).sum())


@for_each(name=PLAIN)
def test_traced_graphs_keep_the_loss(name: str) -> None:
    logits, target = torch.randn(7, 5), torch.randint(5, (7,))
    graph = make_fx(lambda a: PLAIN[name](a, target))(logits)
    for z in (logits, 3 * logits):
        torch.testing.assert_close(graph(z), PLAIN[name](z, target))


@pytest.mark.parametrize("name", ["label_smoothing", "mmce", "kde_xe", "flsd", "ada_dual_focal"])
def test_export_with_a_dynamic_batch(name: str) -> None:
    batch = torch.export.Dim("batch", min=2, max=512)
    example = torch.randn(8, 5), torch.randint(5, (8,))
    module = L.LOSSES[name]()
    program = torch.export.export(module, example, dynamic_shapes=({0: batch}, {0: batch}))
    logits, target = torch.randn(33, 5), torch.randint(5, (33,))
    torch.testing.assert_close(program.module()(logits, target), module(logits, target))


def test_default_device_does_not_reach_cpu_inputs() -> None:
    logits, target = torch.randn(7, 5), torch.randint(5, (7,))
    true = {name: loss(logits, target) for name, loss in PLAIN.items()}
    with torch.device("meta"):
        for name, loss in PLAIN.items():
            torch.testing.assert_close(loss(logits, target), true[name])


@for_each(shape=[(6, 5), (300, 200)])
def test_batched_backward(shape: tuple[int, int]) -> None:
    """Computing a Jacobian in one call runs the backward under vmap."""
    logits = torch.randn(shape, requires_grad=True)
    target = torch.randint(shape[1], shape[:1])
    rows = L.dual_focal_loss(logits, target, reduction="none")
    seeds = torch.eye(shape[0])[:3]
    (jacobian,) = torch.autograd.grad(rows, logits, seeds, is_grads_batched=True, retain_graph=True)
    for seed, got in zip(seeds, jacobian, strict=True):
        torch.testing.assert_close(got, torch.autograd.grad(rows, logits, seed, retain_graph=True)[0])
    first = {"grad_outputs": seeds[:1], "is_grads_batched": True, "create_graph": True}
    curvature = [
        torch.autograd.grad(
            torch.autograd.grad(L.dual_focal_loss(logits, target, reduction="none", impl=impl), logits, **first)[0]
            .square()
            .sum(),
            logits,
        )[0]
        for impl in ("auto", "torch")
    ]
    torch.testing.assert_close(*curvature)


def test_hessian_agrees_with_double_backward() -> None:
    logits, target = torch.randn(3, 4, dtype=torch.float64), torch.tensor([0, 3, 1])
    true = torch.autograd.functional.hessian(lambda z: L.dual_focal_loss(z, target), logits)
    torch.testing.assert_close(hessian(lambda z: L.dual_focal_loss(z, target))(logits), true)


@for_each(name=PLAIN)
def test_autocast_does_not_reach_the_arithmetic(name: str) -> None:
    logits, target = torch.randn(16, 5, requires_grad=True), torch.randint(5, (16,))
    true_value, true_gradient = both(PLAIN[name](logits, target), logits)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = PLAIN[name](logits, target)
    value, gradient = both(loss, logits)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, true_value, rtol=0, atol=0)
    torch.testing.assert_close(gradient, true_gradient, rtol=0, atol=0)


@for_each(name=PLAIN)
def test_another_device_without_looking_at_values(name: str) -> None:
    """On the meta device, reading a value or copying it to the host raises an error."""
    logits = torch.randn(8, 5, device="meta", requires_grad=True)
    target = torch.zeros(8, dtype=torch.long, device="meta")
    options = {k: v.to("meta") for k, v in getattr(PLAIN[name], "keywords", {}).items() if isinstance(v, Tensor)}
    for y in (target, torch.rand(8, 5, device="meta")):
        loss = PLAIN[name](logits, y, weight=torch.ones(5, device="meta"), **options)
        loss.backward()
        assert loss.shape == ()
        assert logits.grad is not None
        assert logits.grad.shape == logits.shape
