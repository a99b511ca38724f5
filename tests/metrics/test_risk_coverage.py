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
    curve = RiskCoverage.from_uncertainty(1 / torch.tensor(confidence, dtype=torch.float64), torch.tensor(right))
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
    curve = RiskCoverage.from_uncertainty(1 / p.amax(1), logits.argmax(1) == target)
    assert np.mean(curve.risks(np.arange(1, 201) / 200)) == pytest.approx(aurc(logits, target))


def test_a_weight_counts_like_repeated_samples():
    generator = torch.Generator().manual_seed(1)
    uncertainty, right = 1 + torch.rand(50, generator=generator).double(), torch.rand(50, generator=generator) < 0.7
    weight = torch.randint(1, 4, (50,), generator=generator)
    weighted = RiskCoverage.from_uncertainty(uncertainty, right, weight.double())
    repeated = RiskCoverage.from_uncertainty(uncertainty.repeat_interleave(weight), right.repeat_interleave(weight))
    for coverage in (0.1, 0.5, 0.8, 0.93, 1.0):
        assert weighted.risk(coverage) == pytest.approx(repeated.risk(coverage))
        assert weighted.threshold(coverage) == repeated.threshold(coverage)


@pytest.mark.parametrize("coverage", [0.0, -0.1, 1.01, float("nan")])
def test_a_coverage_out_of_range_is_refused(coverage):
    curve = RiskCoverage.from_uncertainty(torch.tensor([1.0, 2.0]), torch.tensor([True, False]))
    with pytest.raises(ValueError, match="coverage must be above 0 and at most 1"):
        curve.risk(coverage)
