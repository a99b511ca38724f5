"""The test of all class probabilities: its level, its power where confidences look fine, and the classes it names."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from samples import softmax

from dualfocal.metrics import Inference, evaluate, holm


def draw(p: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.minimum((rng.random((len(p), 1)) > p.cumsum(1)).sum(1), p.shape[1] - 1)


def model(
    n: int, num_classes: int, seed: int, scale: float = 2.0, bias: np.ndarray | float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Logits whose labels follow them, up to a bias of the classes."""
    rng = np.random.default_rng([1, seed])
    z = scale * rng.standard_normal((n, num_classes))
    return z, draw(softmax(z + bias), rng)


def infer(values: np.ndarray, target: np.ndarray, input: str = "logits", seed: int = 0) -> Inference:
    return evaluate(values, target, input=input, inference=True, seed=seed, draws=100).inference


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
    """Of 80 calibrated models, more than 11 below 5 % would happen once in 1,000 times."""
    p_values = np.array([infer(*model(n, num_classes, s, scale), seed=s).classwise.p_value for s in range(80)])
    assert (p_values <= 0.05).sum() <= 11
    assert (p_values <= 0.5).sum() <= 54
    assert (p_values <= 0.5).sum() >= 10  # not a test that never rejects


def test_a_class_that_is_predicted_too_often_is_found_and_named() -> None:
    bias = np.zeros(10)
    bias[3] = -1.5
    result = infer(*model(1000, 10, 0, bias=bias)).classwise
    assert result.p_value < 1e-4
    worst = result.gaps[0]
    assert worst.index == 3
    assert worst.probability > 2 * worst.share
    assert worst.p_value < 1e-4
    assert all(gap.p_value <= 0.05 for gap in result.gaps)


def test_many_small_errors_are_found_where_no_class_stands_out() -> None:
    rng = np.random.default_rng(0)
    z = 3 * rng.standard_normal((3000, 40))
    assert infer(z, draw(softmax(z / 1.15), rng)).classwise.p_value <= 0.01


def test_errors_of_many_classes_with_three_samples_each_are_found() -> None:
    bias = np.log(3) * (np.arange(200) < 100)
    assert infer(*model(600, 200, 1, scale=3.0, bias=bias)).classwise.p_value <= 0.01


@pytest.mark.parametrize("num_classes", [4, 40])  # labels drawn by comparison, and by search
def test_the_drawn_errors_are_those_of_labels_drawn_one_by_one(num_classes) -> None:
    z, target = model(400, num_classes, 0)
    floor = infer(z, target).floors["classwise_ece"]
    rng = np.random.default_rng(5)
    expected = [evaluate(z, draw(softmax(z), rng), input="logits").classwise_ece for _ in range(300)]
    error = np.std(expected) * math.sqrt(1 / 300 + 1 / 200)  # the test draws 200 times, or more
    assert floor.mean == pytest.approx(np.mean(expected), abs=4 * error)
    assert floor.q95 - floor.mean == pytest.approx(np.quantile(expected, 0.95) - np.mean(expected), rel=0.3)


def test_impossible_classes_are_never_drawn_and_an_impossible_label_is_refuted() -> None:
    p = np.tile([0.6, 0.4, 0.0], (50, 1))
    target = np.arange(50) % 5 // 3  # 3 of 5 in class 0
    calibrated = infer(p, target, "probs")
    assert calibrated.classwise.p_value > 0.5
    off = sum(abs(k - 30) * math.comb(50, k) * 0.6**k * 0.4 ** (50 - k) for k in range(51))  # of labels in class 0
    assert calibrated.floors["classwise_ece"].mean == pytest.approx(2 * off / 150, rel=0.2)
    target[0] = 2
    result = infer(p, target, "probs").classwise
    assert result.p_value == 0.0
    assert (result.gaps[0].index, result.gaps[0].probability, result.gaps[0].share) == (2, 0.0, 1 / 50)


def mid_p_value(p: np.ndarray, hits: int) -> float:
    """The two-sided mid-p-value of a number of successes with these probabilities, from their distribution."""
    masses = np.ones(1)
    for each in p:
        masses = np.convolve(masses, [1 - each, each])
    half = masses[hits] / 2
    return min(1.0, 2 * min(half + masses[:hits].sum(), half + masses[hits + 1 :].sum()))


@pytest.mark.parametrize(("n", "tolerance"), [(64, 2e-3), (500, 1e-3)])
def test_gaps_are_means_beside_shares(n, tolerance) -> None:
    z, target = model(n, 4, 0, bias=np.array([2.0, -1.0, 0.0, -2.0]))
    p = softmax(z)
    totals = [(c, predicted) for predicted in (False, True) for c in range(4)]
    chosen = [p.argmax(1) == c if predicted else np.ones(n, dtype=bool) for c, predicted in totals]
    p_values = [
        mid_p_value(p[rows, c], int((target[rows] == c).sum())) for (c, _), rows in zip(totals, chosen, strict=True)
    ]
    adjusted = dict(zip(totals, zip(chosen, holm(p_values), strict=True), strict=True))
    gaps = infer(z, target).classwise.gaps
    assert {(gap.index, gap.among_predicted) for gap in gaps} == {key for key, (_, q) in adjusted.items() if q <= 0.05}
    assert len(gaps) >= 4
    for gap in gaps:
        rows, expected = adjusted[gap.index, gap.among_predicted]
        assert gap.probability == pytest.approx(p[rows, gap.index].mean())
        assert gap.share == pytest.approx((target[rows] == gap.index).mean())
        assert gap.p_value == pytest.approx(expected, rel=0.05, abs=tolerance)


def test_with_two_classes_the_second_mirrors_the_first() -> None:
    gaps = infer(*model(1000, 2, 0, bias=np.array([3.0, 0.0]))).classwise.gaps
    assert {(gap.index, gap.among_predicted) for gap in gaps} == {(1, False), (0, True), (1, True)}


def test_the_same_seed_gives_the_same_result() -> None:
    first, again = (infer(*model(300, 5, 0), seed=3) for _ in range(2))
    assert first == again


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
        inference = evaluate(*model(300, 4, seed), inference=True, seed=seed, draws=400).inference
        alarms += inference.joint_p_value <= 0.05
        weighted = min(inference.p_value / 0.8, inference.classwise.p_value / 0.2)  # groups are compared by the first
        assert inference.joint_p_value == pytest.approx(min(1.0, weighted))
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
    result = evaluate(*model(300, 4, 0), inference=True)
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


def test_totals_far_below_are_multiplied_by_their_number() -> None:
    """Of 3,000 samples, 380 instead of 300 belong to class 2: 4.9 standard deviations, one of six tests."""
    probs, target = np.tile([0.6, 0.3, 0.1], (3000, 1)), np.repeat([0, 1, 2], [1740, 880, 380])
    result = evaluate(probs, target, input="probs", inference=True).inference.classwise
    assert 1e-8 < result.p_value < 1e-4
    assert result.p_value == pytest.approx(min(gap.p_value for gap in result.gaps))
