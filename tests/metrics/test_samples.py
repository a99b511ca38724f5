"""Samples: checked once, and taken by every function instead of arrays."""

import numpy as np
import pytest
import torch
from samples import draw_logits

from dualfocal import metrics as M
from dualfocal.calibrators import CALIBRATORS, calibrate_shift, compare_calibrators, make_calibrator
from dualfocal.metrics import Samples

LOGITS, TARGET = draw_logits(400, 4, overconfidence=1.5)
OPTIONS = {"sample_weight": np.linspace(0, 2, 400), "clusters": np.arange(400) // 4, "ignore_index": 3}
NAMES = ("ece", "mce", "adaptive_ece", "classwise_ece", "debiased_ece", "nll", "brier_score", "error_rate", "aurc")


@pytest.mark.parametrize("name", NAMES)
def test_metrics_of_samples_are_those_of_arrays(name):
    samples = Samples.from_arrays(LOGITS, TARGET, **OPTIONS)
    assert getattr(M, name)(samples) == getattr(M, name)(LOGITS, TARGET, **OPTIONS)


def test_evaluations_of_samples_are_those_of_arrays():
    samples, other = (Samples.from_arrays(logits, TARGET, **OPTIONS) for logits in (LOGITS, 0.5 * LOGITS))
    group = np.arange(400) % 3
    assert M.evaluate(samples, inference=True) == M.evaluate(LOGITS, TARGET, inference=True, **OPTIONS)
    assert M.compare(samples, other).to_dict() == M.compare(LOGITS, 0.5 * LOGITS, TARGET, **OPTIONS).to_dict()
    by_samples, by_arrays = (
        M.evaluate_groups(samples, groups=group),
        M.evaluate_groups(LOGITS, TARGET, groups=group, **OPTIONS),
    )
    assert [one.to_dict() for one in by_samples] == [one.to_dict() for one in by_arrays]
    one, two = (
        compare_calibrators(*data, methods=["temperature", "isotonic"], repeats=1, **options)
        for data, options in (((samples,), {}), ((LOGITS, TARGET), OPTIONS))
    )
    assert one.to_dict() == two.to_dict()


@pytest.mark.parametrize("kind", ["logits", "probs", "one score"])
@pytest.mark.parametrize("name", CALIBRATORS)
def test_calibrators_are_fitted_to_samples_as_to_arrays(name, kind):
    values, target, options = LOGITS, TARGET, {}
    if kind == "probs":
        values, options = LOGITS.softmax(1), {"input": "probs"}
    if kind == "one score":
        values, target = LOGITS[:, 0], TARGET % 2
    binary = {"binary": "top_label"} if kind == "one score" else {}
    fitted = make_calibrator(name).fit(Samples.from_arrays(values, target, **options, **binary))
    expected = make_calibrator(name).fit(values, target, **options)
    for buffer in expected.learned:
        assert torch.equal(getattr(fitted, buffer), getattr(expected, buffer))
    assert (fitted.fitted_on, fitted.report) == (expected.fitted_on, expected.report)


def test_shifted_samples():
    test = Samples.from_arrays(LOGITS, TARGET)
    shifted = {"a": Samples.from_arrays(0.5 * LOGITS, TARGET), "b": Samples.from_arrays(LOGITS[:50], None)}
    arrays = {"a": (0.5 * LOGITS, TARGET), "b": (LOGITS[:50], None)}
    expected = M.evaluate_shift((LOGITS, TARGET), arrays)
    assert M.evaluate_shift(test, shifted).to_dict() == expected.to_dict()
    assert calibrate_shift(test, shifted).before.to_dict() == expected.to_dict()


def test_images_are_clusters_unless_others_are_given():
    logits, target = torch.randn(3, 2, 4, 5), torch.randint(2, (3, 4, 5))
    target[1] = -100
    samples = Samples.from_arrays(logits, target)
    assert (len(samples), samples.cluster, samples.pixels) == (40, None, 20)
    images = samples.by_image()
    assert images.cluster.tolist() == [0] * 20 + [1] * 20
    assert images.cluster_names.tolist() == [0, 2]
    assert samples.column("name", ["x", "y", "z"]).tolist() == ["x"] * 20 + ["z"] * 20
    assert Samples.from_arrays(logits, target, clusters="none").by_image().cluster is None
    given = Samples.from_arrays(logits, target, clusters=["p", "p", "q"]).by_image()
    assert given.cluster_names.tolist() == ["p", "q"]


def test_a_part_has_clusters_and_weights_of_its_own():
    samples = Samples.from_arrays(LOGITS, TARGET, sample_weight=np.arange(1, 401), clusters=np.arange(400) // 100)
    part = samples.part(np.arange(400) >= 200)
    assert part.cluster_names.tolist() == [2, 3]
    assert part.cluster.tolist() == [0] * 100 + [1] * 100
    assert float(part.weight.mean()) == pytest.approx(1.0)
    assert part.position().tolist() == list(range(200, 400))
    with pytest.raises(ValueError, match="only one cluster, '3'"):
        samples.part(np.arange(400) >= 300)


def test_errors_name_the_value_and_the_remedy():
    samples = Samples.from_arrays(LOGITS, TARGET)
    for call, error, message in (
        (lambda: M.evaluate(LOGITS, TARGET, bins=10), TypeError, "'bins'; predictions have the options input, "),
        (lambda: M.evaluate(LOGITS), TypeError, "target is missing"),
        (lambda: M.evaluate(samples, TARGET), TypeError, "leave out target"),
        (lambda: M.ece(samples, binary="positive"), TypeError, "leave out binary"),
        (lambda: M.ece(Samples.from_arrays(LOGITS, None)), ValueError, "no labels"),
        (lambda: M.nll([0.5, 0.9], [0, 1], input="confidence"), ValueError, "nll needs the probabilities of all"),
        (lambda: M.compare(samples, Samples.from_arrays(LOGITS, (TARGET + 1) % 4)), ValueError, "same samples"),
        (lambda: M.evaluate_groups(samples, groups=[1, 2]), ValueError, r"one entry per sample, shape \(400,\)"),
        (
            lambda: M.evaluate_groups(LOGITS, TARGET, groups=np.ones(401), ignore_index=3),
            ValueError,
            r"shape \(400,\), got shape \(401,\)",
        ),
        (lambda: M.kde_ece(LOGITS, TARGET, sample_weight=np.ones(400) + (np.arange(400) > 9)), ValueError, "weighted"),
        (lambda: M.corp(LOGITS, TARGET, clusters=np.arange(400) // 2), ValueError, "independent samples"),
        (lambda: make_calibrator("vector").fit(samples, input="probs"), TypeError, "leave out input"),
        (lambda: make_calibrator("vector").fit(samples, ignore_index=0), TypeError, "leave out ignore_index"),
        (
            lambda: make_calibrator("temperature").fit(Samples.from_arrays(LOGITS, TARGET, **OPTIONS)),
            ValueError,
            "without weights",
        ),
    ):
        with pytest.raises(error, match=message):
            call()
