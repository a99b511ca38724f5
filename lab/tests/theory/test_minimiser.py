"""The exact minimiser, compared with the loss, brute force, stationarity and the paper's claims."""

import itertools
import math

import numpy as np
import pytest
import torch
from case_loops import for_each
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dualfocal.losses import DualFocalLoss, FocalLoss
from dualfocal_lab.theory import (
    compare_minimisers,
    conditional_risk,
    cross_entropy_minimiser,
    dual_focal_minimiser,
    dual_focal_minimisers,
    exact_eta,
    focal_minimiser,
    focal_minimisers,
    h,
    phi,
    published_eta,
    uniform_threshold,
)

gammas = st.floats(0.05, 20)
posteriors = (
    st.integers(2, 4)
    .flatmap(lambda k: st.lists(st.floats(0.01, 1), min_size=k, max_size=k))
    .map(lambda values: [value / sum(values) for value in values])
)


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def focal_eta(q, gamma: float) -> torch.Tensor:
    """Posterior whose focal risk is minimised by q."""
    values = h(tensor(q), gamma)
    return values / values.sum()


def risks(q: np.ndarray, eta, gamma: float) -> np.ndarray:
    """Dual focal risk by plain loops over classes and rivals."""
    total = np.zeros(len(q))
    for k in range(q.shape[1]):
        rival = np.zeros(len(q))
        for j in range(q.shape[1]):
            rival = np.where((q[:, j] < q[:, k]) & (q[:, j] > rival), q[:, j], rival)
        total -= eta[k] * (1 - q[:, k] + rival) ** gamma * np.log(q[:, k])
    return total


def test_counterexample_to_the_order() -> None:
    minimiser = dual_focal_minimiser([0.5, 0.3, 0.2], 2.0)
    assert minimiser.q == pytest.approx([0.5322, 0.2267, 0.2411], abs=5e-5)
    assert minimiser.risk == pytest.approx(0.70111, abs=5e-6)
    assert minimiser.order == (0, 2, 1)
    assert minimiser.inversions == ((1, 2),)
    assert minimiser.keeps_top
    assert not minimiser.keeps_order
    assert minimiser.attained
    assert minimiser.verdict == "over-confident"
    ordered = dual_focal_minimiser([0.5, 0.3, 0.2], 2.0, order=[0, 1, 2])
    assert ordered.risk == pytest.approx(0.70298, abs=5e-6)
    assert ordered.keeps_order


@for_each(
    gamma=[0.5, 1.0, 2.0, 5.0], eta=[(0.5, 0.3, 0.2), (0.8, 0.15, 0.05), (0.36, 0.33, 0.31), (0.99, 0.006, 0.004)]
)
def test_no_point_of_a_dense_grid_is_better(eta, gamma) -> None:
    # Denser towards the corners; the odd shift leaves no ties.
    line = 1 / (1 + np.exp(-np.linspace(-9, 9, 241)))
    first, share = np.meshgrid(line, line + 1e-7 * math.pi)
    q = np.stack([first, (1 - first) * share, (1 - first) * (1 - share)], -1).reshape(-1, 3)
    best = risks(q, eta, gamma).min()
    minimiser = dual_focal_minimiser(eta, gamma)
    assert minimiser.risk <= best + 1e-12
    assert minimiser.risk == pytest.approx(best, rel=0.02)


@for_each(gamma=[0.5, 2.0, 5.0])
def test_no_random_start_is_better_with_four_classes(gamma) -> None:
    """Compare with a random descent from many starts, which uses no derivatives and no orders."""
    generator = np.random.default_rng(0)
    eta = np.array([0.4, 0.3, 0.2, 0.1])

    def value(z: np.ndarray) -> np.ndarray:
        q = np.exp(z - np.logaddexp.reduce(z, axis=1, keepdims=True))
        return np.where((np.diff(np.sort(q)) > 1e-9).all(1), risks(q, eta, gamma), np.inf)

    z = generator.normal(size=(300, 4))
    best = value(z)
    for step in np.geomspace(1, 1e-4, 1500):
        trial = z + step * generator.normal(size=z.shape)
        new = value(trial)
        z, best = np.where((new < best)[:, None], trial, z), np.minimum(new, best)
    minimiser = dual_focal_minimiser(eta.tolist(), gamma)
    assert minimiser.risk <= best.min() + 1e-9
    assert minimiser.risk == pytest.approx(best.min(), abs=1e-4)


@given(posteriors, gammas)
def test_attained_minima_are_stationary_and_have_the_loss_as_risk(eta, gamma) -> None:
    minimiser = dual_focal_minimiser(eta, gamma)
    assert sum(minimiser.q) == pytest.approx(1)
    assume(minimiser.attained and min(np.diff(sorted(minimiser.q))) > 1e-6)
    torch.testing.assert_close(exact_eta(tensor(minimiser.q), gamma), tensor(eta), rtol=1e-6, atol=1e-8)
    if len(eta) > 2:  # of two classes the loss warns
        loss = DualFocalLoss(gamma)(tensor([minimiser.q]).log(), tensor([eta]))
        assert float(loss) == pytest.approx(minimiser.risk)
    assert float(conditional_risk(tensor(minimiser.q), tensor(eta), gamma)) == pytest.approx(minimiser.risk)


@given(posteriors, gammas)
def test_the_largest_posterior_stays_the_most_probable_class(eta, gamma) -> None:
    assume(np.diff(sorted(eta))[-1] > 1e-6)
    minimiser = dual_focal_minimiser(eta, gamma)
    assert minimiser.order[0] == int(np.argmax(eta))
    assert minimiser.keeps_top


@given(posteriors, gammas)
@settings(max_examples=8)
def test_it_is_more_confident_than_focal_loss(eta, gamma) -> None:
    assert max(dual_focal_minimiser(eta, gamma).q) > max(focal_minimiser(eta, gamma).q)


@given(posteriors, gammas, st.randoms(use_true_random=False))
@settings(max_examples=20)
def test_the_risk_does_not_depend_on_the_order_of_the_classes(eta, gamma, random) -> None:
    assume(min(np.diff(sorted(eta))) > 1e-3)
    order = random.sample(range(len(eta)), len(eta))
    minimiser, permuted = (dual_focal_minimiser(posterior, gamma) for posterior in (eta, [eta[k] for k in order]))
    assert permuted.risk == pytest.approx(minimiser.risk, rel=1e-9)


@for_each(gamma=[0.5, 1.0])
def test_an_infimum_at_a_tie_is_approached_and_undercut_by_the_tie(gamma) -> None:
    eta = (0.5, 0.3, 0.2)
    minimiser = dual_focal_minimiser(eta, gamma)
    assert not minimiser.attained
    assert minimiser.order == (0, 2, 1)
    assert minimiser.q[1] == minimiser.q[2]
    near = [tensor([minimiser.q[0], minimiser.q[1] - step, minimiser.q[2] + step]) for step in (1e-3, 1e-6, 1e-9)]
    excess = [float(conditional_risk(q, tensor(eta), gamma)) - minimiser.risk for q in near]
    assert excess[0] > excess[1] > 0
    assert excess[2] == pytest.approx(0, abs=1e-8)
    assert float(conditional_risk(tensor(minimiser.q), tensor(eta), gamma)) < minimiser.risk - 0.01


@for_each(eta=[(0.6, 0.3, 0.1), (0.9, 0.06, 0.04), (0.45, 0.45, 0.1)], gamma=[0.3, 2.0])
def test_ties_allowed_is_least_of_all_patterns(eta, gamma) -> None:
    x = np.linspace(0.001, 0.499, 2000)
    rest = 1 - 2 * x
    lines = [np.full((1, 3), 1 / 3)]
    lines += [np.stack(columns, 1) for columns in ((x, x, rest), (x, rest, x), (rest, x, x))]
    free = dual_focal_minimiser(eta, gamma)
    best = min(free.risk, *(risks(line, eta, gamma).min() for line in lines))
    minimiser = dual_focal_minimiser(eta, gamma, ties=True)
    assert minimiser.attained
    assert minimiser.risk <= best + 1e-12
    assert minimiser.risk == pytest.approx(best, rel=1e-4)
    assert float(conditional_risk(tensor(minimiser.q), tensor(eta), gamma)) == pytest.approx(minimiser.risk)


@pytest.mark.parametrize(("gamma", "threshold"), [(0.5, 0.707), (1.0, 0.774), (2.0, 0.855), (3.0, 0.905), (5.0, 0.958)])
def test_two_classes_uniform_wins_up_to_a_threshold(gamma, threshold) -> None:
    assert uniform_threshold(gamma) == pytest.approx(threshold, abs=5e-4)
    q = np.linspace(0.5, 1, 20_001)[1:-1]
    both = np.stack([q, 1 - q], 1)
    for larger, wins in ((threshold - 0.002, True), (threshold + 0.002, False)):
        least = risks(both, (larger, 1 - larger), gamma).min()
        assert (0.5**gamma * math.log(2) < least) == wins
        minimiser = dual_focal_minimiser([larger, 1 - larger], gamma, ties=True)
        assert minimiser.ranking == (((0, 1),) if wins else ((0,), (1,)))


@given(posteriors, gammas)
@settings(max_examples=12)
def test_focal_loss_has_one_minimiser_in_the_order_of_the_posterior(eta, gamma) -> None:
    minimiser = focal_minimiser(eta, gamma)
    assert sum(minimiser.q) == pytest.approx(1)
    torch.testing.assert_close(focal_eta(minimiser.q, gamma), tensor(eta), rtol=1e-6, atol=1e-9)
    assert not minimiser.inversions
    loss = FocalLoss(gamma)(tensor([minimiser.q]).log(), tensor([eta]))
    assert float(loss) == pytest.approx(minimiser.risk)


def test_cross_entropy_and_gamma_0_give_the_posterior() -> None:
    eta = (0.5, 0.3, 0.2)
    entropy = -sum(value * math.log(value) for value in eta)
    minimisers = cross_entropy_minimiser(eta), focal_minimiser(eta, 0.0), dual_focal_minimiser(eta, 0.0)
    assert [minimiser.loss for minimiser in minimisers] == ["cross_entropy", "focal", "dual_focal"]
    for minimiser in minimisers:
        assert minimiser.q == pytest.approx(eta)
        assert minimiser.risk == pytest.approx(entropy)
        assert minimiser.verdict == "calibrated"
    assert cross_entropy_minimiser(eta).q == eta


def test_a_class_that_never_occurs_gets_nothing() -> None:
    two, three = dual_focal_minimiser([0.9, 0.1], 2.0), dual_focal_minimiser([0.1, 0.0, 0.9], 2.0)
    assert three.q == pytest.approx([two.q[1], 0, two.q[0]])
    assert three.risk == pytest.approx(two.risk)
    assert three.order == (2, 0, 1)
    q = np.random.default_rng(0).dirichlet([0.5, 0.3, 1], 50_000).clip(1e-9)
    assert risks(q, (0.1, 0.0, 0.9), 2.0).min() > three.risk
    for minimiser in compare_minimisers([0.0, 1.0], 20.0).values():
        assert minimiser.q == (0.0, 1.0)


@for_each(gamma=[0.05, 1.0, 20.0])
def test_nearly_certain_posteriors(gamma) -> None:
    """Tiny probabilities are not confused with ties."""
    eta = (1 - 3e-9, 2e-9, 1e-9)
    minimiser = dual_focal_minimiser(eta, gamma)
    assert minimiser.order[0] == 0
    top, *others = minimiser.q
    assert 0 < min(others) <= max(others) < top
    assert minimiser.attained == (minimiser.q[1] != minimiser.q[2])
    if minimiser.attained:
        assert exact_eta(tensor(minimiser.q), gamma).tolist() == pytest.approx(eta, rel=1e-3)
    focal = focal_minimiser(eta, gamma)
    assert focal_eta(focal.q, gamma).tolist() == pytest.approx(eta, rel=1e-3)


def test_a_batch_gives_the_same_as_single_posteriors() -> None:
    etas = [(0.5, 0.3, 0.2), (0.7, 0.3, 0.0), (0.4, 0.35, 0.25)]
    assert [minimiser.q for minimiser in dual_focal_minimisers(etas, 2.0)] == [
        pytest.approx(dual_focal_minimiser(eta, 2.0).q) for eta in etas
    ]
    assert [m.q for m in focal_minimisers(etas, 2.0)] == [pytest.approx(focal_minimiser(e, 2.0).q) for e in etas]


def test_five_classes() -> None:
    eta = (0.3, 0.25, 0.2, 0.15, 0.1)
    minimiser = dual_focal_minimiser(eta, 2.0)
    orders = itertools.permutations(range(5))
    assert minimiser.risk == pytest.approx(
        min(dual_focal_minimiser(eta, 2.0, order=o).risk for o in orders if o[0] == 0)
    )
    assert minimiser.keeps_top


def test_the_published_condition_lacks_the_cross_term() -> None:
    """The exact condition holds term by term; the published one is wrong by more than 0.1."""
    minimiser = dual_focal_minimiser([0.5, 0.3, 0.2], 2.0)
    a, b, c = sorted(minimiser.q, reverse=True)
    scale = 0.5 * float(phi(a, 2.0, b)) / a  # lambda, from the first class
    assert b / float(phi(b, 2.0, c)) * (scale + 2 * (1 - a + b) * -math.log(a) * 0.5) == pytest.approx(0.2)
    assert b / float(phi(b, 2.0, c)) * scale < 0.15
    published = published_eta(tensor(minimiser.q), 2.0)
    assert float((published - tensor([0.5, 0.3, 0.2])).abs().max()) > 0.1


def test_posteriors_of_many_predictions_at_once() -> None:
    q = torch.from_numpy(np.random.default_rng(0).dirichlet(np.ones(6), (2, 3)))
    for function in (exact_eta, published_eta):
        eta = function(q, 2.0)
        assert eta.shape == q.shape
        torch.testing.assert_close(eta[1, 2], function(q[1, 2], 2.0))


def test_errors_name_the_value_and_the_rule() -> None:
    for call, text in (
        (lambda: dual_focal_minimiser([0.5, 0.3], 1.0), "eta must .* sum to 1, .* sum 0.8"),
        (lambda: dual_focal_minimiser([1.2, -0.2], 1.0), r"eta must .* probabilities .* got \[1.2, -0.2\]"),
        (lambda: focal_minimiser([1.0], 1.0), r"eta must .* at least two .* got \[1.0\]"),
        (lambda: dual_focal_minimiser([0.2] * 2 + [0.15] * 4, 1.0), "at most 5 classes .* got 6"),
        (lambda: dual_focal_minimiser([0.5, 0.5], 21.0), "gamma must be finite and between 0 and 20, got 21.0"),
        (
            lambda: dual_focal_minimiser([0.6, 0.4], 1.0, order=[0, 0]),
            r"order must list each of the 2 classes .* \[0, 0\]",
        ),
        (lambda: conditional_risk(tensor([0.5, 0.5]), tensor([0.5, 0.5]), 1.0, "brier"), "loss must be one of"),
        (lambda: exact_eta(tensor([0.5, 0.25, 0.25]), 1.0), "without ties, .* got .*0.25, 0.25"),
        (lambda: exact_eta(tensor([0.5, 0.25]), 1.0), "sum to 1.* sum 0.75"),
        (lambda: exact_eta(tensor([1.0, 0.0]), 1.0), r"in \(0, 1\) .* got \[1.0, 0.0\]"),
        (lambda: uniform_threshold(0.0), "gamma must be above 0, got 0"),
    ):
        with pytest.raises(ValueError, match=text):
            call()
