"""The risk-coverage curve against a slow definition: the mean error over all orders of tied samples."""

import itertools

import numpy as np
import pytest
import torch

from dualfocal.metrics import RiskCoverage, aurc


def slow_risk(confidence: list[float], right: list[bool], answered: int) -> float:
    """Mean error among the first ``answered`` samples over all orders with falling confidence."""
    orders = [
        order
        for order in itertools.permutations(range(len(right)))
        if all(confidence[a] >= confidence[b] for a, b in itertools.pairwise(order))
    ]
    return float(np.mean([np.mean([not right[i] for i in order[:answered]]) for order in orders]))


def test_risk_is_the_mean_over_the_orders_of_tied_samples():
    confidence = [0.9, 0.5, 0.9, 0.5, 0.5, 0.7]
    right = [True, False, False, True, False, True]
    curve = RiskCoverage.from_confidence(np.array(confidence), np.array(right))
    for answered in range(1, 7):
        assert curve.risk(answered / 6) == pytest.approx(slow_risk(confidence, right, answered))
    assert curve.threshold(1 / 6) == pytest.approx(0.9)
    assert curve.threshold(2 / 6) == pytest.approx(0.9)
    assert curve.threshold(3 / 6) == pytest.approx(0.7)
    assert curve.threshold(1.0) == pytest.approx(0.5)


def test_mean_of_the_curve_is_the_aurc():
    logits = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    target = torch.arange(200) % 3
    p = logits.double().softmax(1)
    curve = RiskCoverage.from_confidence(p.amax(1).numpy(), (p.argmax(1) == target).numpy())
    assert len(curve.confidence) < 200  # some are tied
    mean = np.mean(curve.risks(np.arange(1, 201) / 200))
    assert curve.area() == pytest.approx(mean, rel=1e-12)
    assert aurc(logits, target) == pytest.approx(mean, rel=1e-12)


def test_confidences_that_differ_by_rounding_are_tied():
    """Equal probabilities, in another order of the classes, have sums that differ by some units in the last place."""
    confidence, right = np.array([0.7, 0.7 * (1 + 2.0**-50), 0.7 * (1 - 2.0**-50), 0.7 * (1 + 1e-13)]), [0, 1, 1, 1]
    curve = RiskCoverage.from_confidence(confidence, np.array(right) == 1)
    assert curve.samples.tolist() == [1, 3]
    assert curve.area() == pytest.approx((0 + (1 / 6 + 2 / 9 + 1 / 4)) / 4)


def test_area_with_weights_by_a_loop():
    rng = np.random.default_rng(0)
    confidence, right, weight = rng.random(40), rng.random(40) < 0.6, rng.exponential(size=40)
    order = np.argsort(-confidence)
    w, wrong = weight[order], ~right[order]
    risks = [(w[: k + 1] * wrong[: k + 1]).sum() / w[: k + 1].sum() for k in range(40)]
    curve = RiskCoverage.from_confidence(confidence, right, weight)
    assert curve.area() == pytest.approx(np.average(risks, weights=w))
    both = RiskCoverage.from_confidence(np.r_[confidence, confidence], np.r_[right, right], np.r_[weight, weight] / 2)
    assert both.area() == pytest.approx(curve.area(), abs=0.02)  # each sample is now a group of two halves


def test_a_weight_counts_like_repeated_samples():
    rng = np.random.default_rng(1)
    confidence, right, weight = rng.random(50), rng.random(50) < 0.7, rng.integers(1, 4, 50)
    weighted = RiskCoverage.from_confidence(confidence, right, weight.astype(np.float64))
    repeated = RiskCoverage.from_confidence(np.repeat(confidence, weight), np.repeat(right, weight))
    for coverage in (0.1, 0.5, 0.8, 0.93, 1.0):
        assert weighted.risk(coverage) == pytest.approx(repeated.risk(coverage))
        assert weighted.threshold(coverage) == repeated.threshold(coverage)


@pytest.mark.parametrize("coverage", [0.0, -0.1, 1.01, float("nan")])
def test_a_coverage_out_of_range_is_refused(coverage):
    curve = RiskCoverage.from_confidence(np.array([0.9, 0.5]), np.array([True, False]))
    with pytest.raises(ValueError, match="coverage must be above 0 and at most 1"):
        curve.risk(coverage)
