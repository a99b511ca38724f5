"""Value and gradient of every loss, compared with a float64 transcription of its equation."""

import pytest
import torch
from case_loops import for_each
from cases import BATCH, BATCH_RIVALS, PER_SAMPLE, Case
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from dualfocal import losses as L

SOFT_TARGETS = PER_SAMPLE + BATCH


@pytest.fixture(params=["small", "chunked"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both eager implementations of the closed form, the second in chunks of two or three rows."""
    if request.param == "chunked":
        monkeypatch.setattr("dualfocal.losses._closed_form.SMALL", 0)
        monkeypatch.setattr("dualfocal.losses._closed_form.CHUNK", 13)
    return request.param


def problem(soft: bool = False, n: int = 7, c: int = 5, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    logits = torch.randn(n, c, dtype=torch.float64) * scale
    target = torch.rand(n, c, dtype=torch.float64).softmax(1) if soft else torch.randint(c, (n,))
    return logits.requires_grad_(), target


def value_and_grad(loss: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.linspace(0.5, 1.5, loss.numel(), dtype=loss.dtype)
    (grad,) = torch.autograd.grad((loss * weights).sum(), logits)
    return loss.detach(), grad


def assert_matches(case: Case, logits: Tensor, target: Tensor) -> None:
    value, grad = value_and_grad(case.loss(logits, target, reduction="none"), logits)
    true_value, true_grad = value_and_grad(case.oracle(logits, target), logits)
    torch.testing.assert_close(value, true_value, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(grad, true_grad, rtol=1e-8, atol=1e-12)


@for_each(case=PER_SAMPLE + BATCH + BATCH_RIVALS)
def test_class_indices(case: Case, path: str) -> None:
    assert_matches(case, *problem())


@for_each(case=SOFT_TARGETS)
def test_class_probabilities(case: Case) -> None:
    logits, target = problem(soft=True)
    target[0] = torch.nn.functional.one_hot(torch.tensor(2), 5)  # an exact 0 among the probabilities
    assert_matches(case, logits, target)


@for_each(case=[c for c in SOFT_TARGETS if "mmce" not in c.name and "kde" not in c.name])
def test_one_hot_probabilities_equal_class_indices(case: Case) -> None:
    logits, target = problem()
    hard = case.loss(logits, target, reduction="none")
    soft = case.loss(logits, torch.nn.functional.one_hot(target, 5).double(), reduction="none")
    torch.testing.assert_close(hard, soft)


@pytest.mark.filterwarnings("ignore:dual focal loss with two classes")
@for_each(case=PER_SAMPLE, c=[1, 2, 3])
def test_few_classes(case: Case, c: int, path: str) -> None:
    assert_matches(case, *problem(c=c, n=5))


@for_each(case=[c for c in PER_SAMPLE if c.name.startswith(("dual", "ada_dual", "focal"))])
def test_ties(case: Case, path: str) -> None:
    """Classes tied with the target are not rivals; of tied rivals the lowest index receives the gradient."""
    rows = [[1, 1, 1, 1, 1], [2, 1, 1, 0, 0], [1, 2, 2, 1, 0], [0, 0, 3, 3, 3], [0, 1, 1, 1, 2], [5, 0, 0, 0, 0]]
    logits = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
    for target in range(5):
        assert_matches(case, logits, torch.full((6,), target))
    assert_matches(case, logits, torch.full((6, 5), 0.2, dtype=torch.float64))


@for_each(soft=[False, True], case=PER_SAMPLE + BATCH)
def test_gradcheck(case: Case, soft: bool, path: str) -> None:
    logits, target = problem(soft, n=4, c=4)
    assert gradcheck(lambda z: case.loss(z, target, reduction="sum"), logits)


@for_each(case=[c for c in PER_SAMPLE if "focal" in c.name or "flsd" in c.name])
def test_double_backward(case: Case, path: str) -> None:
    logits, target = problem(n=3, c=4)
    assert gradgradcheck(lambda z: case.loss(z, target, reduction="none"), logits)


def test_gamma_per_sample(path: str) -> None:
    logits, target = problem()
    gamma = torch.linspace(0, 6, 7, dtype=torch.float64)
    together = L.dual_focal_loss(logits, target, gamma, reduction="none")
    one_by_one = [L.dual_focal_loss(logits[i], target[i], gamma[i].item()) for i in range(7)]
    torch.testing.assert_close(together, torch.stack(one_by_one))


def test_gamma_per_pixel(path: str) -> None:
    logits, target = torch.randn(2, 5, 3, 2), torch.randint(5, (2, 3, 2))
    gamma = torch.rand(2, 3, 2) * 6
    dense = L.dual_focal_loss(logits, target, gamma, reduction="none")
    for n, y, x in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(2)).tolist():
        true = L.dual_focal_loss(logits[n, :, y, x], target[n, y, x], gamma[n, y, x].item())
        torch.testing.assert_close(dense[n, y, x], true)


def test_a_probability_on_an_edge_has_the_gamma_above_it(path: str) -> None:
    """Bins of p_k are [lo, hi); here p_k is exactly 1/4."""
    logits, target = torch.zeros(1, 4, dtype=torch.float64), torch.tensor([0])
    above = L.focal_loss(logits, target, 3.0)
    torch.testing.assert_close(L.flsd_loss(logits, target, (5.0, 3.0), thresholds=(0.25,)), above)
    torch.testing.assert_close(L.ada_focal_loss(logits, target, torch.tensor([5.0, 3.0]), torch.tensor([0.25])), above)


def test_gamma_can_be_learnt() -> None:
    logits, target = problem()
    gamma = torch.full((7,), 2.0, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda z, g: L.dual_focal_loss(z, target, g, reduction="sum"), (logits, gamma))


@for_each(loss=[L.focal_loss, L.inverse_focal_loss, L.dual_focal_loss])
def test_gamma_that_is_learnt_may_start_at_0(loss) -> None:
    logits, target = problem()
    slopes = []
    for start in (0.0, 1e-6):
        gamma = torch.tensor(start, dtype=torch.float64, requires_grad=True)
        slopes.append(torch.autograd.grad(loss(logits, target, gamma), gamma)[0])
    assert slopes[0].abs() > 1e-3
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-4, atol=0)


def test_gamma_of_an_integer_dtype() -> None:
    logits, target = problem()
    for dtype in (torch.uint8, torch.int64):
        loss = L.inverse_focal_loss(logits, target, torch.tensor(2, dtype=dtype))
        torch.testing.assert_close(loss, L.inverse_focal_loss(logits, target, 2.0))


def test_changing_the_target_before_a_second_backward_is_an_error(path: str) -> None:
    logits, target = problem()
    loss = L.dual_focal_loss(logits, target, 2.0)
    target.add_(1).remainder_(5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(loss, logits, create_graph=True)


def test_jump_of_two_classes_and_its_one_warning(warn_again) -> None:
    """The loss just below and above p_k = 1/2 with gamma = 5: .022 and .684."""
    warn_again()
    p = torch.tensor([0.499, 0.501], dtype=torch.float64)
    logits = torch.stack([p.log(), (1 - p).log()], 1)
    with pytest.warns(UserWarning, match="two classes"):
        loss = L.dual_focal_loss(logits, torch.tensor([0, 0]), 5.0, reduction="none")
    torch.testing.assert_close(loss, torch.tensor([0.022, 0.684], dtype=torch.float64), atol=5e-4, rtol=0)
    L.dual_focal_loss(logits, torch.tensor([0, 0]))  # no second warning, which would be an error here


def test_no_warning_where_there_is_no_rival(warn_again) -> None:
    warn_again()
    logits, target = problem(c=2)
    L.dual_focal_loss(logits, target, 0.0)
    L.dual_focal_loss(logits, target, rival=0.1)
