"""Bins that merge exactly: any split, any order, the same bits."""

import itertools
import math
from dataclasses import replace
from decimal import Decimal

import pytest
import torch
from case_loops import for_each
from hypothesis import given
from hypothesis import strategies as st

from dualfocal import metrics as M
from dualfocal.metrics import BinnedPredictions, BinStats

ONE = 2**32  # sums count in units of 1 / ONE
ONE_BIN = torch.tensor([0.0, 1.0], dtype=torch.float64)

confidences = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60)


def stats(pairs, **options) -> BinStats:
    confidence = torch.tensor([c for c, _ in pairs], dtype=torch.float64)
    return BinStats.from_confidence(confidence, torch.tensor([y for _, y in pairs]), **options)


@given(confidences, st.randoms(use_true_random=False), st.integers(1, 20))
def test_merged_in_any_split_and_order(pairs, random, num_bins) -> None:
    whole = stats(pairs, num_bins=num_bins)
    shuffled = random.sample(pairs, len(pairs))
    cuts = sorted({0, len(pairs), *(random.randrange(len(pairs) + 1) for _ in range(4))})
    parts = [stats(shuffled[a:b], num_bins=num_bins) for a, b in itertools.pairwise(cuts)]
    random.shuffle(parts)
    merged = parts[0]
    for part in parts[1:]:
        merged = part + merged
    assert merged == whole
    assert float(merged.ece()) == float(whole.ece())
    assert int(whole.count.sum()) == len(pairs)  # none is lost


@given(confidences)
def test_addition_is_associative_and_has_a_zero(pairs) -> None:
    a, b, c = stats(pairs[::3] or pairs), stats(pairs[1::3] or pairs), stats(pairs[2::3] or pairs)
    assert (a + b) + c == a + (b + c)
    assert a + b == b + a
    assert a + BinStats.empty(edges=a.edges) == a


@given(
    st.lists(st.integers(0, ONE), min_size=1, max_size=50),
    st.integers(1, 40),
    st.sampled_from(["float64", "float32", "bfloat16"]),
)
def test_counting_finds_the_same_bin_as_searching(units, num_bins, dtype) -> None:
    edges = (torch.arange(num_bins + 1) / num_bins).to(getattr(torch, dtype)).double()
    bounds = (edges * ONE).round().long()
    near = [max(0, min(ONE, bound + step)) for bound in bounds.tolist() for step in (-1, 0, 1)]
    values = torch.tensor(units + near)
    bins = BinStats.from_confidence(values.double() / ONE, torch.ones(len(values)).bool(), edges=edges)
    expected = torch.bincount(torch.bucketize(values, bounds[1:-1]), minlength=num_bins)
    assert torch.equal(bins.count, expected)


def test_edges_of_any_width() -> None:
    edges = torch.tensor([0.0, 0.5, 0.9, 0.99, 1.0], dtype=torch.float64)
    got = BinStats.from_confidence(
        torch.tensor([0.0, 0.5, 0.6, 0.95, 1.0], dtype=torch.float64), torch.ones(5, dtype=torch.bool), edges=edges
    )
    assert got.count.tolist() == [2, 1, 1, 1]


def test_exact_at_two_million() -> None:
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
    assert result.ece == pytest.approx(truth, abs=1e-9, rel=0)
    assert result.classwise_ece == pytest.approx(truth, abs=1e-9, rel=0)


@for_each(num_classes=[3, 70])
def test_every_sample_alone_gives_the_same_bits(num_classes) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, target = (
        torch.randn(50, num_classes, generator=generator),
        torch.randint(num_classes, (50,), generator=generator),
    )
    alone = [BinnedPredictions.from_predictions(logits[i : i + 1], target[i : i + 1]) for i in range(50)]
    assert sum(alone[1:], start=alone[0]) == BinnedPredictions.from_predictions(logits, target)


def test_tiles_do_not_matter(monkeypatch) -> None:
    generator = torch.Generator().manual_seed(0)
    for num_classes in (3, 70):
        logits = torch.randn(301, num_classes, generator=generator)
        target = torch.randint(num_classes, (301,), generator=generator)
        before = M.evaluate(logits, target).to_dict()
        with monkeypatch.context() as patch:
            patch.setattr("dualfocal.metrics.scan.TILE_CPU", 7 * num_classes)
            patch.setattr("dualfocal.metrics.bins.BLOCK", 11)
            assert M.evaluate(logits, target).to_dict() == before


def test_gap_is_exact() -> None:
    """Sums are integers: ten thousand times a confidence is ten thousand confidences, not nearly."""
    one = BinStats.from_confidence(torch.tensor([1 / 3], dtype=torch.float64), torch.tensor([False]), num_bins=1)
    many = BinStats.from_confidence(
        torch.full((10_000,), 1 / 3, dtype=torch.float64), torch.zeros(10_000, dtype=torch.bool), num_bins=1
    )
    assert 2**32 * int(many.whole) + int(many.units) == 10_000 * int(one.units) == 10_000 * round(2**32 / 3)
    assert float(many.ece()) == float(one.ece())
    assert float(one.gap) == pytest.approx(1 / 3, abs=1e-9)  # above 0: over-confident


def test_weighted_sums() -> None:
    confidence = torch.tensor([0.9, 0.8, 0.3], dtype=torch.float64)
    bins = BinStats.from_confidence(
        confidence, torch.tensor([True, False, True]), num_bins=2, sample_weight=torch.tensor([2.0, 1.0, 0.5])
    )
    assert bins.weighted
    assert float(bins.ece()) == pytest.approx((abs(2 * 0.9 + 0.8 - 2) + abs(0.5 * 0.3 - 0.5)) / 3.5, abs=1e-9)
    with pytest.raises(ValueError, match="squared weights"):
        replace(bins, squares=None).squared_error()
    with pytest.raises(ValueError, match="cannot merge"):
        bins + BinStats.from_confidence(confidence, torch.tensor([True, False, True]), num_bins=2)


def test_what_does_not_belong_together_does_not_merge() -> None:
    one, right = torch.tensor([0.5]), torch.tensor([True])
    with pytest.raises(ValueError, match="cannot merge"):
        BinStats.from_confidence(one, right, num_bins=5) + BinStats.from_confidence(one, right, num_bins=6)
    with pytest.raises(ValueError, match="different edges"):
        BinStats.from_confidence(one, right, num_bins=2) + BinStats.from_confidence(
            one, right, edges=torch.tensor([0, 0.9, 1.0])
        )
    assert BinStats.from_confidence(one, right, num_bins=5) + BinStats.from_confidence(one.double(), right, num_bins=5)


def test_a_trillion_samples_merge_exactly_in_any_order() -> None:
    """Bins of up to 10^12 samples, as many processes would send them: the sums are those of Python's integers."""
    generator = torch.Generator().manual_seed(0)
    parts, exact = [], [0, 0, 0]
    for _ in range(40):
        count = int(torch.randint(10**10, 10**12, (), generator=generator))
        correct, rest = int(0.7 * count), int(torch.randint(2**32, (), generator=generator))
        units = int(0.83 * count) * 2**32 + rest
        exact = [total + part for total, part in zip(exact, (count, units, correct), strict=True)]
        sums = (count, units >> 32, rest, correct)
        parts.append(BinStats(*(torch.tensor([n]) for n in sums), ONE_BIN))
    merged = sum(parts[1:], start=parts[0])
    for seed in range(3):
        order = torch.randperm(40, generator=torch.Generator().manual_seed(seed)).tolist()
        assert sum((parts[i] for i in order[1:]), start=parts[order[0]]) == merged
    assert (int(merged.count), 2**32 * int(merged.whole) + int(merged.units), int(merged.correct)) == tuple(exact)
    assert float(merged.ece()) == pytest.approx((exact[1] / 2**32 - exact[2]) / exact[0], rel=1e-14)


def test_overflow_is_an_error_not_a_number() -> None:
    full = BinStats(*(torch.tensor([n]) for n in (2**62, 2**62, 0, 2**62)), ONE_BIN)
    with pytest.raises(OverflowError, match=str(2**62)):
        full.ece()


BAD_INPUT = [
        (torch.tensor([0.5, 1.1]), torch.tensor([True, True]), {}, r"\[0, 1\]"),
        (torch.tensor([0.5, math.nan]), torch.tensor([True, True]), {}, "NaN"),
        (torch.tensor([0.5]), torch.tensor([True, True]), {}, r"\(1,\) and \(2,\)"),
        (torch.tensor([1]), torch.tensor([True]), {}, "int64"),
        (torch.tensor([0.5]), torch.tensor([2]), {}, "0 and 1"),
        (torch.tensor([0.5]), torch.tensor([0.5]), {}, "0 and 1"),
        (torch.tensor([0.5]), torch.tensor([True]), {"num_bins": 0}, "at least 1, got 0"),
        (torch.tensor([0.5]), torch.tensor([True]), {"edges": torch.tensor([0, 0.7, 0.6, 1])}, "increase from 0 to 1"),
        (torch.tensor([0.5]), torch.tensor([True]), {"sample_weight": torch.tensor([-1.0])}, "negative"),
]  # fmt: skip


@for_each(case=BAD_INPUT)
def test_bad_input_is_refused(case) -> None:
    confidence, correct, options, message = case
    with pytest.raises(ValueError, match=message):
        BinStats.from_confidence(confidence, correct, **options)


def test_units_are_the_nearest() -> None:
    confidence = torch.tensor([0.0, 1.0, 2**-33, 2**-32, 3 * 2**-33], dtype=torch.float64)
    units = [float(BinStats.from_confidence(one[None], [True]).confidence.sum()) * ONE for one in confidence]
    assert units == [0, ONE, 0, 1, 2]


@for_each(num_classes=[10, 63, 64, 100, 1000, 5000, 16_384])
def test_a_row_has_the_same_bits_in_any_tile(num_classes) -> None:
    """Sums over classes must not depend on how many rows stand beside, nor on threads."""
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(max(24, 100_000 // num_classes), num_classes, generator=generator, dtype=torch.float64)
    target = torch.zeros(len(logits), dtype=torch.int64)

    def read(*cuts: int) -> BinnedPredictions:
        parts = itertools.starmap(slice, itertools.pairwise([0, *cuts, len(logits)]))
        states = [BinnedPredictions.from_predictions(logits[part], target[part]) for part in parts]
        return sum(states[1:], start=states[0])

    whole = read()
    for cuts in ((1, 4, 9, 20), (len(logits) - 3,)):
        assert read(*cuts) == whole
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert read() == whole
    finally:
        torch.set_num_threads(threads)


def test_a_table_of_whole_numbers_is_read_back() -> None:
    confidence, correct = torch.rand(100, dtype=torch.float64), torch.rand(100) < 0.5
    bins = BinStats.from_confidence(confidence, correct, num_bins=5)
    rows = [
        (index, count, Decimal(whole * ONE + units), hits)
        for index, (count, whole, units, hits) in enumerate(
            zip(*(getattr(bins, name).tolist() for name in ("count", "whole", "units", "correct")), strict=True)
        )
    ]
    assert BinStats.from_table(rows, num_bins=5) == bins
    assert BinStats.from_table([*rows, *reversed(rows)], num_bins=5) == bins + bins
    huge = BinStats.from_table([(0, 10**15, 10**15 * ONE, 7)], num_bins=1)
    assert (huge.confidence.tolist(), huge.correct.tolist()) == ([1e15], [7])


@for_each(row=[(5, 1, 0, 0), (0, 1, 0, 2), (0, 1, 2 * ONE, 0), (0, 1, -1, 0), (0, 1.5, 0, 0), (-1, 1, 0, 0)])
def test_a_table_that_contradicts_itself_is_refused(row) -> None:
    with pytest.raises(ValueError, match="must"):
        BinStats.from_table([row], num_bins=5)


def test_one_bin_counts_a_probability_just_above_one() -> None:
    p, target = torch.tensor([[1.0 + 5e-7, 0.0], [0.5, 0.5]], dtype=torch.float64), torch.tensor([0, 0])
    assert BinnedPredictions.from_predictions(p, target, input="probs", num_bins=1).num_samples == 2
    assert M.classwise_ece(p, target, input="probs", num_bins=1) == pytest.approx(0.25)  # .75 and .25, not 1 and 0
