"""Contract of every calibrator: fit, forward, state, reports."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from calibrator_cases import CHANGES_ARGMAX, KEEPS_ARGMAX, NAMES, forced, sample
from case_loops import for_each
from torch import nn

from dualfocal import metrics as M
from dualfocal.calibrators import (
    CALIBRATORS,
    Chain,
    DirichletCalibration,
    HistogramBinning,
    IsotonicCalibration,
    MatrixScaling,
    PlattScaling,
    TemperatureScaling,
    VectorScaling,
    make_calibrator,
)

DIFFERENTIABLE = ("temperature", "ets", "vector", "matrix", "dirichlet")


def other_logits(n: int = 60, num_classes: int = 4, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return sample(n, num_classes, seed=7, dtype=dtype)[0]


@for_each(name=NAMES)
def test_fit_returns_itself_and_the_output_keeps_shape_and_dtype(name) -> None:
    logits, target = sample()
    calibrator = make_calibrator(name)
    with pytest.raises(RuntimeError, match="not fitted: call fit"):
        calibrator(logits)
    assert not calibrator.is_fitted
    assert calibrator.fit(logits, target) is calibrator
    assert calibrator.is_fitted
    wide = calibrator(other_logits(dtype=torch.float64))
    assert wide.dtype == torch.float64
    assert wide.isfinite().all()
    narrow = calibrator(other_logits())
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow.softmax(1), wide.softmax(1).float(), rtol=1e-4, atol=1e-5)
    for dtype in (torch.bfloat16, torch.float16):
        half = other_logits().to(dtype)
        result = calibrator(half)
        assert result.dtype == torch.float32
        assert torch.equal(result, calibrator(half.float()))  # computed in float32
        refit = make_calibrator(name).fit(logits.to(dtype), target)
        exact = make_calibrator(name).fit(logits.to(dtype).float(), target)
        torch.testing.assert_close(refit(half).softmax(1), exact(half).softmax(1), rtol=0, atol=1e-6)


@for_each(name=NAMES)
def test_log_odds_are_the_two_column_form(name) -> None:
    logits, target = sample(300, 2)
    odds = logits[:, 1] - logits[:, 0]
    pair = torch.stack([torch.zeros_like(odds), odds], dim=1)
    one, two = make_calibrator(name).fit(odds, target), make_calibrator(name).fit(pair, target)
    result, expected = one(odds), two(pair)
    assert result.shape == odds.shape
    torch.testing.assert_close(result, expected[:, 1] - expected[:, 0], rtol=1e-4, atol=1e-4)
    assert one.report.nll_after == pytest.approx(two.report.nll_after, abs=1e-6)


@for_each(name=NAMES)
def test_dense_logits_are_flattened_rows(name) -> None:
    logits, target = sample(2 * 10 * 12, 3)
    dense = logits.view(2, 10, 12, 3).permute(0, 3, 1, 2)
    labels = target.view(2, 10, 12).clone()
    labels[0, 2:4] = 255
    keep = (labels != 255).view(-1)
    a = make_calibrator(name).fit(dense, labels, ignore_index=255)
    b = make_calibrator(name).fit(logits[keep], target[keep])
    result = a(dense)
    assert result.shape == dense.shape
    torch.testing.assert_close(result.permute(0, 2, 3, 1).reshape(-1, 3), b(logits), rtol=1e-5, atol=1e-5)
    assert a.report.num_samples == int(keep.sum())


@for_each(name=NAMES)
def test_numpy_and_strided_input_give_the_same_and_are_not_written_to(name) -> None:
    logits, target = sample(dtype=torch.float64)
    expected = make_calibrator(name).fit(logits, target)(logits)
    kept = logits.clone(), target.clone()
    from_numpy = make_calibrator(name).fit(logits.numpy(), target.numpy())
    assert torch.equal(from_numpy(logits.numpy()), expected)
    frozen = logits.numpy().copy()
    frozen.flags.writeable = False
    assert torch.equal(make_calibrator(name).fit(frozen, target.numpy())(frozen), expected)
    assert torch.equal(make_calibrator(name).fit(logits.numpy()[::-1], target.numpy()[::-1])(logits).argmax(1),
                       expected.argmax(1))  # fmt: skip
    wide = torch.randn(400, 9, dtype=torch.float64)
    wide[:, 1::2] = logits
    turned = logits.T.contiguous().T
    for strided in (wide[:, 1::2], turned):
        result = make_calibrator(name).fit(strided, target)(strided)
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-6)
    from_numpy(logits).zero_()  # the output is a new tensor
    assert torch.equal(logits, kept[0])
    assert torch.equal(target, kept[1])
    assert torch.equal(wide[:, 1::2], kept[0])


@for_each(name=NAMES)
def test_chunks_do_not_change_the_result(name, monkeypatch) -> None:
    logits, target = sample()
    calibrator = make_calibrator(name).fit(logits, target)
    new = other_logits(101)
    expected = calibrator(new)
    monkeypatch.setattr("dualfocal.calibrators._tiles.TILE_CPU", 40)
    monkeypatch.setattr("dualfocal.calibrators._base.CHUNK_CPU", 30)
    torch.testing.assert_close(calibrator(new), expected, rtol=1e-6, atol=1e-6)
    again = make_calibrator(name).fit(logits, target)
    torch.testing.assert_close(again(new).softmax(1), expected.softmax(1), rtol=0, atol=2e-6)
    assert again.report.nll_after == pytest.approx(calibrator.report.nll_after, abs=1e-6)
    assert again.report.argmax_changed == calibrator.report.argmax_changed
    turned = new.T.contiguous().T
    torch.testing.assert_close(calibrator(turned), expected, rtol=1e-6, atol=1e-6)


@for_each(name=DIFFERENTIABLE)
def test_gradients_flow_to_the_logits(name, monkeypatch) -> None:
    logits, target = sample()
    calibrator = make_calibrator(name).fit(logits, target)
    z = other_logits(6, dtype=torch.float64).requires_grad_()
    with monkeypatch.context() as small:  # chunks are written in place, which would break gradients
        small.setattr("dualfocal.calibrators._tiles.TILE_CPU", 4)
        small.setattr("dualfocal.calibrators._base.CHUNK_CPU", 10)
        assert torch.autograd.gradcheck(lambda z: calibrator(z).log_softmax(1), (z,))
    (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(calibrator(z), target[:6]), z)
    assert gradient.abs().min() > 0
    # Fitting leaves no graph behind, whatever it is given.
    assert not calibrator.fit(logits.requires_grad_(), target)(logits.detach()).requires_grad


@for_each(name=["temperature", "vector"])
def test_compiled_in_one_graph(name) -> None:
    logits, target = sample()
    calibrator = make_calibrator(name).fit(logits, target)
    compiled = torch.compile(lambda z: calibrator(z) + 0, fullgraph=True, backend="eager")
    new = other_logits()
    torch.testing.assert_close(compiled(new), calibrator(new))


# State.


@for_each(name=NAMES)
def test_state_dict_loads_into_any_size(name) -> None:
    logits, target = sample()
    calibrator = make_calibrator(name).fit(logits, target)
    new = other_logits()
    expected, state = calibrator(new), calibrator.state_dict()
    other = make_calibrator(name).fit(*sample(700, 6, seed=3))
    assert other.report is not None
    for to in (make_calibrator(name), other):
        to.load_state_dict(state)
        assert torch.equal(to(new), expected)
        assert to.num_classes == calibrator.num_classes
        assert to.report is None  # the old report belongs to another fit
    # What was loaded is a copy.
    other.fit(*sample(400, 4, seed=5, sharp=0.5))
    assert torch.equal(calibrator(new), expected)
    with pytest.raises(RuntimeError, match="Missing key"):
        make_calibrator(name).load_state_dict(dict(list(state.items())[1:]))


class Model(nn.Module):
    """A model with a calibrator as its last layer."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.body = nn.Linear(5, 4)
        self.calibrator = make_calibrator(name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.calibrator(self.body(x))


@for_each(name=NAMES)
def test_state_travels_inside_a_model(name) -> None:
    model = Model(name)
    model.calibrator.fit(*sample())
    fresh = Model(name)
    fresh.load_state_dict(model.state_dict())
    x = torch.randn(20, 5)
    with torch.no_grad():
        assert torch.equal(fresh(x), model(x))
    assert len(list(model.parameters())) == 2  # the calibrator has no trainable parameters
    unfitted = Model(name)
    unfitted.load_state_dict(Model(name).state_dict())
    assert not unfitted.calibrator.is_fitted


@for_each(name=NAMES)
def test_a_halved_model_keeps_its_calibrator(name) -> None:
    logits, target = sample()
    calibrator = make_calibrator(name).fit(logits, target)
    new = other_logits()
    expected = calibrator(new)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), calibrator)
    for cast in (model.half, model.bfloat16, model.float):
        cast()
        assert all(value.dtype == torch.float64 for value in calibrator.buffers())
        assert torch.equal(calibrator(new), expected)
    refitted = calibrator.fit(logits, target)(new)
    assert torch.equal(refitted, make_calibrator(name).fit(logits, target)(new))


@for_each(name=NAMES)
def test_copies_and_pickles(name) -> None:
    logits, target = sample()
    calibrator = make_calibrator(name).fit(logits, target)
    calibrator.class_names = ("a", "b", "c", "d")
    new = other_logits()
    expected = calibrator(new)
    for twin in (copy.deepcopy(calibrator), pickle.loads(pickle.dumps(calibrator))):
        assert torch.equal(twin(new), expected)
        assert twin.report == calibrator.report
        assert twin.class_names == calibrator.class_names
        assert repr(twin) == repr(calibrator)
        twin.fit(*sample(seed=9, sharp=0.3))
        assert torch.equal(calibrator(new), expected)


def test_repr_shows_the_options_and_makes_the_same_again() -> None:
    calibrators = [
        TemperatureScaling("ece", num_bins=7),
        VectorScaling(prior=2.5),
        MatrixScaling(prior=0.1, force=True),
        DirichletCalibration(),
        PlattScaling(),
        HistogramBinning(9, bins="width", smoothing=0.5),
        IsotonicCalibration(smoothing=0.0),
    ]
    for calibrator in calibrators:
        assert repr(eval(repr(calibrator))) == repr(calibrator)
    assert repr(calibrators[0]) == "TemperatureScaling(criterion='ece', num_bins=7)"
    fitted = TemperatureScaling().fit(*sample())
    assert repr(fitted) == f"TemperatureScaling(criterion='nll', num_bins=15; temperature={fitted.temperature:.4g})"
    assert repr(calibrators[5]) == "HistogramBinning(num_bins=9, bins='width', smoothing=0.5)"
    assert "IsotonicCalibration(smoothing=0.0)" in repr(Chain(TemperatureScaling(), calibrators[6]))


# Reports.


@for_each(name=KEEPS_ARGMAX, num_classes=[2, 4, 20])
def test_argmax_is_kept(name, num_classes) -> None:
    for seed, sharp in enumerate((0.1, 1.0, 5.0, 50.0)):
        logits, target = sample(400, num_classes, sharp=sharp, seed=seed)
        calibrator = forced(name).fit(logits, target)
        new = other_logits(1000, num_classes) * sharp
        assert torch.equal(calibrator(new).argmax(1), new.argmax(1))
        assert calibrator.report.argmax_changed == 0


@for_each(name=KEEPS_ARGMAX)
def test_argmax_is_kept_or_its_change_reported_when_the_model_is_wrong(name) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(300, 4, generator=generator)
    for target in (logits.argmin(1), torch.zeros(300, dtype=torch.int64)):
        calibrator = make_calibrator(name).fit(logits - 5 * torch.eye(4)[target], target)
        shown = logits - 5 * torch.eye(4)[target]
        changed = int((calibrator(shown).argmax(1) != shown.argmax(1)).sum())
        assert changed == calibrator.report.argmax_changed
        assert changed == 0 or not calibrator.keeps_argmax


@for_each(name=CHANGES_ARGMAX)
def test_changed_predictions_are_counted(name, monkeypatch) -> None:
    logits, target = sample(700, 4)
    logits = logits + torch.tensor([1.5, 0.0, 0.0, -1.0])
    monkeypatch.setattr("dualfocal.calibrators._tiles.TILE_CPU", 100)
    calibrator = make_calibrator(name).fit(logits, target)
    changed = int((calibrator(logits).argmax(1) != logits.argmax(1)).sum())
    assert calibrator.report.argmax_changed == changed > 0


@for_each(name=NAMES, dtype=[torch.float64, torch.float32, torch.bfloat16])
def test_report_is_of_the_data_of_the_fit(name, dtype) -> None:
    logits, target = sample(500, 4, dtype=dtype)
    calibrator = make_calibrator(name).fit(logits, target)
    report = calibrator.report
    assert report.nll_before == pytest.approx(M.nll(logits, target), abs=2e-6)
    assert report.nll_after == pytest.approx(M.nll(calibrator(logits), target), abs=2e-6)
    assert (report.num_samples, report.num_classes) == (500, 4)
    assert report.converged
    assert report.notes == () or name == "temperature_ece"
    text = str(report)
    assert f"{report.nll_after:.4f} after" in text
    assert "500 samples, 4 classes" in text
    assert ("converged in" in text) == (report.iterations is not None)


# Errors.


@for_each(name=NAMES)
def test_a_failed_fit_leaves_the_earlier_one(name) -> None:
    logits, target = sample()
    calibrator = make_calibrator(name).fit(logits, target)
    calibrator.class_names = ("a", "b", "c", "d")
    new = other_logits()
    expected, report = calibrator(new), calibrator.report
    holed, upward = logits.clone(), logits.clone()
    holed[17, 2], upward[18, 1] = math.nan, math.inf
    outside = target.clone()
    outside[3] = 4
    bad = [
        (holed, target, ValueError, "row 17 holds NaN"),
        (upward, target, ValueError, r"row 18 holds \+inf"),
        (logits, outside, IndexError, "target 4 is out of range"),
        (logits, target[:-1], ValueError, "must have shape"),
        (logits, torch.full_like(target, -100), ValueError, "no samples"),
        (logits.long(), target, ValueError, "floating point"),
    ]
    for z, y, error, message in bad:
        with pytest.raises(error, match=message):
            calibrator.fit(z, y)
        assert torch.equal(calibrator(new), expected)
        assert calibrator.report == report
        assert calibrator.class_names == ("a", "b", "c", "d")
        unfitted = make_calibrator(name)
        with pytest.raises(error, match=message):
            unfitted.fit(z, y)
        assert not unfitted.is_fitted


def test_a_chain_whose_later_step_refuses_is_as_before() -> None:
    logits, target = sample()
    first, second = TemperatureScaling(), MatrixScaling()
    chain = Chain(first, second).fit(logits, target)
    new = other_logits()
    expected, before = chain(new), [(step.fitted_on, step.report) for step in (chain, first, second)]
    with pytest.raises(ValueError, match="has 20 parameters"):
        chain.fit(0.1 * logits[:15], target[:15])  # the first step fits, the second has too few samples
    assert torch.equal(chain(new), expected)
    assert [(step.fitted_on, step.report) for step in (chain, first, second)] == before
    assert torch.equal(first(new), chain[0](new))
    inner = TemperatureScaling()  # the user may have a reference to the innermost step
    outer = Chain(Chain(inner), MatrixScaling())
    with pytest.raises(ValueError, match="has 20 parameters"):
        outer.fit(logits[:15], target[:15])
    assert outer[0][0] is inner
    assert not inner.is_fitted
    assert not outer[0].is_fitted


@for_each(name=[name for name in NAMES if name not in ("temperature", "temperature_ece", "ets")])
def test_another_number_of_classes_is_refused(name) -> None:
    calibrator = make_calibrator(name).fit(*sample())
    for shape in ((10, 3), (10, 5), (2, 3, 7)):
        with pytest.raises(ValueError, match=f"fitted for 4 classes, logits of shape .* have {shape[1]}"):
            calibrator(torch.zeros(shape))
    with pytest.raises(ValueError, match="fitted for 4 classes"):
        calibrator(torch.zeros(10))


@for_each(name=NAMES)
def test_forward_takes_no_rows_and_refuses_invalid_logits(name) -> None:
    calibrator = make_calibrator(name).fit(*sample())
    assert calibrator(torch.zeros(0, 4)).shape == (0, 4)
    assert calibrator(torch.zeros(0, 4, 3, 2)).shape == (0, 4, 3, 2)
    with pytest.raises(ValueError, match=r"floating point .* got torch.int64"):
        calibrator(torch.zeros(3, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match="floating point"):
        calibrator(torch.tensor(1.0))
    with pytest.raises(TypeError, match="got float"):
        calibrator(1.0)


@for_each(name=NAMES, n=[400, 1])
def test_nan_stays_in_its_row(name, n) -> None:
    logits, target = sample()
    calibrator = forced(name).fit(logits[:n], target[:n])
    new = other_logits(10)
    expected = calibrator(new)
    new[3, 1] = math.nan
    result = calibrator(new)
    assert result[3].isnan().any()
    rest = torch.arange(10) != 3
    assert torch.equal(result[rest], expected[rest])


def test_bad_options_are_refused() -> None:
    for make, message in (
        (lambda: TemperatureScaling("brier"), "'nll', 'ece', got 'brier'"),
        (lambda: TemperatureScaling("ece", num_bins=0), "num_bins must be at least 1, got 0"),
        (lambda: VectorScaling(prior=0.0), "prior must be above 0"),
        (lambda: VectorScaling(prior=-1.0), "prior"),
        (lambda: HistogramBinning(0), "num_bins must be at least 1"),
        (lambda: HistogramBinning(bins="equal"), "'mass', 'width', got 'equal'"),
        (lambda: HistogramBinning(smoothing=-1.0), "smoothing"),
        (lambda: IsotonicCalibration(smoothing=math.nan), "smoothing"),
        (lambda: Chain(), "at least one"),
        (lambda: Chain(*[TemperatureScaling()] * 2), "only once"),
        (lambda: make_calibrator("temprature"), "calibrator.*'temprature'; did you mean temperature"),
        (lambda: make_calibrator("temperature+"), "calibrator.*''"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    with pytest.raises(TypeError, match="got Linear"):
        Chain(nn.Linear(2, 2))


def test_names_make_the_right_calibrators() -> None:
    for name, make in CALIBRATORS.items():
        assert repr(make_calibrator(name)) == repr(make())
    chain = make_calibrator("temperature+isotonic+vector")
    assert [type(step).__name__ for step in chain] == ["TemperatureScaling", "IsotonicCalibration", "VectorScaling"]
    logits, target = sample()
    chain.fit(logits, target)
    by_hand = logits
    for make in (TemperatureScaling, IsotonicCalibration, VectorScaling):
        by_hand = make().fit(by_hand, target)(by_hand)
    assert torch.equal(chain(logits), by_hand)
    assert chain.num_classes == 4
    assert not chain.keeps_argmax
    assert Chain(TemperatureScaling(), TemperatureScaling("ece")).keeps_argmax
    assert np.isfinite(chain.report.nll_after)
