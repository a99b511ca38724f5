"""Other people's definitions, where they differ, against their own code or a transcription of it."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from case_loops import for_each
from samples import draw_logits
from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

from dualfocal import metrics as M


def confident(n: int, num_classes: int, scale: float, seed: int = 0):
    """With a large scale many confidences are exactly 1 in float32."""
    return draw_logits(n, num_classes, seed=seed, scale=scale, overconfidence=3)


@for_each(num_classes=[3, 70], scale=[1.0, 4.0, 20.0])
def test_torchmetrics(scale, num_classes) -> None:
    logits, target = confident(2000, num_classes, scale)
    for norm, metric in (("l1", M.ece), ("max", M.mce)):
        theirs = float(multiclass_calibration_error(logits, target, num_classes, n_bins=15, norm=norm))
        assert metric(logits, target, convention="torchmetrics") == pytest.approx(theirs, abs=2e-6)
        probs = logits.softmax(1)
        assert metric(probs, target, input="probs", convention="torchmetrics") == pytest.approx(theirs, abs=2e-6)


def test_torchmetrics_has_a_bin_of_its_own_for_confidence_1() -> None:
    probs = torch.tensor([[1.0, 0.0], [0.95, 0.05], [0.95, 0.05]])
    target = torch.tensor([1, 0, 0])
    theirs = float(multiclass_calibration_error(probs, target, 2, n_bins=15))
    assert M.ece(probs, target, input="probs", convention="torchmetrics") == pytest.approx(theirs, abs=1e-6)
    assert theirs == pytest.approx((1 + 0.1) / 3, abs=1e-6)
    assert M.ece(probs, target, input="probs") == pytest.approx((1.0 + 1.9 - 2) / 3, abs=1e-6)


def test_torchmetrics_bins_are_closed_on_the_left() -> None:
    probs = torch.tensor([0.2, 0.3, 0.4])
    target = torch.tensor([1, 0, 0])
    theirs = float(binary_calibration_error(probs, target, n_bins=5))
    assert M.ece(
        probs, target, input="probs", num_bins=5, binary="positive", convention="torchmetrics"
    ) == pytest.approx(theirs)
    assert M.ece(probs, target, input="probs", num_bins=5, binary="positive") == pytest.approx((0.8 + 0.7) / 3)


def published_ece(logits: torch.Tensor, target: torch.Tensor, edges: torch.Tensor) -> tuple[float, float]:
    """(ECE, MCE) as the public code lines have it: float32 confidences, ``(lo, hi]``, empty bins skipped."""
    confidence, guess = logits.softmax(1).max(1)
    errors, shares = [], []
    for lo, hi in pairwise(edges):
        inside = (confidence > lo) & (confidence <= hi)
        if inside.any():
            errors.append(abs(confidence[inside].double().mean() - (guess == target)[inside].double().mean()))
            shares.append(inside.double().mean())
    return float(sum(e * s for e, s in zip(errors, shares, strict=True))), float(max(errors))


@for_each(scale=[1.0, 20.0])
def test_published(scale) -> None:
    logits, target = confident(1000, 10, scale)
    ece, mce = published_ece(logits, target, torch.linspace(0, 1, 16))
    assert M.ece(logits, target, convention="published") == pytest.approx(ece, abs=1e-6)
    assert M.mce(logits, target, convention="published") == pytest.approx(mce, abs=1e-6)
    confidence = logits.softmax(1).amax(1)
    edges = np.interp(np.linspace(0, 1000, 16), np.arange(1000), np.sort(confidence.numpy()))
    adaptive, _ = published_ece(logits, target, torch.tensor(edges, dtype=torch.float32))
    assert M.adaptive_ece(logits, target, convention="published") == pytest.approx(adaptive, abs=1e-5)


def test_the_published_adaptive_bins_lose_the_lowest() -> None:
    logits, target = confident(31, 4, 1.0)
    lowest = logits.softmax(1).amax(1).argmin()
    ours, published = (M.adaptive_ece(logits, target, convention=c) for c in (None, "published"))
    assert 0 < abs(ours - published) <= 1 / 31
    flipped = target.clone()
    flipped[lowest] = (logits[lowest].argmax() + (flipped[lowest] == logits[lowest].argmax())) % 4  # right <-> wrong
    assert M.adaptive_ece(logits, flipped, convention="published") == published
    assert M.adaptive_ece(logits, flipped) != ours


def test_evaluate_follows() -> None:
    logits, target = confident(500, 5, 20.0)
    for convention in ("published", "torchmetrics"):
        result = M.evaluate(logits, target, convention=convention)
        assert result.ece == M.ece(logits, target, convention=convention)
        assert result.mce == M.mce(logits, target, convention=convention)
        assert result.nll == M.nll(logits, target)
    published = M.evaluate(logits, target, convention="published")
    assert published.adaptive_ece == M.adaptive_ece(logits, target, convention="published")


def test_unknown_conventions() -> None:
    logits, target = confident(10, 3, 1.0)
    with pytest.raises(ValueError, match="convention must be one of None, 'published', got 'torchmetrics'"):
        M.adaptive_ece(logits, target, convention="torchmetrics")
    with pytest.raises(ValueError, match="'published', 'torchmetrics', got 'netcal'"):
        M.ece(logits, target, convention="netcal")


@for_each(num_bins=[10, 15])
def test_rounded_probabilities_on_their_edges(num_bins) -> None:
    """linspace in float32 is an ulp off some k/B: two decimals, as in a csv, tell."""
    confidence = torch.arange(50, 101) / 100
    probs = torch.stack([confidence, 1 - confidence], 1)
    target = (torch.rand(51, generator=torch.Generator().manual_seed(0)) > 0.6).long()
    edges = torch.linspace(0, 1, num_bins + 1)
    errors = []
    for lo, hi in pairwise(edges):
        inside = (confidence > lo) & (confidence <= hi)
        errors.append(abs(float(confidence[inside].double().sum() - (target[inside] == 0).sum())))
    options = {"input": "probs", "num_bins": num_bins}
    assert M.ece(probs, target, convention="published", **options) == pytest.approx(sum(errors) / 51, abs=1e-6)
    theirs = float(multiclass_calibration_error(probs, target, 2, n_bins=num_bins))
    assert M.ece(probs, target, convention="torchmetrics", **options) == pytest.approx(theirs, abs=1e-6)


def test_a_convention_changes_nothing_else() -> None:
    logits, target = confident(500, 5, 20.0)
    logits = logits.bfloat16()
    ours = M.evaluate(logits, target)
    for convention in ("published", "torchmetrics"):
        theirs = M.evaluate(logits, target, convention=convention)
        for name in ("aurc", "debiased_ece", "classwise_ece", "brier", "confidence"):
            assert getattr(theirs, name) == getattr(ours, name), name
    assert theirs.adaptive_ece == ours.adaptive_ece  # torchmetrics has none
