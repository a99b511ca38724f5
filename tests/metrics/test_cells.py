"""Bins: the sums of their definition, for any split in any order, and what follows from them."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from case_loops import for_each
from hypothesis import given
from hypothesis import strategies as st

from dualfocal import metrics as M
from dualfocal.metrics import BinStats

SUMS = ("count", "confidence", "correct", "variance", "squares", "correct_squares")
EXCEEDS = 2.0**-33  # a probability that exceeds an edge by less lies on it


def check_equal(got: BinStats, expected: BinStats) -> None:
    for name in (*SUMS, "edges"):
        np.testing.assert_allclose(getattr(got, name), getattr(expected, name), rtol=1e-13, atol=1e-13)


def weighted(n: int = 200, seed: int = 0, num_bins: int = 4):
    """Confidences, outcomes, weights that depend on the outcome, and their bins."""
    rng = np.random.default_rng(seed)
    p = rng.random(n)
    y = rng.random(n) < p
    w = rng.exponential(size=n) * np.where(y == (p < 0.5), 1.0, 3.0)
    return p, y, w, BinStats.from_confidence(p, y, num_bins=num_bins, sample_weight=w)


# Sums


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60),
    st.randoms(use_true_random=False),
    st.integers(1, 20),
    st.booleans(),
)
def test_any_split_in_any_order_has_the_sums_of_all(pairs, random, num_bins, has_weights) -> None:
    rows = [(p, y, random.random() if has_weights else 1.0) for p, y in pairs]

    def stats(part) -> BinStats:
        p, y, w = (np.array(column) for column in zip(*part, strict=True))
        return BinStats.from_confidence(p, y, num_bins=num_bins, sample_weight=w if has_weights else None)

    whole, shuffled = stats(rows), random.sample(rows, len(rows))
    cuts = sorted({0, len(rows), *(random.randrange(len(rows) + 1) for _ in range(4))})
    parts = [stats(shuffled[a:b]) for a, b in itertools.pairwise(cuts)]
    merged = BinStats.empty(edges=whole.edges)
    for part in parts:
        merged = part + merged
    check_equal(merged, whole)
    assert (merged.ece(), merged.mce()) == pytest.approx((whole.ece(), whole.mce()), rel=0, abs=1e-12)
    if not has_weights:
        assert whole.count.sum() == len(pairs)  # no sample is lost
        assert not whole.weighted


def test_sums_by_a_loop() -> None:
    p, y, w, bins = weighted()
    expected = np.zeros((6, 4))
    for q, right, weight in zip(p, y, w, strict=True):
        terms = (weight, weight * q, weight * right, weight**2 * q * (1 - q), weight**2, weight**2 * right)
        expected[:, math.ceil(4 * q) - 1] += terms
    np.testing.assert_allclose([getattr(bins, name) for name in SUMS], expected)
    assert bins.weighted
    plain = BinStats.from_confidence(p, y, num_bins=4)
    check_equal(plain, BinStats.from_confidence(p, y, num_bins=4, sample_weight=np.ones(200)))
    np.testing.assert_array_equal(plain.effective_count(), plain.count)


def test_what_follows_from_the_sums_by_a_loop() -> None:
    p, y, w, bins = weighted()
    total, ece, largest, square = w.sum(), 0.0, 0.0, 0.0
    for b in range(4):
        q, right, weight = (x[np.ceil(4 * p) == b + 1] for x in (p, y, w))
        n, accuracy, confidence = weight.sum(), np.average(right, weights=weight), np.average(q, weights=weight)
        gap, squares = n * (confidence - accuracy), (weight**2).sum()
        ece, largest = ece + abs(gap) / total, max(largest, abs(confidence - accuracy))
        noise = (weight**2 * (right - accuracy) ** 2).sum()
        square += (gap**2 - noise / (1 - squares / n**2)) / n / total
        assert (bins.accuracy[b], bins.mean_confidence[b], bins.gap[b]) == pytest.approx((accuracy, confidence, gap))
        assert bins.gap_variance[b] == pytest.approx(noise / (1 - squares / n**2))
        effective = min(n**2 / squares, accuracy * (1 - accuracy) * n**2 / noise)
        assert bins.effective_count()[b] == pytest.approx(effective)
    assert (bins.ece(), bins.mce(), bins.squared_error()) == pytest.approx((ece, largest, square))


def test_empty_bins_and_bins_of_one_sample() -> None:
    bins = BinStats.from_confidence([0.9, 0.8, 0.1], [True, False, False], num_bins=3)
    assert (bins.count.tolist(), bins.gap.tolist()) == ([1, 0, 2], pytest.approx([0.1, 0.0, 0.7]))  # over-confident
    assert np.isnan(bins.accuracy[1])
    assert bins.gap_variance.tolist() == [math.inf, math.inf, pytest.approx(4 * 0.25)]  # n^2 a (1 - a) / (n - 1)
    assert bins.squared_error() == pytest.approx((0.7**2 - 1) / 2 / 3)  # the bin with one sample counts as 0
    assert (bins.ece(), bins.mce()) == pytest.approx((0.8 / 3, 0.35))
    nothing = BinStats.empty(2, edges=bins.edges)
    assert np.isnan([nothing.ece(), nothing.mce()]).all()


def test_rows_of_bins() -> None:
    parts = [BinStats.from_confidence(*weighted(seed=k)[:2], num_bins=4) for k in range(3)]
    rows = BinStats.of([np.stack([getattr(part, name) for part in parts]) for name in SUMS], parts[0].edges)
    assert rows.ece().tolist() == [part.ece() for part in parts]
    assert rows.mce().tolist() == [part.mce() for part in parts]
    check_equal(rows.sum(0), parts[0] + parts[1] + parts[2])
    check_equal(rows[1], parts[1])
    assert repr(rows) == "BinStats(3 x 4 bins)"


@for_each(weights=[False, True])
def test_bins_survive_json(weights) -> None:
    p, y, _, bins = weighted(9, num_bins=15)  # some are empty
    bins = bins if weights else BinStats.from_confidence(p, y)
    again = BinStats.from_dict(json.loads(json.dumps(bins.to_dict(), allow_nan=False)))
    check_equal(replace(again, variance=bins.variance), bins)  # which is that of equal confidences in each bin
    assert again.variance.sum() == pytest.approx(bins.variance.sum(), rel=0.01)
    assert sorted(bins.to_dict()["confidence"], key=str)[-1] is None


# Edges


@given(st.lists(st.floats(0, 1), max_size=50), st.integers(1, 40), st.sampled_from(["float64", "float32", "bfloat16"]))
def test_counting_finds_the_same_bin_as_searching(values, num_bins, dtype) -> None:
    edges = (torch.arange(num_bins + 1) / num_bins).to(getattr(torch, dtype)).double().numpy()
    near = [edges + step * EXCEEDS for step in (-2, 0, 0.9, 1.1)]
    p = np.clip(np.concatenate([values, *near]), 0, 1)
    bins = BinStats.from_confidence(p, np.ones(len(p), bool), edges=edges)
    expected = np.bincount(np.searchsorted(edges[1:-1] + EXCEEDS, p), minlength=num_bins)
    np.testing.assert_array_equal(bins.count, expected)


def test_edges_of_any_width() -> None:
    bins = BinStats.from_confidence([0.0, 0.5, 0.6, 0.95, 1.0], [True] * 5, edges=[0.0, 0.5, 0.9, 0.99, 1.0])
    assert bins.count.tolist() == [2, 1, 1, 1]


def test_one_bin_counts_a_probability_just_above_one() -> None:
    p, target = torch.tensor([[1.0 + 5e-7, 0.0], [0.5, 0.5]], dtype=torch.float64), torch.tensor([0, 0])
    assert M.evaluate(p, target, input="probs", num_bins=1).bins.count.tolist() == [2]
    assert M.classwise_ece(p, target, input="probs", num_bins=1) == pytest.approx(0.25)  # .75 and .25, not 1 and 0


# Rounding


def test_rounding_of_two_million_samples_does_not_add_up() -> None:
    """A calibrated, confident model: float32 sums would report an ECE of .02 here, the truth is below 5e-4."""
    generator = torch.Generator().manual_seed(0)
    n = 2_000_000
    p = 0.94 + 0.06 * torch.rand(n, generator=generator, dtype=torch.float64)
    target = torch.bernoulli(1 - p, generator=generator).long()
    logits = torch.stack([torch.log(p), torch.log1p(-p)], 1).float()
    z = logits.double()
    confidence = torch.sigmoid(z[:, 0] - z[:, 1])
    index = (confidence * 15).ceil().long() - 1
    gap = torch.zeros(15, dtype=torch.float64).index_add_(0, index, confidence - (target == 0).double())
    truth = float(gap.abs().sum()) / n
    assert truth < 5e-4
    result = M.evaluate(logits, target)
    assert (result.ece, result.classwise_ece) == pytest.approx((truth, truth), abs=1e-11, rel=0)


@for_each(num_classes=[3, 70], weights=[False, True])
def test_tiles_do_not_matter(monkeypatch, num_classes, weights) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(301, num_classes, generator=generator)
    target = torch.randint(num_classes, (301,), generator=generator)
    weight = {"by label": 1.0 + target, "own": torch.rand(301)}
    for options in [{"sample_weight": w} for w in weight.values()] if weights else [{}]:
        before = M.evaluate(logits, target, inference=True, draws=100, **options)
        with monkeypatch.context() as patch:
            patch.setattr("dualfocal.metrics.scan.TILE_CPU", 7 * num_classes)
            patch.setattr("dualfocal.metrics.scan.BLOCK", 11)
            after = M.evaluate(logits, target, inference=True, draws=100, **options)
        assert after.scalars() == pytest.approx(before.scalars(), rel=1e-9, abs=1e-12)


# Errors


def test_bins_of_other_edges_do_not_merge() -> None:
    one, right = torch.tensor([0.5]), torch.tensor([True])
    five = BinStats.from_confidence(one, right, num_bins=5)
    for other in (
        BinStats.from_confidence(one, right, num_bins=6),
        BinStats.from_confidence(one, right, edges=torch.tensor([0, 0.2, 0.4, 0.6, 0.9, 1.0])),
        BinStats.empty(2, edges=five.edges),
    ):
        with pytest.raises(ValueError, match="cannot merge"):
            five + other
    assert (five + BinStats.from_confidence(one.double(), right, num_bins=5)).count.sum() == 2
    with pytest.raises(TypeError):
        five + 1


BAD_INPUT = [
    ([0.5, 1.1], [True, True], {}, r"\[0, 1\]"),
    ([0.5, math.nan], [True, True], {}, "NaN"),
    ([0.5], [True, True], {}, r"\(1,\) and \(2,\)"),
    (torch.tensor([1]), [True], {}, "int64"),
    ([0.5], [2], {}, "0 and 1"),
    ([0.5], [0.5], {}, "0 and 1"),
    ([0.5], [True], {"num_bins": 0}, "at least 1, got 0"),
    ([0.5], [True], {"edges": [0, 0.7, 0.6, 1]}, "increase from 0 to 1"),
    ([0.5], [True], {"edges": [0.1, 0.7, 1.0]}, "increase from 0 to 1"),
    ([0.5], [True], {"sample_weight": [-1.0]}, "negative"),
    ([0.5], [True], {"sample_weight": [1.0, 2.0]}, "shape"),
]


@for_each(case=BAD_INPUT)
def test_bad_input_is_refused(case) -> None:
    confidence, correct, options, message = case
    with pytest.raises(ValueError, match=message):
        BinStats.from_confidence(confidence, correct, **options)
