"""The paper's functions, compared with autograd, with each other and with the losses."""

import math

import pytest
import torch
import torch.nn.functional as F
from case_loops import for_each
from hypothesis import given
from hypothesis import strategies as st

from dualfocal.losses import dual_focal_loss, focal_loss
from dualfocal_lab.theory import gradient_ratios, h, phi, phi_inverse, phi_peak, phi_slope, regions, s, t, u

GAMMAS = (0.3, 1.0, 2.0, 5.0)
V = torch.linspace(0.02, 0.98, 97, dtype=torch.float64)
gammas = st.floats(0.05, 20)
rivals = st.floats(0, 0.98)


def derivative(function, v):
    v = v.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(v).sum(), v)
    return gradient


@for_each(c=[0.0, 0.2, 0.7], gamma=GAMMAS)
def test_phi_is_minus_v_times_the_slope_of_the_loss(gamma, c) -> None:
    slope = derivative(lambda v: -((1 - v + c) ** gamma) * v.log(), V)
    torch.testing.assert_close(phi(V, gamma, c), -V * slope)


@for_each(c=[0.0, 0.2, 0.7], gamma=GAMMAS)
def test_derivatives_are_those_of_the_proofs(gamma, c) -> None:
    torch.testing.assert_close(phi_slope(V, gamma, c), derivative(lambda v: phi(v, gamma, c), V))
    torch.testing.assert_close(t(V, gamma, c) / phi(V, gamma, c) ** 2, derivative(lambda v: h(v, gamma, c), V))
    rest = -((1 - V + c) ** (gamma - 2)) * gamma**2 * V**2 * V.log()
    torch.testing.assert_close(t(V, gamma, c), (1 - V + c) ** (gamma - 2) * u(V, gamma, c) + rest)


def test_slope_of_u_at_one_is_not_the_printed_one() -> None:
    gamma, c = 0.5, 0.2
    one = torch.ones(1, dtype=torch.float64)
    assert float(derivative(lambda v: u(v, gamma, c), one)) == pytest.approx(-gamma - 2 * c * (1 - gamma))


@given(gammas, rivals)
def test_ends_of_phi(gamma, c) -> None:
    assert float(phi(0.0, gamma, c)) == pytest.approx((1 + c) ** gamma)
    assert float(phi(1.0, gamma, c)) == pytest.approx(c**gamma)


def test_gamma_0_is_cross_entropy() -> None:
    assert bool((phi(V, 0.0, 0.3) == 1).all())
    assert bool((h(V, 0.0, 0.3) == V).all())


@given(gammas, rivals)
def test_one_peak_and_the_points_of_figure_1(gamma, c) -> None:
    points = regions(gamma, c)
    assert 0 < points.v_m < points.v_prime <= points.v_uc <= 1
    assert float(s(points.v_m, gamma, c)) == pytest.approx(0, abs=1e-9)
    assert float(phi(points.v_prime, gamma, c)) == pytest.approx((1 + c) ** gamma)
    assert float(phi(points.v_uc, gamma, c)) == pytest.approx(1)
    assert float(phi(points.focal_v_prime, gamma)) == pytest.approx(1)
    v = torch.linspace(0, 1, 4001, dtype=torch.float64)[1:-1]
    assert bool((phi_slope(v, gamma, c) > 0).eq(v < points.v_m).all())


@for_each(c=[0.0, 0.3, 0.9])
def test_for_gamma_1_two_points_do_not_depend_on_the_rival(c) -> None:
    """s(v) = (2 + log v) (v - 1 - C), and phi(v) = (1 + C) - v (1 + log v)."""
    points = regions(1.0, c)
    assert points.v_m == pytest.approx(math.exp(-2))
    assert points.v_prime == pytest.approx(math.exp(-1))
    assert points.v_uc * (1 + math.log(points.v_uc)) == pytest.approx(c)


def test_figure_1() -> None:
    points = regions(1.0, 0.3)
    assert points.reduction == pytest.approx(0.2365, abs=5e-5)
    assert points.reduction_from_focal == pytest.approx(points.reduction)
    assert points.possible == (0.3, 0.7)
    assert points.v_m < points.possible[0]  # no prediction with this rival lies in the over-confident region


@for_each(probabilities=[(0.6, 0.3, 0.1), (0.3, 0.5, 0.2), (0.45, 0.05, 0.5), (0.1, 0.6, 0.3)], gamma=GAMMAS)
def test_gradient_ratios_are_those_of_the_losses(gamma, probabilities) -> None:
    logits = torch.tensor([probabilities], dtype=torch.float64).log()
    target = torch.tensor([0])

    def gradient(loss):
        return derivative(lambda z: loss(z, target), logits)[0]

    ratio = gradient(lambda z, y: dual_focal_loss(z, y, gamma)) / gradient(F.cross_entropy)
    p_k = probabilities[0]
    below = [p for p in probabilities if p < p_k]
    expected = gradient_ratios(p_k, max(below, default=0.0), gamma)
    rival = probabilities.index(max(below)) if below else None
    for i in range(3):
        name = "target" if i == 0 else "rival" if i == rival else "others"
        assert float(ratio[i]) == pytest.approx(float(getattr(expected, name))), name
    focal = gradient(lambda z, y: focal_loss(z, y, gamma)) / gradient(F.cross_entropy)
    torch.testing.assert_close(focal, phi(p_k, gamma).expand(3))


def test_errors_name_the_value_and_the_rule() -> None:
    for call, text in (
        (lambda: phi(1.2, 1.0), "v must be a probability .* got 1.2"),
        (lambda: phi(0.5, 1.0, -0.1), "C must be a probability .* got -0.1"),
        (lambda: phi(0.5, -1.0), "gamma must be finite and at least 0, got -1.0"),
        (lambda: regions(0.0, 0.3), "gamma must be above 0 .* got gamma = 0.0"),
        (lambda: phi_peak(1.0, 1.0), r"C in \[0, 1\), got .* C = 1.0"),
        (lambda: phi_inverse(7.0, 1.0, 0.3), "between 0.3 and 1.43534, .* phi .* got 7"),
        (lambda: gradient_ratios(0.8, 0.3, 1.0), "p_k \\+ p_j must be at most 1, got 0.8 and 0.3"),
    ):
        with pytest.raises(ValueError, match=text):
            call()
