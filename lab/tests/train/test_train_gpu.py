"""Training on a GPU: the same bits each time where that is asked for, the CPU's result nearly, and no NaN unnoticed."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_runs import assert_same_bytes, outcome
from torch import Tensor

from dualfocal_lab.models.normalization import kernels_on
from dualfocal_lab.runs import Recipe, Run
from dualfocal_lab.train import DivergedError, train
from dualfocal_lab.train.presets import preset

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:results on CUDA are not reproducible"),
]
AtStep = Callable[[int, Callable[[Tensor], Any]], None]


def digits(*settings: str) -> Recipe:
    return preset("digits", ["epochs=2", "lr=0.1", *settings])


def go(recipe: Recipe, out: Path, device: str = "cuda") -> Run:
    return train(recipe, out, device=device, progress=False)


@pytest.mark.filterwarnings("error:results on CUDA are not reproducible")
@pytest.mark.parametrize(
    "settings",
    [(), ("precision=bfloat16", "channels_last=true", "clip_norm=2", "reduction=sum"), ("optimizer=adam", "lr=0.002")],
)
def test_deterministic_gives_the_same_bytes(settings: tuple[str, ...], tmp_path: Path) -> None:
    recipe = digits("deterministic=true", *settings)
    runs = [go(recipe, tmp_path / name) for name in ("one", "two")]
    assert_same_bytes(*runs)
    assert runs[0].result.notes == []
    assert runs[0].result.device == torch.cuda.get_device_name()
    other = go(digits("deterministic=true", *settings, "seed=2"), tmp_path / "other")
    assert outcome(other.path)[2] != outcome(runs[0].path)[2]


@pytest.mark.filterwarnings("ignore:weights=best_nll uses the validation split")
@pytest.mark.parametrize("step", [3, 6, 8], ids=["in the first epoch", "at its end", "in the second epoch"])
def test_interrupted_gives_the_same_bytes(step: int, tmp_path: Path, at_step: AtStep) -> None:
    recipe = digits("deterministic=true", "clip_norm=2", "weights=best_nll", "step=eager")  # at_step sees each
    whole = go(recipe, tmp_path / "whole")
    at_step(step, lambda logits: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        go(recipe, tmp_path / "parts")
    run = go(recipe, tmp_path / "parts")
    assert_same_bytes(whole, run)
    assert len(run.result.sessions) == 2


def test_not_deterministic_says_so(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="not reproducible to the bit; set deterministic=true"):
        run = go(digits("epochs=1"), tmp_path / "run")
    assert ["deterministic=true" in note for note in run.result.notes] == [True]


@pytest.mark.parametrize("loss", ["dual_focal", "ada_dual_focal"])
@pytest.mark.filterwarnings("ignore:loss ada_dual_focal uses the validation split")
def test_one_epoch_is_nearly_that_of_the_cpu(loss: str, tmp_path: Path) -> None:
    recipe = digits("epochs=1", f"loss={loss}", "precision=float32")
    gpu, cpu = (go(recipe, tmp_path / device, device) for device in ("cuda", "cpu"))
    torch.testing.assert_close(gpu.predictions()[0], cpu.predictions()[0], rtol=5e-3, atol=2e-3)
    assert torch.equal(gpu.predictions()[1], cpu.predictions()[1])
    for name in ("train_loss", "val_nll", "val_loss", "val_p_k", "val_p_j"):
        assert gpu.log[0][name] == pytest.approx(cpu.log[0][name], rel=1e-3)
    if loss == "ada_dual_focal":
        assert gpu.log[0]["gamma"] == pytest.approx(cpu.log[0]["gamma"], rel=2e-2)


def test_float64_is_that_of_the_cpu(tmp_path: Path) -> None:
    settings = ("precision=float64", "clip_norm=2", "reduction=sum", "lr=0.01")
    gpu, cpu = (go(digits(*settings), tmp_path / device, device) for device in ("cuda", "cpu"))
    for name, weight in load_file(cpu.path / "model.safetensors").items():
        actual = load_file(gpu.path / "model.safetensors")[name]
        assert actual.dtype == torch.float64
        torch.testing.assert_close(actual, weight, rtol=1e-7, atol=1e-9)
    assert gpu.log[-1]["grad_norm"] == pytest.approx(cpu.log[-1]["grad_norm"], rel=1e-7)


def test_bfloat16_in_channels_last_trains(tmp_path: Path) -> None:
    run = go(digits("precision=bfloat16", "channels_last=true", "epochs=20", "lr=0.15"), tmp_path / "run")
    assert run.result.parts["test"].error < 0.21  # as on the CPU
    stored = load_file(run.path / "predictions.safetensors")
    assert stored["test_logits"].dtype == torch.float32
    assert not torch.equal(stored["test_logits"], stored["test_logits"].bfloat16().float())
    assert {weight.dtype for weight in load_file(run.path / "model.safetensors").values()} == {torch.float32}


def test_batch_norm_is_done_by_our_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are tried out at the first batch norm of all, in an evaluation."""
    # Not at the top: triton must not be imported before the kernel tests have chosen its interpreter.
    batch_norm = pytest.importorskip("dualfocal_lab.kernels.batch_norm")
    calls = []
    batch_norm_of = batch_norm.batch_norm_of
    monkeypatch.setattr(batch_norm, "batch_norm_of", lambda *given: calls.append(given) or batch_norm_of(*given))
    kernels_on.cache_clear()
    run = go(digits("model=densenet40", "precision=bfloat16", "channels_last=true", "epochs=1"), tmp_path / "run")
    assert calls
    assert run.result.sessions[-1]["batch_norm_kernels"]
    assert ["deterministic=true" in note for note in run.result.notes] == [True]


@pytest.mark.parametrize(("step", "epoch", "in_epoch"), [(3, 1, 3), (10, 2, 4)])
def test_nan_is_noticed_at_the_end_of_the_epoch(
    step: int, epoch: int, in_epoch: int, tmp_path: Path, at_step: AtStep
) -> None:
    """Nobody waits for the device each step; the step is told all the same."""
    at_step(step, lambda logits: logits * float("nan"))
    with pytest.raises(DivergedError, match=f"loss is nan in epoch {epoch}, step {in_epoch} of 6") as caught:
        go(digits("epochs=3", "step=eager"), tmp_path / "run")
    run = Run(tmp_path / "run")
    assert run.failure == caught.value.report
    assert (run.failure["epoch"], run.failure["step"]) == (epoch, in_epoch)
    assert len(run.log) == epoch - 1
    assert run.failure["checkpoint_of_epoch"] == (epoch - 1 or None)
    assert run.failure["recent_losses"][-1] is None
    assert all(loss is not None for loss in run.failure["recent_losses"][:-1])
    assert len(run.failure["batch"]["samples"]) == 100


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("deterministic", ["true", "false"])
def test_random_numbers_and_settings_of_the_caller_stay(device: str, deterministic: str, tmp_path: Path) -> None:
    torch.cuda.manual_seed(123)
    torch.rand(3, device="cuda")

    def settings() -> tuple[Any, ...]:
        cudnn = torch.backends.cudnn
        flags = cudnn.benchmark, cudnn.deterministic, torch.are_deterministic_algorithms_enabled()
        products = cudnn.conv.fp32_precision, torch.backends.cuda.matmul.fp32_precision
        return torch.get_rng_state().tolist(), torch.cuda.get_rng_state().tolist(), flags, products

    before = settings()
    go(digits("epochs=1", f"deterministic={deterministic}", "precision=float32"), tmp_path / "run", device)
    assert settings() == before
