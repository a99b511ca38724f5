"""AUROC with DeLong's interval: against the definition as a double loop, and at its ends; coverage in benchmarks."""

import math

import numpy as np
import pytest
from case_loops import for_each
from scipy.special import stdtrit
from scipy.stats import brunnermunzel

from dualfocal.metrics import auroc, compare_auroc


def draw(m: int, n: int, seed: int = 0, grid: float = 0.0, scores: int = 1):
    """Scores of m positive and n negative samples in random order; with a grid, many are ties."""
    rng = np.random.default_rng(seed)
    positive = rng.permutation(np.arange(m + n) < m)
    score = rng.standard_normal((scores, m + n)) + positive
    return np.round(score * grid) if grid else score, positive


def slow_placements(score, positive) -> tuple[list[float], list[float]]:
    """Share of the other class that each sample is on the right side of; ties count 1/2."""
    x, y = (score[positive == side].tolist() for side in (True, False))

    def win(a: float, b: float) -> float:
        return 1.0 if a > b else 0.5 if a == b else 0.0

    return [sum(win(a, b) for b in y) / len(y) for a in x], [sum(win(a, b) for a in x) / len(x) for b in y]


def slow_moments(a: list[float], b: list[float]) -> tuple[float, float, float]:
    """Mean, variance and degrees of freedom of the mean of placements, by the textbook."""
    mean = sum(a) / len(a)
    s = [sum((v - mean) ** 2 for v in side) / (len(side) - 1) / len(side) for side in (a, b)]
    return mean, sum(s), sum(s) ** 2 / (s[0] ** 2 / (len(a) - 1) + s[1] ** 2 / (len(b) - 1))


@for_each(sizes=[(40, 30), (7, 60), (100, 25)], grid=[0.0, 1.0], level=[0.9, 0.95])
def test_definition(sizes, grid, level) -> None:
    [score], positive = draw(*sizes, grid=grid)
    result = auroc(score, positive, level=level)
    mean, variance, freedom = slow_moments(*slow_placements(score, positive))
    assert result.value == pytest.approx(mean, abs=1e-14)
    assert (result.num_positive, result.num_negative) == sizes
    if min(sizes) * min(mean, 1 - mean) >= 5:
        half = stdtrit(freedom, (1 + level) / 2) * math.sqrt(variance) / (mean * (1 - mean))
        ends = [1 / (1 + math.exp(-math.log(mean / (1 - mean)) - sign * half)) for sign in (-1, 1)]
        assert [result.low, result.high] == pytest.approx(ends, abs=1e-12)


def test_the_variance_is_that_of_brunner_and_munzel() -> None:
    """Their statistic is (A - 1/2) divided by DeLong's standard error."""
    [score], positive = draw(30, 50, grid=2.0)
    mean, variance, _ = slow_moments(*slow_placements(score, positive))
    theirs = brunnermunzel(score[~positive], score[positive])
    assert (mean - 0.5) / math.sqrt(variance) == pytest.approx(theirs.statistic, rel=1e-10)


def test_order_monotone_maps_and_sides_do_not_matter() -> None:
    [score], positive = draw(50, 60, grid=2.0)
    result = auroc(score, positive)
    order = np.random.default_rng(1).permutation(110)
    assert auroc(score[order], positive[order]) == result
    assert auroc(np.exp(score), positive) == result
    mirrored = auroc(-score, positive)
    assert [mirrored.value, mirrored.low, mirrored.high] == pytest.approx(
        [1 - result.value, 1 - result.high, 1 - result.low]
    )
    infinite = np.where(score == score.max(), np.inf, score)
    assert auroc(infinite, positive) == result


def test_perfect_separation_has_the_bound_of_independent_pairs() -> None:
    result = auroc([1, 2, 3, 4, 5, 6, 7], [0, 0, 0, 0, 1, 1, 1])
    assert (result.value, result.high) == (1.0, 1.0)
    assert result.low == pytest.approx(0.05 ** (1 / 3))  # 3 of 3 pairs in order, one-sided at 5 %
    result = auroc([5, 6, 7, 1, 2], [0, 0, 0, 1, 1])
    assert (result.value, result.low) == (0.0, 0.0)
    assert result.high == pytest.approx(1 - 0.05 ** (1 / 2))


def test_one_sample_of_a_class_says_little() -> None:
    result = auroc(np.arange(101), np.arange(101) == 90)
    assert result.value == 0.9
    assert result.low < 0.05
    assert result.high > 0.99


def test_all_tied() -> None:
    result = auroc(np.zeros(80), np.arange(80) % 2)
    assert result.value == 0.5
    assert result.low < 0.4
    assert result.high > 0.6


def test_near_separation_the_interval_is_wider_than_that_of_the_placements() -> None:
    [score], positive = draw(20, 200)
    score = score + 2.5 * positive
    value, variance, _ = slow_moments(*slow_placements(score, positive))
    result = auroc(score, positive)
    assert 0.97 < value < 1
    assert value - result.low > 5 * math.sqrt(variance)


def test_clusters_of_one_sample_are_no_clusters() -> None:
    [score], positive = draw(60, 80, grid=3.0)
    alone, clustered = auroc(score, positive), auroc(score, positive, clusters=np.arange(140))
    assert (clustered.low, clustered.high) == (pytest.approx(alone.low), pytest.approx(alone.high))
    assert (alone.num_clusters, clustered.num_clusters) == (None, 140)


def test_copies_in_clusters_carry_no_information() -> None:
    """Every sample four times: with clusters, the interval is that of the single samples."""
    [score], positive = draw(60, 80)
    single = auroc(score, positive)
    copies = auroc(np.repeat(score, 4), np.repeat(positive, 4), clusters=np.repeat(np.arange(140), 4))
    assert [copies.value, copies.low, copies.high] == pytest.approx([single.value, single.low, single.high])
    naive = auroc(np.repeat(score, 4), np.repeat(positive, 4))
    assert naive.high - naive.low < 0.6 * (single.high - single.low)


def test_clusters_with_both_classes_by_a_jackknife() -> None:
    """Each positive sample is a distorted copy of a negative one: leaving out both gives the same variance."""
    rng = np.random.default_rng(0)
    number = 300
    image = rng.standard_normal(number)
    score = np.concatenate([image + 0.3 * rng.standard_normal(number), image + 0.4])
    positive, cluster = np.arange(2 * number) >= number, np.arange(2 * number) % number
    result = auroc(score, positive, clusters=cluster)
    left_out = [auroc(score[cluster != c], positive[cluster != c]).value for c in range(number)]
    deviation = math.sqrt((number - 1) * np.var(left_out))
    logit = math.log(result.high / (1 - result.high)) - math.log(result.low / (1 - result.low))
    half = logit / 2 * result.value * (1 - result.value)
    assert half == pytest.approx(1.65 * deviation, rel=0.03)
    independent = auroc(score, positive)
    assert result.high - result.low < 0.7 * (independent.high - independent.low)


def test_paired_difference() -> None:
    (a, b), positive = draw(45, 55, grid=2.0, scores=2)
    result = compare_auroc(a, b, positive)
    placed = zip(slow_placements(a, positive), slow_placements(b, positive), strict=True)
    mean, variance, freedom = slow_moments(*([w - v for v, w in zip(x, y, strict=True)] for x, y in placed))
    half = stdtrit(freedom, 0.95) * math.sqrt(variance)
    assert [result.difference, result.low, result.high] == pytest.approx([mean, mean - half, mean + half])
    assert (result.a, result.b) == (auroc(a, positive), auroc(b, positive))
    swapped = compare_auroc(b, a, positive)
    assert [swapped.low, swapped.high] == pytest.approx([-result.high, -result.low])


def test_difference_of_equal_rankings_is_0_and_of_perfect_scores_unknown() -> None:
    [score], positive = draw(20, 20)
    same = compare_auroc(score, np.exp(score), positive)
    assert (same.difference, same.low, same.high, same.significant) == (0.0, 0.0, 0.0, False)
    one_sample = compare_auroc(score[:21], -score[:21], np.arange(21) == 3)
    assert one_sample.low < one_sample.difference < one_sample.high


BAD = [
    (([0.1, 0.2], [0, 1, 1]), r"shape \(N,\), got \(2,\) and \(3,\)"),
    (([[0.1], [0.2]], [0, 1]), r"got \(2, 1\)"),
    (([0.1, math.nan], [0, 1]), "score must hold real numbers and no NaN"),
    (([0.1, 0.2], [0, 2]), "booleans, or 0 and 1, got 2"),
    (([0.1, 0.2], [1, 1]), "none of the 2 is negative"),
    (([0.1, 0.2], [False, False]), "none of the 2 is positive"),
]


@for_each("arguments, message", BAD)
def test_bad_input(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        auroc(*arguments)


def test_bad_options() -> None:
    with pytest.raises(ValueError, match="level"):
        auroc([0.1, 0.2], [0, 1], level=1.0)
    with pytest.raises(ValueError, match="one entry per sample"):
        auroc([0.1, 0.2], [0, 1], clusters=[1, 2, 3])
    with pytest.raises(ValueError, match="b and positive must have one entry"):
        compare_auroc([0.1, 0.2], [0.1], [0, 1])
