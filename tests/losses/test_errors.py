"""Invalid input raises an error that names the value and the rule."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from case_loops import for_each
from cases import PLAIN

from dualfocal import losses as L

LOGITS, TARGET = torch.zeros(2, 3), torch.tensor([0, 1])
INF = float("inf")


def assert_refused(call: Callable[[], object], error: type[Exception], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        call()
    assert [word for word in words if word not in str(caught.value)] == [], caught.value


BAD_INPUT = [
    (LOGITS, torch.tensor([0, 3]), {}, IndexError, ["target 3", "[0, 2]", "ignore_index = -100"]),
    (LOGITS, torch.tensor([-1, 0]), {}, IndexError, ["target -1", "position 0"]),
    (LOGITS, torch.tensor([0, -100]), {"ignore_index": 2}, IndexError, ["-100", "ignore_index = 2"]),
    (LOGITS, torch.tensor([0, 1, 2]), {}, ValueError, ["(2, 3)", "(2,)", "(3,)"]),
    (LOGITS, torch.zeros(2, 3, dtype=torch.long), {}, ValueError, ["(2,)", "(2, 3)", "floating-point"]),
    (LOGITS, torch.zeros(2), {}, ValueError, ["probabilities", "(2, 3)", "(2,)"]),
    (LOGITS, torch.tensor([True, False]), {}, ValueError, ["torch.bool"]),
    (LOGITS.long(), TARGET, {}, ValueError, ["torch.int64", "floating point"]),
    (torch.tensor(1.0), torch.tensor(0), {}, ValueError, ["shape ()", "(C,)"]),
    (torch.zeros(2, 0), TARGET, {}, ValueError, ["at least one class", "(2, 0)"]),
    (LOGITS, TARGET, {"reduction": "avg"}, ValueError, ["'avg'", "'mean'"]),
    (LOGITS, TARGET, {"weight": torch.ones(2)}, ValueError, ["(3,)", "(2,)"]),
    (LOGITS, TARGET, {"weight": torch.tensor([1.0, -2.0, 1.0])}, ValueError, ["-2.0", "class 1", "negative"]),
    (LOGITS, TARGET, {"weight": torch.tensor([1.0, INF, 1.0])}, ValueError, ["inf", "finite"]),
    (LOGITS, torch.tensor([[0.5, 0.5, 0.5], [1, 0, 0]]), {}, ValueError, ["sum to 1", "row 0", "1.5", "torch.stack"]),
    (LOGITS, torch.tensor([[1.5, -0.5, 0.0], [1, 0, 0]]), {}, ValueError, ["-0.5", "row 0", "class 1"]),
    (LOGITS, torch.full((2, 3), float("nan")), {}, ValueError, ["nan"]),
    (
        LOGITS,
        torch.tensor([[1.0, 1, 0], [0, 0, 0]]),
        {},
        ValueError,
        ["sums to 2", "p_j", "BCEWithLogitsLoss", "torch.stack"],
    ),
    (LOGITS[:, 0], TARGET, {}, ValueError, ["shape ()", "binary", "torch.stack"]),
    (LOGITS, torch.eye(3, dtype=torch.int64)[TARGET], {}, ValueError, ["one-hot", "target.argmax(1)"]),
    (LOGITS, TARGET[:, None], {}, ValueError, ["got torch.int64 of shape (2, 1)", "target.squeeze(1).long()"]),
    (LOGITS, TARGET.float(), {}, ValueError, ["got torch.float32 of shape (2,)", "target.long()"]),
    (torch.zeros(2, 5, 4, 3), torch.zeros(2, 5, 4).long(), {}, ValueError, ["dimension 1", "logits.movedim(-1, 1)"]),
    (LOGITS[:, :1], torch.ones(2, 1), {}, ValueError, ["(2, 1)", "single class", "torch.stack"]),
    (LOGITS[:, :1], TARGET[:, None], {}, ValueError, ["(2, 1)", "binary", "torch.stack"]),
    (LOGITS[:, :1], TARGET, {}, IndexError, ["target 1", "binary", "torch.stack"]),
    (LOGITS, torch.ones(2, 3, dtype=torch.bool), {}, ValueError, ["torch.bool", "p_j", "BCEWithLogitsLoss"]),
    (LOGITS, TARGET, {"weight": [1.0, 1.0]}, ValueError, ["(3,)", "(2,)"]),
    (LOGITS, TARGET, {"weight": np.array([1.0, -2.0, 1.0])}, ValueError, ["-2.0", "class 1", "negative"]),
    (LOGITS, TARGET, {"weight": torch.ones(3, device="meta")}, ValueError, ["meta", "cpu", "criterion.to"]),
    (LOGITS, TARGET.to("meta"), {}, ValueError, ["logits are on cpu", "target is on meta", "target.to(logits.device)"]),
    (LOGITS, TARGET, {"weight": 2.0}, TypeError, ["2.0", "one number per class"]),
    (LOGITS, TARGET, {"weight": ["a", "b", "c"]}, TypeError, ["'a'", "one number per class"]),
]


@for_each(name=PLAIN, case=BAD_INPUT)
def test_bad_input_is_refused(name: str, case: tuple) -> None:
    logits, target, options, error, words = case
    assert_refused(lambda: PLAIN[name](logits, target, **options), error, words)


BAD_VALUES = [
    (lambda: L.dual_focal_loss(LOGITS, TARGET, -1.0), ["gamma", "-1.0", "at least 0"]),
    (lambda: L.dual_focal_loss(LOGITS, TARGET, INF), ["gamma", "inf", "finite"]),
    (lambda: L.dual_focal_loss(LOGITS, TARGET, torch.tensor([1.0, -3.0])), ["-3.0", "position 1"]),
    (lambda: L.dual_focal_loss(LOGITS, TARGET, torch.ones(3)), ["gamma", "(2,)", "(2, 1)", "(3,)", "weight="]),
    (
        lambda: L.dual_focal_loss(LOGITS[:, :2], TARGET, torch.ones(2)),
        ["gamma", "(2,)", "2 classes", "(2, 1)", "weight="],
    ),
    (lambda: L.dual_focal_loss(LOGITS, TARGET, rival="4th"), ["'4th'", "'next'", "'batch_mean2'"]),
    (lambda: L.dual_focal_loss(LOGITS, TARGET, rival=1.5), ["1.5", "between 0 and 1"]),
    (lambda: L.dual_focal_loss(LOGITS, TARGET, impl="cuda"), ["'cuda'", "'auto'", "'torch'"]),
    (lambda: L.dual_focal_loss(LOGITS, LOGITS.softmax(1), rival="batch_mean2"), ["batch_mean2", "class indices"]),
    (lambda: L.dual_focal_loss(LOGITS, TARGET, rival="batch_next", label_smoothing=0.1), ["batch_next", "smoothing"]),
    (lambda: L.dual_focal_loss(LOGITS, TARGET, impl="triton", label_smoothing=0.1), ["triton", "label smoothing"]),
    (lambda: L.cross_entropy_loss(LOGITS, TARGET, label_smoothing=1.5), ["label_smoothing", "1.5", "between 0 and 1"]),
    (lambda: L.focal_loss(LOGITS, TARGET, label_smoothing=-0.1), ["label_smoothing", "-0.1"]),
    (lambda: L.FocalLoss(label_smoothing=2.0), ["label_smoothing", "2.0"]),
    (lambda: L.AdaFocalLoss(label_smoothing=2.0), ["label_smoothing", "2.0"]),
    (lambda: L.DualFocalLoss(-1.0), ["gamma", "-1.0"]),
    (lambda: L.DualFocalLoss(rival="first"), ["'first'"]),
    (lambda: L.DualFocalLoss(reduction="avg"), ["'avg'"]),
    (lambda: L.FocalLoss(float("nan")), ["gamma", "nan"]),
    (lambda: L.focal_loss(LOGITS, TARGET, -2.0), ["gamma", "-2.0"]),
    (lambda: L.inverse_focal_loss(LOGITS, TARGET, -2.0), ["gamma", "-2.0"]),
    (lambda: L.flsd_loss(LOGITS, TARGET, (5.0, 3.0, 1.0)), ["1 thresholds", "3 gammas"]),
    (lambda: L.flsd_loss(LOGITS, TARGET, (5.0, 3.0, 1.0), thresholds=(0.5, 0.2)), ["increase", "(0.5, 0.2)"]),
    (lambda: L.FLSDLoss((5.0, -3.0)), ["gamma", "-3.0"]),
    (lambda: L.label_smoothing_loss(LOGITS, TARGET, 1.2), ["alpha", "1.2", "between 0 and 1"]),
    (lambda: L.LabelSmoothingLoss(spread="uniform"), ["'uniform'", "'others'"]),
    (lambda: L.MMCELoss(-1.0), ["strength", "-1.0"]),
    (lambda: L.KDEXELoss(bandwidth=0.0), ["bandwidth", "0.0"]),
    (lambda: L.KDEXELoss(bandwidth="loo"), ["'loo'", "'likelihood'"]),
    (lambda: L.KDEXELoss(norm=0.5), ["norm must", "0.5"]),
    (lambda: L.AdaFocalLoss(num_bins=0), ["num_bins", "0"]),
    (lambda: L.AdaFocalLoss(variant="old"), ["'old'", "'no_switch'"]),
    (lambda: L.AdaFocalLoss(gamma=30.0), ["gamma", "30.0", "20"]),
    (lambda: L.ada_focal_loss(LOGITS, TARGET, torch.ones(3), torch.ones(3)), ["(3,)", "B - 1"]),
    (lambda: L.ada_focal_loss(LOGITS, TARGET, torch.ones(3) / 0, torch.ones(2)), ["bin_gamma", "inf"]),
    (lambda: L.ada_focal_loss(LOGITS, TARGET, torch.ones(3), torch.tensor([0.8, 0.2])), ["decrease", "0.8"]),
    (lambda: L.DualFocalLoss(torch.tensor(-3.0)), ["gamma", "-3.0"]),
    (lambda: L.FocalLoss(torch.ones(2)), ["gamma", "(2,)", "weight=", "function"]),
]


def test_bad_values_are_refused() -> None:
    for call, words in BAD_VALUES:
        assert_refused(call, ValueError, words)


@for_each(dtype=[torch.bfloat16, torch.float16])
def test_half_precision_probabilities_must_sum_to_1_up_to_rounding(dtype: torch.dtype) -> None:
    logits, target = torch.randn(50, 200), torch.randn(50, 200).softmax(1)
    rounded = L.dual_focal_loss(logits, target.to(dtype))
    torch.testing.assert_close(rounded, L.dual_focal_loss(logits, target), rtol=1e-2, atol=0)
    with pytest.raises(ValueError, match="sum to 1"):
        L.dual_focal_loss(logits, (target * (1 + max(0.012, 5 * torch.finfo(dtype).eps))).to(dtype))


BAD_TYPES = [
    (lambda: L.dual_focal_loss([[0.0, 1.0]], TARGET), ["logits", "list"]),
    (lambda: L.dual_focal_loss(LOGITS, [0, 1]), ["target", "list"]),
    (lambda: L.dual_focal_loss(LOGITS, TARGET, ignore_index=None), ["ignore_index", "None"]),
    (lambda: L.dual_focal_loss(LOGITS, TARGET, "5"), ["gamma", "'5'"]),
    (lambda: L.dual_focal_loss(LOGITS, TARGET, [5.0, 5.0]), ["gamma", "[5.0, 5.0]", "torch.as_tensor", "weight="]),
    (lambda: L.dual_focal_loss(LOGITS, TARGET, np.ones(2)), ["gamma", "array([1., 1.])", "torch.as_tensor"]),
    (lambda: L.DualFocalLoss([5.0, 5.0]), ["gamma", "[5.0, 5.0]", "weight="]),
    (lambda: L.DualFocalLoss(True), ["gamma", "number", "True"]),
    (lambda: L.LabelSmoothingLoss([5.0, 5.0]), ["alpha", "[5.0, 5.0]", "weight="]),
    (lambda: L.dual_focal_loss(LOGITS, TARGET, rival=None), ["rival", "None"]),
    (lambda: L.flsd_loss(LOGITS, TARGET, 5.0), ["gammas", "5.0"]),
]


def test_bad_types_are_refused() -> None:
    for call, words in BAD_TYPES:
        assert_refused(call, TypeError, words)


@pytest.mark.parametrize("name", L.LOSSES)
def test_a_loss_that_trainer_calls_says_how_to_wrap_it(name):
    criterion = L.LOSSES[name]()
    with pytest.raises(TypeError) as caught:  # as Trainer(compute_loss_func=criterion) does
        criterion({"logits": LOGITS}, TARGET, num_items_in_batch=torch.tensor(2))
    assert f"compute_loss_func=dualfocal.integrations.hf.loss_func({type(criterion).__name__}(" in str(caught.value)
