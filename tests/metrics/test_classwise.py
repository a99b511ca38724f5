"""The test of all class probabilities: its level, its power where confidences look fine, and the classes it names."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dualfocal.metrics import evaluate
from dualfocal.metrics.inference.classwise import ClasswiseTest, class_gaps, classwise_test
from dualfocal.metrics.inference.label_counts import RowLabels
from dualfocal.metrics.inference.poisson_binomial import approximate_mid_p, distribution, mid_p_value
from dualfocal.metrics.rows import Rows, as_rows


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def draw(p: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.minimum((rng.random((len(p), 1)) > p.cumsum(1)).sum(1), p.shape[1] - 1)


def rows_of(n: int, num_classes: int, seed: int, scale: float = 2.0, bias: np.ndarray | float = 0.0) -> Rows:
    """Logits whose labels follow them, up to a bias of the classes."""
    rng = np.random.default_rng([1, seed])
    z = scale * rng.standard_normal((n, num_classes))
    return as_rows(z, draw(softmax(z + bias), rng), input="logits")


def run_test(rows: Rows, seed: int = 0) -> tuple[ClasswiseTest, torch.Tensor]:
    return classwise_test(RowLabels(rows, 15, seed))


def weighted_model(n: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """A model trained with class weights on imbalanced data: the top label looks calibrated, rare classes do not."""
    rng = np.random.default_rng(0)
    prior = np.log([0.4, 0.3, 0.2, 0.04, 0.03, 0.03])
    z = prior + 1.2 * rng.standard_normal((n, 6))
    target = draw(softmax(z), rng)
    shift = np.array([-0.3, -0.1, 0.0, 1.3, 0.0, 0.0])
    return softmax(z + shift), target


@pytest.mark.parametrize(("num_classes", "n", "scale"), [(2, 200, 2.0), (5, 200, 2.0), (8, 60, 8.0), (50, 100, 2.0)])
def test_calibrated_models_are_seldom_rejected(num_classes, n, scale) -> None:
    """Of 150 calibrated models, more than 17 below 5 % would happen once in 1,000 times."""
    p_values = np.array([run_test(rows_of(n, num_classes, s, scale), seed=s)[0].p_value for s in range(150)])
    assert (p_values <= 0.05).sum() <= 17
    assert (p_values <= 0.5).sum() <= 98
    assert (p_values <= 0.5).sum() >= 20  # not a test that never rejects


def test_a_class_that_is_predicted_too_often_is_found_and_named() -> None:
    bias = np.zeros(10)
    bias[3] = -1.5
    result, _ = run_test(rows_of(1000, 10, 0, bias=bias))
    assert result.p_value < 1e-4
    worst = result.gaps[0]
    assert worst.index == 3
    assert worst.probability > 2 * worst.share
    assert worst.p_value < 1e-4
    assert all(gap.p_value <= 0.05 for gap in result.gaps)


def test_many_small_errors_are_found_where_no_class_stands_out() -> None:
    rng = np.random.default_rng(0)
    z = 3 * rng.standard_normal((3000, 40))
    rows = as_rows(z, draw(softmax(z / 1.15), rng), input="logits")
    assert run_test(rows)[0].p_value <= 0.01


def test_errors_of_many_classes_with_three_samples_each_are_found() -> None:
    bias = np.log(3) * (np.arange(200) < 100)
    assert run_test(rows_of(600, 200, 1, scale=3.0, bias=bias))[0].p_value <= 0.01


@pytest.mark.parametrize("num_classes", [4, 40])  # labels drawn by comparison, and by search
def test_the_drawn_errors_are_those_of_labels_drawn_one_by_one(num_classes) -> None:
    rows = rows_of(400, num_classes, 0)
    errors = run_test(rows)[1].numpy()
    rng = np.random.default_rng(5)
    p = softmax(rows.values.numpy())
    expected = [evaluate(rows.values, torch.from_numpy(draw(p, rng)), input="logits").classwise_ece for _ in range(150)]
    error = math.hypot(np.std(expected) / math.sqrt(150), errors.std() / math.sqrt(len(errors)))
    assert errors.mean() == pytest.approx(np.mean(expected), abs=4 * error)
    assert errors.std() == pytest.approx(np.std(expected), rel=0.3)


def test_impossible_classes_are_never_drawn_and_an_impossible_label_is_refuted() -> None:
    p = np.tile([0.6, 0.4, 0.0], (50, 1))
    target = np.arange(50) % 5 // 3  # 3 of 5 in class 0
    calibrated, errors = run_test(as_rows(p, target, input="probs"))
    assert calibrated.p_value > 0.5
    assert float(errors.min()) == pytest.approx(0.0, abs=1e-12)
    target[0] = 2
    result, _ = run_test(as_rows(p, target, input="probs"))
    assert result.p_value == 0.0
    assert (result.gaps[0].index, result.gaps[0].probability, result.gaps[0].share) == (2, 0.0, 1 / 50)


def test_gaps_are_means_beside_shares() -> None:
    rows = rows_of(500, 4, 0)
    p, target = softmax(rows.values.numpy()), rows.target.numpy()
    gaps = class_gaps(rows)
    assert len(gaps) == 8
    for gap in gaps:
        chosen = p.argmax(1) == gap.index if gap.among_predicted else np.ones(500, dtype=bool)
        assert gap.probability == pytest.approx(p[chosen, gap.index].mean())
        assert gap.share == pytest.approx((target[chosen] == gap.index).mean())


def test_with_two_classes_the_second_mirrors_the_first() -> None:
    rows = rows_of(300, 2, 0)
    assert [(gap.index, gap.among_predicted) for gap in class_gaps(rows)] == [(1, False), (0, True), (1, True)]


def test_the_same_seed_gives_the_same_result() -> None:
    rows = rows_of(300, 5, 0)
    (first, errors), (again, same) = (run_test(rows, seed=3) for _ in range(2))
    assert first == again
    assert torch.equal(errors, same)


def by_brute_force(p: np.ndarray) -> np.ndarray:
    masses = np.ones(1)
    for each in p:
        masses = np.convolve(masses, [1 - each, each])
    return masses


@pytest.mark.parametrize("n", [1, 5, 64, 300])
def test_the_poisson_binomial_distribution(n) -> None:
    p = np.random.default_rng(n).beta(0.3, 0.7, n)
    exact = by_brute_force(p)
    least, masses = distribution(p)
    shown = np.zeros_like(exact)
    shown[least : least + len(masses)] = masses[: len(exact) - least]
    np.testing.assert_allclose(shown, exact, atol=2e-3 if n > 64 else 1e-12)
    cumulants = p.sum(), (p * (1 - p)).sum(), (p * (1 - p) * (1 - 2 * p)).sum()
    for hits in range(n + 1):
        half = exact[hits] / 2
        expected = min(1.0, 2 * min(half + exact[:hits].sum(), half + exact[hits + 1 :].sum()))
        assert mid_p_value(p, hits) == pytest.approx(expected, rel=0.05, abs=1e-9 if n <= 64 else 1e-3)
        if n >= 64 and expected > 1e-3:
            assert float(approximate_mid_p(np.array(float(hits)), *cumulants)) == pytest.approx(expected, rel=0.15)


# The verdict


def test_a_verdict_covers_the_classes() -> None:
    """The model that was called calibrated while a class was predicted three times as often as it occurs."""
    probs, target = weighted_model()
    result = evaluate(torch.from_numpy(probs), torch.from_numpy(target), input="probs", inference=True)
    assert result.inference.p_value > 0.05
    confidence, _, classes = result.verdict().partition(" Class probabilities: ")
    assert confidence.startswith("Confidence of the predicted class: no miscalibration detectable")
    assert classes.startswith("miscalibrated (p < 0.001); worst: predictions of class 3, confidence ")
    assert "worst: predictions of class owl, " in result.verdict(["ant", "bee", "cat", "owl", "eel", "fox"])
    assert result.inference.joint_p_value < 0.001
    again = type(result).from_dict(result.to_dict())
    assert again.to_dict() == result.to_dict()
    assert again.verdict() == result.verdict()


def test_false_alarms_of_the_joint_verdict() -> None:
    """Two tests, one verdict: of 100 calibrated models, more than 13 would happen once in 1,000 times."""
    alarms = 0
    for seed in range(100):
        rows = rows_of(300, 4, seed)
        inference = evaluate(rows.values, rows.target, input="logits", inference=True, seed=seed, draws=400).inference
        alarms += inference.joint_p_value <= 0.05
        assert inference.joint_p_value == min(1.0, 2 * min(inference.p_value, inference.classwise.p_value))
    assert alarms <= 13


@pytest.mark.parametrize(
    ("p_value", "p_classes", "words"),
    [
        (0.2, 0.3, ["No miscalibration detectable", "Class probabilities: no miscalibration detectable (p = 0.30)"]),
        (0.04, 0.3, ["No miscalibration", "(p = 0.040, above 0.025, the limit for two tests)"]),
        (0.04, 0.01, ["(p = 0.040).", "Class probabilities: miscalibrated (p = 0.010)"]),
        (0.2, 0.04, ["No miscalibration", "no miscalibration detectable (p = 0.040, above 0.025"]),
    ],
)
def test_two_tests_share_the_significance(p_value, p_classes, words) -> None:
    rows = rows_of(300, 4, 0)
    result = evaluate(rows.values, rows.target, input="logits", inference=True)
    classwise = replace(result.inference.classwise, p_value=p_classes)
    result = replace(result, inference=replace(result.inference, p_value=p_value, classwise=classwise))
    for part in words:
        assert part in result.verdict()


def test_with_two_classes_the_verdict_names_class_1_and_positive_has_one_test() -> None:
    rng = np.random.default_rng(0)
    z = rng.standard_normal((2000, 2)) + np.array([2.0, 0.0])
    target = draw(softmax(z + np.array([0.0, -1.0])), rng)
    result = evaluate(z, target, input="logits", inference=True)
    assert "Probability of class 1: miscalibrated (p < 0.001); worst: class 1, predicted " in result.verdict()
    positive = evaluate(z, target, input="logits", inference=True, binary="positive")
    assert positive.inference.classwise is None
    assert positive.inference.joint_p_value == positive.inference.p_value
    assert positive.verdict().startswith("Probabilities of class 1 too high")
