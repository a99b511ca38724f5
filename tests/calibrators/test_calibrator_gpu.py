"""On a GPU: the same calibrators, which stay there."""

import pytest
import torch
from calibrator_cases import NAMES, forced, sample

from dualfocal.calibrators import (
    TemperatureScaling,
    compare_calibrators,
    load_calibrator,
    make_calibrator,
    save_calibrator,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("num_classes", [3, 70])
@pytest.mark.parametrize("name", NAMES)
def test_equals_the_cpu(name, num_classes, dtype) -> None:
    logits, target = sample(6000, num_classes, dtype=dtype)
    here, there = make_calibrator(name).fit(logits, target), make_calibrator(name).fit(logits.cuda(), target.cuda())
    assert all(buffer.is_cuda for buffer in there.buffers())
    result = there(logits.cuda())
    assert result.is_cuda
    torch.testing.assert_close(result.softmax(1).cpu(), here(logits).softmax(1), rtol=0, atol=1e-5)
    assert there.report.nll_before == pytest.approx(here.report.nll_before, abs=1e-6)
    assert there.report.nll_after == pytest.approx(here.report.nll_after, abs=1e-6)
    assert there.report.converged
    # What was fitted there works here, and the other way round.
    torch.testing.assert_close(there.cpu()(logits).softmax(1), here(logits).softmax(1), rtol=0, atol=1e-5)
    moved = here.cuda()(logits.cuda()).softmax(1).cpu()
    torch.testing.assert_close(moved, result.softmax(1).cpu(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("n", [1, 40])
@pytest.mark.parametrize("name", NAMES)
def test_few_samples(name, n) -> None:
    logits, target = sample(n, 5, dtype=torch.float64)
    here, there = forced(name).fit(logits, target), forced(name).fit(logits.cuda(), target.cuda())
    new, _ = sample(100, 5, seed=1)
    torch.testing.assert_close(there(new.cuda()).softmax(1).cpu(), here(new).softmax(1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("num_classes", [3, 70])
def test_grid_is_that_of_the_cpu(num_classes) -> None:
    for seed in range(5):
        logits, target = sample(500, num_classes, sharp=1.0 + seed, seed=seed)
        here = TemperatureScaling("ece").fit(logits, target).temperature.item()
        assert TemperatureScaling("ece").fit(logits.cuda(), target.cuda()).temperature.item() == here


def test_files(tmp_path) -> None:
    logits, target = sample()
    there = make_calibrator("temperature+isotonic").fit(logits.cuda(), target.cuda())
    save_calibrator(there, tmp_path / "c.safetensors")
    back = load_calibrator(tmp_path / "c.safetensors")
    assert all(buffer.is_cpu for buffer in back.buffers())
    torch.testing.assert_close(back(logits).softmax(1), there(logits.cuda()).softmax(1).cpu(), rtol=0, atol=1e-6)


def test_state_dict_crosses() -> None:
    logits, target = sample()
    there = make_calibrator("vector").fit(logits.cuda(), target.cuda())
    here = make_calibrator("vector")
    here.load_state_dict(there.state_dict())
    assert here.weight.is_cpu
    torch.testing.assert_close(here(logits), there(logits.cuda()).cpu(), rtol=1e-5, atol=1e-5)


def test_cross_fit() -> None:
    logits, target = sample(800, 4)
    methods = ["temperature", "ets", "vector", "platt", "isotonic", "matrix"]
    here, there = (
        compare_calibrators(logits, target, methods),
        compare_calibrators(logits.cuda(), target.cuda(), methods),
    )
    assert there.recommended == here.recommended
    for of in here.methods:
        assert there[of.name].scores == pytest.approx(of.scores, abs=1e-5)
        for metric, change in of.changes.items():
            assert there[of.name].changes[metric].low == pytest.approx(change.low, abs=1e-4)
        assert there[of.name].argmax_changed == pytest.approx(of.argmax_changed, abs=2 / 800)
