"""The run folder: whom it belongs to, what it says, and one process at a time in it."""

import ctypes
import os
import signal
import struct
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import contents, go, outcome, small

from dualfocal_lab.data import load_data
from dualfocal_lab.runs import Run, RunError, find_runs
from dualfocal_lab.runs.lease import Lease
from dualfocal_lab.train import DivergedError, engine, train

pytestmark = pytest.mark.usefixtures("nets", "quick")


# One process at a time.


def test_while_another_process_trains_nothing_is_changed(stopped) -> None:
    before = contents(stopped)
    with Lease(stopped):
        assert Run(stopped).state == "running"
        with pytest.raises(RunError, match="/run: another process is training there"):
            go(small(), stopped)
        assert contents(stopped) == before
    assert Run(stopped).state == "stopped"


def test_the_folder_has_an_owner_while_it_is_trained_in(tmp_path, at_step) -> None:
    states = []

    def look(_: object) -> None:
        states.append(Run(tmp_path / "run").state)
        with pytest.raises(RunError, match="another process is training there"):
            go(small(), tmp_path / "run")

    at_step(5, look)
    go(small(), tmp_path / "run")
    assert states == ["running"]


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


def test_temporary_files_are_removed_but_no_others(stopped, expected) -> None:
    for name in (".0123456789abcdef.safetensors", ".fedcba9876543210.json", ".0000000000000000"):
        (stopped / name).write_bytes(b"half")
    kept = {".0123456789abcdef0.json", ".0123456789ABCDEF.json", "0123456789abcdef.json", ".hidden", "notes.txt"}
    for name in kept:
        (stopped / name).write_bytes(b"precious")
    (stopped / ".aaaaaaaaaaaaaaaa").mkdir()
    assert Run(stopped).state == "stopped"
    assert outcome(go(small(), stopped).path) == expected
    others = {path.name for path in stopped.iterdir() if path.name.startswith((".", "0", "n"))}
    assert others == kept | {".aaaaaaaaaaaaaaaa"}
    assert all((stopped / name).read_bytes() == b"precious" for name in kept)


@contextmanager
def names_created(folder: Path):
    """Collect the names of all files that are created in a folder, however soon they are removed."""
    libc = ctypes.CDLL(None, use_errno=True)
    watch, names = libc.inotify_init1(os.O_NONBLOCK), set()
    in_create, in_moved_to = 0x100, 0x80
    assert libc.inotify_add_watch(watch, os.fsencode(folder), in_create | in_moved_to) > 0
    try:
        yield names
        events = os.read(watch, 2**20)
        while events:
            length = struct.unpack("iIII", events[:16])[3]
            names.add(os.fsdecode(events[16 : 16 + length].rstrip(b"\0")))
            events = events[16 + length :]
    finally:
        os.close(watch)


@pytest.mark.skipif(sys.platform != "linux", reason="needs inotify")
def test_every_file_that_a_killed_process_can_leave_is_removed(tmp_path, stopped) -> None:
    (tmp_path / "run2").mkdir()
    with names_created(tmp_path / "run2") as names:
        run = go(small(), tmp_path / "run2")
    final = set(contents(run.path))
    assert final < names
    others = names - final - {"checkpoint.safetensors"}
    assert len(others) == 2
    for name in others:  # where the claim is prepared, and where it is
        (stopped / name / "0123456789abcdef").mkdir(parents=True)
        (stopped / name / "0123456789abcdef" / "half").write_bytes(b"half")
    go(small(), stopped)
    assert {path.name for path in stopped.iterdir()} == final


@pytest.mark.parametrize(
    "left",
    [["checkpoint.safetensors"], [".0123456789abcdef.json"], [".attempt/0123456789abcdef/a"]],
)
def test_what_a_process_left_that_was_killed_after_the_last_step_is_removed(finished, expected, left) -> None:
    before = set(contents(finished))
    for name in left:
        (finished / name).parent.mkdir(parents=True, exist_ok=True)
        (finished / name).write_bytes(b"")
    go(small(), finished)
    assert {path.name for path in finished.iterdir()} == before
    assert outcome(finished) == expected


# Whose folder it is.


def test_another_recipe_is_refused_with_what_differs(stopped) -> None:
    before = contents(stopped)
    differences = r'loss_options: \{\}, not \{"gamma": 3\}; clip_norm: null, not 1.5; epochs: 4, not 9'
    with pytest.raises(RunError, match=rf"/run: was made by another recipe \({differences}\): choose another folder"):
        go(small("epochs=9", "loss.gamma=3", "clip_norm=1.5"), stopped)
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


def test_a_folder_without_a_recipe_is_refused(tmp_path) -> None:
    for name in ("log.jsonl", "checkpoint.safetensors", "model.safetensors", "result.json"):
        folder = tmp_path / f"with {name}"
        folder.mkdir()
        (folder / name).write_text("precious")
        assert Run(folder).state == "absent", name
        with pytest.raises(RunError, match=rf"/with {name}: is not a run folder.* holds {name} but no recipe\.json"):
            go(small(), folder)
        assert [path.name for path in folder.iterdir()] == [name]
        assert (folder / name).read_text() == "precious"


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


def test_by_default_each_recipe_has_its_own_folder(tmp_path) -> None:
    run, other = train(small(), progress=False), train(small("lr=.1"), progress=False)
    assert run.path.parent == other.path.parent == Path("runs")
    assert run.path.name.startswith("digits-dropout-dual_focal-seed1-")
    assert run.path != other.path
    assert train(small(), progress=False).path == run.path


def test_a_finished_run_is_not_touched_again(finished, monkeypatch) -> None:
    before, folder_time = contents(finished), finished.stat().st_mtime_ns

    def never(*_, **__):
        raise AssertionError("there was nothing to do")

    monkeypatch.setattr(engine, "load_data", never)
    for mode in (0o755, 0o555):
        finished.chmod(mode)
        run = go(small(), finished)
        assert (run.path, run.state) == (finished, "finished")
        assert contents(finished) == before
        assert finished.stat().st_mtime_ns == folder_time
    finished.chmod(0o755)


# What it says.


def test_a_run_describes_what_was_done(finished) -> None:
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
