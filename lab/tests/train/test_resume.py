"""A training that was stopped, in whatever way and at whatever moment, ends with the bits of an uninterrupted one."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from small_runs import SMALL, Killed, Outcome, go, outcome

from dualfocal_lab.runs import Recipe, Run
from dualfocal_lab.runs import folder as run_folder
from dualfocal_lab.train import DivergedError, loop
from dualfocal_lab.train.checkpoint import KEY
from dualfocal_lab.train.failure import SIGNALS
from dualfocal_lab.train.presets import preset

FILES = ["log.jsonl", "model.safetensors", "predictions.safetensors", "recipe.json", "result.json"]
RECIPES = {
    "momentum": ["model=nets_for_tests:dense"],
    "adaptive": [
        *("model=nets_for_tests:dropout", "loss=ada_dual_focal", "loss.frozen=false", "weights=best_nll"),
        "clip_norm=1",
    ],
    "adam": ["optimizer=adam", "lr=.01", "model=nets_for_tests:dropout", "weights=best_error"],
    "dropout": ["model=nets_for_tests:dropout", "reduction=sum", "clip_norm=2", "test_each_epoch=yes"],
    "tied": ["model=nets_for_tests:tied", "precision=float64"],
    "channels_last": ["model=small_cnn", "channels_last=true"],
}
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
pytestmark = pytest.mark.usefixtures("nets", "quick")


def small(name: str = "momentum", *settings: str) -> Recipe:
    return preset("digits", [*SMALL, *RECIPES[name], *settings])


def complete_outcome(folder: Path) -> Outcome:
    assert sorted(path.name for path in folder.iterdir()) == FILES
    return outcome(folder)


def position(folder: Path) -> dict[str, Any]:
    with safe_open(folder / "checkpoint.safetensors", framework="pt") as file:
        return json.loads(file.metadata()[KEY])


@pytest.fixture(scope="module")
def uninterrupted() -> dict[tuple[str, ...], Any]:
    return {}


@pytest.fixture
def expected(tmp_path, uninterrupted):
    """``expected(name, ...)``: the outcome of an uninterrupted run, which is trained once."""

    def expected(*settings: str) -> Outcome:
        if settings not in uninterrupted:
            uninterrupted[settings] = complete_outcome(go(small(*settings), tmp_path / "uninterrupted").path)
        return uninterrupted[settings]

    return expected


# Real processes.


@pytest.mark.slow
def test_an_interrupted_process_loses_nothing(tmp_path, expected) -> None:
    settings, out = ("adaptive", "epochs=15", "model=nets_for_tests:slow"), tmp_path / "stopped"
    (tmp_path / "recipe.json").write_text(json.dumps(small(*settings).to_dict()))
    command = [sys.executable, "-m", "dualfocal", "train", "recipe.json", "--device", "cpu", "--out", str(out)]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=ONE_THREAD | {"NAP": "0.1"}, **pipes) as process:
        deadline = time.monotonic() + 120
        while len(Run(out).log) < 2:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.001)
        assert Run(out).state == "running"
        process.send_signal(signal.SIGINT)
        lines = process.communicate()[1].splitlines()
    assert process.returncode == 130
    assert lines[-1] == "dualfocal: stopped; run the same command again to continue"
    assert not any("Traceback" in line for line in lines)
    assert Run(out).state == "stopped"
    assert position(out)["epoch"] == len(Run(out).log) < 15
    assert complete_outcome(go(small(*settings), out).path) == expected(*settings)
    assert len(Run(out).result.sessions) == 2


# Processes that are killed, simulated: the files are as a killed process leaves them.


@pytest.fixture
def kill_at_write(monkeypatch):
    """``kill_at_write(n)``: raise Killed half through the n-th write, counted from 1."""
    append, save_sealed, write_json = Run.append, run_folder.save_sealed, Run.write_json

    def kill_at_write(number: int) -> None:
        writes = 0

        def is_the_one() -> bool:
            nonlocal writes
            writes += 1
            return writes == number

        def half_a_line(self, line) -> None:
            if not is_the_one():
                return append(self, line)
            with (self.path / "log.jsonl").open("a") as file:
                file.write(json.dumps({"schema": 1, **line})[: 10 * number])
            raise Killed

        def half_a_file(tensors, path, metadata=None) -> None:
            if not is_the_one():
                return save_sealed(tensors, path, metadata)
            Path(path).write_bytes(b"half of it")
            (Path(path).parent / f".{number:016x}.safetensors").write_bytes(b"half of it")
            raise Killed

        def no_file(self, name, content) -> None:
            if is_the_one():
                raise Killed
            return write_json(self, name, content)

        monkeypatch.setattr(Run, "append", half_a_line)
        monkeypatch.setattr(run_folder, "save_sealed", half_a_file)
        monkeypatch.setattr(Run, "write_json", no_file)

    return kill_at_write


@pytest.mark.parametrize("name", ["adaptive", "channels_last"])
def test_half_written_files_do_no_harm(tmp_path, kill_at_write, expected, name) -> None:
    whole = expected(name)  # before a write is counted
    for number in range(1, 30):
        kill_at_write(number)
        try:
            go(small(name), tmp_path / "killed")
        except Killed:
            continue
        break
    assert number > 5
    assert complete_outcome(tmp_path / "killed") == whole


@pytest.mark.parametrize("number", [10, 11, 12])
def test_being_killed_after_the_last_epoch_does_no_harm(tmp_path, kill_at_write, expected, number) -> None:
    kill_at_write(number)  # 1 is the recipe, then each epoch has two, then come predictions, model and result
    with pytest.raises(Killed):
        go(small("adaptive"), tmp_path / "killed")
    assert position(tmp_path / "killed")["epoch"] == 4
    assert Run(tmp_path / "killed").state == "stopped"
    assert complete_outcome(go(small("adaptive"), tmp_path / "killed").path) == expected("adaptive")


@pytest.mark.parametrize("name", ["adaptive", "adam"])
def test_a_checkpoint_every_three_epochs(tmp_path, kill_at_write, expected, name) -> None:
    recipe = small(name, "epochs=8")
    kill_at_write(8)  # the recipe, 5 epochs, a checkpoint, half a line of epoch 6
    with pytest.raises(Killed):
        go(recipe, tmp_path / "killed", checkpoint_every=3)
    assert position(tmp_path / "killed")["epoch"] == 3
    assert len(Run(tmp_path / "killed").log) == 5
    kill_at_write(2)
    with pytest.raises(Killed):
        go(recipe, tmp_path / "killed", checkpoint_every=3)
    assert len(Run(tmp_path / "killed").log) == 4
    finished = go(recipe, tmp_path / "killed", checkpoint_every=5)
    assert complete_outcome(finished.path) == expected(name, "epochs=8")
    assert [session["from_epoch"] for session in finished.result.sessions] == [1, 4]


def test_checkpoints_with_a_pause_between_them(tmp_path, kill_at_write, expected, monkeypatch) -> None:
    """Epochs take 10 seconds by this clock, the pause is 25: epochs 3, 6, ... leave a checkpoint."""
    killed = Run(tmp_path / "killed")
    monkeypatch.setattr(loop, "monotonic", lambda: 10.0 * len(killed.log))
    recipe = small("adaptive", "epochs=8")
    kill_at_write(7)  # the recipe, 3 epochs, a checkpoint, epoch 4, half a line of epoch 5
    with pytest.raises(Killed):
        go(recipe, killed.path, checkpoint_pause=25)
    assert position(killed.path)["epoch"] == 3
    assert len(killed.log) == 4
    assert complete_outcome(go(recipe, killed.path, checkpoint_pause=1e9).path) == expected("adaptive", "epochs=8")


def test_a_process_that_is_killed_with_everything_written_leaves_nothing_else(tmp_path, monkeypatch) -> None:
    def killed(self, name, content) -> None:
        write_json(self, name, content)
        if name == "result.json":
            raise Killed

    write_json = Run.write_json
    monkeypatch.setattr(Run, "write_json", killed)
    with pytest.raises(Killed):
        go(small(), tmp_path / "run")
    assert Run(tmp_path / "run").state == "finished"
    assert sorted(path.name for path in go(small(), tmp_path / "run").path.iterdir()) == FILES


# Signals.


def interrupt(_: object) -> None:
    signal.raise_signal(signal.SIGINT)


def terminate(_: object) -> None:
    signal.raise_signal(signal.SIGTERM)


def hang_up(_: object) -> None:
    signal.raise_signal(signal.SIGHUP)


def interrupt_twice(_: object) -> None:
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):  # the second one acts at once
        signal.raise_signal(signal.SIGINT)
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", RECIPES)
def test_ctrl_c_in_the_middle_of_an_epoch_loses_no_step(tmp_path, at_step, expected, name) -> None:
    out = tmp_path / "stopped"
    at_step(4, interrupt)
    with pytest.raises(KeyboardInterrupt):
        go(small(name), out, checkpoint_every=100)
    assert Run(out).state == "stopped"
    assert (position(out)["epoch"], position(out)["step"], len(Run(out).log)) == (1, 1, 1)
    at_step(1, interrupt)
    with pytest.raises(KeyboardInterrupt):
        go(small(name), out, checkpoint_every=100)
    assert (position(out)["epoch"], position(out)["step"], len(Run(out).log)) == (1, 2, 1)
    finished = go(small(name), out)
    assert complete_outcome(finished.path) == expected(name)
    assert len(finished.result.sessions) == 3


@pytest.mark.parametrize(
    ("step", "act", "every", "saved"),
    [
        (1, interrupt, 1, (0, 1)),  # even without an epoch there is a checkpoint
        (5, terminate, 1, (1, 2)),  # a cluster takes its machine back
        (5, hang_up, 1, (1, 2)),  # the terminal is closed
        (6, interrupt, 100, (2, 0)),  # the epoch is finished
        (5, interrupt_twice, 1, (1, 0)),
    ],
    ids=["first step", "SIGTERM", "SIGHUP", "last step of an epoch", "twice"],
)
def test_a_signal_saves_a_checkpoint(tmp_path, at_step, expected, step, act, every, saved) -> None:
    out = tmp_path / "stopped"
    at_step(step, act)
    with pytest.raises((KeyboardInterrupt, SystemExit)) as stopped:
        go(small("dropout"), out, checkpoint_every=every)
    assert getattr(stopped.value, "code", None) == {terminate: 143, hang_up: 129}.get(act)
    assert (position(out)["epoch"], position(out)["step"], len(Run(out).log)) == (*saved, saved[0])
    assert complete_outcome(go(small("dropout"), out).path) == expected("dropout")


def test_another_number_of_threads_is_noted(tmp_path, at_step) -> None:
    at_step(5, interrupt)
    with pytest.raises(KeyboardInterrupt):
        go(small(), tmp_path / "run")
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        run = go(small(), tmp_path / "run")
    finally:
        torch.set_num_threads(threads)
    (note,) = run.result.notes
    assert f"different numbers of threads ({threads}, then {threads + 1})" in note


def test_a_second_ctrl_c_while_the_checkpoint_is_written_leaves_the_one_before(
    tmp_path, at_step, expected, monkeypatch
) -> None:
    save_sealed, out = run_folder.save_sealed, tmp_path / "stopped"

    def save(tensors, path, metadata=None) -> None:
        save_sealed(tensors, path, metadata)
        if "losses" in tensors:  # in the middle of an epoch
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(run_folder, "save_sealed", save)
    at_step(5, interrupt)
    with pytest.raises(KeyboardInterrupt):
        go(small("dropout"), out)
    assert (position(out)["epoch"], position(out)["step"]) == (1, 0)
    assert complete_outcome(go(small("dropout"), out).path) == expected("dropout")


def test_other_threads_train_too(tmp_path, expected) -> None:
    errors = []

    def work() -> None:
        try:
            go(small("dropout"), tmp_path / "thread")
        except BaseException as error:
            errors.append(error)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    thread = threading.Thread(target=work)
    thread.start()
    assert {number: signal.getsignal(number) for number in SIGNALS} == before
    thread.join()
    assert errors == []
    assert complete_outcome(tmp_path / "thread") == expected("dropout")


# What goes into a checkpoint.


def test_the_memory_format_of_weights_and_momentum_survives(tmp_path, at_step, monkeypatch) -> None:
    at_step(5, interrupt)
    with pytest.raises(KeyboardInterrupt):
        go(small("channels_last"), tmp_path / "run")
    optimizers, make, formats = [], loop.make_optimizer, []

    def recorded(*arguments):
        optimizers.append(make(*arguments))
        return optimizers[-1]

    def look(_: object) -> None:
        (optimizer,) = optimizers
        for weight in optimizer.param_groups[0]["params"]:
            if weight.ndim == 4 and weight.shape[1] > 1:
                formats.append(weight.is_contiguous(memory_format=torch.channels_last))
                momentum = optimizer.state[weight]["momentum_buffer"]
                formats.append(momentum.is_contiguous(memory_format=torch.channels_last))
                formats.append(not momentum.is_contiguous())

    monkeypatch.setattr(loop, "make_optimizer", recorded)
    at_step(1, look)
    go(small("channels_last"), tmp_path / "run")
    assert formats == [True, True, True]


def test_tied_weights_stay_tied(tmp_path, at_step, after_update) -> None:
    at_step(4, interrupt)
    with pytest.raises(KeyboardInterrupt):
        go(small("tied"), tmp_path / "run")
    numbers = []
    after_update(1, lambda optimizer: numbers.append(len(optimizer.param_groups[0]["params"])))
    run = go(small("tied"), tmp_path / "run")
    assert numbers == [4]  # a matrix, its two biases, the last
    model = run.model()
    assert model.first.weight is model.second.weight
    with safe_open(run.path / "model.safetensors", framework="pt") as file:
        assert torch.equal(file.get_tensor("first.weight"), file.get_tensor("second.weight"))
        assert torch.equal(file.get_tensor("last"), model.last)


def test_weights_that_are_not_finite_do_not_reach_the_checkpoint_of_an_interrupted_epoch(
    tmp_path, after_update
) -> None:
    def spoil_and_interrupt(optimizer: torch.optim.Optimizer) -> None:
        with torch.no_grad():
            optimizer.param_groups[0]["params"][0].fill_(torch.inf)
        signal.raise_signal(signal.SIGINT)

    after_update(5, spoil_and_interrupt)
    with pytest.raises((KeyboardInterrupt, DivergedError)):
        go(small(), tmp_path / "run")
    with safe_open(tmp_path / "run" / "checkpoint.safetensors", framework="pt") as file:
        assert all(file.get_tensor(name).isfinite().all() for name in file.keys())  # noqa: SIM118 it is no dictionary
