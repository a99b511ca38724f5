"""Binned predictions: sums that merge exactly, the same numbers as from rows, bounds that hold, the same verdicts."""

import json
import math
from collections import Counter
from decimal import Decimal
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import draw_logits
from torch import Tensor

from dualfocal.metrics import BinnedPredictions, Evaluation, evaluate

ONE = 2**32  # sums count in units of 1 / ONE
SAME = ("error", "ece", "mce", "debiased_ece", "classwise_ece", "confidence", "accuracy", "num_samples", "num_bins")
CLOSE = ("nll", "brier", "brier_calibration", "brier_refinement")


def model(n: int, num_classes: int, seed: int = 0, scale: float = 3.0, tau: float = 1.0) -> tuple[Tensor, Tensor]:
    return draw_logits(n, num_classes, seed=seed, scale=scale, overconfidence=tau)


def check_against_rows(values: Tensor, target: Tensor, kind: str, num_bins: int = 15) -> None:
    """Compare the evaluation of the state with that of the rows."""
    rows = evaluate(values, target, input=kind, num_bins=num_bins)
    state = BinnedPredictions.from_predictions(values, target, input=kind, num_bins=num_bins)
    binned = state.evaluate(inference=False)
    assert state.bins == rows.bins
    assert torch.equal(state.edges, rows.bins.edges)
    assert {name: getattr(binned, name) for name in SAME} == {name: getattr(rows, name) for name in SAME}
    for name in CLOSE:
        assert getattr(binned, name) == pytest.approx(getattr(rows, name), abs=2.0**-32)
    for name in ("aurc", "adaptive_ece"):
        assert abs(getattr(binned, name) - getattr(rows, name)) <= binned.bounds[name]


# Equal to evaluate


@pytest.mark.parametrize(("n", "num_classes"), [(1, 2), (300, 2), (500, 10), (200, 100)])
@pytest.mark.parametrize("num_bins", [1, 15, 100])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_numbers_of_evaluate(n, num_classes, num_bins, dtype) -> None:
    logits, target = model(n, num_classes)
    check_against_rows(logits.to(dtype), target, "logits", num_bins)
    if dtype != torch.float16 or num_classes == 2:
        check_against_rows(logits.softmax(1).to(dtype), target, "probs", num_bins)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ties_edges_and_certainty(dtype) -> None:
    p = torch.tensor([0.0, 1.0, 0.5, 0.2, 1 / 3, 0.6, 0.6, 2 / 3, 1 - 2.0**-20, 1.0, 0.8], dtype=dtype)
    target = torch.tensor([0, 1, 0, 1, 1, 0, 1, 1, 1, 0, 1])
    for num_bins in (1, 3, 5, 15):
        check_against_rows(torch.stack([1 - p, p], dim=1), target, "probs", num_bins)


def test_very_confident_models_are_resolved_near_1() -> None:
    logits, target = model(5000, 10, scale=60.0)
    check_against_rows(logits, target, "logits")
    result = BinnedPredictions.from_predictions(logits, target).evaluate(inference=False)
    assert result.bounds["aurc"] < 1e-4
    assert result.bounds["adaptive_ece"] < 1e-4


def test_infinite_likelihoods_and_ignored_samples() -> None:
    probs, target = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.3, 0.7]]), torch.tensor([1, -100, 1])
    state = BinnedPredictions.from_predictions(probs, target, input="probs")
    assert (state.num_samples, state.infinite_nll, state.num_wrong) == (2, 1, 1)
    assert state.evaluate(inference=False).nll == math.inf


def test_one_score_per_sample_and_many_dimensions() -> None:
    logits, target = model(60, 2)
    score = (logits[:, 1] - logits[:, 0]).double()
    state = BinnedPredictions.from_predictions(score, target, binary="top_label")
    assert state.evaluate(inference=False).ece == evaluate(score, target, binary="top_label").ece
    folded = BinnedPredictions.from_predictions(logits.view(6, 10, 2).movedim(2, 1), target.view(6, 10))
    assert folded == BinnedPredictions.from_predictions(logits, target)


# Merging


@pytest.mark.parametrize("num_classes", [3, 70])
def test_any_split_in_any_order_has_the_same_bits(num_classes) -> None:
    logits, target = model(400, num_classes)
    parts = [BinnedPredictions.from_predictions(logits[i::3], target[i::3]) for i in range(3)]
    whole = BinnedPredictions.from_predictions(logits, target)
    for a, b, c in permutations(parts):
        assert (a + b) + c == a + (b + c) == whole
    assert BinnedPredictions.empty(num_classes) + whole == whole
    assert parts[0] != parts[1]


def many_times(state: BinnedPredictions, log2: int) -> BinnedPredictions:
    for _ in range(log2):
        state = state + state
    return state


def test_a_trillion_samples() -> None:
    logits, target = model(1000, 3)
    one = BinnedPredictions.from_predictions(logits, target)
    many = many_times(one, 30)
    assert many.num_samples == 1000 << 30
    assert int(many.fine.whole.sum()) > 1 << 38
    assert many + one == one + many
    assert BinnedPredictions.from_dict(json.loads(json.dumps(many.to_dict()))) == many
    few, lots = one.evaluate(inference=False), many.evaluate()
    for name in ("error", "ece", "classwise_ece", "mce", "nll", "brier"):
        assert getattr(lots, name) == pytest.approx(getattr(few, name), abs=1e-12)
    assert lots.aurc == pytest.approx(few.aurc, abs=1e-3)  # the mean over k becomes an integral
    assert lots.inference is not None
    assert lots.inference.joint_p_value <= 0.001  # with so many samples, noise is significant
    assert "points" in lots.verdict()


# Fine cells


def test_the_number_of_a_cell_is_integer_arithmetic() -> None:
    """The rule of the docstring, which databases follow."""
    for num_bins in (1, 7, 15, 1000):
        rng = np.random.default_rng(num_bins)
        near = [ONE - int(2 ** rng.uniform(0, 31)) for _ in range(200)]
        bounds = [math.floor(ONE * k / num_bins + 0.5) for k in range(num_bins + 1)]
        numbers = {ONE, ONE - 1, ONE - 2, *near, *bounds, *rng.integers(ONE // 2, ONE, size=100).tolist()}
        expected: Counter[int] = Counter()
        samples = [units for units in numbers if units > ONE // 2]  # confidences with two classes
        for units in samples:
            b = next(b for b in range(num_bins) if units <= bounds[b + 1])
            low, high, number = bounds[b], bounds[b + 1], 256 * b
            for level in range(4):
                k = max(units - low - 1, 0) * 256 // (high - low)
                if b < num_bins - 1 or k < 255 or level == 3:
                    break
                low, number = low - (-255 * (high - low) // 256), number + 255
            expected[number + k] += 1
        p = torch.tensor(samples, dtype=torch.float64) / ONE
        state = BinnedPredictions.from_predictions(
            torch.stack([1 - p, p], 1), torch.ones(len(p)).long(), input="probs", num_bins=num_bins
        )
        table = {name: np.asarray(column) for name, column in state.to_table().items()}
        cells = table["kind"] == "confidence"
        assert dict(zip(table["cell"][cells].tolist(), table["count"][cells].tolist(), strict=True)) == expected


@settings(max_examples=60, deadline=None)
@given(
    confidence=st.lists(
        st.one_of(st.floats(0, 1), st.sampled_from([0.5, 0.999, 1.0]), st.floats(0.7, 0.701)), min_size=1, max_size=40
    ),
    num_bins=st.integers(1, 6),
    seed=st.integers(0, 9),
)
def test_bounds_hold(confidence, num_bins, seed) -> None:
    target = torch.from_numpy(np.random.default_rng(seed).integers(2, size=len(confidence)))
    p = torch.tensor(confidence, dtype=torch.float64)
    check_against_rows(torch.stack([1 - p, p], dim=1), target, "probs", num_bins)


def test_bounds_of_crowded_cells_hold_and_are_tight() -> None:
    """Many samples in few cells, so that quantiles lie within cells."""
    largest = 0.0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        n, num_bins = int(rng.integers(2, 40)), int(rng.integers(2, 6))
        center = rng.integers(ONE // 2 + 1, ONE, size=rng.integers(1, 5))
        p = torch.from_numpy(np.minimum(rng.choice(center, n) + rng.integers(2000, size=n), ONE) / ONE)
        probs, target = torch.stack([1 - p, p], 1), torch.from_numpy(rng.random(n) < rng.random()).long()
        options = {"input": "probs", "num_bins": num_bins}
        binned = BinnedPredictions.from_predictions(probs, target, **options).evaluate(inference=False)
        exact = evaluate(probs, target, **options)
        difference, bound = abs(binned.adaptive_ece - exact.adaptive_ece), binned.bounds["adaptive_ece"]
        assert difference <= bound
        largest = max(largest, difference / bound)
    assert largest > 0.9


def test_bounds_are_attained() -> None:
    """Two cells with known contents, in the best and in the worst order."""
    low, high = 0.70001, 0.70002  # in one cell
    for first, second in ((0, 1), (1, 0)):
        p = torch.tensor([low, high, 0.9], dtype=torch.float64)
        probs, target = torch.stack([1 - p, p], dim=1), torch.tensor([first, second, 1])
        result = BinnedPredictions.from_predictions(probs, target, input="probs").evaluate(inference=False)
        truth = evaluate(probs, target, input="probs").aurc
        assert abs(result.aurc - truth) == pytest.approx(result.bounds["aurc"])
        assert result.bounds["aurc"] > 0.05


def test_cells_without_doubt_have_no_bound() -> None:
    probs = torch.tensor([[0.0, 1.0]]).repeat(90, 1)
    state = BinnedPredictions.from_predictions(probs, torch.arange(90) % 2, input="probs", num_bins=3)
    result = state.evaluate(inference=False)
    assert result.adaptive_ece == pytest.approx(0.5)
    assert result.bounds["adaptive_ece"] < 1e-11


# Inference


def test_inference_agrees_with_that_of_rows() -> None:
    logits, target = model(4000, 5, tau=1.05)
    rows = evaluate(logits, target, inference=True).inference
    binned = BinnedPredictions.from_predictions(logits, target).evaluate().inference
    assert rows is not None
    assert binned is not None
    assert binned.floors.keys() == rows.floors.keys()
    for name, floor in rows.floors.items():
        assert binned.floors[name].mean == pytest.approx(floor.mean, rel=0.1)
        assert binned.floors[name].q95 == pytest.approx(floor.q95, rel=0.15)
    assert binned.p_value == pytest.approx(rows.p_value, abs=0.05)
    assert binned.debiased_ece == pytest.approx(rows.debiased_ece, abs=0.005)
    assert binned.detectable == pytest.approx(rows.detectable, rel=0.15)


@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_cells_draw_counts_like_rows(num_classes) -> None:
    """Errors of drawn labels, and how rare the observed ones are; with two classes, one mirrors the other."""
    logits, target = model(800, num_classes, tau=1.05)
    rows = evaluate(logits, target, inference=True).inference
    state = BinnedPredictions.from_predictions(logits, target)
    cells = state.evaluate().inference
    floors = [inference.floors["classwise_ece"] for inference in (rows, cells)]
    assert floors[1].mean == pytest.approx(floors[0].mean, rel=0.05)
    assert floors[1].q95 == pytest.approx(floors[0].q95, rel=0.1)
    assert cells.classwise.p_value == pytest.approx(rows.classwise.p_value, abs=0.15)
    if num_classes == 2:
        drawn = state.labels(seed=0).draw(500)
        of_class_1_predicted_as_0 = drawn[:, 1, :-1].sum(1) - drawn[:, 1, -1]
        predicted_as_0 = int((logits.argmax(1) == 0).sum())
        assert drawn[:, 0, -1] + of_class_1_predicted_as_0 == pytest.approx(predicted_as_0)


@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_calibrated_models_are_seldom_rejected(num_classes) -> None:
    """Of 60 calibrated models, more than 9 below 5 % would happen once in 1,000 times."""
    p_values = []
    for seed in range(60):
        state = BinnedPredictions.from_predictions(*model(500, num_classes, seed))
        p_values.append(state.evaluate(seed=seed, draws=100).inference.classwise.p_value)
    assert sum(p <= 0.05 for p in p_values) <= 9
    assert 0.35 <= np.mean(p_values) <= 0.65


def test_overconfidence_is_found() -> None:
    state = BinnedPredictions.from_predictions(*model(3000, 4, tau=1.5))
    assert state.evaluate().verdict().startswith("Over-confident")


def test_miscalibration_of_classes_alone_is_found() -> None:
    """The top label looks calibrated, rare classes do not: as in a model trained with class weights."""
    rng = np.random.default_rng(0)
    z = np.log([0.4, 0.3, 0.2, 0.04, 0.03, 0.03]) + 1.2 * rng.standard_normal((1000, 6))
    target = (z + rng.gumbel(size=z.shape)).argmax(1)
    state = BinnedPredictions.from_predictions(z + np.array([-0.3, -0.1, 0.0, 1.3, 0.0, 0.0]), target)
    verdict = state.evaluate().verdict()
    assert "Class probabilities: miscalibrated" in verdict
    assert "no miscalibration detectable" in verdict
    assert "class 3" in verdict


def test_a_seed_gives_the_same_result_again() -> None:
    state = BinnedPredictions.from_predictions(*model(500, 3))
    assert state.evaluate(seed=4).to_dict() == state.evaluate(seed=4).to_dict()
    assert state.evaluate(seed=4).to_dict() != state.evaluate(seed=5).to_dict()


# Round trips and tables


def test_an_evaluation_with_bounds_survives_json() -> None:
    result = BinnedPredictions.from_predictions(*model(300, 3)).evaluate()
    content = json.loads(json.dumps(result.to_dict()))
    assert Evaluation.from_dict(content).to_dict() == content
    assert Evaluation.from_dict(content).bounds == result.bounds
    assert "off by at most" in str(result)
    assert "bounds" not in evaluate(*model(300, 3)).to_dict()


def test_tables_can_be_concatenated_and_hold_large_integers() -> None:
    logits, target = model(300, 3)
    parts = [BinnedPredictions.from_predictions(logits[i::2], target[i::2]) for i in range(2)]
    tables = [part.to_table() for part in parts]
    joined = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    assert BinnedPredictions.from_table(joined, num_classes=3) == parts[0] + parts[1]

    many = many_times(parts[0], 35)
    table = many.to_table()
    wide = {name: table[name] for name in ("kind", "class", "predicted", "cell", "count", "correct", "infinite_nll")}
    for name in ("units", "squares", "cubes", "nll", "brier"):
        whole = [int(x) * ONE + int(y) for x, y in zip(table[name + "_whole"], table[name], strict=True)]
        wide[name] = [Decimal(value) if value else None for value in whole]
    assert max(value for value in wide["units"] if value) > 2**63
    assert BinnedPredictions.from_table(wide, num_classes=3) == many


def test_wide_sums_carry() -> None:
    one = BinnedPredictions.from_predictions([[0.3, 0.7]], [0], input="probs")
    for log2 in (1, 5, 34):  # the sum of squared probabilities is 1 or larger; that of one sample is below 1
        table = many_times(one, log2).to_table()
        for name, power in (("squares", 2), ("cubes", 3)):
            kind = np.asarray(table["kind"]) == "class"
            got = (np.asarray(table[f"{name}_whole"])[kind] + np.asarray(table[name])[kind] / ONE) / 2**log2
            assert sorted(got) == pytest.approx([0.3**power, 0.7**power], abs=1e-7)


# Bad input


def change(**columns: object) -> dict[str, object]:
    table = BinnedPredictions.from_predictions(*model(50, 3)).to_table()
    return {**table, **columns}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"count": np.zeros(3)}, "rows of kind"),
        ({"mean": np.zeros(3)}, "unknown columns: mean"),
        ({"kind": np.array(["bin"])}, "kind must be one of"),
        ({"cell": None}, "cell"),
    ],
)
def test_bad_tables(columns, message) -> None:
    with pytest.raises(ValueError, match=message):
        BinnedPredictions.from_table(change(**columns), num_classes=3)


def test_tables_that_contradict_themselves() -> None:
    table = change()
    with pytest.raises(ValueError, match="class must lie in"):
        BinnedPredictions.from_table(table, num_classes=2)
    with pytest.raises(ValueError, match="class 3 count 0 samples"):
        BinnedPredictions.from_table(table, num_classes=4)
    for name, message in (("count", "samples"), ("correct", "larger than count|labels")):
        column = np.array(table[name])
        column[0] += 1
        with pytest.raises(ValueError, match=message):
            BinnedPredictions.from_table({**table, name: column}, num_classes=3)
    with pytest.raises(ValueError, match="must hold integers"):
        BinnedPredictions.from_table({**table, "count": np.array(table["count"]) + 0.5}, num_classes=3)
    with pytest.raises(ValueError, match="columns are missing: units"):
        BinnedPredictions.from_table({name: v for name, v in table.items() if name != "units"}, num_classes=3)


def test_bad_arguments() -> None:
    logits, target = model(20, 2)
    state = BinnedPredictions.from_predictions(logits, target)
    with pytest.raises(ValueError, match="positive"):
        BinnedPredictions.from_predictions(logits, target, binary="positive")
    with pytest.raises(ValueError, match="probabilities"):
        BinnedPredictions.from_predictions(logits.softmax(1), target)
    with pytest.raises(ValueError, match="same numbers of classes"):
        state + BinnedPredictions.empty(3)
    with pytest.raises(ValueError, match="same numbers of classes and bins"):
        state + BinnedPredictions.empty(2, 10)
    with pytest.raises(ValueError, match="different edges"):
        state + BinnedPredictions.from_predictions(logits.softmax(1), target, input="probs")
    with pytest.raises(TypeError):
        state + 1  # type: ignore[operator]
    with pytest.raises(ValueError, match="no samples"):
        BinnedPredictions.empty(2).evaluate()
    with pytest.raises(ValueError, match="level"):
        state.evaluate(level=2)
    for content, message in (({"num_classes": 10**12}, "each class needs one"), ({"edges": [0, 0.5]}, "from 0 to 1")):
        with pytest.raises(ValueError, match=message):
            BinnedPredictions.from_dict(state.to_dict() | content)
    with pytest.raises(ValueError, match="schema 7"):
        BinnedPredictions.from_dict(state.to_dict() | {"schema": 7})


def test_a_row_of_nan_is_named() -> None:
    logits, target = model(50, 3)
    logits[7] = math.nan
    with pytest.raises(ValueError, match="row 7 holds NaN"):
        BinnedPredictions.from_predictions(logits, target)
