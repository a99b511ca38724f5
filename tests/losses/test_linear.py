"""The loss of a linear head, computed in chunks, equals the loss of its logits."""

import pytest
import torch
from case_loops import for_each
from torch import Tensor, nn
from torch.nn import functional as F

from dualfocal import dual_focal_loss
from dualfocal.losses import LinearDualFocalLoss, linear_dual_focal_loss

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualfocal.losses.linear.MIN_ROWS", 1)
    monkeypatch.setattr("dualfocal.losses.linear.CHUNK_BYTES", 150)  # a few rows each


def sample(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = ((13, 6), (11, 6), (11,))
    hidden, weight, bias = (torch.randn(size, generator=generator).to(DEVICE, dtype) for size in sizes)
    target = torch.randint(11, (13,), generator=generator).to(DEVICE)
    target[::4] = -100
    return hidden.requires_grad_(), weight.requires_grad_(), bias.requires_grad_(), target


@for_each(
    reduction=["mean", "sum", "none"], dtype=[torch.float32, torch.float64, torch.bfloat16], with_bias=[True, False]
)
def test_equals_the_loss_of_the_logits(reduction, dtype, with_bias) -> None:
    hidden, weight, bias, target = sample(dtype)
    given = bias if with_bias else None
    fused = linear_dual_focal_loss(hidden, weight, target, 3.0, given, reduction=reduction)
    plain = dual_focal_loss(F.linear(hidden, weight, given), target, 3.0, reduction=reduction)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(fused, plain, **tolerance)
    leaves = [hidden, weight, *([bias] if with_bias else [])]
    upstream = torch.rand_like(plain)
    grads = (torch.autograd.grad(value, leaves, upstream) for value in (fused, plain))
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance)


def test_the_gradient_of_the_head_is_summed_in_float32(monkeypatch) -> None:
    """A thousand chunks of one row each, whose sum in bfloat16 would stop growing."""
    monkeypatch.setattr("dualfocal.losses.linear.CHUNK_BYTES", 1)
    hidden = torch.ones(1000, 1, dtype=torch.bfloat16, device=DEVICE)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, device=DEVICE, requires_grad=True)
    target = torch.zeros(1000, dtype=torch.int64, device=DEVICE)
    linear_dual_focal_loss(hidden, weight, target, 0.0, reduction="sum").backward()
    torch.testing.assert_close(weight.grad.cpu(), torch.tensor([[-500.0], [500.0]], dtype=torch.bfloat16))


def test_a_frozen_head_and_frozen_inputs() -> None:
    hidden, weight, bias, target = sample()
    expected = torch.autograd.grad(linear_dual_focal_loss(hidden, weight, target, 3.0, bias), [hidden, weight])
    linear_dual_focal_loss(hidden, weight.detach(), target, 3.0, bias.detach()).backward()
    torch.testing.assert_close(hidden.grad, expected[0])
    linear_dual_focal_loss(hidden.detach(), weight, target, 3.0, bias.detach()).backward()
    torch.testing.assert_close(weight.grad, expected[1])
    assert not linear_dual_focal_loss(hidden.detach(), weight.detach(), target).requires_grad


def test_sequences_gammas_and_the_module() -> None:
    hidden, weight, bias, target = sample()
    gamma = torch.linspace(0, 5, 12, device=DEVICE).reshape(3, 4)
    value = linear_dual_focal_loss(
        hidden[:12].reshape(3, 4, 6), weight, target[:12].reshape(3, 4), gamma, bias, reduction="none"
    )
    logits = F.linear(hidden[:12], weight, bias)
    torch.testing.assert_close(value.flatten(), dual_focal_loss(logits, target[:12], gamma.flatten(), reduction="none"))
    criterion = LinearDualFocalLoss(gamma=2.0, reduction="sum")
    torch.testing.assert_close(
        criterion(hidden, weight, target, bias),
        dual_focal_loss(F.linear(hidden, weight, bias), target, 2.0, reduction="sum"),
    )
    assert repr(criterion) == "LinearDualFocalLoss(gamma=2.0, ignore_index=-100, reduction='sum')"


def test_nothing_but_ignored_targets() -> None:
    hidden, weight, _, target = sample()
    value = linear_dual_focal_loss(hidden, weight, torch.full_like(target, -100))
    value.backward()
    assert value == 0
    assert not hidden.grad.any()
    assert not weight.grad.any()


def test_a_second_backward_gives_the_same() -> None:
    hidden, weight, bias, target = sample()
    value = linear_dual_focal_loss(hidden, weight, target, 3.0, bias)
    first = torch.autograd.grad(value, [hidden, weight, bias], retain_graph=True)
    second = torch.autograd.grad(value, [hidden, weight, bias])
    torch.testing.assert_close(first, second)
    assert all(grad.any() for grad in first)


def test_autocast() -> None:
    hidden, weight, _, target = sample()
    with torch.autocast(DEVICE, torch.bfloat16):
        value = linear_dual_focal_loss(hidden, weight, target)
    value.backward()
    assert weight.grad.dtype == torch.float32
    torch.testing.assert_close(value, dual_focal_loss(hidden @ weight.T, target), rtol=2e-2, atol=2e-2)


def test_bad_input() -> None:
    hidden, weight, _, target = sample()
    with pytest.raises(ValueError, match=r"got \(13, 6\), \(6, 11\) and \(13,\)"):
        linear_dual_focal_loss(hidden, weight.T, target)
    with pytest.raises(ValueError, match="gamma must not need a gradient"):
        linear_dual_focal_loss(hidden, weight, target, nn.Parameter(torch.tensor(2.0)))
    with pytest.raises(ValueError, match=r"does not support torch\.func"):
        torch.func.grad(lambda h: linear_dual_focal_loss(h, weight, target))(hidden)
    with pytest.raises(TypeError, match=r"weight must be a tensor, got Linear: pass head\.weight and head\.bias"):
        linear_dual_focal_loss(hidden, nn.Linear(6, 11), target)
    with pytest.raises(ValueError, match=r"bias must have shape \(11,\), one value per class, got \(6,\)"):
        linear_dual_focal_loss(hidden, weight, target, bias=torch.zeros(6, device=DEVICE))
    with pytest.raises(ValueError, match=r"one dtype, got torch\.bfloat16, torch\.float32: convert with hidden\.to"):
        linear_dual_focal_loss(hidden.bfloat16(), weight, target)


@for_each(reduction=["mean", "none"])
def test_second_derivatives_are_refused(reduction) -> None:
    hidden, weight, _, target = sample()
    value = linear_dual_focal_loss(hidden, weight, target, reduction=reduction).sum()
    with pytest.raises(RuntimeError, match=r"no second derivatives.*use dual_focal_loss"):
        torch.autograd.grad(value, hidden, create_graph=True)


@for_each(
    "options, words",
    [
        ({"gamma": -1}, "gamma must be finite and at least 0, got -1"),
        ({"gamma": "x"}, "gamma must be a number, got 'x'"),
        ({"gamma": torch.ones(11)}, "pass class weights as weight="),
        ({"ignore_index": None}, "ignore_index must be an integer, got None"),
    ],
)
def test_the_module_checks_its_options(options, words) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        LinearDualFocalLoss(**options)
