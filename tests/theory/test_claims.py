"""Verdicts on the paper's claims, each from numbers that are recomputed here."""

import pytest
import torch

from dualfocal.theory import check_claims, conditional_risk, dual_focal_minimiser, dual_focal_minimisers, posterior_grid


@pytest.fixture(scope="module")
def claims():
    """By gamma; of two claims with the same words the one about exact ties is apart."""
    return {gamma: {(c.where, c.says): c for c in check_claims(gamma)} for gamma in (1e-6, 2.0, 20.0)}


def one(claims, gamma: float, where: str, words: str):
    (found,) = (c for (place, says), c in claims[gamma].items() if place == where and words in says)
    return found


@pytest.mark.parametrize(
    ("where", "words", "verdict"),
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
    assert one(claims, 2.0, where, words).verdict == verdict


def test_verdicts_are_found_and_not_written_down(claims) -> None:
    """For a large gamma the grid has no posterior that loses its order; for a tiny one errors are tiny, too."""
    assert one(claims, 20.0, "Theorem 1", "order").verdict == "holds"
    assert one(claims, 20.0, "Theorem 1", "order").numbers["wrong"] == 0
    assert one(claims, 1e-6, "Eq. 9", "eta_i").verdict == "fails"
    assert one(claims, 1e-6, "Lemma 1", "phi = 1 for i = j").verdict == "fails"
    assert one(claims, 1e-6, "Section 4.2", "less often").verdict == "holds"


def test_the_example_against_the_order_is_one(claims) -> None:
    numbers = one(claims, 2.0, "Theorem 1", "order").numbers
    eta = numbers["eta"]
    assert eta == sorted(eta, reverse=True)
    ordered = dual_focal_minimiser(eta, 2.0, order=range(len(eta)))
    assert numbers["risk_in_order"] == pytest.approx(ordered.risk)
    # Any prediction with less risk than all that are ordered as eta refutes the claim: here one step from the limit.
    q = torch.tensor(numbers["q"], dtype=torch.float64)
    q[-1] += 1e-6
    q[-2] -= 1e-6
    risk = conditional_risk(q, torch.tensor(eta, dtype=torch.float64), 2.0)
    assert numbers["risk"] == pytest.approx(float(risk), abs=1e-4)
    assert float(risk) < numbers["risk_in_order"] - 0.005


def test_counts_fit_together(claims) -> None:
    etas = posterior_grid(2, 40) + posterior_grid(3, 40) + posterior_grid(4, 20)
    under = one(claims, 2.0, "Section 4.2", "under-confident for").numbers
    over = one(claims, 2.0, "Section 4.2", "over-confident for q_m in (0").numbers
    assert under["of"] == over["of"] == len(etas)
    found = [one.overconfidence for one in dual_focal_minimisers(etas, 2.0)]
    assert under["under_confident"] == sum(gap < 0 for gap in found)
    assert over["over_confident"] == sum(gap > 0 for gap in found)
    assert under["right"] < under["inside"]
    assert over["inside"] == 0  # four classes or fewer: q_m is 1/4 at least
    assert 0 < over["keep"] == over["keep_over"]
    assert 0 < over["lose_over"] < over["lose"]


def test_the_exact_condition_gives_the_posterior_back(claims) -> None:
    numbers = one(claims, 2.0, "Eq. 9", "eta_i").numbers
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
