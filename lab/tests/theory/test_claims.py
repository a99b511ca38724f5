"""Verdicts on the paper's claims, compared with numbers recomputed here."""

import pytest
import torch
from case_loops import for_each

from dualfocal_lab.theory import (
    check_claims,
    conditional_risk,
    dual_focal_minimiser,
    dual_focal_minimisers,
    posterior_grid,
)


@pytest.fixture(scope="module")
def claims():
    """Claims by gamma, then by (place, statement); for extreme gammas on a grid of half the density."""
    with pytest.MonkeyPatch.context() as coarse:
        coarse.setattr("dualfocal_lab.theory.claims.posterior_grid", lambda k, parts: posterior_grid(k, parts // 2))
        checked = {gamma: check_claims(gamma) for gamma in (1e-6, 20.0)}
    checked[2.0] = check_claims(2.0)
    return {gamma: {(c.where, c.says): c for c in claims} for gamma, claims in checked.items()}


def find_claim(claims, gamma: float, where: str, words: str):
    (claim,) = (c for (place, says), c in claims[gamma].items() if place == where and words in says)
    return claim


@for_each(
    "where, words, verdict",
    [
        ("Lemma 1", "phi(0)", "holds"),
        ("Lemma 1", "one v^m", "holds"),
        ("Lemma 1", "phi = 1 for i = j", "fails"),
        ("Proof of Theorem 1", "h increases", "holds"),
        ("Section 3.2", "focal loss >=", "holds"),
        ("Eq. 9", "eta_i", "fails"),
        ("Theorem 1", "order", "fails"),
        ("Theorem 1", "most probable", "holds"),
        ("Theorem 1 and Eq. 3", "most probable", "fails"),
        ("Section 4.2", "over-confident for q_m in (0", "empty"),
        ("Section 4.2", "under-confident for q_m in [v^uc", "fails"),
        ("Section 4.2", "less often", "holds"),
    ],
)
def test_verdicts_for_gamma_2(claims, where, words, verdict) -> None:
    assert len(claims[2.0]) == 12
    assert find_claim(claims, 2.0, where, words).verdict == verdict


def test_verdicts_depend_on_gamma(claims) -> None:
    """With a large gamma no posterior of the grid loses its order; with a tiny gamma the tolerance shrinks, too."""
    assert find_claim(claims, 20.0, "Theorem 1", "order").verdict == "holds"
    assert find_claim(claims, 20.0, "Theorem 1", "order").numbers["wrong"] == 0
    assert find_claim(claims, 1e-6, "Eq. 9", "eta_i").verdict == "fails"
    assert find_claim(claims, 1e-6, "Lemma 1", "phi = 1 for i = j").verdict == "fails"
    assert find_claim(claims, 1e-6, "Section 4.2", "less often").verdict == "holds"


def test_the_example_contradicts_the_order(claims) -> None:
    numbers = find_claim(claims, 2.0, "Theorem 1", "order").numbers
    eta = numbers["eta"]
    assert eta == sorted(eta, reverse=True)
    ordered = dual_focal_minimiser(eta, 2.0, order=range(len(eta)))
    assert numbers["risk_in_order"] == pytest.approx(ordered.risk)
    # A prediction with less risk than the best one in the order of eta refutes the claim; here a step from the limit.
    q = torch.tensor(numbers["q"], dtype=torch.float64)
    q[-1] += 1e-6
    q[-2] -= 1e-6
    risk = conditional_risk(q, torch.tensor(eta, dtype=torch.float64), 2.0)
    assert numbers["risk"] == pytest.approx(float(risk), abs=1e-4)
    assert float(risk) < numbers["risk_in_order"] - 0.005


def test_counts_fit_together(claims) -> None:
    etas = posterior_grid(2, 40) + posterior_grid(3, 40) + posterior_grid(4, 20)
    under = find_claim(claims, 2.0, "Section 4.2", "under-confident for").numbers
    over = find_claim(claims, 2.0, "Section 4.2", "over-confident for q_m in (0").numbers
    assert under["of"] == over["of"] == len(etas)
    gaps = [minimiser.overconfidence for minimiser in dual_focal_minimisers(etas, 2.0)]
    assert under["under_confident"] == sum(gap < 0 for gap in gaps)
    assert over["over_confident"] == sum(gap > 0 for gap in gaps)
    assert under["right"] < under["inside"]
    assert over["inside"] == 0  # with up to four classes q_m is at least 1/4
    assert 0 < over["keep"] == over["keep_over"]
    assert 0 < over["lose_over"] < over["lose"]


def test_the_exact_condition_gives_the_posterior_back(claims) -> None:
    numbers = find_claim(claims, 2.0, "Eq. 9", "eta_i").numbers
    assert numbers["exact"] < 1e-10
    assert numbers["published"] > 0.1


def test_the_grid_of_posteriors() -> None:
    for classes, parts in ((2, 40), (3, 40), (4, 20)):
        etas = posterior_grid(classes, parts)
        assert len(set(etas)) == len(etas)
        for eta in etas:
            assert sum(eta) == pytest.approx(1)
            assert list(eta) == sorted(set(eta), reverse=True)
            assert eta[-1] > 0
