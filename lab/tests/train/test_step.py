"""The captured step, simulated on the CPU: which memory it reads, and what is reported. See also test_step_gpu.py."""

import random
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import assert_same_bytes, go
from torch import Tensor, nn

from dualfocal_lab.runs import Recipe
from dualfocal_lab.train import loop, train
from dualfocal_lab.train.host_state import host_state
from dualfocal_lab.train.presets import preset
from dualfocal_lab.train.step import WARM_UP, CapturedStep, Step, StepResult

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


class Played(CapturedStep):
    """A capture that changes nothing, and a replay that repeats the step on the memory of the capture."""

    replays = 0
    fails_with: Exception | None = None

    def make_ready(self) -> None:
        super().make_ready()
        made.append(self)

    def capture(self) -> bool:
        if self.fails_with is not None:
            self.give_up(str(self.fails_with))
            return False
        index, draws, criterion = self.index, self.draws, self.criterion
        self.result = StepResult(torch.zeros(()), None if self.recipe.clip_norm is None else torch.zeros(()), True)

        def replay() -> None:
            assert self.draws is draws  # what the graph reads is where it was
            assert self.criterion is criterion
            loss, norm, _ = self.take(index, self.fast_loss)
            self.result.loss.copy_(loss)
            if norm is not None:
                self.result.norm.copy_(norm)
            self.replays += 1

        self.graph = SimpleNamespace(replay=replay, reset=lambda: closed.append(self))
        return True


made: list[Played] = []
closed: list[Played] = []


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, quick: None) -> list[Played]:
    """Trainings on the CPU take simulated captured steps, which are listed here."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name, stand_in in {
        "Stream": lambda device: stream,
        "current_stream": lambda device: stream,
        "stream": lambda stream: nullcontext(),
        "synchronize": lambda device: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(loop, "make_step", Played)
    made.clear()
    closed.clear()
    return made


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """45 images to train, with augmentation."""
    rng = np.random.default_rng(0)
    arrays = {f"x_{part}": rng.integers(0, 256, (n, 8, 8, 1), np.uint8) for part, n in (("train", 50), ("test", 9))}
    labels = {f"y_{part}": rng.integers(0, 3, n) for part, n in (("train", 50), ("test", 9))}
    np.savez(tmp_path / "toy.npz", **arrays, **labels)
    return tmp_path / "toy.npz"


def recipe_of(toy: Path, *settings: str) -> Recipe:
    options = {"layout": "NHWC", "padding": 1, "flip": True, "val_size": 5}
    recipe = Recipe(data=str(toy), data_options=options, model="small_cnn", epochs=3, batch_size=8, milestones=(1,))
    return recipe.with_settings(settings)


@pytest.mark.filterwarnings("ignore:loss ada_.* uses the validation split")
@pytest.mark.parametrize(
    "settings", [(), ("loss=ada_dual_focal",), ("optimizer=adam", "lr=1e-3", "clip_norm=none", "reduction=mean")]
)
def test_replays_are_the_steps_they_stand_for(
    settings: tuple[str, ...],
    toy: Path,
    tmp_path: Path,
    played: list[Played],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Over epochs with other draws, another learning rate, other gammas; 5 full batches each and a smaller one."""
    recipe = recipe_of(toy, *settings)
    captured = train(recipe, tmp_path / "captured", device="cpu")
    lines = [line for line in capsys.readouterr().err.splitlines() if "training step is" in line]
    assert len(lines) == 1
    assert lines[0].startswith("the training step is captured")
    assert played[0].replays == 3 * 5 - WARM_UP
    assert closed == played  # the graphs are freed at the end, not at any time
    assert [(s["step"], s["start_up_seconds"] > 0) for s in captured.result.sessions] == [("captured", True)]
    monkeypatch.setattr(loop, "make_step", Step)
    eager = go(recipe, tmp_path / "eager")
    assert_same_bytes(eager, captured)
    assert [(s["step"], s["start_up_seconds"]) for s in eager.result.sessions] == [("eager", 0)]


def test_a_resumed_run_is_captured_anew(
    toy: Path, tmp_path: Path, played: list[Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = go(recipe_of(toy), tmp_path / "whole")
    take = Step.take
    for step in (2, 4, 6, 11):
        steps = 0

        def interrupted(self: Step, *arguments: Any, last: int = step) -> StepResult:
            nonlocal steps
            steps += 1
            if steps == last:
                signal.raise_signal(signal.SIGINT)
            return take(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(Step, "take", interrupted)
            with pytest.raises(KeyboardInterrupt):
                go(recipe_of(toy), tmp_path / f"stopped at {step}")
        run = go(recipe_of(toy), tmp_path / f"stopped at {step}")
        assert_same_bytes(whole, run)
        assert len(run.result.sessions) == 2, step


def test_what_cannot_be_captured_is_trained_eagerly(
    toy: Path,
    tmp_path: Path,
    played: list[Played],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Played, "fails_with", RuntimeError("operation not permitted when stream is capturing"))
    run = train(recipe_of(toy), tmp_path / "run", device="cpu")
    lines = [line for line in capsys.readouterr().err.splitlines() if "cannot be captured" in line]
    assert len(lines) == 1
    assert lines[0].endswith(": operation not permitted when stream is capturing")
    assert run.result.notes[-1:] == lines
    assert run.result.sessions[0]["step"] == "eager"
    monkeypatch.setattr(loop, "make_step", Step)
    assert_same_bytes(go(recipe_of(toy), tmp_path / "eager"), run)


class Net(nn.Module):
    def __init__(self, act: Any) -> None:
        super().__init__()
        self.act, self.steps, self.inner = act, 0, nn.BatchNorm1d(3)
        self.numpy, self.python, self.torch = np.random.default_rng(0), random.Random(0), torch.Generator()
        self.list, self.plain = [0], torch.zeros(3)
        self.register_buffer("kept", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.act(self)
        return self.inner(x)


def count(net: Net) -> None:
    net.steps += 1


HOST_CHANGES = {
    "counts": (count, True),
    "random": (lambda net: random.random(), True),
    "numpy": (lambda net: np.random.rand(), True),
    "torch on the CPU": (lambda net: torch.rand(1), True),
    "custom numpy generator": (lambda net: net.numpy.random(), True),
    "custom random generator": (lambda net: net.python.random(), True),
    "custom torch generator": (lambda net: torch.rand(1, generator=net.torch), True),
    "list": (lambda net: net.list.append(1), True),
    "tensor": (lambda net: net.plain.add_(1), True),
    "another buffer": (lambda net: setattr(net, "kept", net.kept + 1), True),
    "buffer in place": (lambda net: net.kept.add_(1), False),
    "nothing": (lambda net: None, False),
}


def test_what_a_graph_would_not_repeat_is_noticed() -> None:
    for name, (act, noticed) in HOST_CHANGES.items():
        net = Net(act)
        states = []
        for _ in range(2):
            net(torch.randn(4, 3, generator=torch.Generator()))
            states.append(host_state(net))
        assert (states[0] != states[1]) == noticed, name


# What auto means


def digits(**changed: Any) -> Recipe:
    return Recipe(data="digits", model="small_cnn", **changed)


def test_auto_depends_on_the_device() -> None:
    explicit = {"precision": "tf32", "channels_last": False, "step": "compiled"}
    for case in (
        ({}, CPU, 1, ("float32", False, "eager")),
        ({}, CUDA, 1, ("bfloat16", True, "captured")),
        ({}, CUDA, 2, ("bfloat16", True, "eager")),
        ({}, torch.device("mps"), 1, ("float32", False, "eager")),
        (explicit, CUDA, 1, ("tf32", False, "compiled")),
        ({"precision": "bfloat16", "channels_last": True, "step": "eager"}, CPU, 1, ("bfloat16", True, "eager")),
        ({"deterministic": True}, CUDA, 1, ("bfloat16", True, "captured")),
    ):
        changed, device, processes, expected = case
        recipe = digits(**changed).on(device, processes)
        assert (recipe.precision, recipe.channels_last, recipe.step) == expected, case
        assert recipe.on(device, processes) == recipe, case


def test_steps_that_the_device_does_not_have_are_refused(tmp_path: Path) -> None:
    for changed, device, processes, words in (
        ({"step": "compiled"}, CPU, 1, "step=compiled needs CUDA, this is cpu"),
        ({"step": "captured"}, CUDA, 2, "step=captured needs one process, there are 2"),
        ({"step": "compiled", "deterministic": True}, CUDA, 1, "deterministic=true is not available"),
    ):
        with pytest.raises(ValueError, match=words):
            digits(**changed).on(device, processes)
    with pytest.raises(ValueError, match="step=captured needs CUDA, this is cpu"):
        go(preset("digits", ["step=captured"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_run_keeps_the_requested_and_the_actual_settings(tmp_path: Path, quick: None) -> None:
    run = go(preset("digits", ["epochs=1"]), tmp_path / "run")
    assert (run.recipe.precision, run.recipe.channels_last, run.recipe.step) == ("auto", None, "auto")
    session = run.result.sessions[0]
    assert [session[name] for name in ("precision", "channels_last", "step")] == ["float32", False, "eager"]
