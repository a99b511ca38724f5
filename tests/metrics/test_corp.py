"""CORP: the isotonic fit, what it makes of the Brier score, and a band that covers what it says."""

import numpy as np
import pytest
import torch
from case_loops import for_each
from sklearn.isotonic import IsotonicRegression

from dualfocal.metrics import corp


def predictions(n: int, sharpness: float = 1.0, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a model that is calibrated, or over-confident with sharpness > 1."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, 4, generator=generator, dtype=torch.float64)
    return logits, torch.multinomial((logits / sharpness).softmax(1), 1, generator=generator)[:, 0]


def confidence_and_correct(logits: torch.Tensor, target: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    p, label = logits.softmax(1).max(1)
    return p.numpy(), (label == target).double().numpy()


def pooled(values: list[float], weights: list[float]) -> list[float]:
    """Pool adjacent violators, as the textbook has it."""
    blocks: list[list[float]] = []  # mean, weight, length
    for value, weight in zip(values, weights, strict=True):
        blocks.append([value, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            (a, v, m), (b, w, n) = blocks[-2:]
            blocks[-2:] = [[(a * v + b * w) / (v + w), v + w, m + n]]
    return [mean for mean, _, length in blocks for _ in range(int(length))]


def test_fit_is_scikit_learns_and_the_textbooks():
    logits, target = predictions(700, 2.0)
    curve = corp(logits, target, draws=100)
    x, y = confidence_and_correct(logits, target)
    order = x.argsort()
    np.testing.assert_allclose(curve.confidence, x[order], atol=1e-12)
    np.testing.assert_allclose(curve.recalibrated, IsotonicRegression().fit(x, y).predict(x[order]), atol=1e-12)
    np.testing.assert_allclose(curve.recalibrated, pooled(y[order], [1.0] * 700), atol=1e-12)


def test_equal_confidences_are_one_point_of_their_weight():
    x = np.round(np.random.default_rng(0).uniform(0.5, 1, 400), 2)
    probs = torch.from_numpy(np.stack([x, 1 - x], 1))
    target = torch.from_numpy((np.random.default_rng(1).random(400) > x**2).astype(np.int64))
    curve = corp(probs, target, input="probs", draws=100)
    y = (target == 0).double().numpy()
    assert len(curve.confidence) == len(set(x)) < 60
    assert curve.num_samples == 400
    expected = IsotonicRegression().fit(x, y)
    np.testing.assert_allclose(curve.recalibrated, expected.predict(curve.confidence), atol=1e-9)
    np.testing.assert_array_equal(curve.count, [(x == at).sum() for at in sorted(set(x))])


@for_each(sharpness=[1.0, 2.5, 0.4])
def test_decomposition_by_its_definition(sharpness):
    logits, target = predictions(800, sharpness)
    curve = corp(logits, target, draws=100)
    x, y = confidence_and_correct(logits, target)
    fitted = IsotonicRegression().fit(x, y).predict(x)
    score, recalibrated, constant = (np.mean((p - y) ** 2) for p in (x, fitted, y.mean()))
    got = (curve.score, curve.mcb, curve.dsc, curve.unc)
    np.testing.assert_allclose(got, (score, score - recalibrated, constant - recalibrated, constant), atol=1e-12)
    assert curve.score == pytest.approx(curve.mcb - curve.dsc + curve.unc, abs=1e-14)
    assert min(curve.mcb, curve.dsc) >= 0  # the fit is at least as good as either


def test_band_is_that_of_outcomes_drawn_anew():
    """Against a loop with scikit-learn and draws of its own."""
    logits, target = predictions(300, 2.0)
    curve = corp(logits, target, draws=600)
    x = np.sort(confidence_and_correct(logits, target)[0])
    rng = np.random.default_rng(99)
    at = np.linspace(x[0], x[-1], len(curve.band_at))
    outcomes = rng.random((300, len(x))) < x
    curves = [np.interp(at, x, IsotonicRegression().fit(x, y).predict(x)) for y in outcomes.astype(float)]
    np.testing.assert_allclose(curve.band_at, at, atol=1e-9)
    low, high = np.quantile(curves, [0.05, 0.95], axis=0)
    assert np.abs(curve.low - low).mean() < 0.02
    assert np.abs(curve.high - high).mean() < 0.02


def test_band_covers_calibrated_models_as_often_as_it_says_and_others_less():
    covered, missed = [], []
    for seed in range(40):
        for into, sharpness in ((covered, 1.0), (missed, 2.0))[: 1 + (seed < 10)]:
            result = corp(*predictions(400, sharpness, seed), draws=200)
            curve = np.interp(result.band_at, result.confidence, result.recalibrated)
            into.append(((result.low - 1e-9 <= curve) & (curve <= result.high + 1e-9)).mean())
    assert 0.85 < np.mean(covered) < 0.95  # 90 % at each point; standard error about 0.015
    assert np.mean(missed) < 0.5


def test_floor_is_what_calibrated_models_show():
    curves = [corp(*predictions(400, seed=seed), draws=100) for seed in range(40)]
    assert np.mean([curve.mcb for curve in curves]) == pytest.approx(
        np.mean([curve.mcb_floor.mean for curve in curves]), rel=0.15
    )
    assert sum(curve.mcb > curve.mcb_floor.q95 for curve in curves) <= 7  # 2 are expected; 8 or more in 1 of 1000
    bad = corp(*predictions(400, 3.0), draws=100)
    assert bad.mcb > 3 * bad.mcb_floor.q95


def test_draws_follow_the_seed():
    first, same, other = (corp(*predictions(200), draws=100, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.high, same.high)
    assert (first.high != other.high).any()
    assert first.mcb == other.mcb


def test_confidence_of_1():
    curve = corp(torch.tensor([[300.0, -300.0]]).repeat(40, 1), (torch.arange(40) < 4).long(), draws=100)
    np.testing.assert_array_equal(curve.confidence, [1.0])
    np.testing.assert_allclose(curve.recalibrated, [0.9])
    assert (curve.low == 1).all()
    assert curve.mcb == pytest.approx(0.1 - 0.09)


def test_bad_options_are_refused():
    for options, words in (({"draws": 99}, "draws must be at least 100"), ({"level": 1.0}, "level")):
        with pytest.raises(ValueError, match=words):
            corp(*predictions(20), **options)
