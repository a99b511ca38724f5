"""Every metric against its definition, written out as loops."""

import math
from functools import partial

import metric_oracles as oracle
import numpy as np
import oracles
import pytest
import torch
from case_loops import for_each
from hypothesis import given
from hypothesis import strategies as st
from samples import draw_logits

from dualfocal import metrics as M
from dualfocal.losses import kde_bandwidth

# Fewer than 64 classes are scanned class by class, more row by row.
BINNED = ("ece", "mce", "adaptive_ece", "classwise_ece", "debiased_ece")
SCORES = ("nll", "brier_score", "error_rate", "aurc")
sample = partial(draw_logits, overconfidence=1.3)
SHAPES = [(40, 2), (37, 3), (300, 10), (50, 70)]


def in_float64(logits: torch.Tensor) -> oracle.Probs:
    return [oracle.softmax(row) for row in logits.double().tolist()]


def all_metrics(logits, target, num_bins: int = 15, input: str = "logits") -> dict[str, float]:
    parts = M.brier_decomposition(logits, target, input=input, num_bins=num_bins)
    binned = {name: getattr(M, name)(logits, target, input=input, num_bins=num_bins) for name in BINNED}
    plain = {name: getattr(M, name)(logits, target, input=input) for name in SCORES}
    return {**binned, **plain, "calibration": parts.calibration, "refinement": parts.refinement}


def all_oracles(probs: oracle.Probs, target: list[int], num_bins: int = 15) -> dict[str, float]:
    confidence, correct = oracle.top_label(probs, target)
    edges = oracle.equal_width(num_bins)
    calibration, refinement = oracle.brier_parts(probs, target, num_bins)
    return {
        "ece": oracle.ece(confidence, correct, edges),
        "mce": oracle.mce(confidence, correct, edges),
        "adaptive_ece": oracle.ece(confidence, correct, oracle.equal_mass(confidence, num_bins)),
        "classwise_ece": oracle.classwise(probs, target, num_bins),
        "debiased_ece": math.sqrt(max(oracle.squared_error(confidence, correct, edges), 0.0)),
        "nll": oracle.nll(probs, target),
        "brier_score": oracle.brier(probs, target),
        "error_rate": 1 - sum(correct) / len(correct),
        "aurc": oracle.aurc(confidence, correct),
        "calibration": calibration,
        "refinement": refinement,
    }


@for_each(num_bins=[1, 7, 15, 100], shape=SHAPES)
def test_logits(shape, num_bins) -> None:
    logits, target = sample(*shape)
    expected = all_oracles(in_float64(logits), target.tolist(), num_bins)
    assert all_metrics(logits, target, num_bins) == pytest.approx(expected, abs=1e-12, rel=0)


@for_each(shape=SHAPES)
def test_probabilities(shape) -> None:
    logits, target = sample(*shape)
    probs = logits.double().softmax(1)
    expected = all_oracles(probs.tolist(), target.tolist())
    assert all_metrics(probs, target, input="probs") == pytest.approx(expected, abs=1e-12, rel=0)
    assert all_metrics(probs.numpy(), target.numpy(), input="probs") == pytest.approx(expected, abs=1e-12, rel=0)


@for_each(shape=[(60, 3), (60, 70)], dtype=[torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes_are_not_rounded(shape, dtype) -> None:
    """Half-precision logits tie often: the first of the largest is the prediction."""
    logits, target = sample(*shape, dtype=dtype)
    expected = all_oracles(in_float64(logits), target.tolist())
    assert all_metrics(logits, target) == pytest.approx(expected, abs=1e-12, rel=0)


@for_each(num_classes=[3, 70])
def test_ties_go_to_the_first_class(num_classes) -> None:
    logits = torch.zeros(num_classes, num_classes)
    target = torch.arange(num_classes)
    assert M.error_rate(logits, target) == pytest.approx(1 - 1 / num_classes)
    assert M.ece(logits, target) == pytest.approx(0.0, abs=1e-12)
    assert M.aurc(logits, target) == pytest.approx(1 - 1 / num_classes)  # no order to profit from
    assert M.error_rate(logits, torch.zeros_like(target)) == 0


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 2)), min_size=1, max_size=40),
    st.integers(1, 16),
)
def test_probabilities_on_edges_and_ties(rows, num_bins) -> None:
    """Thirds, tenths and fifteenths: values that lie on edges, and equal one another."""
    probs = [[a / 60, b / 60, (60 - a - b) / 60] for a, b, _ in rows]
    target = [y for *_, y in rows]
    got = all_metrics(torch.tensor(probs, dtype=torch.float64), torch.tensor(target), num_bins, input="probs")
    edges = [0.0, *(edge + 2**-33 for edge in oracle.equal_width(num_bins)[1:])]  # so that edges are met
    confidence, correct = oracle.top_label(probs, target)
    assert got["ece"] == pytest.approx(oracle.ece(confidence, correct, edges), abs=1e-12)
    assert got["mce"] == pytest.approx(oracle.mce(confidence, correct, edges), abs=1e-12)
    assert got["aurc"] == pytest.approx(oracle.aurc(confidence, correct), abs=1e-12)
    of_class = [oracle.ece([p[c] for p in probs], [int(y == c) for y in target], edges) for c in range(3)]
    assert got["classwise_ece"] == pytest.approx(sum(of_class) / 3, abs=1e-12)


@for_each(dtype=[torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_probability_on_an_edge_belongs_below_it_in_every_dtype(dtype) -> None:
    """0.2 in float32 is a little more than 1/5, and still on the edge; the next number is not."""
    for num_bins in (3, 5, 10, 15):
        edges = (torch.arange(num_bins + 1, dtype=torch.float64) / num_bins).to(dtype)
        inner = edges[1:-1]
        # in float64, an edge reaches 2^-33 further
        above = inner + 2**-32 if dtype == torch.float64 else torch.nextafter(inner, torch.ones_like(inner))
        right = torch.ones(len(inner), dtype=torch.bool)
        at = M.BinStats.from_confidence(inner, right, num_bins=num_bins)
        assert at.count.tolist() == [1] * (num_bins - 1) + [0]
        over = M.BinStats.from_confidence(above, right, num_bins=num_bins)
        assert over.count.tolist() == [0] + [1] * (num_bins - 1)


def test_0_and_1_are_counted() -> None:
    probs = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    target = torch.tensor([0, 1, 1])
    assert M.ece(probs, target, input="probs") == pytest.approx(1 / 3)
    assert M.classwise_ece(probs, target, input="probs") == pytest.approx(1 / 3)
    assert M.nll(probs, target, input="probs") == math.inf


def test_minus_infinity_rules_a_class_out() -> None:
    logits = torch.tensor([[0.0, -math.inf, 1.0], [2.0, 0.0, -math.inf]])
    expected = M.evaluate(torch.tensor([[0.0, -800.0, 1.0], [2.0, 0.0, -800.0]]), torch.tensor([2, 0])).to_dict()
    assert M.evaluate(logits, torch.tensor([2, 0])).to_dict() == expected


def test_dense_predictions_and_ignored_targets() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 5, 3, 6, generator=generator)
    target = torch.randint(5, (4, 3, 6), generator=generator)
    target[torch.rand(target.shape, generator=generator) < 0.3] = 255
    kept = target != 255
    rows = logits.movedim(1, -1)[kept]
    logits.movedim(1, -1)[~kept] = torch.nan  # what stands there must not matter
    for name in (*BINNED, *SCORES):
        metric = getattr(M, name)
        assert metric(logits, target, ignore_index=255) == metric(rows, target[kept]), name


def test_weights_repeat_samples() -> None:
    logits, target = sample(60, 4)
    repeats = torch.randint(0, 4, (60,), generator=torch.Generator().manual_seed(1))
    twice, again = logits.repeat_interleave(repeats, 0), target.repeat_interleave(repeats)
    for name in ("ece", "mce", "classwise_ece", "nll", "brier_score", "error_rate"):
        metric = getattr(M, name)
        assert metric(logits, target, sample_weight=repeats) == pytest.approx(metric(twice, again), abs=1e-12), name


@for_each(input=["logits", "probs"])
def test_binary_semantics(input) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(200, generator=generator, dtype=torch.float64)
    target = torch.bernoulli(torch.sigmoid(scores / 2), generator=generator).long()
    p = torch.sigmoid(scores)
    given = scores if input == "logits" else p
    probs = [[1 - x, x] for x in p.tolist()]
    edges = oracle.equal_width(15)
    top = oracle.ece(*oracle.top_label(probs, target.tolist()), edges)
    positive = oracle.ece(p.tolist(), target.tolist(), edges)
    assert abs(top - positive) > 1e-3  # the choice matters
    assert M.ece(given, target, input=input, binary="top_label") == pytest.approx(top, abs=1e-12)
    assert M.ece(given, target, input=input, binary="positive") == pytest.approx(positive, abs=1e-12)
    columns = torch.stack([torch.zeros_like(scores), scores], 1) if input == "logits" else torch.stack([1 - p, p], 1)
    assert M.ece(columns, target, input=input) == pytest.approx(top, abs=1e-12)
    assert M.ece(columns, target, input=input, binary="positive") == pytest.approx(positive, abs=1e-12)
    event = float(((p - target) ** 2).mean())
    assert M.brier_score(given, target, input=input, binary="positive") == pytest.approx(event)
    assert M.brier_score(given, target, input=input, binary="top_label") == pytest.approx(2 * event)
    for name in ("error_rate", "aurc", "nll"):  # these do not depend on it
        metric = getattr(M, name)
        assert metric(given, target, input=input, binary="positive") == metric(
            given, target, input=input, binary="top_label"
        )


def test_brier_root_is_the_rbs() -> None:
    logits, target = sample(50, 3)
    score = M.brier_score(logits, target)
    assert M.brier_score(logits, target, root=True) == pytest.approx(math.sqrt(score))
    assert M.evaluate(logits, target).rbs == pytest.approx(math.sqrt(score))


def test_brier_parts_add_up() -> None:
    parts = M.brier_decomposition(*sample(500, 5))
    assert parts.score == pytest.approx(parts.calibration + parts.refinement + parts.within_bins)


def test_kde_ece() -> None:
    logits, target = sample(30, 3, dtype=torch.float64)
    for h, norm in ((0.05, 1.0), (0.3, 2.0)):
        expected = float(oracles.kde_error(logits, target, bandwidth=h, p=norm))
        assert M.kde_ece(logits, target, bandwidth=h, norm=norm) == pytest.approx(expected, rel=1e-9)
        probs = logits.softmax(1)
        assert M.kde_ece(probs, target, input="probs", bandwidth=h, norm=norm) == pytest.approx(expected, rel=1e-9)


def test_kde_ece_as_published() -> None:
    logits, target = sample(12, 61, dtype=torch.float64)
    for h, norm in ((0.001, 1.0), (0.01, 2.0)):
        expected = float(oracles.kde_error(logits, target, bandwidth=h, p=norm, as_published=True))
        value = M.kde_ece(logits, target, bandwidth=h, norm=norm, as_published=True)
        assert value == pytest.approx(expected, rel=1e-9)
        assert value != pytest.approx(M.kde_ece(logits, target, bandwidth=h, norm=norm), rel=1e-3)
        few = logits[:, :60], target % 60
        value = M.kde_ece(*few, bandwidth=h, norm=norm, as_published=True)
        assert value == M.kde_ece(*few, bandwidth=h, norm=norm)


def test_kde_ece_as_published_searches_the_published_bandwidth() -> None:
    logits, target = sample(64, 3)
    ours, published = (float(kde_bandwidth(logits, as_published=flag)) for flag in (False, True))
    assert ours != published
    value = M.kde_ece(logits, target, bandwidth="likelihood", as_published=True)
    assert value == pytest.approx(M.kde_ece(logits, target, bandwidth=published), rel=1e-6)


def test_kde_ece_in_parts_is_the_same(monkeypatch) -> None:
    logits, target = sample(200, 4)
    whole = [M.kde_ece(logits, target, bandwidth=h) for h in (0.001, "likelihood")]
    monkeypatch.setattr("dualfocal.metrics.calibration.ELEMENTS", 7 * 200)
    assert [M.kde_ece(logits, target, bandwidth=h) for h in (0.001, "likelihood")] == pytest.approx(whole, rel=1e-12)
    h = float(kde_bandwidth(logits))
    assert whole[1] == pytest.approx(M.kde_ece(logits, target, bandwidth=h), rel=1e-12)


def test_ood_auroc() -> None:
    generator = torch.Generator().manual_seed(0)
    known = 3 * torch.randn(40, 5, generator=generator, dtype=torch.float64)
    foreign = torch.randn(30, 5, generator=generator, dtype=torch.float64)
    foreign[:10] = known[:10]  # ties
    entropy, top = [], []
    for logits in (known, foreign):
        probs = in_float64(logits)
        entropy.append([-math.fsum(x * math.log(x) for x in p) for p in probs])
        top.append([1 - max(p) for p in probs])
    # Rounded alike on both sides of a tie.
    expected = oracle.auroc(*([round(x, 12) for x in side] for side in entropy))
    assert M.ood_auroc(known, foreign) == pytest.approx(expected, abs=1e-12)
    expected = oracle.auroc(*([round(x, 9) for x in side] for side in top))
    assert M.ood_auroc(known, foreign, score="max_prob") == pytest.approx(expected, abs=1e-12)
    assert M.ood_auroc(known.softmax(1), foreign.softmax(1), input="probs") == pytest.approx(
        M.ood_auroc(known, foreign)
    )
    certain = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert M.ood_auroc(certain, torch.tensor([[0.5, 0.5]]), input="probs") == 1.0


def test_evaluate_is_the_functions() -> None:
    for num_classes in (4, 70):
        logits, target = sample(400, num_classes)
        result = M.evaluate(logits, target, num_bins=12)
        for name in BINNED:
            assert getattr(result, name) == getattr(M, name)(logits, target, num_bins=12), name
        for name in SCORES:
            field = {"brier_score": "brier", "error_rate": "error"}.get(name, name)
            assert getattr(result, field) == getattr(M, name)(logits, target), name
        parts = M.brier_decomposition(logits, target, num_bins=12)
        assert (result.brier_calibration, result.brier_refinement) == (parts.calibration, parts.refinement)
        confidence = logits.double().softmax(1).amax(1).mean()
        assert result.overconfidence == pytest.approx(float(confidence) - (1 - result.error), abs=1e-12)


def test_brier_parts_of_class_1_sum_to_the_brier_score_of_class_1() -> None:
    logits, target = sample(400, 2)
    probs = logits.double().softmax(1)[:, 1].mul(64).ceil().clamp(1, 63).div(64)  # all of a bin are equal
    result = M.evaluate(probs, target, input="probs", binary="positive", num_bins=64)
    assert result.brier_calibration + result.brier_refinement == pytest.approx(result.brier, abs=1e-12)
    both = M.evaluate(probs, target, input="probs", binary="top_label", num_bins=64)
    assert both.brier_calibration == pytest.approx(2 * result.brier_calibration, abs=1e-12)


def test_repr_is_one_short_line() -> None:
    result = M.evaluate(*sample(200, 4), inference=True, draws=100)
    assert repr(result).startswith("Evaluation(num_samples=200, num_classes=4, error=0.")
    assert len(repr(result)) < 120


def test_scalars_are_a_flat_dict_of_finite_floats() -> None:
    logits, target = sample(200, 4)
    result = M.evaluate(logits, target, inference=True, draws=100)
    inference = result.inference
    assert inference is not None
    assert inference.classwise is not None
    values = result.scalars("val/")
    assert {type(value) for value in values.values()} == {float}
    names = ["error", "nll", "brier", "aurc", "ece", "adaptive_ece", "classwise_ece", "mce", "debiased_ece"]
    assert {name: values.pop(f"val/{name}") for name in names} == {name: getattr(result, name) for name in names}
    assert values == {f"val/{name}_floor": floor.mean for name, floor in inference.floors.items()} | {
        "val/p_value": inference.p_value,
        "val/classwise_p_value": inference.classwise.p_value,
        "val/debiased_ece_low": inference.debiased_ece[0],
        "val/debiased_ece_high": inference.debiased_ece[1],
    }
    assert list(M.evaluate(logits, target).scalars()) == names  # no inference, no floors
    assert "nll" not in M.evaluate(np.array([[1.0, 0.0]]), np.array([1]), input="probs").scalars()  # infinite


def test_read_only_and_foreign_arrays() -> None:
    logits, target = sample(50, 3)
    expected = M.ece(logits, target)
    array = logits.numpy().copy()
    array.flags.writeable = False
    assert M.ece(array, target.numpy().astype(np.uint8)) == expected
    assert M.ece(array.astype(">f4"), target.numpy().astype(">i2")) == expected
    assert M.ece(np.ascontiguousarray(array[::-1])[::-1], target.numpy()) == expected
    assert M.ece(logits.T.contiguous().T.requires_grad_(), target) == expected


def test_the_surest_are_ranked_too() -> None:
    """Margins of 24 to 36 are confidences within 4e-11 of 1, and still differ."""
    margin = torch.linspace(24, 36, 100, dtype=torch.float64)
    logits = torch.stack([margin, torch.zeros(100, dtype=torch.float64)], 1)
    target = (margin < 25).long()  # the least confident are wrong
    wrong = int(target.sum())
    expected = sum((k - (100 - wrong)) / k for k in range(101 - wrong, 101)) / 100
    assert M.aurc(logits, target) == pytest.approx(expected)
    assert M.ood_auroc(logits[50:], logits[:50], score="max_prob") == 1.0


def test_a_default_device_does_not_matter() -> None:
    logits, target = sample(60, 3)
    expected = M.evaluate(logits, target, inference=True).to_dict(), M.compare(logits, logits / 2, target).to_dict()
    metric = M.ExpectedCalibrationError()
    with torch.device("meta"):
        assert M.ece(logits, target) == expected[0]["ece"]
        assert M.evaluate(logits, target, inference=True).to_dict() == expected[0]
        assert M.compare(logits, logits / 2, target).to_dict() == expected[1]
        assert M.kde_ece(logits, target) > 0
        assert M.ood_auroc(logits, logits) == 0.5
        metric.update(logits, target)
        assert metric.compute().item() == expected[0]["ece"]


def test_numpy_numbers_are_numbers() -> None:
    logits, target = sample(60, 3)
    assert M.ece(logits, target, num_bins=np.int64(7), ignore_index=np.int64(-100)) == M.ece(logits, target, num_bins=7)


@for_each(num_classes=[3, 70], dtype=[torch.float32, torch.float64])
def test_a_rounded_softmax_above_1_is_1(num_classes, dtype) -> None:
    """float32 softmax can give 1.0000001: the last bin of its own class, not the first of the next."""
    probs = torch.zeros(12, num_classes, dtype=dtype)
    probs[:6, 0] = probs[6:, -1] = 1 + 5e-7
    target = torch.tensor([0] * 6 + [num_classes - 1] * 6)
    expected = M.evaluate(probs.clamp_max(1), target, input="probs")
    got = M.evaluate(probs, target, input="probs")
    for name in ("ece", "mce", "adaptive_ece", "classwise_ece", "aurc"):
        assert getattr(got, name) == pytest.approx(getattr(expected, name), abs=1e-6), name
    if dtype == torch.float32:
        assert M.compare(probs, probs, target, input="probs").differences["classwise_ece"].a < 1e-6
    if num_classes == 3:
        assert M.ece(probs[:, [0, 2]], target // 2, input="probs", binary="positive") < 1e-6


@for_each(num_classes=[3, 70], input=["logits", "probs"])
def test_what_is_given_is_not_written_to(num_classes, input) -> None:
    """float64 needs no widening: what works in place must work on a copy all the same."""
    logits, target = sample(60, num_classes, dtype=torch.float64)
    values = logits if input == "logits" else logits.softmax(1)
    before, labels = values.clone(), target.clone()
    all_metrics(values, target, input=input)
    M.evaluate(values, target, input=input, inference=True, convention="published")
    M.compare(values, values, target, input=input)
    M.kde_ece(values, target, input=input)
    for score in ("entropy", "max_prob"):
        M.ood_auroc(values, values, input=input, score=score)
    for metric in (M.ExpectedCalibrationError(input=input), M.ClasswiseCalibrationError(num_classes, input=input)):
        metric.update(values, target)
    assert torch.equal(values, before)
    assert torch.equal(target, labels)
