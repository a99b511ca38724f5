"""Noise of the labels that models state: against drawn labels, and where no error was observed."""

import math

import numpy as np
import pytest
import torch

from dualfocal import metrics as M
from dualfocal.calibrators import compare_calibrators, compare_multilabel_calibrators
from dualfocal.metrics.label_noise import label_noise
from dualfocal.metrics.resampling import resample
from dualfocal.metrics.scan import scan

MEANS = ("nll", "brier", "error", "aurc")


def certain(n: int, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities that state 0.1 to 2 % errors, and labels without an error."""
    generator = torch.Generator().manual_seed(n)
    error = 10 ** (-3 + 1.3 * torch.rand(n, 1, generator=generator, dtype=torch.float64))
    target = torch.randint(classes, (n,), generator=generator)
    right = torch.nn.functional.one_hot(target, classes)
    return (right * (1 - error) + (1 - right) * error / (classes - 1)).log(), target


def scored(values, target, **options):
    samples = M.Samples.from_arrays(values, target, input="logits", **options)
    return samples, scan(samples, scores=True, classwise=True)


@pytest.mark.parametrize("weighted", [False, True])
def test_noise_is_that_of_drawn_labels(weighted):
    generator = torch.Generator().manual_seed(0)
    a = 2 * torch.randn(150, 3, generator=generator, dtype=torch.float64)
    b = 0.7 * a + torch.randn(a.shape, generator=generator, dtype=torch.float64)
    weight = (0.5 + torch.rand(150, generator=generator)) if weighted else None
    target = torch.multinomial(a.softmax(1), 1, generator=generator)[:, 0]
    noise = label_noise(*([scored(logits, target, sample_weight=weight)] for logits in (a, b)), 15)
    deviations = {name: [] for name in (*MEANS, "ece", "debiased_ece")}
    for stated in (a, b):
        draws = torch.multinomial(stated.softmax(1), 100, replacement=True, generator=generator).T
        pairs = [[M.evaluate(z, y, sample_weight=weight) for z in (a, b)] for y in draws]
        for name, by_null in deviations.items():
            change = np.array([getattr(second, name) - getattr(first, name) for first, second in pairs])
            by_null.append(change.std())
    for name in (*MEANS, "ece"):
        assert noise[name] == pytest.approx(max(deviations[name]), rel=0.25), name
    assert noise["debiased_ece"] >= 0.85 * max(deviations["debiased_ece"])  # allows for its bias, too


def test_noise_of_the_brier_score_of_class_1():
    p, q, target = torch.tensor([0.1, 0.4]), torch.tensor([0.3, 0.35]), torch.tensor([0, 1])
    models = [[scored(x.logit(), target, binary="positive")] for x in (p, q)]
    # The difference is (q - y)^2 - (p - y)^2: a label 1 instead of 0 changes it by 2 (p - q).
    variances = [float((x * (1 - x) * (2 * (p - q)) ** 2).sum()) / 4 for x in (p, q)]
    assert label_noise(*models, 15)["brier"] == pytest.approx(math.sqrt(max(variances)), rel=1e-5)


def test_copies_in_clusters_have_the_noise_of_single_samples():
    logits, target = certain(100)
    target[:3] = (target[:3] + 1) % 3
    once = label_noise([scored(logits, target)], [scored(1.5 * logits, target)], 15)
    cluster = np.tile(np.arange(100), 5)
    copies = [[scored(z.repeat(5, 1), target.repeat(5), clusters=cluster)] for z in (logits, 1.5 * logits)]
    assert {name: label_noise(*copies, 15)[name] for name in MEANS} == pytest.approx({n: once[n] for n in MEANS})


def test_without_errors_the_model_that_states_fewer_is_not_better():
    logits, target = certain(100)
    models = [scored(z, target) for z in (logits, 1.5 * logits)]
    drawn = resample(models, 15)["nll"]
    assert (drawn[:, 1] < drawn[:, 0]).all()  # a bootstrap has no doubt
    differences = M.compare(logits, 1.5 * logits, target).differences
    for name in ("nll", "brier", "ece", "adaptive_ece", "debiased_ece"):
        d = differences[name]
        assert d.difference < 0 < d.high, name


@pytest.mark.parametrize("held_out", [False, True])
def test_without_errors_no_calibrator_is_recommended(held_out):
    logits, target = certain(100)
    result = compare_calibrators(logits, target, ["platt", "beta"], validation=certain(120) if held_out else None)
    assert result.recommended == "uncalibrated"
    for name in ("platt", "beta"):
        assert (result[name].draws["nll"] < result["uncalibrated"].draws["nll"]).all()  # a bootstrap has no doubt
        assert result[name].changes["nll"].difference < 0 < result[name].changes["nll"].high


def test_without_errors_no_multilabel_calibrator_is_recommended():
    logits, target = certain(100, 2)
    odds, hit = (logits[:, 1:] - logits[:, :1]).view(50, 2), target.view(50, 2)
    result = compare_multilabel_calibrators(odds, hit, ["temperature"])
    change = result["temperature"].changes["nll"]
    assert result.recommended == "uncalibrated"
    assert change.difference < 0 < change.high
