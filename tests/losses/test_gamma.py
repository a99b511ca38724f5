"""gamma as a tensor, and class weights passed in the place of gamma."""

import warnings

import pytest
import torch
from case_loops import for_each
from torch import Tensor
from torch.autograd import forward_ad

from dualfocal import losses as L

WITH_GAMMA = {"focal": L.focal_loss, "inverse_focal": L.inverse_focal_loss, "dual_focal": L.dual_focal_loss}
WEIGHT_HINT = "pass class weights as weight="
OWN_FIRST = [
    name for name in L.LOSSES if name not in ("cross_entropy", "brier")
]  # cross-entropy takes weight, the Brier score keywords only


def problem(n: int, c: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randn(n, c), torch.randint(c, (n,))


@for_each(name=OWN_FIRST)
def test_modules_refuse_class_weights_as_first_argument(name: str) -> None:
    with pytest.raises((TypeError, ValueError), match=WEIGHT_HINT):
        L.LOSSES[name](torch.rand(5))


def test_the_first_argument_of_cross_entropy_is_weight_as_in_torch() -> None:
    logits, target = problem(8)
    weight = torch.rand(5)
    torch.testing.assert_close(
        L.CrossEntropyLoss(weight)(logits, target), torch.nn.CrossEntropyLoss(weight)(logits, target)
    )


@for_each(name=[name for name in OWN_FIRST if not name.startswith("ada_")], n=[4, 5])
def test_functions_refuse_class_weights_as_gamma(name: str, n: int) -> None:
    """Also with as many rows as classes."""
    logits, target = problem(n)
    with pytest.raises((TypeError, ValueError), match=WEIGHT_HINT):
        getattr(L, f"{name}_loss")(logits, target, torch.rand(5))
    with pytest.raises((TypeError, ValueError), match=WEIGHT_HINT):
        getattr(L, f"{name}_loss")(logits, target.new_ones(n, 5) / 5, torch.rand(5))


def test_a_compiled_function_refuses_them_too() -> None:
    compiled = torch.compile(L.mmce_loss, backend="eager")
    with pytest.raises(Exception, match=WEIGHT_HINT):
        compiled(*problem(5), torch.rand(5))
    torch.compiler.reset()


@for_each(name=WITH_GAMMA)
def test_gamma_beside_the_logits_is_never_ambiguous(name: str) -> None:
    loss = WITH_GAMMA[name]
    for n in (4, 5):
        logits, target = problem(n)
        gamma = 5 * torch.rand(n, 1)
        true = torch.stack([loss(logits[i], target[i], gamma[i].item()) for i in range(n)])
        torch.testing.assert_close(loss(logits, target, gamma, reduction="none"), true)
        torch.testing.assert_close(loss(logits[0], target[0], gamma[0]), true[0])
    dense, pixels, gammas = torch.randn(5, 5, 3), torch.randint(5, (5, 3)), torch.rand(5, 1, 3)
    true = loss(dense, pixels, gammas[:, 0])
    torch.testing.assert_close(loss(dense, pixels, gammas), true)


@for_each(soft=[False, True], name=WITH_GAMMA)
def test_forward_mode_in_gamma(name: str, soft: bool) -> None:
    """The closed form has no derivative in gamma, so the expression must be used."""
    logits, target = problem(4)
    if soft:
        target = torch.nn.functional.one_hot(target, 5).float()
    gamma = torch.tensor(2.0, requires_grad=True)
    (slope,) = torch.autograd.grad(WITH_GAMMA[name](logits, target, gamma), gamma)
    with forward_ad.dual_level():
        loss = WITH_GAMMA[name](logits, target, forward_ad.make_dual(gamma.detach(), torch.tensor(1.0)))
        torch.testing.assert_close(forward_ad.unpack_dual(loss).tangent, slope)


def test_the_warning_of_two_classes_comes_again_when_it_was_an_error(warn_again) -> None:
    warn_again()
    for _ in range(2):
        with pytest.raises(UserWarning, match="two classes"):  # pytest runs with warnings as errors
            L.dual_focal_loss(*problem(3, 2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        L.dual_focal_loss(*problem(3, 2))
        L.dual_focal_loss(*problem(3, 2))
    assert len(caught) == 1


@for_each(call=[L.dual_focal_loss, L.DualFocalLoss(), L.AdaDualFocalLoss()])
def test_the_warning_of_two_classes_points_to_the_caller(call, warn_again) -> None:
    warn_again()
    with pytest.warns(UserWarning, match="two classes") as caught:
        call(*problem(3, 2))
    assert caught[0].filename == __file__


@for_each(cls=[L.AdaFocalLoss, L.AdaDualFocalLoss])
def test_adaptive_state_is_never_half(cls: type[L.AdaFocalLoss]) -> None:
    true = cls()
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        criterion = cls()
    finally:
        torch.set_default_dtype(default)
    for name, state in true.state_dict().items():
        torch.testing.assert_close(criterion.state_dict()[name], state, rtol=0, atol=0)
