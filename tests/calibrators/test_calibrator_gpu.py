"""Calibrators give the same results on a GPU as on the CPU."""

import pytest
import torch
from calibrator_cases import NAMES, forced, sample
from case_loops import for_each

from dualfocal.calibrators import (
    TemperatureScaling,
    compare_calibrators,
    load_calibrator,
    make_calibrator,
    save_calibrator,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@for_each(name=NAMES, num_classes=[3, 70], dtype=[torch.float32, torch.float64, torch.bfloat16])
def test_equals_the_cpu(name, num_classes, dtype) -> None:
    logits, target = sample(6000, num_classes, dtype=dtype)
    on_cpu, on_gpu = make_calibrator(name).fit(logits, target), make_calibrator(name).fit(logits.cuda(), target.cuda())
    assert all(buffer.is_cuda for buffer in on_gpu.buffers())
    result = on_gpu(logits.cuda())
    assert result.is_cuda
    torch.testing.assert_close(result.softmax(1).cpu(), on_cpu(logits).softmax(1), rtol=0, atol=1e-5)
    assert on_gpu.report.nll_before == pytest.approx(on_cpu.report.nll_before, abs=1e-6)
    assert on_gpu.report.nll_after == pytest.approx(on_cpu.report.nll_after, abs=1e-6)
    assert on_gpu.report.converged
    # What was fitted on_gpu works on_cpu, and the other way round.
    torch.testing.assert_close(on_gpu.cpu()(logits).softmax(1), on_cpu(logits).softmax(1), rtol=0, atol=1e-5)
    moved = on_cpu.cuda()(logits.cuda()).softmax(1).cpu()
    torch.testing.assert_close(moved, result.softmax(1).cpu(), rtol=0, atol=1e-5)


@for_each(name=NAMES, n=[1, 40])
def test_few_samples(name, n) -> None:
    logits, target = sample(n, 5, dtype=torch.float64)
    on_cpu, on_gpu = forced(name).fit(logits, target), forced(name).fit(logits.cuda(), target.cuda())
    new, _ = sample(100, 5, seed=1)
    torch.testing.assert_close(on_gpu(new.cuda()).softmax(1).cpu(), on_cpu(new).softmax(1), rtol=0, atol=1e-5)


@for_each(num_classes=[3, 70])
def test_grid_is_that_of_the_cpu(num_classes) -> None:
    for seed in range(5):
        logits, target = sample(500, num_classes, sharp=1.0 + seed, seed=seed)
        on_cpu = TemperatureScaling("ece").fit(logits, target).temperature.item()
        assert TemperatureScaling("ece").fit(logits.cuda(), target.cuda()).temperature.item() == on_cpu


def test_files(tmp_path) -> None:
    logits, target = sample()
    on_gpu = make_calibrator("temperature+isotonic").fit(logits.cuda(), target.cuda())
    save_calibrator(on_gpu, tmp_path / "c.npz")
    back = load_calibrator(tmp_path / "c.npz")
    assert all(buffer.is_cpu for buffer in back.buffers())
    torch.testing.assert_close(back(logits).softmax(1), on_gpu(logits.cuda()).softmax(1).cpu(), rtol=0, atol=1e-6)


def test_state_dict_crosses() -> None:
    logits, target = sample()
    on_gpu = make_calibrator("vector").fit(logits.cuda(), target.cuda())
    on_cpu = make_calibrator("vector")
    on_cpu.load_state_dict(on_gpu.state_dict())
    assert on_cpu.weight.is_cpu
    torch.testing.assert_close(on_cpu(logits), on_gpu(logits.cuda()).cpu(), rtol=1e-5, atol=1e-5)


def test_cross_fit() -> None:
    logits, target = sample(800, 4)
    methods = ["temperature", "ets", "vector", "platt", "isotonic", "matrix"]
    on_cpu, on_gpu = (
        compare_calibrators(logits, target, methods),
        compare_calibrators(logits.cuda(), target.cuda(), methods),
    )
    assert on_gpu.recommended == on_cpu.recommended
    for method in on_cpu.methods:
        other = on_gpu[method.name]
        assert other.scores == pytest.approx(method.scores, abs=1e-5)
        for metric, change in method.changes.items():
            assert other.changes[metric].low == pytest.approx(change.low, abs=1e-4)
        assert other.argmax_changed == pytest.approx(method.argmax_changed, abs=2 / 800)
