"""Degenerate data: every method gives finite results, and notes what was unusual."""

import math

import pytest
import torch
from calibrator_cases import NAMES, forced, sample
from case_loops import for_each
from torch import Tensor

from dualfocal import metrics as M
from dualfocal.calibrators import DirichletCalibration, MatrixScaling, Note, TemperatureScaling, make_calibrator

N, CLASSES = 150, 5
BY_LIKELIHOOD = ("temperature", "ets", "vector", "matrix", "dirichlet")


def cases() -> dict[str, tuple[Tensor, Tensor]]:
    logits, target = sample(N, CLASSES, sharp=1.0, dtype=torch.float64)
    right, wrong = torch.eye(CLASSES).double()[target], torch.eye(CLASSES).double()[(target + 1) % CLASSES]
    return {
        "a class absent": (logits, target.clamp(max=CLASSES - 2)),
        "all correct": (0.1 * logits + 3 * right, target),
        "all correct and certain": (0.1 * logits + 300 * right, target),
        "all wrong": (0.1 * logits + 3 * wrong, target),
        "all wrong and certain": (0.1 * logits + 300 * wrong, target),
        "fewer samples than classes": (logits[:3], target[:3]),
        "one sample": (logits[:1], target[:1]),
        "constant": (torch.full_like(logits, 3.3), target),
        "the same row": (logits[:1].expand(N, -1), target),
        "one class only": (logits, torch.zeros_like(target)),
        "one class only, never predicted": (logits - 9 * torch.eye(CLASSES).double()[0], torch.zeros_like(target)),
        "scale 1e-6": (1e-6 * logits, target),
        "scale 1e3": (1e3 * logits, target),
        "scale 1e6": (1e6 * logits, target),
        "scale 1e6, all correct": (1e6 * logits, logits.argmax(1)),
        "shift 1e4": (logits + 1e4, target),
        "shift of each row": (logits + 1e4 * torch.randn(N, 1, generator=torch.Generator().manual_seed(0)), target),
    }


CASES = cases()


ROUNDED = [case for case in CASES if case.startswith(("all", "scale", "shift"))]  # where float32 makes a difference


@pytest.mark.parametrize("name", NAMES)
@for_each("case, dtype", [*((case, torch.float64) for case in CASES), *((case, torch.float32) for case in ROUNDED)])
def test_results_are_finite(name, case, dtype) -> None:
    logits, target = CASES[case][0].to(dtype), CASES[case][1]
    calibrator = forced(name).fit(logits, target)
    for shown in (logits, sample(40, CLASSES, seed=3)[0].to(dtype)):
        result = calibrator(shown)
        assert result.isfinite().all()
        assert (result.double().softmax(1).sum(1) - 1).abs().max() < 1e-5
        assert calibrator.is_fitted
    assert all(buffer.isfinite().all() for buffer in calibrator.buffers())
    report = calibrator.report
    assert report.converged, report
    after = M.nll(calibrator(logits), target)
    # Logits near 1e4 in float32 are rounded to 1e-3: so are the results.
    assert report.nll_after == pytest.approx(after, rel=1e-4, abs=1e-4)
    if name == "temperature" and all(note.kind != "all_correct" for note in report.notes):
        # The identity and the uniform prediction were both possible.
        assert after < min(M.nll(logits, target), math.log(CLASSES)) + 2e-3
    elif name in BY_LIKELIHOOD:
        # All other methods start from temperature scaling.
        plain = TemperatureScaling().fit(logits, target)
        assert after < M.nll(plain(logits), target) + 2e-3


@for_each(name=NAMES)
def test_notes(name) -> None:
    def notes(case: str) -> dict[str, Note]:
        return {note.kind: note for note in forced(name).fit(*CASES[case]).report.notes}

    if name in BY_LIKELIHOOD:
        assert "all_correct" in notes("all correct")
        assert "no_help" in notes("all wrong")
        assert "equal_logits" in notes("constant")
    if name not in ("temperature", "temperature_ece", "ets"):
        for case, absent in (("a class absent", (4,)), ("one class only", (1, 2, 3, 4))):
            assert notes(case)["absent_classes"] == Note("absent_classes", len(absent), CLASSES, absent)


@for_each(name=["temperature", "vector", "matrix"], scale=[1e-6, 1e6])
def test_the_unit_of_the_logits_does_not_matter(name, scale) -> None:
    logits, target = CASES["a class absent"]
    expected = forced(name).fit(logits, target)(logits).softmax(1)
    result = forced(name).fit(scale * logits, target)(scale * logits).softmax(1)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)


@for_each(name=[name for name in NAMES if name not in ("matrix", "vector")], case=["shift 1e4", "shift of each row"])
def test_a_common_shift_does_not_matter(name, case) -> None:
    # Vector and matrix scaling see it: their factors differ by class.
    logits, target = sample(N, CLASSES, sharp=1.0, dtype=torch.float64)
    expected = forced(name).fit(logits, target)(logits).softmax(1)
    shifted = CASES[case][0]
    torch.testing.assert_close(forced(name).fit(shifted, target)(shifted).softmax(1), expected, rtol=0, atol=1e-6)


@for_each(name=["histogram", "isotonic", "bbq"])
def test_equal_predictions_share_a_bin_however_they_round(name) -> None:
    # Coarse log-odds, like those in half precision: rows that differ by a shift are the same prediction.
    generator = torch.Generator().manual_seed(0)
    odds = torch.randint(-3, 4, (400,), generator=generator).double()
    target = (torch.rand(400, generator=generator) < odds.sigmoid()).long()
    logits = torch.stack([torch.zeros_like(odds), odds], dim=1)
    shifted = logits + 5 * torch.randn(400, 1, generator=generator)
    expected = make_calibrator(name).fit(logits, target)(logits).softmax(1)
    result = make_calibrator(name).fit(shifted, target)(shifted).softmax(1)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-9)


@for_each(scale=[1.0, 30.0, 1e3, 1e6])
def test_dirichlet_has_one_floor(scale) -> None:
    # ln p is clamped in the fit, and must be clamped in the same way when the map is applied.
    logits, target = sample(N, CLASSES, sharp=scale)
    calibrator = DirichletCalibration().fit(logits, target)
    torch.testing.assert_close(
        calibrator(logits).softmax(1).double(), calibrator(logits.double()).softmax(1), rtol=0, atol=1e-3
    )
    assert calibrator.report.nll_after < TemperatureScaling().fit(logits, target).report.nll_after + 1e-3


@for_each(make=[MatrixScaling, DirichletCalibration])
def test_too_few_samples_are_refused_unless_forced(make) -> None:
    logits, target = sample(CLASSES * (CLASSES + 1), CLASSES)
    make().fit(logits, target)
    with pytest.raises(ValueError, match=r"30 parameters for 5 classes .* got 29"):
        make().fit(logits[1:], target[1:])
    forced_one = make(force=True).fit(logits[1:], target[1:])
    # With few samples the prior keeps the map close to the best temperature.
    plain = TemperatureScaling().fit(logits[1:], target[1:])
    fresh, fresh_target = sample(5000, CLASSES, seed=1)
    assert M.nll(forced_one(fresh), fresh_target) < M.nll(plain(fresh), fresh_target) + 0.1


# Classes that the model rules out.


def masked(kind: str) -> tuple[Tensor, Tensor]:
    logits, target = sample(N, CLASSES)
    rows = slice(None) if kind == "a class in all rows" else slice(0, None, 3)
    logits[rows, 2] = -math.inf
    target[rows] = torch.where(target[rows] == 2, 0, target[rows])
    if kind == "a true class":
        logits[0, target[0]] = -math.inf
    return logits, target


@for_each(name=NAMES, kind=["a class in all rows", "a class in some rows"])
def test_ruled_out_classes(name, kind) -> None:
    logits, target = masked(kind)
    if name in ("vector", "matrix", "dirichlet"):
        with pytest.raises(ValueError, match=r"needs finite logits: class 2 has -inf"):
            forced(name).fit(logits, target)
        return
    calibrator = forced(name).fit(logits, target)
    result = calibrator(logits)
    # Of those that accept -inf, temperatures hand it on; the others have a floor.
    out = logits == -math.inf
    assert not result.isnan().any()
    assert result[~out].isfinite().all()
    probs = result.double().softmax(1)
    assert (probs.sum(1) - 1).abs().max() < 1e-5
    assert calibrator.report.converged, calibrator.report
    if name in ("temperature", "temperature_ece"):
        assert (result[out] == -math.inf).all()
    if name != "ets":  # which has a share for the uniform prediction
        assert probs[out].mean() < 0.02
    assert M.nll(result, target) < M.nll(logits, target)


@for_each(name=NAMES)
def test_a_true_class_ruled_out(name) -> None:
    logits, target = masked("a true class")
    if name in ("temperature", "temperature+isotonic", "ets", "vector", "matrix", "dirichlet"):
        with pytest.raises(ValueError, match=r"true class is -inf, .* in 1 of \d+ samples"):
            forced(name).fit(logits, target)
        return
    calibrator = forced(name).fit(logits, target)
    assert not calibrator(logits).isnan().any()
    assert calibrator.report.nll_before == math.inf
    assert (calibrator.report.nll_after == math.inf) == (name == "temperature_ece")
    assert M.nll(calibrator(logits), target) == pytest.approx(calibrator.report.nll_after, abs=1e-5)
