"""The host of a training: random numbers of Python and NumPy, settings of the caller, and what slowed a session."""

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
from small_runs import assert_same_bytes, go, outcome
from torch import Tensor, nn
from toys import recipe_for

import dualfocal_lab.kernels
from dualfocal_lab.models import MODELS, make_model
from dualfocal_lab.models.normalization import kernels_on
from dualfocal_lab.runs import Recipe
from dualfocal_lab.train import result as train_result
from dualfocal_lab.train.distributed import num_cores, processes, rank_and_size
from dualfocal_lab.train.forward import HalfWeights
from dualfocal_lab.train.presets import preset
from dualfocal_lab.train.randomness import host_random_states, set_host_random_states
from dualfocal_lab.train.result import speed_settings, uses_kernels

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


# Random numbers


def test_all_generators_follow_the_seed_and_the_callers_stay(tmp_path: Path) -> None:
    random.seed(1)
    np.random.seed(1)
    one = go(recipe_of(), tmp_path / "one")
    after = random.random(), np.random.random()
    other = go(recipe_of(), tmp_path / "other")
    assert_same_bytes(one, other)
    assert outcome(go(recipe_of("seed=2"), tmp_path / "third").path) != outcome(one.path)
    random.seed(1)
    np.random.seed(1)
    assert after == (random.random(), np.random.random())


@pytest.mark.parametrize("step", [2, 5])
def test_generators_continue_in_the_middle_of_an_epoch(step: int, tmp_path: Path, at_step: Any) -> None:
    """Four steps an epoch; a normal number may be in store in either generator."""
    whole = go(recipe_of(), tmp_path / "whole")
    at_step(step, lambda logits: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        go(recipe_of(), tmp_path / "parts")
    random.seed(5)
    np.random.seed(5)
    assert_same_bytes(go(recipe_of(), tmp_path / "parts"), whole)


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
def test_a_caller_without_gradients_can_train(mode: Any, tmp_path: Path) -> None:
    plain = go(recipe_of(), tmp_path / "plain")
    with mode():
        run = go(recipe_of(), tmp_path / "run")
        assert not torch.is_grad_enabled()
    assert_same_bytes(run, plain)


def test_the_callers_default_dtype_is_not_the_models(tmp_path: Path) -> None:
    plain = go(recipe_of(), tmp_path / "plain")
    torch.set_default_dtype(torch.float64)
    try:
        run = go(recipe_of(), tmp_path / "run")
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert {value.dtype for value in load_file(run.path / "model.safetensors").values()} == {torch.float32}
    assert_same_bytes(run, plain)


def surroundings() -> dict[str, Any]:
    """What belongs to the caller, in a form that can be compared."""
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": [str(part) for part in np.random.get_state()],
        "python": random.getstate(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "benchmark": torch.backends.cudnn.benchmark,
        "cudnn": (torch.backends.cudnn.deterministic, torch.backends.cudnn.allow_tf32),
        "matmul": torch.get_float32_matmul_precision(),
        "dtype": torch.get_default_dtype(),
        "grad": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "threads": torch.get_num_threads(),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "folder": os.getcwd(),
        "path": list(sys.path),
        "environment": dict(os.environ),
    }


@pytest.fixture
def unusual() -> Any:
    """Settings that are not the defaults."""
    before = torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = True
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = before


@pytest.mark.usefixtures("unusual")
@pytest.mark.parametrize("model", ["with_dropout", "broken"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_surroundings_are_left_alone(deterministic: bool, model: str, toy: Path, tmp_path: Path) -> None:
    recipe = recipe_for(
        toy, model=f"toys:{model}", deterministic=deterministic, precision="bfloat16", clip_norm=None, epochs=1
    )
    make_model("toys:perceptron", num_classes=2, in_channels=2)  # imports what is imported once
    before = surroundings()
    if model == "broken":
        with pytest.raises(ValueError, match=r"model toys:broken fails in training .*: no way through"):
            go(recipe, tmp_path / "run")
    else:
        go(recipe, tmp_path / "run")
    assert surroundings() == before


def test_a_rank_without_a_world_size_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert rank_and_size() == (0, 1)
    with processes("cpu") as group:
        assert group.first
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert rank_and_size() == (1, 2)


def test_only_usable_cores_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3}, raising=False)
    assert num_cores() == 1
    monkeypatch.delattr(os, "sched_getaffinity")
    assert num_cores() == os.cpu_count()


# What is recorded


def test_a_session_says_how_it_ran(tmp_path: Path) -> None:
    """Weights are not copied at once where a trial of it failed."""
    session = go(recipe_of(), tmp_path / "run").result.sessions[0]
    settings = [session[name] for name in ("bfloat16_copies", "batch_norm_kernels", "slowed_by")]
    assert settings == [False, False, []]
    model = nn.Linear(3, 2)
    common = {"recipe": recipe_of().on(torch.device("cpu")), "group": SimpleNamespace(device=torch.device("cpu"))}
    for halves in (HalfWeights(model), None):
        step: Any = SimpleNamespace(**common, mode="captured", seconds=1.0, halves=halves, problem="p")
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
    result = go(recipe_of(), tmp_path / "run").result
    assert result.notes == ["batch norm runs slower"]
    assert [session["slowed_by"] for session in result.sessions] == [["batch norm runs slower"], []]


def kernels(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    """A stand-in for the Triton kernels."""
    module = ModuleType("batch_norm")
    vars(module).update(functions)
    monkeypatch.setitem(sys.modules, "dualfocal_lab.kernels.batch_norm", module)
    monkeypatch.setattr(dualfocal_lab.kernels, "batch_norm", module, raising=False)
    monkeypatch.delenv("DUALFOCAL_KERNELS", raising=False)
    kernels_on.cache_clear()


def test_a_full_memory_does_not_switch_off_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    full = [True, False]

    def try_out(device: torch.device) -> None:
        if full.pop(0):
            raise torch.OutOfMemoryError("CUDA out of memory")

    kernels(monkeypatch, try_out=try_out)
    with pytest.raises(torch.OutOfMemoryError):
        kernels_on(torch.device("cuda", 0))
    assert kernels_on(torch.device("cuda", 0)).module is not None
    kernels_on.cache_clear()


def test_whether_the_kernels_are_used_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def applies(x: Tensor, norm: nn.BatchNorm2d) -> bool:
        assert x.shape[1] == norm.num_features
        return norm.training and x.dtype == torch.bfloat16 and x.is_contiguous(memory_format=torch.channels_last)

    kernels(monkeypatch, try_out=lambda device: None, applies=applies)
    empty = torch.empty
    monkeypatch.setattr(
        train_result.torch, "empty", lambda *sizes, **options: empty(*sizes, **(options | {"device": "cpu"}))
    )
    device, model = torch.device("cuda", 0), MODELS["resnet50"]()
    for case in (
        (["precision=bfloat16"], "captured", True),
        (["precision=bfloat16", "channels_last=false"], "captured", False),
        (["precision=bfloat16"], "compiled", False),
    ):
        settings, step, used = case
        recipe = preset("cifar10_resnet50", settings).on(device)
        assert uses_kernels(model.train(), recipe, device, step) == used, case
        assert not uses_kernels(model.eval(), recipe, device, step), case
        assert not uses_kernels(model.train(), recipe, torch.device("cpu"), step), case
    kernels_on.cache_clear()
