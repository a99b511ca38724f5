"""The fused losses, compared with plain torch in float64; without a GPU in the interpreter of triton."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from case_loops import for_each
from torch import Tensor

pytest.importorskip("triton")

from dualfocal import losses
from dualfocal.kernels import modulated
from dualfocal.losses._expression import Gamma, GammaBins
from dualfocal.losses._flat import flatten
from dualfocal.losses._modulated import dual_loss_and_gradient, modulated_loss

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, which interprets the kernels, of inf - inf


@pytest.fixture(params=["tile", "row"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both kernels, whatever the number of classes; rows are read 16 classes at a time."""
    if request.param == "row":
        monkeypatch.setattr(modulated, "LONGEST_TILE", 0)
        monkeypatch.setattr(modulated, "_row_settings", lambda num_classes, itemsize: (16, 4, None))
    return str(request.param)


def sample(
    num_rows: int, num_classes: int, dtype: torch.dtype = torch.float32, ties: bool = False
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(num_rows + num_classes)
    logits = 3 * torch.randn(num_rows, num_classes, generator=generator)
    target = torch.randint(num_classes, (num_rows,), generator=generator)
    return (logits.round() if ties else logits).to(DEVICE, dtype), target.to(DEVICE)


def loss_of(
    logits: Tensor, target: Tensor, gamma: Gamma, rival: str | None, impl: str, reduction: str = "mean", **options: Any
) -> Tensor:
    flat = flatten(logits, target, options.get("weight"), options.get("ignore_index", -100), reduction)
    return modulated_loss(flat, gamma, reduction, rival=rival, impl=impl)


def assert_same(
    logits: Tensor,
    target: Tensor,
    gamma: Gamma = 5.0,
    rival: str | None = "next",
    reduction: str = "mean",
    upstream: float = 1.7,
    **options: Any,
) -> None:
    """Loss and gradient equal those of plain torch in float64."""
    before = logits.clone()
    fused, plain = logits.clone().requires_grad_(), logits.double().requires_grad_()
    wide = gamma.double() if isinstance(gamma, Tensor) else gamma
    weight = {name: value.double() for name, value in options.items() if name == "weight"}
    value = loss_of(fused, target, gamma, rival, "triton", reduction, **options)
    expected = loss_of(plain, target, wide, rival, "torch", reduction, **{**options, **weight})
    assert value.dtype == torch.float32
    torch.testing.assert_close(value.double(), expected, rtol=2e-5, atol=1e-7)
    factor = upstream * (1 + torch.arange(value.numel(), device=DEVICE)).reshape(value.shape) / max(1, value.numel())
    (grad,) = torch.autograd.grad(value, fused, factor.float())
    (true,) = torch.autograd.grad(expected, plain, factor.double())
    # Half precision is rounded twice, and the interpreter of triton truncates it.
    tolerance = {torch.float32: 3e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}[logits.dtype]
    torch.testing.assert_close(grad.double(), true, rtol=tolerance, atol=tolerance * float(true.abs().max()))
    assert torch.equal(fused.detach(), before)


@for_each(
    "shape, gamma, rival",
    list(itertools.product([(1, 1), (3, 3), (3, 37)], [0.0, 0.5, 5.0, 20.0, -2.0], ["next", None])),
)
def test_equals_torch_in_float64(shape, gamma, rival, kernel) -> None:
    assert_same(*sample(*shape, ties=shape[1] == 37), gamma, rival)


@for_each(
    "dtype, reduction, weighted, ignored",
    [
        (torch.float32, "mean", True, True),
        (torch.float32, "mean", True, False),
        (torch.float32, "sum", False, True),
        (torch.float32, "none", True, True),
        (torch.bfloat16, "mean", False, True),
        (torch.bfloat16, "none", True, False),
        (torch.float16, "sum", True, True),
    ],
)
def test_weights_ignored_rows_and_reductions(dtype, reduction, weighted, ignored, kernel) -> None:
    logits, target = sample(9, 21, dtype)
    options = {}
    if ignored:
        target[::3] = 4
        options["ignore_index"] = 4
    if weighted:
        options["weight"] = torch.linspace(0, 2, 21, device=DEVICE)
    assert_same(logits, target, reduction=reduction, **options)


@pytest.mark.parametrize(("rows", "most_targets"), [(40, 0), (3000, 0), (3000, 2**20)])
def test_the_mean_over_many_rows(rows, most_targets, monkeypatch) -> None:
    monkeypatch.setattr(modulated, "MOST_TARGETS", most_targets)  # 0: a kernel sums the weights before, in two programs
    monkeypatch.setattr(modulated, "ALONE_ELEMENTS", 16)
    monkeypatch.setattr(modulated, "TILE_ELEMENTS", 4096)
    logits, target = sample(rows, 3)
    target[::5] = -100
    assert_same(logits, target, weight=torch.tensor([0.5, 1.0, 2.0], device=DEVICE))


def gammas(num_rows: int) -> Iterator[Gamma]:
    yield torch.tensor(2.5, device=DEVICE)
    yield torch.linspace(0, 6, num_rows, device=DEVICE)
    yield GammaBins((5.0, 3.0), (0.2,))
    yield GammaBins(torch.tensor([4.0, -1.0, 2.0], device=DEVICE), torch.tensor([0.1, 0.4], device=DEVICE))
    yield GammaBins(torch.tensor([4.0, 1.0], device=DEVICE), torch.tensor([0.05], device=DEVICE), of_margin=True)


def test_gamma_of_any_kind(kernel) -> None:
    logits, target = sample(5, 20)
    for gamma in gammas(5):
        for rival in ("next", None):
            assert_same(logits, target, gamma, rival)


def test_extreme_logits(kernel) -> None:
    logits, target = sample(7, 40)
    logits[0, 30:] = -torch.inf
    target[0] = 2
    logits[1, :39] = -torch.inf  # nothing below the target
    target[1] = 39
    logits[2] *= 1e4
    logits[3, 35] = 200.0  # far above what the first classes let expect
    logits[4, 35] = 500.0
    target[4] = 35
    logits[5, :16] = -torch.inf
    target[5] = 17
    logits[6] = 0.0  # all tied
    for rival in ("next", None):
        assert_same(logits, target, 5.0, rival, "none")


def test_a_masked_target_has_an_infinite_loss_and_the_gradient_of_cross_entropy(kernel) -> None:
    logits, target = sample(2, 20)
    logits[0, target[0]] = -torch.inf
    logits.requires_grad_()
    value = loss_of(logits, target, 5.0, "next", "triton", "none")
    assert value[0] == torch.inf
    value.sum().backward()
    expected = logits.detach()[0].softmax(0) - torch.nn.functional.one_hot(target[0], 20)
    torch.testing.assert_close(logits.grad[0], expected)


def test_nothing_but_ignored_rows(kernel) -> None:
    logits, target = sample(4, 20)
    logits[1] = torch.nan
    logits.requires_grad_()
    for reduction in ("mean", "sum"):
        value = loss_of(logits, torch.full_like(target, -100), 5.0, "next", "triton", reduction)
        (grad,) = torch.autograd.grad(value, logits)
        assert value == 0
        assert not grad.any()


def test_a_wrong_class_index_gives_nan_and_reads_nothing_outside(kernel) -> None:
    logits, target = sample(3, 20)
    for wrong in (20, -1, 2**40):
        target[1] = wrong
        rows = modulated.Rows(logits, target, None, 5.0, True, -100, "none")  # on the CPU, the loss checks them first
        assert modulated.loss_and_gradient(rows, None).isnan().tolist() == [False, True, False]


def test_rows_apart_in_memory(kernel) -> None:
    wide, target = sample(6, 40)
    assert_same(wide[:, 3:23], target % 20)
    assert_same(wide.T.contiguous().T, target)  # classes apart: copied
    dense, labels = wide.reshape(2, 3, 40).movedim(-1, 1), target.reshape(2, 3)
    plain = losses.dual_focal_loss(dense.double(), labels, impl="torch", reduction="none")
    fused = losses.dual_focal_loss(dense, labels, impl="triton", reduction="none")
    torch.testing.assert_close(fused.double(), plain, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_second_backward_gives_the_same(reduction, kernel) -> None:
    logits, target = sample(5, 20)
    logits.requires_grad_()
    value = loss_of(logits, target, 3.0, "next", "triton", reduction)
    upstream = torch.full_like(value, 2.0)
    first, second = (torch.autograd.grad(value, logits, upstream, retain_graph=True)[0] for _ in range(2))
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_second_derivatives_and_many_gradients_at_once(reduction) -> None:
    logits, target = sample(4, 6)
    logits.requires_grad_()
    results = []
    for impl in ("triton", "torch"):
        value = loss_of(logits, target, 3.0, "next", impl, reduction)
        (grad,) = torch.autograd.grad(value.sum(), logits, create_graph=True)
        (second,) = torch.autograd.grad(grad.square().sum(), logits, retain_graph=True)
        upstream = torch.eye(value.numel(), device=DEVICE).reshape(-1, *value.shape)
        results.append((second, torch.autograd.grad(value, logits, upstream, is_grads_batched=True)[0]))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)


def test_a_target_changed_before_the_backward() -> None:
    """The gradient of a sum is computed with the loss, and stays right; that of single losses is not, and fails."""
    logits, target = sample(4, 6)
    (expected,) = torch.autograd.grad(loss_of(logits.requires_grad_(), target, 3.0, "next", "triton"), logits)
    value = loss_of(logits, target, 3.0, "next", "triton")
    losses_of_rows = loss_of(logits, target, 3.0, "next", "triton", "none")
    target[0] += 1 if target[0] == 0 else -1
    assert torch.equal(torch.autograd.grad(value, logits)[0], expected)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        losses_of_rows.sum().backward()


def test_loss_scaling_saves_small_gradients_of_float16() -> None:
    logits, target = sample(2000, 8, torch.float16)
    logits.requires_grad_()
    plain = logits.detach().double().requires_grad_()
    scale = 2.0**16
    (grad,) = torch.autograd.grad(loss_of(logits, target, 5.0, "next", "triton") * scale, logits)
    (expected,) = torch.autograd.grad(loss_of(plain, target, 5.0, "next", "torch") * scale, plain)
    torch.testing.assert_close(grad.double(), expected, rtol=3e-3, atol=2**-24)


def test_rows_of_several_programs() -> None:
    assert_same(*sample(modulated.TILE_ELEMENTS // 4 + 1, 3))


def test_the_gradient_may_replace_the_logits(kernel) -> None:
    logits, target = sample(7, 40)
    target[2] = -100
    expected = logits.double().requires_grad_()
    value = loss_of(expected, target, 3.0, "next", "torch", "sum")
    loss, grad = dual_loss_and_gradient(flatten(logits, target, None, -100, "sum"), 3.0, impl="triton")
    assert grad is logits
    torch.testing.assert_close(loss.double(), value, rtol=2e-5, atol=1e-7)
    torch.testing.assert_close(grad.double(), torch.autograd.grad(value, expected)[0], rtol=3e-5, atol=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_compiled_into_one_graph(reduction) -> None:
    logits, target = sample(5, 9)
    logits.requires_grad_()
    options = {"fullgraph": True, "backend": "inductor" if DEVICE == "cuda" else "aot_eager"}  # inductor takes a minute
    for gamma in gammas(5):
        torch.compiler.reset()
        compiled = torch.compile(lambda z, t: loss_of(2 * z, t, gamma, "next", "triton", reduction), **options)  # noqa: B023
        values = [compiled(logits, target), loss_of(2 * logits, target, gamma, "next", "torch", reduction)]
        torch.testing.assert_close(*values)
        grads = [torch.autograd.grad(value, logits, torch.full_like(value, 3.0))[0] for value in values]
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-6)


def test_autocast(kernel) -> None:
    hidden, target = sample(5, 8)
    head = torch.nn.Linear(8, 20, device=DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16):
        logits = head(hidden)
        value = losses.dual_focal_loss(logits, target, impl="triton")
    assert logits.dtype == torch.bfloat16
    value.backward()
    expected = losses.dual_focal_loss(logits.detach(), target, impl="torch")
    torch.testing.assert_close(value.detach(), expected)
    assert head.weight.grad.isfinite().all()


def test_refusals_say_why() -> None:
    logits, target = sample(4, 6)
    soft = logits.softmax(1)
    with pytest.raises(ValueError, match="the target holds class probabilities"):
        losses.dual_focal_loss(logits, soft, impl="triton")
    with pytest.raises(ValueError, match="rival is '2nd'"):
        losses.dual_focal_loss(logits, target, rival="2nd", impl="triton")
    with pytest.raises(ValueError, match="float64"):
        losses.dual_focal_loss(logits.double(), target, impl="triton")
    with pytest.raises(ValueError, match="gamma or weight needs a gradient"):
        losses.dual_focal_loss(logits, target, torch.tensor(2.0, device=DEVICE, requires_grad=True), impl="triton")
    with pytest.raises(ValueError, match=r"torch\.func transform"):
        torch.func.grad(lambda z: losses.dual_focal_loss(z, target, impl="triton"))(logits)
