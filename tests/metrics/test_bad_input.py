"""Bad input: an error that names the value and the rule, from every metric."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from case_loops import for_each

from dualfocal import TemperatureScaling, compare_calibrators, dual_focal_loss
from dualfocal import metrics as M

BINNED = ("ece", "mce", "adaptive_ece", "classwise_ece", "debiased_ece", "evaluate")
METRICS = (*BINNED, "nll", "brier_score", "error_rate", "aurc", "kde_ece", "brier_decomposition")
LOGITS = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.5]])
TARGET = torch.tensor([0, 1])


def changed(row: int, column: int, value: float, base: torch.Tensor = LOGITS) -> torch.Tensor:
    result = base.clone()
    result[row, column] = value
    return result


BAD = {
    "nan": (changed(1, 2, math.nan), TARGET, {}, ValueError, "row 1 holds NaN"),
    "plus infinity": (changed(1, 0, math.inf), TARGET, {}, ValueError, r"row 1 holds \+inf"),
    "nothing finite": (torch.full((1, 3), -math.inf), TARGET[:1], {}, ValueError, "row 0 holds no finite"),
    "empty": (LOGITS[:0], TARGET[:0], {}, ValueError, "no samples"),
    "all ignored": (LOGITS, torch.tensor([-100, -100]), {}, ValueError, "every target is ignore_index = -100"),
    "too many labels": (LOGITS, torch.tensor([0, 1, 2]), {}, ValueError, r"must have shape \(2,\), got \(3,\)"),
    "label too large": (LOGITS, torch.tensor([0, 3]), {}, IndexError, r"target 3 .*\[0, 2\]"),
    "labels from 1": (LOGITS, torch.tensor([1, 3]), {}, IndexError, "target 3 .*labels start at 1"),
    "labels of 12 from 1": (torch.rand(2, 12) * 9, torch.tensor([2, 12]), {}, IndexError, "subtract 1$"),
    "label negative": (LOGITS, torch.tensor([0, -1]), {}, IndexError, "target -1"),
    "float labels": (LOGITS, torch.tensor([0.0, 1.0]), {}, ValueError, "integer class indices, got torch.float32"),
    "whole floats": (LOGITS, torch.tensor([0.0, 1.0]), {}, ValueError, r"use target\.long\(\)"),
    "missing label": (LOGITS, torch.tensor([0.0, math.nan]), {}, ValueError, "entry 1 is missing: leave out"),
    "regression": (LOGITS, torch.tensor([0.3, 1.7]), {}, ValueError, "regression target has no classes"),
    "column of labels": (LOGITS, TARGET[:, None], {}, ValueError, r"got \(2, 1\): use target\.squeeze\(1\)"),
    "labels first": (TARGET, LOGITS, {}, ValueError, "the predictions come first, then the labels"),
    "multilabel": (LOGITS, torch.tensor([[0, 1, 1], [1, 0, 0]]), {}, ValueError, "task='multilabel'"),
    "integer logits": (LOGITS.long(), TARGET, {}, ValueError, "floating point, got torch.int64"),
    "one class": (LOGITS[:, :1], TARGET * 0, {}, ValueError, r"at least two classes, got \(2, 1\)"),
    "one score": (LOGITS[:, 0], TARGET, {}, ValueError, "one score per sample.*binary='positive'"),
    "a number": (3.0, TARGET, {}, TypeError, "a list or a data frame, got float"),
    "uneven lists": ([[1.0, 2.0], [3.0]], TARGET, {}, ValueError, "lists of the same length"),
    "texts without classes": (LOGITS, ["a", "b"], {}, ValueError, "target holds texts, such as 'a': pass class_names"),
    "objects": (np.array([["a", "b"]]), TARGET[:1], {}, ValueError, "plain numbers"),
    "input": (LOGITS, TARGET, {"input": "softmax"}, ValueError, "'logits', 'probs', 'confidence', got 'softmax'"),
    "probs as logits": (torch.eye(2) * 0.8 + 0.1, TARGET, {}, ValueError, 'input="probs".*input="logits"'),
    "half probs as logits": (torch.rand(2, 5).softmax(1).half(), TARGET, {}, ValueError, 'input="probs"'),
    "logits as probs": (LOGITS, TARGET, {"input": "probs"}, ValueError, "row 1 .*holds 0 to 2; are these logits"),
    "negative": (torch.tensor([[1.2, -0.2]]), TARGET[:1], {"input": "probs"}, ValueError, "row 0 .*holds -0.2"),
    "sum": (torch.tensor([[0.5, 0.2]]), TARGET[:1], {"input": "probs"}, ValueError, "sums to 0.7.*task='multilabel'"),
    "nan probability": (torch.tensor([[math.nan, 1.0]]), TARGET[:1], {"input": "probs"}, ValueError, "sums to nan"),
    "ignore_index": (LOGITS, TARGET, {"ignore_index": 0.5}, TypeError, "ignore_index must be an integer, got 0.5"),
}  # fmt: skip


@for_each(name=METRICS, case=BAD)
def test_bad_input(name, case) -> None:
    logits, target, options, error, message = BAD[case]
    with pytest.raises(error, match=message):
        getattr(M, name)(logits, target, **options)


def test_logits_are_told_from_probabilities_by_all_rows() -> None:
    probs = torch.randn(1000, 4, generator=torch.Generator().manual_seed(0)).softmax(1)
    target = torch.arange(1000) % 4
    for values in (probs, probs.numpy(), probs.double(), probs.T.contiguous().T):
        with pytest.raises(ValueError, match="must not be probabilities"):
            M.ece(values, target)
    assert M.ece(probs, target, input="logits") != M.ece(probs, target, input="probs")
    for row, column, value in ((999, 0, 1.5), (999, 3, -0.1), (0, 0, 0.9)):  # one row that is none is enough
        logits = changed(row, column, value, probs)
        assert M.ece(logits, target) == M.ece(logits, target, input="logits")
    ignored = torch.where(target == 3, -100, target)
    mixed = torch.where(ignored[:, None] == -100, 7.0, probs)
    with pytest.raises(ValueError, match="must not be probabilities"):
        M.ece(mixed, ignored)


def test_functions_and_classes_that_take_logits_by_default_refuse_probabilities() -> None:
    probs, target = torch.tensor([[0.9, 0.1], [0.3, 0.7]] * 10), torch.tensor([0, 1] * 10)
    classes = [M.ExpectedCalibrationError(), M.MaximumCalibrationError(), M.BrierScore()]
    calls = [
        lambda: M.compare(probs, probs, target),
        lambda: M.ood_auroc(probs, probs),
        lambda: TemperatureScaling().fit(probs, target),
        lambda: compare_calibrators(probs, target, ["temperature"]),
        *(partial(metric.update, probs, target) for metric in (*classes, M.ClasswiseCalibrationError(num_classes=2))),
    ]
    for call in calls:
        with pytest.raises(ValueError, match='input="probs"'):
            call()
    metric = M.ExpectedCalibrationError(input="logits")
    metric.update(probs, target)
    assert float(metric.compute()) == pytest.approx(M.ece(probs, target, input="logits"))


def test_a_score_that_is_no_probability_is_named_as_it_is_in_the_input() -> None:
    """Not as the two columns that it is made into: row 1 does not sum to 1, and does not hold 187.5."""
    for score in (-186.5, 187.5, math.nan):
        with pytest.raises(ValueError, match=rf"must lie in \[0, 1\].* row 1 holds {score}; are these logits"):
            M.ece(torch.tensor([0.3, score]), TARGET, input="probs", binary="positive")


def test_no_hint_for_labels_that_do_not_start_at_1() -> None:
    for labels in ([0, 3], [1, 4]):
        with pytest.raises(IndexError, match=r"equal ignore_index = -100$"):
            M.ece(LOGITS, torch.tensor(labels))


@for_each(name=METRICS)
def test_rounding_below_0_is_0(name) -> None:
    metric = getattr(M, name)
    probs = torch.tensor([[0.75, 0.25, 0.0], [0.25, 0.5, 0.25], [0.5, 0.25, 0.25]], dtype=torch.float64)
    target = torch.tensor([0, 2, 1])
    rounded = changed(0, 2, -1e-10, probs)
    before = rounded.clone()
    got, expected = (metric(values, target, input="probs") for values in (rounded, probs))
    assert str(got) == str(expected)
    assert torch.equal(rounded, before)  # the caller's numbers stay
    with pytest.raises(ValueError, match=r"row 0 .*holds -1e-05 to 0.75; are these logits"):
        metric(changed(0, 2, -1e-5, probs), target, input="probs")


def test_a_true_class_below_0_is_impossible_not_nan() -> None:
    probs = torch.tensor([[1.0, -1e-10]], dtype=torch.float64)
    assert M.nll(probs, torch.tensor([1]), input="probs") == math.inf
    assert M.nll(torch.tensor([1 + 1e-10]).double(), torch.tensor([0]), input="probs", binary="positive") == math.inf


def test_sums_at_the_tolerance() -> None:
    """Of probabilities that are not rounded to a few decimals."""
    half = 0.5 + 1e-6
    assert M.ece(torch.tensor([[half, 0.99 - half]]).double(), TARGET[:1], input="probs") == pytest.approx(1 - half)
    with pytest.raises(ValueError, match=r"\(within 0\.01\).*: row 0 sums to 0\.9899"):
        M.ece(torch.tensor([[half, 0.9899 - half]]).double(), TARGET[:1], input="probs")


def test_one_column_is_one_score_if_binary_is_given() -> None:
    scores, target = torch.tensor([[0.25], [0.75], [0.5]]), torch.tensor([0, 1, 1])
    expected = M.ece(scores[:, 0], target, input="probs", binary="positive")
    for labels in (target, target[:, None]):
        assert M.ece(scores, labels, input="probs", binary="positive") == expected


@for_each(name=BINNED)
def test_bad_bins(name) -> None:
    metric = getattr(M, name)
    with pytest.raises(ValueError, match="num_bins must be at least 1, got 0"):
        metric(LOGITS, TARGET, num_bins=0)
    with pytest.raises(TypeError, match=r"num_bins must be an integer, got 1\.5"):
        metric(LOGITS, TARGET, num_bins=1.5)


def test_row_numbers_count_all_rows(monkeypatch) -> None:
    monkeypatch.setattr("dualfocal.metrics.scan.TILE_CPU", 6)
    logits = torch.zeros(100, 3)
    logits[77, 1] = math.nan
    with pytest.raises(ValueError, match="row 77"):
        M.ece(logits, torch.zeros(100, dtype=torch.int64))


BAD_OPTIONS = [
    (lambda: M.ece(LOGITS, TARGET, binary="positive"), r"binary='positive' .*two classes.* 3$"),
    (lambda: M.ece(LOGITS, TARGET, binary="both"), "'top_label', 'positive', got 'both'"),
    (lambda: M.ece(LOGITS, TARGET, sample_weight=torch.tensor([1.0, -1.0])), "not negative"),
    (lambda: M.ece(LOGITS, TARGET, sample_weight=torch.ones(3)), r"shape \(2,\)"),
    (lambda: M.evaluate(LOGITS, TARGET, inference=True, level=1.0), "level must be"),
    (lambda: M.compare(LOGITS, LOGITS, TARGET, level=0.2), "level must be"),
    (
        lambda: M.compare(LOGITS, LOGITS, TARGET, names=("a",)),
        r"names must be the names of the two models, got \('a',\)",
    ),
    (lambda: M.compare(LOGITS, LOGITS[:, :2], TARGET), "same classes, but a has 3 and b 2"),
    (lambda: M.ood_auroc(LOGITS, LOGITS, score="energy"), "'entropy', 'max_prob', got 'energy'"),
    (lambda: M.kde_ece(LOGITS[1:], TARGET[1:]), "at least two samples"),
    (lambda: M.evaluate(LOGITS, TARGET).verdict(), "inference=True"),
]


def test_bad_options_are_refused() -> None:
    for call, message in BAD_OPTIONS:
        with pytest.raises(ValueError, match=message):
            call()


def test_labels_that_int64_cannot_hold_are_refused_and_not_ignored() -> None:
    logits, target = torch.randn(3, 4), torch.tensor([0, 1, 2**64 - 100], dtype=torch.uint64)  # -100 in int64
    for function in (
        M.ece,
        M.evaluate,
        M.ExpectedCalibrationError().update,
        dual_focal_loss,
    ):
        with pytest.raises(IndexError, match=f"target {2**64 - 100} is out of range"):
            function(logits, target)
    assert M.ece(logits[:2], target[:2]) == M.ece(logits[:2], torch.tensor([0, 1]))
