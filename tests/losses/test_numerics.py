"""Losses are finite and accurate for saturated logits, half precision, masked classes and gamma below 1."""

from itertools import product

import numpy as np
import oracles
import pytest
import torch
import torch.nn.functional as F
from case_loops import for_each
from cases import PLAIN
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dualfocal import losses as L

FAMILY = ("focal", "flsd", "inverse_focal", "dual_focal", "ada_focal", "ada_dual_focal")
SATURATED = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0], [200.0, 0.0, 0.0], [0.0, 0.0, 0.0], [40.0, 39.0, 0.0]])


def published(logits: Tensor, target: Tensor, gamma: float) -> Tensor:
    """The published equation, evaluated directly."""
    p = logits.softmax(1)
    p_k = p.gather(1, target[:, None])
    p_j = (p * (p < p_k)).max(1, keepdim=True).values
    return (-((1 - p_k + p_j) ** gamma) * p_k.log()).sum()


WAYS = ("default", "chunked", "expression")  # to compute the loss


def by_way(
    way: str, logits: Tensor, target: Tensor, gamma: float, monkeypatch: pytest.MonkeyPatch
) -> tuple[Tensor, Tensor]:
    """Losses of all rows, and the gradient of their sum."""
    with monkeypatch.context() as patch:
        if way == "chunked":
            patch.setattr("dualfocal.losses._closed_form.SMALL", 0)
        impl = "torch" if way == "expression" else "auto"
        loss = L.dual_focal_loss(logits, target, gamma, impl=impl, reduction="none")
        (grad,) = torch.autograd.grad(loss.sum(), logits)
    return loss, grad


def test_published_formula_is_nan_where_ours_is_finite() -> None:
    logits = torch.tensor([[120.0, 0.0, 0.0]], requires_grad=True)
    target = torch.tensor([0])
    (published_grad,) = torch.autograd.grad(published(logits, target, 0.5), logits)
    assert published_grad.isnan().any()
    for impl in ("auto", "torch"):
        (our_grad,) = torch.autograd.grad(L.dual_focal_loss(logits, target, 0.5, impl=impl), logits)
        assert our_grad.isfinite().all()


@for_each(dtype=[torch.float32, torch.float64], share=[1e-8, 0.51, 1.0], gamma=[0.5, 5.0])
def test_logits_up_to_the_largest_number(
    dtype: torch.dtype, share: float, gamma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of ties and of masked classes is that of logits that are merely large."""

    def rows(high: float) -> Tensor:
        values = [[high, high, -high], [-high, -high, -high], [high, 0.0, high], [0.0, -high, 1.0], [high, high, high]]
        return torch.tensor(values, dtype=dtype, requires_grad=True)

    logits, moderate = rows(share * torch.finfo(dtype).max), rows(500.0)
    for target in (torch.zeros(5, dtype=torch.int64), torch.tensor([1, 2, 2, 0, 2])):
        expected = L.dual_focal_loss(moderate, target, gamma, impl="torch", reduction="none")
        (expected_grad,) = torch.autograd.grad(expected.sum(), moderate)
        for way in WAYS:
            loss, grad = by_way(way, logits, target, gamma, monkeypatch)
            torch.testing.assert_close(loss, expected)
            torch.testing.assert_close(grad, expected_grad)


@for_each(
    gamma=[0.0, 0.01, 0.1, 0.5, 0.99, 1.0, 2.0, 5.0, 20.0],
    dtype=[torch.float32, torch.float64, torch.bfloat16, torch.float16],
    target=[0, 1, 2],
)
def test_saturated_rows(gamma: float, dtype: torch.dtype, target: int, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, t = SATURATED.to(dtype).requires_grad_(), torch.full((len(SATURATED),), target)
    wide = logits.detach().double().requires_grad_()
    true = oracles.dual_focal(wide, t, gamma)
    (true_grad,) = torch.autograd.grad(true.sum(), wide)
    for way in WAYS:
        loss, grad = by_way(way, logits, t, gamma, monkeypatch)
        torch.testing.assert_close(loss.double(), true, rtol=2e-5, atol=1e-30)
        rtol = {torch.bfloat16: 1e-2, torch.float16: 2e-3}.get(dtype, 2e-5)
        if way == "expression":  # autograd's sums cancel in proportion to gamma
            rtol *= max(1.0, gamma)
        torch.testing.assert_close(grad.double(), true_grad, rtol=rtol, atol=1e-30 if dtype.itemsize > 2 else 1e-7)


@given(
    rows=st.lists(st.lists(st.floats(-1e4, 1e4, width=32), min_size=4, max_size=4), min_size=1, max_size=5),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    target=st.integers(0, 3),
)
def test_finite_for_finite_logits(rows: list[list[float]], dtype: torch.dtype, target: int) -> None:
    logits = torch.tensor(rows).to(dtype).requires_grad_()
    t = torch.full((len(rows),), target)
    for name, soft in product(PLAIN, (False, True)):
        y = F.one_hot(t, 4).float() * 0.9 + 0.025 if soft else t
        loss = PLAIN[name](logits, y)
        (grad,) = torch.autograd.grad(loss, logits)
        assert loss.isfinite(), (name, soft)
        assert grad.isfinite().all(), (name, soft)


@given(
    gamma=st.sampled_from([0.0, 0.3, 1.0, 5.0]),
    rows=st.lists(st.lists(st.floats(-60, 60, width=16), min_size=5, max_size=5), min_size=1, max_size=4),
    target=st.integers(0, 4),
)
def test_float32_is_right_to_float32(gamma: float, rows: list[list[float]], target: int) -> None:
    """Relative, not absolute: right however small the loss, as long as it is a normal number."""
    logits = torch.tensor(rows, requires_grad=True)
    t = torch.full((len(rows),), target)
    loss = L.dual_focal_loss(logits, t, gamma, reduction="none")
    (grad,) = torch.autograd.grad(loss.sum(), logits)
    wide = logits.detach().double().requires_grad_()
    true = oracles.dual_focal(wide, t, gamma)
    (true_grad,) = torch.autograd.grad(true.sum(), wide)
    torch.testing.assert_close(loss.double(), true.detach(), rtol=3e-5, atol=1e-34)
    row_scale = true_grad.abs().amax(1, keepdim=True)
    assert ((grad.double() - true_grad).abs() <= 3e-5 * row_scale + 1e-34).all()


def test_rival_is_chosen_on_logits_where_probabilities_round_to_a_tie() -> None:
    """Adjacent bf16 logits whose bf16 probabilities are equal: the larger is still the rival."""
    logits = torch.tensor([[2.0, 0.0078125, 0.00787353515625, 0.0078125]], dtype=torch.bfloat16, requires_grad=True)
    p = logits.softmax(1)
    assert p[0, 1] == p[0, 2]
    (grad,) = torch.autograd.grad(L.dual_focal_loss(logits, torch.tensor([0]), 5.0), logits)
    assert grad[0, 2] > 1.5 * grad[0, 1]


@for_each(gamma=[0.0, 0.3, 0.5, 1.0, 1.5, 5.0])
def test_second_derivative_is_finite_at_saturation(gamma: float) -> None:
    for logits in SATURATED.unsqueeze(1):
        hessian = torch.autograd.functional.hessian(lambda z: L.dual_focal_loss(z, torch.tensor([0]), gamma), logits)
        assert hessian.isfinite().all()


def test_soft_targets_are_as_exact_as_class_indices() -> None:
    logits, target = torch.tensor([[20.0, 0.0, 0.0], [60.0, 0.0, 1.0]]), torch.tensor([0, 0])
    for gamma in (0.0, 0.5, 2.0):
        hard = L.dual_focal_loss(logits, target, gamma, reduction="none")
        soft = L.dual_focal_loss(logits, F.one_hot(target, 3).float(), gamma, reduction="none")
        torch.testing.assert_close(soft, hard, rtol=1e-5, atol=1e-30)


def test_numpy_error_settings_of_the_user_do_not_matter() -> None:
    with np.errstate(all="raise"):
        for logits in (SATURATED, torch.tensor([[0.0, -torch.inf, torch.nan]]), torch.randn(300, 200)):
            L.dual_focal_loss(logits, torch.zeros(len(logits), dtype=torch.long))


@for_each(name=FAMILY, small=[True, False])
def test_masked_classes_are_not_there(name: str, small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not small:
        monkeypatch.setattr("dualfocal.losses._closed_form.SMALL", 0)
    logits = torch.randn(6, 4, requires_grad=True)
    target = torch.randint(4, (6,))
    wide = torch.cat([logits, torch.full((6, 3), -torch.inf)], 1)
    soft = F.one_hot(target, 7).float()
    for y in (target, soft):
        loss = PLAIN[name](wide, y)
        torch.testing.assert_close(loss, PLAIN[name](logits, target))
        (grad,) = torch.autograd.grad(loss, logits)
        (true,) = torch.autograd.grad(PLAIN[name](logits, target), logits)
        torch.testing.assert_close(grad, true)


@for_each(name=["cross_entropy", *FAMILY], soft=[False, True])
def test_impossible_target_is_infinite_as_in_cross_entropy(name: str, soft: bool) -> None:
    logits = torch.tensor([[0.0, -torch.inf, 1.0], [0.0, 2.0, 1.0]], requires_grad=True)
    target = torch.tensor([1, 1])
    y = F.one_hot(target, 3).float() if soft else target
    loss = PLAIN[name](logits, y, reduction="none")
    assert loss[0] == torch.inf
    assert loss[1].isfinite()
    (grad,) = torch.autograd.grad(loss[0], logits)
    (true,) = torch.autograd.grad(F.cross_entropy(logits, target, reduction="none")[0], logits)
    torch.testing.assert_close(grad, true)


def test_backward_twice_gives_the_same_gradient() -> None:
    """No gradient buffer is handed out twice or written into."""
    for shape in ((8, 5), (300, 200)):
        logits = torch.randn(shape, requires_grad=True)
        before = logits.detach().clone()
        loss = L.dual_focal_loss(logits, torch.randint(shape[1], (shape[0],)))
        (first,) = torch.autograd.grad(loss, logits, retain_graph=True)
        copy = first.clone()
        first.zero_()
        (second,) = torch.autograd.grad(loss, logits)
        torch.testing.assert_close(second, copy, rtol=0, atol=0)
        torch.testing.assert_close(logits.detach(), before, rtol=0, atol=0)
