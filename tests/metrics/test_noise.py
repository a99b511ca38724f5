"""Draws of calibrated models, against all outcomes of small samples."""

import functools
import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom

from dualfocal import metrics as M
from dualfocal.metrics import CalibrationSums

CELLS = [(0.05, 3), (0.2, 1), (0.37, 2), (0.55, 2), (0.65, 3), (0.83, 2), (0.9, 1), (0.97, 3)]  # confidence, number


def outcomes() -> tuple[np.ndarray, np.ndarray]:
    """Gaps of the cells for all numbers of right predictions, and the probability of each combination."""
    gaps = np.array(list(itertools.product(*([n * c - k for k in range(n + 1)] for c, n in CELLS))))
    shares = [binom.pmf(np.arange(n + 1), n, c) for c, n in CELLS]
    return gaps, functools.reduce(np.multiply.outer, shares).ravel()


def evaluate(right: tuple[int, ...], draws: int = 4000) -> M.Evaluation:
    confidence = np.repeat(*zip(*CELLS, strict=True))
    correct = np.concatenate([np.arange(n) < k for k, (_, n) in zip(right, CELLS, strict=True)])
    return CalibrationSums.from_confidences(confidence, correct).evaluate(draws=draws)


def test_floors_are_means_over_all_outcomes() -> None:
    gaps, probability = outcomes()
    count = np.array([n for _, n in CELLS])
    floors = evaluate((0, 0, 1, 1, 2, 2, 1, 3)).inference.floors
    assert floors["ece"].mean == pytest.approx(probability @ np.abs(gaps).sum(1) / count.sum(), rel=0.03)
    assert floors["mce"].mean == pytest.approx(probability @ (np.abs(gaps) / count).max(1), rel=0.03)


@pytest.mark.parametrize("right", [(0, 0, 1, 1, 2, 2, 1, 3), (3, 0, 1, 1, 2, 2, 1, 3), (0, 0, 1, 1, 1, 1, 0, 2)])
def test_p_value_is_the_share_of_outcomes_that_are_as_extreme(right) -> None:
    gaps, probability = outcomes()
    count = np.array([n for _, n in CELLS])
    tails = []
    for square in ((gaps**2 / count).sum(1), gaps.sum(1) ** 2):
        order = np.argsort(-square)
        reached = np.cumsum(probability[order])
        last = np.searchsorted(-square[order], -square * (1 - 1e-9), side="right") - 1  # equal squares are ties
        tails.append(reached[last])
    rarest = np.minimum(*tails)
    observed = np.ravel_multi_index(right, [n + 1 for _, n in CELLS])
    expected = probability[rarest <= rarest[observed] * (1 + 1e-9)].sum()
    assert evaluate(right).inference.p_value == pytest.approx(expected, abs=4 * math.sqrt(expected / 4000))


@pytest.mark.parametrize(("n", "confidence"), [(10, 0.95), (40, 0.95), (200, 0.99)])
def test_the_detectable_gap_is_detected_in_four_fifths_of_samples(n, confidence) -> None:
    sums = CalibrationSums.from_confidences(np.full(n, confidence), np.ones(n, bool), num_bins=1)
    gap = sums.evaluate(draws=4000).inference.detectable
    shown = np.abs(n * confidence - np.random.default_rng(1).binomial(n, confidence - gap, 40_000))
    null = np.abs(n * confidence - np.arange(n + 1))
    order = np.argsort(-null)
    tail = np.append(0.0, np.cumsum(binom.pmf(order, n, confidence)))
    p = tail[np.searchsorted(-null[order], -shown * (1 - 1e-9), side="right")]
    assert (p <= 0.05).mean() == pytest.approx(0.81, abs=0.04)  # 80 % and the steps of a binomial number


def test_few_clusters_have_enough_different_draws() -> None:
    """Six equal clusters, all wrong: the sums of Webb's six values that are as large, of all 6^6."""
    sums = CalibrationSums.from_confidences(np.full(300, 0.9), np.zeros(300, bool), clusters=np.arange(300) // 50)
    webb = [sign * math.sqrt(square) for square in (0.5, 1.0, 1.5) for sign in (-1, 1)]
    totals = np.array(list(itertools.product(webb, repeat=6))).sum(1)
    expected = float((np.abs(totals) >= 6 * (1 - 1e-9)).mean())
    assert sums.evaluate(draws=4000).inference.p_value == pytest.approx(expected, abs=4 * math.sqrt(expected / 4000))
    assert abs(expected - 2 / 2**6) > 0.01  # of random signs


def test_an_error_of_the_rarer_of_two_classes_is_found() -> None:
    """1,000 samples predicted as class 1 are calibrated; of 40 predicted as class 0, 24 are right instead of 32."""
    probs = np.repeat([[0.1, 0.9], [0.8, 0.2]], [1000, 40], axis=0)
    target = np.repeat([1, 0, 0, 1], [900, 100, 24, 16])
    for columns in ([0, 1], [1, 0]):
        labels = target if columns == [0, 1] else 1 - target
        result = CalibrationSums.from_predictions(probs[:, columns], labels, input="probs").evaluate()
        assert result.inference.classwise.p_value < 0.05
    right = CalibrationSums.from_predictions(probs[:1000], target[:1000], input="probs").evaluate()
    assert right.inference.classwise.p_value > 0.9  # as many of each class as expected


def test_a_class_whose_labels_come_in_clusters_is_no_error() -> None:
    """Class 2 has probability 0.1 and all labels of 11 of 60 clusters: 1.6 standard deviations of sums by cluster.

    The confidence, of class 0, has a design effect that is much smaller than that of class 2.
    """
    rng = np.random.default_rng(0)
    cluster = np.arange(3000) // 50
    target = np.where(cluster < 11, 2, rng.choice(2, size=3000, p=[2 / 3, 1 / 3]))
    probs = np.tile([0.6, 0.3, 0.1], (3000, 1))
    clustered = CalibrationSums.from_predictions(probs, target, input="probs", clusters=cluster)
    for sums, is_error in ((clustered, False), (clustered.without_clusters(), True)):
        gaps = sums.evaluate().inference.classwise.gaps
        assert any(gap.index == 2 for gap in gaps) == is_error


def test_totals_of_classes_are_adjusted_for_their_number() -> None:
    """Of 3,000 samples, 337 instead of 300 belong to class 2: 2.25 standard deviations, p = 0.024 of six tests."""
    probs, target = np.tile([0.6, 0.3, 0.1], (3000, 1)), np.repeat([0, 1, 2], [1775, 888, 337])
    result = CalibrationSums.from_predictions(probs, target, input="probs").evaluate()
    assert result.inference.classwise.gaps == ()


def test_holm_is_the_closed_test_of_weighted_bonferroni_tests() -> None:
    rng = np.random.default_rng(0)
    for weights in (None, [1, 1, 1, 1], [4, 1, 2, 1]):
        for p in 10.0 ** rng.uniform(-3, 0, (20, 4)):
            w = np.array(weights or [1] * 4)
            subsets = [list(chosen) for k in range(1, 5) for chosen in itertools.combinations(range(4), k)]
            tests = {
                tuple(chosen): min(1.0, float((p[chosen] * w[chosen].sum() / w[chosen]).min())) for chosen in subsets
            }
            expected = [max(value for chosen, value in tests.items() if i in chosen) for i in range(4)]
            assert M.holm(p.tolist(), weights) == pytest.approx(expected)


def test_a_few_right_predictions_of_a_class_in_clusters_are_no_error() -> None:
    """20 samples in 20 of 60 clusters are predicted as class 2 with probability 0.9. All are right, by chance: 12 %."""
    probs = np.tile([0.5, 0.4, 0.1], (1200, 1))
    target = np.random.default_rng(0).choice(3, size=1200, p=probs[0])
    probs[:400:20], target[:400:20] = [0.05, 0.05, 0.9], 2
    result = M.evaluate(probs, target, input="probs", inference=True, clusters=np.arange(1200) // 20)
    assert result.inference.classwise.gaps == ()
