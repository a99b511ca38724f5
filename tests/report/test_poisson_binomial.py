"""The gap of a class that chance explains: exact for few samples, and adjusted for all classes together."""

from itertools import product

import numpy as np
import pytest
import torch
from browser import contents_of

from dualfocal.report.classes import GROUPS, chance_bound, class_chances, distribution
from dualfocal.report.html import write_report
from dualfocal.runs.source import Reading


def by_hand(confidence: np.ndarray) -> np.ndarray:
    """The probability of each number of right predictions, summed over all outcomes."""
    masses = np.zeros(len(confidence) + 1)
    for outcome in product((0, 1), repeat=len(confidence)):
        masses[sum(outcome)] += np.prod(np.where(outcome, confidence, 1 - confidence))
    return masses


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_the_distribution_is_exact(n):
    confidence = np.random.default_rng(n).uniform(0.2, 1.0, n)
    confidence[0] = 1.0
    least, masses = distribution(confidence)
    assert least == 0
    assert masses == pytest.approx(by_hand(confidence), abs=1e-14)


@pytest.mark.parametrize("sharpness", [0.3, 5, 500])
def test_the_distribution_of_many_samples_equals_a_long_loop(sharpness):
    confidence = 1 - np.random.default_rng(0).uniform(0, 1 / sharpness if sharpness > 1 else 1, 3000)
    assert len(confidence) > GROUPS
    expected = np.ones(1)
    for p in confidence:
        expected = np.convolve(expected, [1 - p, p])
    least, masses = distribution(confidence)
    actual = np.zeros(len(expected))
    actual[least : least + len(masses)] = masses
    assert np.abs(actual - expected).max() < 1e-3 * expected.max()
    assert masses.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("level", [0.5, 0.95, 0.9999])
def test_the_bound_is_the_least_that_keeps_its_level(level):
    confidence = np.random.default_rng(1).uniform(0.3, 1.0, 8)
    masses, distance = by_hand(confidence), np.abs(np.arange(9) - confidence.sum())
    bound, p_value = chance_bound(confidence, 3, level)
    assert masses[distance > bound + 1e-9].sum() <= 1 - level + 1e-12
    assert masses[distance > bound - 1e-9].sum() > 1 - level
    assert p_value == pytest.approx(masses[distance >= distance[3] - 1e-9].sum())


@pytest.mark.parametrize(("num_classes", "n", "spread"), [(10, 500, 2.0), (200, 400, 4.0), (1000, 1000, 5.0)])
def test_a_calibrated_model_seldom_has_a_class_beyond_chance(num_classes, n, spread):
    """The limits depend on the confidences alone, so that many outcomes can be drawn for the same limits."""
    generator, trials = torch.Generator().manual_seed(0), 1000
    probs = (spread * torch.randn(n, num_classes, generator=generator, dtype=torch.float64)).softmax(1)
    confidence, predicted = probs.max(1)
    right = (torch.rand(n, trials, generator=generator) < confidence[:, None]).double()
    hits = torch.zeros(num_classes, trials).double().index_add_(0, predicted, right)
    sums = torch.zeros(num_classes).double().index_add_(0, predicted, confidence)
    bound, _ = class_chances(predicted, confidence, hits[:, 0])
    alarms = int(((sums[:, None] - hits).abs() > bound[:, None] + 1e-9).any(0).sum())
    assert alarms <= 0.05 * trials + 3 * (0.05 * 0.95 * trials) ** 0.5  # fewer: few outcomes are possible


def test_an_overconfident_class_is_found(tmp_path):
    generator = torch.Generator().manual_seed(0)
    probs = (4 * torch.randn(6000, 50, generator=generator)).softmax(1)
    target = torch.multinomial(probs, 1, generator=generator)[:, 0]
    spoilt = (probs.argmax(1) == 7) & (torch.rand(6000, generator=generator) < 0.5)
    target[spoilt] = 8
    np.savez(tmp_path / "p.npz", probs=probs.numpy(), target=target.numpy())
    write_report([tmp_path / "p.npz"], tmp_path / "p.html", calibrators=(), reading=Reading())
    [run] = contents_of(tmp_path / "p.html")["runs"]
    assert [row[0][0] for row in run["classes"]["rows"] if row[7][1]] == ["7"]
    assert run["classes"]["rows"][0][0] == ["7", 7]
    assert "0.1 % (exact Poisson-binomial distribution), which is 5 % adjusted for 50" in run["classesNote"]
