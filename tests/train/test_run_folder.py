"""The run folder: what it says, what it refuses, and that what is in it stays whole."""

import ctypes
import errno
import json
import os
import resource
import signal
import struct
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from dualfocal.cli import main
from dualfocal.data import load_data
from dualfocal.runs import Recipe, Run, RunError, find_runs
from dualfocal.runs import run as run_folder
from dualfocal.train import DivergedError, engine, train
from dualfocal.train.checkpoint import KEY
from dualfocal.train.presets import preset
from dualfocal.train.randomness import make_batches

TIMING = ("seconds", "images_per_second")
SMALL = ["epochs=4", "batch_size=200", "data.val_size=100", "data.val2_size=100"]  # 3 steps an epoch
pytestmark = pytest.mark.usefixtures("nets", "quick")


class Killed(BaseException):
    """The process is gone."""


def small(*settings: str) -> Recipe:
    return preset("digits", [*SMALL, "model=nets_for_tests:dropout", "weights=best_nll", *settings])


def go(recipe: Recipe, out: Path, **options: Any) -> Run:
    return train(recipe, out, device="cpu", progress=False, **options)


def outcome(folder: Path) -> tuple[list[dict[str, Any]], bytes, bytes]:
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    kept = [{name: of for name, of in line.items() if name not in TIMING} for line in lines]
    return kept, (folder / "predictions.safetensors").read_bytes(), (folder / "model.safetensors").read_bytes()


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """All that could be changed; the lock file is touched by everyone who wants it."""
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir() if path.name != ".lock"
    }


@pytest.fixture
def finished(tmp_path) -> Path:
    return go(small(), tmp_path / "finished").path


@pytest.fixture
def stopped(tmp_path, monkeypatch) -> Path:
    """A run of two epochs, of which the process was killed in the third."""

    def killed(self, line) -> None:
        if line["epoch"] == 3:
            raise Killed
        append(self, line)

    append = Run.append
    with monkeypatch.context() as patch:
        patch.setattr(Run, "append", killed)
        with pytest.raises(Killed):
            go(small(), tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def expected(tmp_path):
    return outcome(go(small(), tmp_path / "whole").path)


# The log.


@pytest.mark.parametrize(
    "more",
    [
        b'{"schema": 1, "epo',
        b'{"schema": 1, "epoch": 3}',  # whole, but for the end of the line
        b'{"schema": 1, "epoch": 3, "lr": 1}\n{"schema": 1, "epoch": 4}\n{"schema": 1, "ep',
        b"\0" * 100,
        b"\0" * 100 + b"\n",
        b"\xff\xfe garbage \n\n\r\n[]\n",
        b"\n",
    ],
    ids=["half", "no end", "epochs", "zeros", "line of zeros", "garbage", "empty line"],
)
def test_what_no_checkpoint_bears_out_is_cut_off_the_log(stopped, expected, more) -> None:
    with (stopped / "log.jsonl").open("ab") as file:
        file.write(more)
    assert [line["epoch"] for line in Run(stopped).log][:2] == [1, 2]
    assert outcome(go(small(), stopped).path) == expected


@pytest.mark.parametrize(
    ("keep", "problem"),
    [
        (lambda lines: lines[:1], "has 1 epochs, but the checkpoint is of epoch 2"),
        (lambda lines: [lines[0], lines[1][:-1]], "has 1 epochs, but the checkpoint is of epoch 2"),
        (lambda lines: lines[1:], "has 0 epochs, but the checkpoint is of epoch 2"),
        (lambda lines: [lines[0], b"garbage\n", lines[1]], "has 1 epochs, but the checkpoint is of epoch 2"),
        (lambda lines: [], "has 0 epochs, but the checkpoint is of epoch 2"),
        (None, "has 0 epochs, but the checkpoint is of epoch 2"),
    ],
)
def test_a_log_that_lacks_epochs_is_an_error_and_left_alone(stopped, keep, problem) -> None:
    path = stopped / "log.jsonl"
    path.write_bytes(b"".join(keep(path.read_bytes().splitlines(keepends=True)))) if keep else path.unlink()
    before = contents(stopped)
    with pytest.raises(RunError) as error:
        go(small(), stopped)
    assert str(error.value) == f"{path}: {problem}"
    assert contents(stopped) == before


# Disks.


@contextmanager
def files_up_to(size: int):
    """A disk that is full soon."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_on_the_command_line(stopped, expected, capsys) -> None:
    before = (stopped / "checkpoint.safetensors").read_bytes()
    with files_up_to(len(before) // 2), pytest.raises(SystemExit) as ended:
        main(["train", str(stopped), "--out", str(stopped), "--device", "cpu"])
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    resumed, problem = err.splitlines()
    assert resumed == "resuming after epoch 2 of 4"
    assert problem.startswith(f"dualfocal: {stopped / 'checkpoint.safetensors'}: cannot be written: ")
    assert "File too large" in problem
    assert sorted(contents(stopped)) == ["checkpoint.safetensors", "log.jsonl", "recipe.json"]
    assert (stopped / "checkpoint.safetensors").read_bytes() == before
    assert outcome(go(small(), stopped).path) == expected


@pytest.mark.parametrize(("size", "name"), [(0, "recipe.json"), (50, "recipe.json"), (1000, "checkpoint.safetensors")])
def test_a_disk_that_is_full_from_the_start(tmp_path, expected, size, name) -> None:
    with files_up_to(size), pytest.raises(RunError) as error:
        go(small(), tmp_path / "run")
    assert str(error.value).startswith(f"{tmp_path / 'run' / name}: cannot be written: ")
    assert "File too large" in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert not {path.name for path in (tmp_path / "run").iterdir()} - {".lock", "recipe.json", "log.jsonl"}
    assert outcome(go(small(), tmp_path / "run").path) == expected


def test_a_disk_that_is_full_when_predictions_are_written(stopped, expected, monkeypatch) -> None:
    def full(tensors, path, metadata=None) -> None:
        if "test_logits" not in tensors:
            return save(tensors, path, metadata)
        with files_up_to(1000):
            return save(tensors, path, metadata)

    save = run_folder.save_file
    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "save_file", full)
        with pytest.raises(RunError, match=r"/predictions\.safetensors: cannot be written: "):
            go(small(), stopped)
    assert sorted(contents(stopped)) == ["checkpoint.safetensors", "log.jsonl", "recipe.json"]
    assert outcome(go(small(), stopped).path) == expected


def test_a_disk_that_is_full_in_the_middle_of_a_line(stopped, expected, monkeypatch) -> None:
    size = (stopped / "log.jsonl").stat().st_size
    before = (stopped / "checkpoint.safetensors").read_bytes()
    append = Run.append

    def full(self, line) -> None:
        with files_up_to(size + 20):
            append(self, line)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "append", full)
        with pytest.raises(RunError, match=r"^\S+/run/log\.jsonl: cannot be written: File too large$"):
            go(small(), stopped)
    assert (stopped / "log.jsonl").stat().st_size == size + 20
    assert (stopped / "checkpoint.safetensors").read_bytes() == before
    assert outcome(go(small(), stopped).path) == expected


def test_a_disk_that_is_full_when_the_log_is_seen_onto_it(stopped, expected, monkeypatch) -> None:
    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunError, match=r"^\S+/run/log\.jsonl: cannot be written: No space left on device$"):
            go(small(), stopped)
    assert outcome(go(small(), stopped).path) == expected


def test_a_folder_that_cannot_be_made_is_told_in_one_line(tmp_path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(RunError, match=r"^\S+/file/run: cannot be written: Not a directory$"):
        go(small(), tmp_path / "file" / "run")
    with pytest.raises(RunError, match=r"^\S+/file: must be a folder, but is a file$"):
        go(small(), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to_is_told_in_one_line(tmp_path) -> None:
    (tmp_path / "run").mkdir(mode=0o555)
    with pytest.raises(RunError, match=r"^\S+/run: cannot be written: Permission denied$"):
        go(small(), tmp_path / "run")


def test_the_file_that_cannot_be_written_is_named_once(stopped, monkeypatch) -> None:
    def refuse(self, **_) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(RunError) as error:
        go(small(), stopped)
    assert str(error.value) == f"{stopped / 'checkpoint.safetensors'}: cannot be written: Permission denied"


# One process at a time.


def test_while_another_process_trains_nothing_is_changed(stopped) -> None:
    before = contents(stopped)
    with FileLock(stopped / ".lock"):
        assert Run(stopped).state == "running"
        with pytest.raises(RunError) as error:
            go(small(), stopped)
        assert str(error.value) == f"{stopped}: another process is training there"
        assert contents(stopped) == before
    assert Run(stopped).state == "stopped"


def test_the_folder_is_locked_while_it_is_trained_in(tmp_path, at_step) -> None:
    states = []

    def look(_: object) -> None:
        states.append(Run(tmp_path / "run").state)
        with pytest.raises(RunError, match="another process is training there"):
            go(small(), tmp_path / "run")

    at_step(5, look)
    go(small(), tmp_path / "run")
    assert states == ["running"]


def test_the_lock_of_a_killed_process_is_no_obstacle(stopped, expected) -> None:
    (stopped / ".lock").touch()
    assert Run(stopped).state == "stopped"
    assert outcome(go(small(), stopped).path) == expected
    assert not (stopped / ".lock").exists()


def test_a_run_that_another_process_finishes_meanwhile_is_left_alone(tmp_path, monkeypatch) -> None:
    before = {}

    def slow(*arguments, **options):
        if not before:
            before[""] = None
            before.update(contents(go(small(), tmp_path / "run").path))
        return load_data(*arguments, **options)

    monkeypatch.setattr(engine, "load_data", slow)
    run = go(small(), tmp_path / "run")
    del before[""]
    assert contents(run.path) == before


def test_temporary_files_of_killed_processes_are_removed(stopped) -> None:
    for name in (".0123456789abcdef.safetensors", ".fedcba9876543210.json", ".0000000000000000"):
        (stopped / name).write_bytes(b"half")
    kept = {".0123456789abcdef0.json", ".0123456789ABCDEF.json", "0123456789abcdef.json", ".hidden", ".gitignore"}
    for name in kept:
        (stopped / name).write_bytes(b"precious")
    (stopped / ".aaaaaaaaaaaaaaaa").mkdir()
    go(small(), stopped)
    hidden = {path.name for path in stopped.iterdir() if path.name.startswith((".", "0"))}
    assert hidden == kept | {".aaaaaaaaaaaaaaaa"}


@contextmanager
def names_created(folder: Path):
    """The names of all files that come to be in a folder, however short their lives."""
    libc = ctypes.CDLL(None, use_errno=True)
    watch, names = libc.inotify_init1(os.O_NONBLOCK), set()
    in_create, in_moved_to = 0x100, 0x80
    assert libc.inotify_add_watch(watch, os.fsencode(folder), in_create | in_moved_to) > 0
    try:
        yield names
        actual = os.read(watch, 2**20)
        while actual:
            length = struct.unpack("iIII", actual[:16])[3]
            names.add(os.fsdecode(actual[16 : 16 + length].rstrip(b"\0")))
            actual = actual[16 + length :]
    finally:
        os.close(watch)


@pytest.mark.skipif(sys.platform != "linux", reason="needs inotify")
def test_every_file_that_a_killed_process_can_leave_is_removed(tmp_path, stopped) -> None:
    (tmp_path / "run2").mkdir()
    with names_created(tmp_path / "run2") as names:
        run = go(small(), tmp_path / "run2")
    final = set(contents(run.path))
    assert final < names
    for name in names - final - {"checkpoint.safetensors"}:
        (stopped / name).write_bytes(b"half")
    go(small(), stopped)
    assert {path.name for path in stopped.iterdir()} == final


# Losses that do not stay finite.


def huge_at(path: Path, place: int) -> None:
    """Data of which one training sample is too large for float32 once it is multiplied by 10."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5)).astype(np.float32)
    x[place] = [3e38, -3e38, 3e38, -3e38, 3e38]
    others = {f"x_{part}": x[:9] * 0 for part in ("val", "test")} | {
        f"y_{part}": np.arange(9) % 3 for part in ("val", "test")
    }
    np.savez(path, x_train=x, y_train=rng.integers(0, 3, 60), **others)


def strict(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(), parse_constant=pytest.fail)


def test_a_sample_that_breaks_the_loss_is_found(tmp_path) -> None:
    huge_at(tmp_path / "own.npz", place=17)
    settings = {"loss": "cross_entropy", "epochs": 2, "batch_size": 10, "milestones": ()}
    recipe = Recipe(data="own.npz", model="nets_for_tests:loud", **settings)
    batches = make_batches(recipe, load_data("own.npz"), epoch=0)
    step = next(i for i, batch in enumerate(batches) if 17 in batch)
    with pytest.raises(DivergedError) as error:
        go(recipe, tmp_path / "run")
    report = strict(tmp_path / "run" / "failure.json")
    assert Run(tmp_path / "run").failure == error.value.report == report
    assert Run(tmp_path / "run").state == "failed"
    message = str(error.value)
    assert f"in epoch 1, step {step + 1} of 6, at a learning rate of 0.1; no checkpoint was saved yet; " in message
    assert str(tmp_path / "run" / "failure.json") in message
    assert len(message.splitlines()) == 1
    assert report["what"] in ("the loss is nan", "the loss is inf")
    assert (report["schema"], report["epoch"], report["step"], report["steps"]) == (1, 1, step + 1, 6)
    assert (report["lr"], report["checkpoint_of_epoch"]) == (0.1, None)
    assert len(report["recent_losses"]) == step + 1
    assert report["recent_losses"][-1] is None
    assert all(loss > 0 for loss in report["recent_losses"][:-1])
    assert len(report["recent_grad_norms"]) == step
    assert report["weight_norm"] > 0
    batch = report["batch"]
    assert batch["samples"] == batches[step].tolist()
    assert batch["targets"] == load_data("own.npz").target[batches[step]].tolist()
    assert batch["inputs"]["max"] == -batch["inputs"]["min"] == float(np.float32(3e38))
    assert (batch["inputs"]["not_finite"], batch["inputs"]["shape"]) == (0, [10, 5])
    assert batch["inputs"]["mean"] == pytest.approx(3e38 / 50, rel=1e-6)
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert sorted(contents(tmp_path / "run")) == ["failure.json", "recipe.json"]


def test_a_learning_rate_far_too_high_is_told_with_epoch_and_step(tmp_path) -> None:
    with pytest.raises(DivergedError) as error:
        go(small("lr=1e38", "model=nets_for_tests:dense"), tmp_path / "run")
    report = strict(tmp_path / "run" / "failure.json")
    assert report["epoch"] == 1
    assert report["step"] in (2, 3)
    assert f"in epoch 1, step {report['step']} of 3, at a learning rate of 1e+38; " in str(error.value)


def test_the_last_checkpoint_outlives_a_loss_that_is_not_finite(tmp_path, at_step, expected) -> None:
    checkpoints = []

    def spoil(logits: torch.Tensor) -> torch.Tensor:
        checkpoints.append((tmp_path / "run" / "checkpoint.safetensors").read_bytes())
        return logits * torch.nan

    at_step(8, spoil)
    with pytest.raises(
        DivergedError, match=r"the loss is nan in epoch 3, step 2 of 3, .*; the checkpoint of epoch 2 is"
    ):
        go(small(), tmp_path / "run")
    assert [(tmp_path / "run" / "checkpoint.safetensors").read_bytes()] == checkpoints
    assert all(tensor.isfinite().all() for tensor in load_file(tmp_path / "run" / "checkpoint.safetensors").values())
    run = Run(tmp_path / "run")
    assert (run.state, len(run.log), run.failure["checkpoint_of_epoch"]) == ("failed", 2, 2)
    assert len(run.failure["recent_losses"]) == 2
    assert outcome(go(small(), run.path).path) == expected  # it was not the recipe's fault
    assert (run.state, run.failure) == ("finished", None)


def test_recent_losses_are_those_before_the_failure(tmp_path, at_step) -> None:
    at_step(19, lambda logits: logits * torch.inf)
    with pytest.raises(DivergedError):
        go(small("batch_size=25", "clip_norm=1"), tmp_path / "run")
    failure = strict(tmp_path / "run" / "failure.json")
    assert (failure["step"], failure["steps"]) == (19, 24)
    assert [loss is None for loss in failure["recent_losses"]] == [False] * 9 + [True]
    assert len(failure["recent_grad_norms"]) == 10
    assert all(norm > 0 for norm in failure["recent_grad_norms"])


def test_a_failure_after_an_interruption_counts_the_steps_of_the_epoch(tmp_path, at_step) -> None:
    at_step(4, lambda _: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        go(small(), tmp_path / "run")
    at_step(2, lambda logits: logits * torch.nan)
    with pytest.raises(DivergedError, match=r"in epoch 2, step 3 of 3, .*; the checkpoint of epoch 1 is kept"):
        go(small(), tmp_path / "run")
    failure = strict(tmp_path / "run" / "failure.json")
    batches = make_batches(small(), load_data("digits", **small().data_options), epoch=1)
    assert failure["batch"]["samples"] == batches[2].tolist()
    assert [loss is None for loss in failure["recent_losses"]] == [False, False, True]


def test_a_checkpoint_in_the_middle_of_the_first_epoch_is_told_of(tmp_path, at_step) -> None:
    at_step(1, lambda _: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        go(small(), tmp_path / "run")
    at_step(1, lambda logits: logits * torch.nan)
    with pytest.raises(DivergedError) as error:
        go(small(), tmp_path / "run")
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert "the checkpoint of epoch 0 is kept" in str(error.value)


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_weights_that_the_last_step_of_an_epoch_spoils_do_not_reach_a_checkpoint(
    tmp_path, after_update, expected, value
) -> None:
    checkpoints = []

    def spoil(optimizer: torch.optim.Optimizer) -> None:
        checkpoints.append((tmp_path / "run" / "checkpoint.safetensors").read_bytes())
        with torch.no_grad():
            optimizer.param_groups[0]["params"][0][0, 0] = value

    after_update(6, spoil)
    with pytest.raises(DivergedError, match=r"the weights or predictions are not finite in epoch 2, step 3 of 3, .*"):
        go(small(), tmp_path / "run")
    assert [(tmp_path / "run" / "checkpoint.safetensors").read_bytes()] == checkpoints
    run = Run(tmp_path / "run")
    assert (run.state, len(run.log)) == ("failed", 1)
    failure = strict(tmp_path / "run" / "failure.json")
    assert failure["weight_norm"] is None
    assert failure["batch"]["logits"] is None
    assert outcome(go(small(), run.path).path) == expected


def test_on_the_command_line_a_failure_is_one_line_and_exit_code_1(tmp_path, at_step, capsys) -> None:
    (tmp_path / "recipe.json").write_text(json.dumps(small().to_dict()))
    at_step(2, lambda logits: logits * torch.nan)
    with pytest.raises(SystemExit) as ended:
        main(["train", "recipe.json", "--out", "run", "--device", "cpu"])
    assert ended.value.code == 1
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("dualfocal: run: the loss is nan in epoch 1, step 2 of 3, ")


def test_a_gradient_too_long_for_float32_is_no_crash(tmp_path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5)).astype(np.float32) * 1e20  # their squares are not finite, clipping makes them 0
    np.savez(tmp_path / "own.npz", x_train=x, y_train=np.arange(60) % 3, x_val=x[:9], y_val=np.arange(9) % 3)
    recipe = Recipe(data="own.npz", model="nets_for_tests:loud", loss="cross_entropy", epochs=2, milestones=())
    try:
        run = go(recipe, tmp_path / "run")
    except DivergedError:
        run = Run(tmp_path / "run")
        assert strict(run.path / "failure.json")["epoch"] == 1
    assert run.state in ("finished", "failed")


# Whose folder it is.


def test_another_recipe_is_refused_with_what_differs(stopped) -> None:
    before = contents(stopped)
    with pytest.raises(RunError) as error:
        go(small("epochs=9", "loss.gamma=3", "clip_norm=1.5"), stopped)
    assert str(error.value) == (
        f'{stopped}: was made by another recipe (loss_options: {{}}, not {{"gamma": 3}}; clip_norm: null, not 1.5; '
        "epochs: 4, not 9): choose another folder"
    )
    assert contents(stopped) == before


def test_another_recipe_is_refused_of_a_finished_run(finished) -> None:
    before = contents(finished)
    with pytest.raises(RunError, match=r"another recipe \(seed: 1, not 2\)"):
        go(small("seed=2"), finished)
    assert contents(finished) == before


def test_a_folder_is_its_recipes_before_its_first_epoch_too(tmp_path, at_step) -> None:
    at_step(2, lambda logits: logits * torch.nan)
    with pytest.raises(DivergedError):
        go(small("seed=7"), tmp_path / "run")
    before = contents(tmp_path / "run")
    with pytest.raises(RunError, match=r"was made by another recipe \(seed: 7, not 1\): choose another folder$"):
        go(small(), tmp_path / "run")
    assert contents(tmp_path / "run") == before


@pytest.mark.parametrize("name", ["log.jsonl", "checkpoint.safetensors", "model.safetensors", "result.json"])
def test_a_folder_without_a_recipe_is_refused(tmp_path, name) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("precious")
    assert Run(tmp_path / "run").state == "absent"
    with pytest.raises(RunError) as error:
        go(small(), tmp_path / "run")
    assert (
        str(error.value)
        == f"{tmp_path / 'run'}: is not a run folder, it holds {name} but no recipe.json: choose another folder"
    )
    assert [path.name for path in (tmp_path / "run").iterdir()] == [name]
    assert (tmp_path / "run" / name).read_text() == "precious"


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("notes.txt", ".tmpabc123"):
        (folder / name).write_text("precious")
    with pytest.raises(RunError, match=r"/run: is not a run folder, it holds notes\.txt but no recipe\.json: choose "):
        go(small(), folder)
    assert sorted(path.name for path in folder.iterdir()) == [".tmpabc123", "notes.txt"]
    (folder / "recipe.json").write_text('{"mine": 1}')
    with pytest.raises(ValueError, match=r"recipe\.json: has schema None, "):
        go(small(), folder)
    assert sorted(path.name for path in folder.iterdir()) == [".tmpabc123", "notes.txt", "recipe.json"]


def test_notes_in_a_run_folder_are_left_alone(stopped, expected) -> None:
    (stopped / "notes.txt").write_text("precious")
    assert outcome(go(small(), stopped).path) == expected
    assert (stopped / "notes.txt").read_text() == "precious"


def test_the_rest_of_a_finished_run_is_not_trained_over(finished) -> None:
    (finished / "result.json").unlink()
    before = contents(finished)
    with pytest.raises(RunError, match=r": contains model\.safetensors but no checkpoint\.safetensors"):
        go(small(), finished)
    assert contents(finished) == before


def test_other_inputs_with_the_same_labels_are_other_data(tmp_path, at_step) -> None:
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(60, 64)).astype(np.float32), "y": np.arange(60) % 3}
    recipe = small(
        f"data={tmp_path / 'own.npz'}", "data.val_size=9", "data.val2_size=5", "data.test_size=8", "batch_size=16"
    )
    np.savez(tmp_path / "own.npz", **arrays)
    at_step(2, lambda _: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        go(recipe, tmp_path / "run")
    np.savez(tmp_path / "own.npz", **{**arrays, "x": 1 - 3 * arrays["x"]})
    with pytest.raises(RunError, match="was saved with other data"):
        go(recipe, tmp_path / "run")


def test_by_default_a_recipe_has_a_folder_of_its_own(tmp_path) -> None:
    run, other = train(small(), progress=False), train(small("lr=.1"), progress=False)
    assert run.path.parent == other.path.parent == Path("runs")
    assert run.path.name.startswith("digits-dropout-dual_focal-seed1-")
    assert run.path != other.path
    assert train(small(), progress=False).path == run.path


def test_a_finished_run_is_not_touched_again(finished, monkeypatch) -> None:
    before, of_folder = contents(finished), finished.stat().st_mtime_ns

    def never(*_, **__):
        raise AssertionError("there was nothing to do")

    monkeypatch.setattr(engine, "load_data", never)
    for mode in (0o755, 0o555):
        finished.chmod(mode)
        run = go(small(), finished)
        assert (run.path, run.state) == (finished, "finished")
        assert contents(finished) == before
        assert not (finished / ".lock").exists()
        assert finished.stat().st_mtime_ns == of_folder
    finished.chmod(0o755)


# What it says.


def test_a_run_tells_what_was_done(finished) -> None:
    run = Run(finished)
    assert repr(run) == f"Run({str(finished)!r})"
    assert (run.state, run.recipe, run.failure) == ("finished", small(), None)
    assert [line["epoch"] for line in run.log] == [1, 2, 3, 4]
    assert [line["lr"] for line in run.log] == [small().lr_at(epoch) for epoch in range(4)]
    best = min(run.log, key=lambda line: line["val_nll"])["epoch"]
    assert run.result.weights_of_epoch == best
    assert run.result.epochs == 4
    assert run.result.seconds == sum(line["seconds"] for line in run.log)
    assert run.result.data == "digits: 600 train, 100 val, 100 val2, 997 test; 10 classes; 1 x 8 x 8 float32"
    assert [session["from_epoch"] for session in run.result.sessions] == [1]


@pytest.mark.parametrize(
    "settings", [(), ("precision=float64", "weights=last"), ("model=small_cnn", "channels_last=true")]
)
def test_the_model_gives_the_stored_predictions(tmp_path, settings) -> None:
    run = go(small(*settings, "epochs=2"), tmp_path / "run")
    data, model = load_data("digits", **small().data_options), run.model()
    assert not model.training
    for part in ("val", "test"):
        inputs, target = data.batch(data.splits[part], part=part)
        logits, labels = run.predictions(part)
        assert torch.equal(labels, target)
        with torch.no_grad():
            actual = model(inputs.to(logits.dtype))
        torch.testing.assert_close(actual, logits, rtol=1e-5, atol=1e-5)
    assert torch.equal(run.predictions()[0], run.predictions("test")[0])


def test_a_run_that_is_not_finished_says_so(stopped, tmp_path) -> None:
    run = Run(stopped)
    assert (run.state, run.result, run.failure, len(run.log)) == ("stopped", None, None, 2)
    with pytest.raises(RunError, match=r"/run: is stopped; .*only when a run is finished$"):
        run.model()
    absent = Run(tmp_path / "absent")
    assert (absent.state, absent.result, absent.failure, absent.log) == ("absent", None, None, [])
    with pytest.raises(ValueError, match=r"/absent/recipe\.json: cannot be read: No such file"):
        _ = absent.recipe


def change(path: Path, **changes: Any) -> None:
    """Of a JSON file, or of the last line of a log."""
    *lines, last = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    path.write_text("\n".join([*lines, json.dumps(json.loads(last) | changes)]) + "\n")


@pytest.mark.parametrize("schema", [0, 2, None, "1"])
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("recipe.json", lambda run: run.recipe),
        ("log.jsonl", lambda run: run.log),
        ("result.json", lambda run: run.result),
        ("result.json", lambda run: run.model()),
    ],
)
def test_files_of_another_schema_are_told(finished, name, read, schema) -> None:
    change(finished / name, schema=schema)
    with pytest.raises(ValueError, match=rf"/{name}: .*has schema {schema}, this version of dualfocal reads "):
        read(Run(finished))


def test_other_schemas_are_not_trained_over(stopped) -> None:
    for name in ("log.jsonl", "recipe.json"):
        change(stopped / name, schema=2)
        before = contents(stopped)
        with pytest.raises(ValueError, match=rf"/{name}: .*has schema 2, this version of dualfocal reads "):
            go(small(), stopped)
        assert contents(stopped) == before


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\0\0"])
def test_a_result_that_is_damaged_is_told(finished, text) -> None:
    (finished / "result.json").write_text(text)
    with pytest.raises(RunError, match=r"/result\.json: (is not JSON, or damaged|has schema None)"):
        _ = Run(finished).result


def test_on_the_command_line_a_damaged_result_is_one_line(finished, capsys) -> None:
    change(finished / "result.json", schema=2)
    with pytest.raises(SystemExit) as ended:
        main(["train", str(finished), "--out", str(finished)])
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


# Checkpoints that are none.


def rewrite(path: Path, about: dict[str, Any] | None = None, **tensors: torch.Tensor | None) -> None:
    """The same checkpoint with other metadata or tensors."""
    with safe_open(path, framework="pt") as file:
        known = json.loads(file.metadata()[KEY])
    kept = {name: of for name, of in (load_file(path) | tensors).items() if of is not None}
    actual = {name: of for name, of in (known | (about or {})).items() if of is not ...}
    save_file(kept, path, metadata={KEY: json.dumps(actual)})


def other_weights(path: Path) -> None:
    rewrite(path, **{"model.1.weight": torch.zeros(3, 3)})


DAMAGES = {
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "cut in half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "cut in the header": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "a byte": lambda path: path.write_bytes(b"\0"),
    "text": lambda path: path.write_text("not safetensors" * 100),
    "random bytes": lambda path: path.write_bytes(np.random.default_rng(0).bytes(5000)),
    "zeros": lambda path: path.write_bytes(bytes(5000)),
    "header of any size": lambda path: path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:]),
    "foreign tensors": lambda path: save_file({"a": torch.zeros(1)}, path),
    "foreign metadata": lambda path: save_file({"a": torch.zeros(1)}, path, metadata={"format": "pt"}),
    "metadata of no dictionary": lambda path: save_file({"a": torch.zeros(1)}, path, metadata={KEY: "[]"}),
    "metadata of nothing": lambda path: save_file({"a": torch.zeros(1)}, path, metadata={KEY: "{}"}),
    "field missing": lambda path: rewrite(path, {"epoch": ...}),
    "weights of another shape": other_weights,
    "weights missing": lambda path: rewrite(path, **{"model.1.weight": None}),
    "weights too many": lambda path: rewrite(path, **{"model.9.weight": torch.zeros(1)}),
    "momentum of nothing": lambda path: rewrite(path, **{"optimizer.99.momentum_buffer": torch.zeros(1)}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_left_alone(stopped, damage) -> None:
    path = stopped / "checkpoint.safetensors"
    DAMAGES[damage](path)
    before = contents(stopped)
    with pytest.raises(RunError) as error:
        go(small(), stopped)
    assert str(error.value).startswith(f"{path}: ")
    assert "damaged" in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert contents(stopped) == before
    assert Run(stopped).state == "stopped"


def test_an_empty_checkpoint_is_damaged_too(stopped) -> None:
    (stopped / "checkpoint.safetensors").write_bytes(b"")
    before = contents(stopped)
    with pytest.raises(RunError, match=r"/checkpoint\.safetensors: "):
        go(small(), stopped)
    assert contents(stopped) == before


@pytest.mark.parametrize(
    ("about", "problem"),
    [
        ({"schema": 0}, "has schema 0, but this version of dualfocal reads schema 1"),
        ({"schema": 2}, "has schema 2, but this version of dualfocal reads schema 1"),
        (
            {"data": "letters: 5 train"},
            "was saved with other data: letters: 5 train, now digits: 600 train, 100 val, 100 val2, 997 test; "
            "10 classes; 1 x 8 x 8 float32; 92c503e7",
        ),
    ],
)
def test_a_checkpoint_of_another_schema_or_other_data_is_refused(stopped, about, problem) -> None:
    rewrite(stopped / "checkpoint.safetensors", about)
    before = contents(stopped)
    with pytest.raises(RunError) as error:
        go(small(), stopped)
    assert str(error.value) == f"{stopped / 'checkpoint.safetensors'}: {problem}"
    assert contents(stopped) == before


def test_data_that_have_changed_since_are_noticed(tmp_path, at_step) -> None:
    def write(number: int) -> None:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(number, 5)).astype(np.float32)
        np.savez(tmp_path / "own.npz", x=x, y=np.arange(number) % 3)

    recipe = Recipe(data="own.npz", model="nets_for_tests:loud", epochs=2, milestones=(), batch_size=10)
    write(60)
    at_step(3, lambda _: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        go(recipe, tmp_path / "run")
    write(70)
    with pytest.raises(RunError, match=r"was saved with other data: own: 43 train, .*, now own: 50 train, "):
        go(recipe, tmp_path / "run")


# Many of them.


def test_runs_are_found_below_a_folder(tmp_path) -> None:
    for name in ("b", "a/2", "a/1", "a/1/inner", "c/d/e", "c/d/e2/f", ".hidden/g"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "recipe.json").write_text("{}")
    (tmp_path / "runs" / "empty").mkdir()
    (tmp_path / "runs" / "file").touch()

    def actual(folder: Path, **options: int) -> list[str]:
        return [str(run.path.relative_to(tmp_path)) for run in find_runs(folder, **options)]

    assert actual(tmp_path / "runs") == ["runs/a/1", "runs/a/2", "runs/b", "runs/c/d/e"]
    assert actual(tmp_path / "runs", depth=1) == ["runs/b"]
    assert actual(tmp_path / "runs" / "b") == ["runs/b"]
    assert actual(tmp_path / "runs" / "empty") == actual(tmp_path / "runs" / "file") == actual(tmp_path / "none") == []
