"""The host of a training: its random numbers, its settings, what is written down of its speed, who else is there."""

import os
import random
import signal
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import dualfocal.kernels
from dualfocal.models import MODELS
from dualfocal.models.normalization import kernels_on
from dualfocal.runs import Recipe, Run, RunError
from dualfocal.runs.layout import LOCK, LOG
from dualfocal.train import result as train_result
from dualfocal.train import train
from dualfocal.train.distributed import num_cores, processes, rank_and_size
from dualfocal.train.forward import HalfWeights
from dualfocal.train.presets import preset
from dualfocal.train.randomness import host_random_states, set_host_random_states
from dualfocal.train.result import speed_settings, uses_kernels

pytestmark = pytest.mark.usefixtures("quick")


class Draws(nn.Module):
    """Initial weights and noise from Python's and NumPy's generators."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(64, num_classes)
        self.shift = nn.Parameter(torch.tensor([np.random.randn() + random.gauss(0, 1)]).float())

    def forward(self, inputs: Tensor) -> Tensor:
        noise = random.gauss(0, 1) + np.random.randn() if self.training else 0.0
        return self.linear(inputs.flatten(1) + self.shift) * (1 + 0.1 * noise)


def draws(*, num_classes: int) -> nn.Module:
    return Draws(num_classes)


def recipe_of(*settings: str) -> Recipe:
    small = ["epochs=2", "batch_size=200", "data.val_size=100", f"model={__name__}:draws"]
    return preset("digits", [*small, *settings])


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__, sys.modules[draws.__module__]))


def go(recipe: Recipe, out: Path) -> Run:
    return train(recipe, out, device="cpu", progress=False)


def weights(run: Run) -> bytes:
    return (run.path / "model.safetensors").read_bytes()


# Random numbers


def test_all_generators_are_the_seeds_and_the_callers_stay(tmp_path: Path) -> None:
    random.seed(1)
    np.random.seed(1)
    one = go(recipe_of(), tmp_path / "one")
    after = random.random(), np.random.random()
    other = go(recipe_of(), tmp_path / "other")
    assert weights(one) == weights(other)
    assert weights(go(recipe_of("seed=2"), tmp_path / "third")) != weights(one)
    random.seed(1)
    np.random.seed(1)
    assert after == (random.random(), np.random.random())


@pytest.mark.parametrize("step", [2, 5])
def test_they_go_on_in_the_middle_of_an_epoch(step: int, tmp_path: Path, at_step: Any) -> None:
    """Four steps an epoch; a normal number may be in store in either generator."""
    whole = go(recipe_of(), tmp_path / "whole")
    at_step(step, lambda logits: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        go(recipe_of(), tmp_path / "parts")
    random.seed(5)
    np.random.seed(5)
    assert weights(go(recipe_of(), tmp_path / "parts")) == weights(whole)


def test_states_are_kept_to_the_bit() -> None:
    for number in range(4):
        random.gauss(0, 1)
        for _ in range(number):
            np.random.randn()
        states = host_random_states()
        drawn = [(random.gauss(0, 1), random.random(), *np.random.randn(3)) for _ in range(700)]
        random.seed(0)
        np.random.seed(0)
        set_host_random_states(states)
        assert [(random.gauss(0, 1), random.random(), *np.random.randn(3)) for _ in range(700)] == drawn


# Settings of the caller


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_gradients_are_there_whatever_the_caller_has_switched_off(mode: Any, tmp_path: Path) -> None:
    plain = go(recipe_of(), tmp_path / "plain")
    with mode():
        run = go(recipe_of(), tmp_path / "run")
        assert not torch.is_grad_enabled()
    assert weights(run) == weights(plain)


def test_the_callers_default_dtype_is_not_the_models(tmp_path: Path) -> None:
    plain = go(recipe_of(), tmp_path / "plain")
    torch.set_default_dtype(torch.float64)
    try:
        run = go(recipe_of(), tmp_path / "run")
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert {value.dtype for value in load_file(run.path / "model.safetensors").values()} == {torch.float32}
    assert weights(run) == weights(plain)


def test_a_rank_alone_is_that_of_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert rank_and_size() == (0, 1)
    with processes("cpu") as group:
        assert group.first
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert rank_and_size() == (1, 2)


def test_cores_are_those_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3}, raising=False)
    assert num_cores() == 1
    monkeypatch.delattr(os, "sched_getaffinity")
    assert num_cores() == os.cpu_count()


# What is written down


def test_a_session_says_how_it_ran(tmp_path: Path) -> None:
    result = go(recipe_of(), tmp_path / "run").result.to_dict()
    assert result is not None
    actual = {name: result["sessions"][0][name] for name in ("bfloat16_copies", "batch_norm_kernels", "slowed_by")}
    assert actual == {"bfloat16_copies": False, "batch_norm_kernels": False, "slowed_by": []}


def test_whether_weights_were_copied_at_once_is_said() -> None:
    """They are not, where a trial of it failed, for whatever reason."""
    model = nn.Linear(3, 2)
    recipe = recipe_of().on(torch.device("cpu"))
    group = SimpleNamespace(device=torch.device("cpu"))
    for halves in (HalfWeights(model), None):
        step: Any = SimpleNamespace(
            recipe=recipe, group=group, mode="captured", seconds=1.0, halves=halves, problem="p"
        )
        assert speed_settings(step, model) == {
            "step": "captured",
            "start_up_seconds": 1.0,
            "bfloat16_copies": halves is not None,
            "batch_norm_kernels": False,
            "slowed_by": ["p"],
        }


def test_what_slowed_an_earlier_session_stays_in_the_notes(
    tmp_path: Path, at_step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_step(2, lambda logits: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr(train_result, "slowed_by", lambda *_: "batch norm runs slower")
    with pytest.raises(KeyboardInterrupt):
        go(recipe_of(), tmp_path / "run")
    monkeypatch.setattr(train_result, "slowed_by", lambda *_: None)
    result = go(recipe_of(), tmp_path / "run").result.to_dict()
    assert result is not None
    assert result["notes"] == ["batch norm runs slower"]
    assert [session["slowed_by"] for session in result["sessions"]] == [["batch norm runs slower"], []]


def kernels(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    """A stand-in for the Triton kernels."""
    module = ModuleType("batch_norm")
    vars(module).update(functions)
    monkeypatch.setitem(sys.modules, "dualfocal.kernels.batch_norm", module)
    monkeypatch.setattr(dualfocal.kernels, "batch_norm", module, raising=False)
    monkeypatch.delenv("DUALFOCAL_KERNELS", raising=False)
    kernels_on.cache_clear()


def test_a_full_memory_is_no_verdict_on_our_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    full = [True, False]

    def try_out(device: torch.device) -> None:
        if full.pop(0):
            raise torch.OutOfMemoryError("CUDA out of memory")

    kernels(monkeypatch, try_out=try_out)
    with pytest.raises(torch.OutOfMemoryError):
        kernels_on(torch.device("cuda", 0))
    assert kernels_on(torch.device("cuda", 0)).module is not None
    kernels_on.cache_clear()


@pytest.mark.parametrize(
    ("settings", "step", "used"),
    [
        (["precision=bfloat16"], "captured", True),
        (["precision=bfloat16", "channels_last=false"], "captured", False),
        (["precision=bfloat16"], "compiled", False),
    ],
)
def test_whether_our_kernels_are_in_use(
    settings: list[str], step: str, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def applies(x: Tensor, norm: nn.BatchNorm2d) -> bool:
        assert x.shape[1] == norm.num_features
        return norm.training and x.dtype == torch.bfloat16 and x.is_contiguous(memory_format=torch.channels_last)

    kernels(monkeypatch, try_out=lambda device: None, applies=applies)
    empty = torch.empty
    monkeypatch.setattr(
        train_result.torch, "empty", lambda *given, **options: empty(*given, **(options | {"device": "cpu"}))
    )
    device = torch.device("cuda", 0)
    recipe = preset("cifar10_resnet50", settings).on(device)
    model = MODELS["resnet50"]()
    assert uses_kernels(model.train(), recipe, device, step) == used
    assert not uses_kernels(model.eval(), recipe, device, step)
    assert not uses_kernels(model.train(), recipe, torch.device("cpu"), step)
    kernels_on.cache_clear()


# Files that cannot be written


def test_a_log_that_cannot_be_added_to_is_known_before_an_epoch_is_trained(tmp_path: Path, at_step: Any) -> None:
    run = go(recipe_of(), tmp_path / "run")
    (run.path / "result.json").unlink()
    (run.path / "model.safetensors").unlink()
    (run.path / LOG).unlink()
    (run.path / LOG).mkdir()
    at_step(1, lambda logits: pytest.fail("a step was trained"))
    with pytest.raises(RunError, match=r"run/log\.jsonl: cannot be written: Is a directory"):
        go(recipe_of(), run.path)


def test_a_lock_that_cannot_be_taken_is_named(tmp_path: Path) -> None:
    (tmp_path / "run" / LOCK).mkdir(parents=True)
    with pytest.raises(RunError, match=r"run/\.lock: cannot be written: "):
        go(recipe_of(), tmp_path / "run")
