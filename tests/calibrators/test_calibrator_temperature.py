"""Temperature scaling finds the minimum on all kinds of data; ensemble temperature scaling."""

import math

import calibrator_oracles as O
import numpy as np
import pytest
import torch
from calibrator_cases import draw, sample
from case_loops import for_each

from dualfocal import metrics as M
from dualfocal.calibrators import EnsembleTemperatureScaling, TemperatureScaling

KINDS = ("plain", "sharp", "flat", "nearly separable", "wrong", "mostly wrong", "random labels", "ties", "separable")


def problem(seed: int) -> tuple[torch.Tensor, torch.Tensor, str]:
    """A small data set; the seed decides kind and scale."""
    rng = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    n, num_classes = int(rng.integers(2, 80)), int(rng.integers(2, 9))
    scale = 10 ** rng.uniform(-3, 3)
    z = rng.normal(size=(n, num_classes))
    y = (z + rng.gumbel(size=z.shape)).argmax(1)
    if kind == "sharp":
        z *= 10
    elif kind == "flat":
        z *= 0.03
    elif kind == "nearly separable":  # one or two errors, by a tiny margin
        y = z.argmax(1)
        for i in rng.integers(0, n, size=rng.integers(1, 3)):
            second = int(np.argsort(z[i])[-2])
            z[i, second] = z[i, y[i]] - 10.0 ** -rng.integers(1, 6)
            y[i] = second
    elif kind == "wrong":
        y = z.argmin(1)
    elif kind == "mostly wrong":
        y = np.where(rng.random(n) < 0.3, z.argmax(1), z.argmin(1))
    elif kind == "random labels":
        y = rng.integers(0, num_classes, n)
    elif kind == "ties":
        z = np.round(z)
    elif kind == "separable":
        y = z.argmax(1)
    dtype = torch.float32 if (seed // len(KINDS)) % 2 else torch.float64
    return torch.from_numpy(z * scale).to(dtype), torch.from_numpy(y), kind


@pytest.mark.parametrize("hundred", range(4))
def test_no_search_finds_a_lower_nll(hundred) -> None:
    outcomes = set()
    for seed in range(100 * hundred, 100 * (hundred + 1)):
        logits, target, kind = problem(seed)
        calibrator = TemperatureScaling().fit(logits, target)
        t, report = calibrator.temperature.item(), calibrator.report
        z, y = logits.double().numpy(), target.numpy()
        case = f"seed {seed}, {kind}, T = {t}"
        assert 0 < t < math.inf, case
        assert report.converged, case
        kind_of_note = report.notes[0].kind if report.notes else ""
        if kind_of_note == "no_help":
            # The optimum is uniform, at infinite T; ours is uniform within 0.1 %.
            outcomes.add("no help")
            uniform = math.log(z.shape[1])
            far = O.best_temperature(O.nll, z, y, -14, 14 + math.log(np.abs(z).max()))
            assert O.nll(z, y, far) > uniform - 1e-6, case
            assert O.nll(z, y, t) < uniform + 3e-3, case
            continue
        objective = O.doubtful_nll if kind_of_note == "all_correct" else O.nll
        outcomes.add("all correct" if objective is O.doubtful_nll else "minimum")
        size = math.log(np.abs(z).max())
        for low, high in ((size - 14, size + 14), (math.log(t) - 1, math.log(t) + 1)):
            other = O.best_temperature(objective, z, y, low, high)
            assert objective(z, y, t) <= objective(z, y, other) + 1e-9, case
        # Where the minimum is sharp it fixes T itself: curvature in log T by differences, of scale 1.
        here, step = objective(z, y, t), 1e-3
        curvature = sum(objective(z, y, t * math.exp(s)) for s in (-step, step)) - 2 * here
        if curvature / step**2 > 0.01:
            assert t == pytest.approx(other, rel=1e-4), case
            # The slope in log T that is reported is small beside that curvature.
            assert report.gradient**2 <= 2e-10 * curvature / step**2, case
            outcomes.add("determined")
        assert report.nll_after == pytest.approx(O.nll(z, y, t), rel=1e-5, abs=1e-6), case
    assert outcomes == {"no help", "all correct", "minimum", "determined"}


def test_scale_and_shift_change_nothing_but_the_unit() -> None:
    logits, target = sample(200, dtype=torch.float64)
    t = TemperatureScaling().fit(logits, target).temperature.item()
    for scale in (1e-30, 1e-6, 1e6, 1e30):
        scaled = TemperatureScaling().fit(scale * logits, target)
        assert scaled.temperature.item() == pytest.approx(scale * t, rel=1e-6)
        assert scaled.report.nll_after == pytest.approx(M.nll(logits / t, target), abs=1e-9)
    shifted = TemperatureScaling().fit(logits + torch.randn(200, 1), target)
    assert shifted.temperature.item() == pytest.approx(t, rel=1e-9)


def test_first_guess_from_a_few_rows_does_not_show(monkeypatch) -> None:
    logits, target = sample(3000, dtype=torch.float64)
    all_rows = TemperatureScaling().fit(logits, target).temperature.item()
    monkeypatch.setattr("dualfocal.calibrators.temperature.SUBSAMPLE", 1000)
    assert TemperatureScaling().fit(logits, target).temperature.item() == pytest.approx(all_rows, rel=2e-6)
    # The few rows, every twelfth, are all correct, or all alike: both have answers of their own, of which none remains.
    for few in (lambda z, y: z.argmax(1), lambda z, y: z.argmin(1)):
        labels = target.clone()
        labels[::12] = few(logits[::12], target[::12])
        with monkeypatch.context() as all_again:
            all_again.setattr("dualfocal.calibrators.temperature.SUBSAMPLE", 1 << 30)
            expected = TemperatureScaling().fit(logits, labels)
        fitted = TemperatureScaling().fit(logits, labels)
        assert fitted.temperature.item() == pytest.approx(expected.temperature.item(), rel=2e-6)
        assert fitted.report.notes == expected.report.notes == ()


def test_notes_describe_the_data() -> None:
    logits, _ = sample(50)
    [note] = TemperatureScaling().fit(logits, logits.argmax(1)).report.notes
    assert (note.kind, note.finding) == ("all_correct", "all samples are predicted correctly")
    [note] = TemperatureScaling().fit(logits, logits.argmin(1)).report.notes
    assert note.kind == "no_help"
    assert TemperatureScaling().fit(*sample(400)).report.notes == ()
    [note] = TemperatureScaling().fit(torch.zeros(50, 3), torch.arange(50) % 3).report.notes
    assert note.kind == "equal_logits"
    one_wrong = logits.argmax(1)
    one_wrong[7] = logits[7].argmin()
    assert TemperatureScaling().fit(logits, one_wrong).report.notes == ()


# The grid of the paper.


@for_each(scale=[0.3, 3.0, 40.0], num_classes=[2, 15, 63, 64])
def test_grid_is_the_slow_loop(num_classes, scale) -> None:
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(25, num_classes, generator=generator, dtype=torch.float64)
        target = draw((2 * logits).softmax(1), generator)
        logits = logits * scale
        fitted = TemperatureScaling("ece").fit(logits, target)
        assert fitted.temperature.item() == O.grid_temperature(logits.tolist(), target.tolist())
        at_the_end = fitted.temperature.item() in (0.1, 10.0)
        assert bool(fitted.report.notes) == at_the_end


@for_each("num_classes, num_bins", [(3, 1), (3, 15), (70, 7)])
def test_grid_of_plateaus_takes_the_first(num_classes, num_bins) -> None:
    generator = torch.Generator().manual_seed(num_bins)
    target = torch.randint(num_classes, (40,), generator=generator)
    for top in (0.0, 4.0, 30.0, 300.0, 1e4):  # 0: uniform at any T, on an edge of the bins; large: certain at many T
        logits = torch.zeros(40, num_classes, dtype=torch.float64)
        predicted = torch.where(torch.rand(40, generator=generator) < 0.7, target, (target + 1) % num_classes)
        logits[torch.arange(40), predicted] = top
        fitted = TemperatureScaling("ece", num_bins=num_bins).fit(logits, target).temperature.item()
        assert fitted == O.grid_temperature(logits.tolist(), target.tolist(), num_bins)
    assert TemperatureScaling("ece").fit(torch.zeros(9, 3), torch.arange(9) % 3).temperature.item() == 0.1


@for_each("n, num_classes", [(30_000, 3), (5000, 70)])
def test_grid_is_the_minimum_of_the_metric(n, num_classes) -> None:
    logits, target = sample(n, num_classes, sharp=1.7, dtype=torch.float64)
    errors = [M.ece(logits / (i / 10), target) for i in range(1, 101)]
    assert TemperatureScaling("ece").fit(logits, target).temperature.item() == (int(np.argmin(errors)) + 1) / 10


@for_each(num_classes=[5, 70])
def test_grid_does_not_depend_on_tiles(num_classes, monkeypatch) -> None:
    logits, target = sample(120, num_classes, sharp=3.1)
    whole = TemperatureScaling("ece").fit(logits, target).temperature.item()
    assert whole == O.grid_temperature(logits.double().tolist(), target.tolist())
    monkeypatch.setattr("dualfocal.calibrators._tiles.TILE_CPU", 7 * num_classes)
    for block in (1, 50):
        monkeypatch.setattr("dualfocal.calibrators._ece_grid.BLOCK_CPU", block)
        assert TemperatureScaling("ece").fit(logits, target).temperature.item() == whole


# Mixtures.


@for_each(sharp=[0.5, 1.0, 3.0], noise=[0.0, 0.2, 0.6])
def test_ensemble_weights_are_the_best_on_the_simplex(sharp, noise) -> None:
    logits, target = sample(300, sharp=sharp, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    target = torch.where(torch.rand(300, generator=generator) < noise, torch.randint(4, (300,)), target)
    calibrator = EnsembleTemperatureScaling().fit(logits, target)
    t, w = calibrator.temperature.item(), calibrator.weights.numpy()
    assert t == TemperatureScaling().fit(logits, target).temperature.item()
    assert w.sum() == pytest.approx(1, abs=1e-12)
    assert (w >= 0).all()
    z, y = logits.numpy(), target.numpy()
    best = O.mixture_weights(z, y, t)
    assert O.mixture_nll(w, z, y, t) <= O.mixture_nll(best, z, y, t) + 1e-9
    assert calibrator.report.nll_after == pytest.approx(O.mixture_nll(w, z, y, t), abs=1e-9)
    assert calibrator.report.converged


def test_ensemble_output_is_the_mixture() -> None:
    logits, target = sample(300, sharp=3.0, dtype=torch.float64)
    calibrator = EnsembleTemperatureScaling().fit(logits, target)
    calibrator.temperature, calibrator.weights = torch.tensor(2.5), torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    mixture = 0.5 * (logits / 2.5).softmax(1) + 0.3 * logits.softmax(1) + 0.2 / 4
    torch.testing.assert_close(calibrator(logits), mixture.log(), rtol=1e-12, atol=1e-12)
    calibrator.weights = torch.tensor([0.0, 1.0, 0.0])  # weights of 0 have an infinite logarithm
    torch.testing.assert_close(calibrator(logits), logits.log_softmax(1), rtol=1e-12, atol=1e-12)
