"""Training in two processes: the run of one process, wherever it is stopped, and no process left waiting.

One pair of processes does all jobs of ``pair.py``; only tests of torchrun, or of the end of a process, start their own.
"""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from launch import (
    TORCHRUN,
    meeting_place,
    process_tree,
    saved_position,
    start,
    start_pair,
    still_running,
    wait_for_checkpoint,
    wait_for_end,
)
from owners import write_owner
from pair import ADAPTIVE, LIKE_ONE, NOISY, REFUSED, SHORT, SUM
from safetensors.torch import load_file
from small_runs import assert_same_bytes
from torch import Tensor
from toys import without_times

from dualfocal_lab.data import load_data
from dualfocal_lab.runs import Run
from dualfocal_lab.train import train

pytestmark = pytest.mark.slow

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def tensors(run: Run) -> dict[str, Tensor]:
    return load_file(run.path / "model.safetensors") | load_file(run.path / "predictions.safetensors")


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


def assert_close(actual: object, expected: object) -> None:
    """Compare nested lists and dicts of numbers."""
    assert type(actual) is type(expected)
    if isinstance(expected, dict):
        assert list(actual) == list(expected)
        actual, expected = list(actual.values()), list(expected.values())
    if isinstance(expected, list):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_close(one, other)
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, rel=1e-9, abs=1e-9)
    else:
        assert actual == expected


# One process equals two.


@pytest.mark.parametrize("name", LIKE_ONE)
def test_two_processes_train_what_one_does(name, pair):
    one, two = pair.alone(name), pair.run(name)
    assert pair.outcomes(name) == ["done", "done"]
    torch.testing.assert_close(tensors(two), tensors(one), **CLOSE)
    assert_close(without_times(two.log), without_times(one.log))
    parts = ("val", "test", "calibrated", "weights_of_epoch", "data", "num_weights", "notes")
    assert_close(
        {part: two.result.to_dict()[part] for part in parts},
        {part: one.result.to_dict()[part] for part in parts},
    )
    assert [session["processes"] for session in two.result.sessions] == [2]

    # The test would say little if nothing were learned, clipped, adapted or chosen.
    assert min(line["val_error"] for line in one.log) < one.log[0]["val_error"] - 0.3
    if name == "sum":
        assert all(line["grad_norm"] > 10 for line in one.log)
    if name == "adaptive":
        assert len({tuple(line["gamma"]) for line in one.log}) == ADAPTIVE.epochs
        assert one.result.weights_of_epoch == ADAPTIVE.epochs - 1
        assert {"test_error", "test_ece", "val_loss"} <= one.log[0].keys()


def test_only_the_first_process_writes(pair):
    for name, recipe in LIKE_ONE.items():
        run = pair.run(name)
        names = {"recipe.json", "log.jsonl", "model.safetensors", "predictions.safetensors", "result.json"}
        assert set(os.listdir(run.path)) == names
        assert run.recipe == recipe
        lines = (run.path / "log.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == list(range(1, recipe.epochs + 1))
    assert os.listdir(pair.folder / "second") == []


def test_all_processes_predict_with_the_batch_norm_of_the_first(pair):
    run = pair.run("noisy")
    assert pair.outcomes("noisy") == ["done", "done"]
    data, model = load_data(NOISY.data, **NOISY.data_options), run.model()
    assert model[2].num_batches_tracked == 5 * run.result.weights_of_epoch
    for part in ("val", "test"):
        inputs, target = data.batch(data.splits[part], part=part)
        logits, stored = run.predictions(part)
        with torch.no_grad():
            torch.testing.assert_close(logits, model(inputs.double()), rtol=1e-12, atol=1e-12)
        assert torch.equal(stored, target)
    assert run.result.parts["val"].nll == pytest.approx(min(line["val_nll"] for line in run.log), rel=1e-12)


# Refusals, and errors that only one process meets.


@pytest.mark.parametrize("name", REFUSED)
def test_what_processes_cannot_share_is_refused(name, pair):
    first, second = pair.outcomes(name)
    assert first == second
    assert first.startswith("ValueError: ")
    assert REFUSED[name][1] in first
    assert not pair.run(name).path.exists()


def test_another_recipe_in_the_folder_of_the_first_process_is_refused_by_both(pair):
    for outcome in pair.outcomes("other_recipe"):
        assert outcome.startswith("RunError: other_recipe: was made by another recipe (seed: 1, not 2)")
    assert os.listdir(pair.run("other_recipe").path) == ["recipe.json"]
    assert pair.run("other_recipe").recipe == SHORT


def test_a_full_disk_is_an_error_in_both_processes_and_the_run_continues(pair, tmp_path, recwarn):
    for outcome in pair.outcomes("full_disk"):
        assert outcome.startswith("RunError: full_disk/checkpoint.safetensors: cannot be written: ")
    run = Run(shutil.copytree(pair.run("full_disk").path, tmp_path / "run"))
    assert run.state == "stopped"
    assert set(os.listdir(run.path)) == {"recipe.json", "log.jsonl"}

    train(SHORT, run.path, device="cpu", progress=False)
    torch.testing.assert_close(tensors(run), tensors(pair.alone("short")), rtol=0, atol=0)
    assert len(run.log) == 1


def test_the_processes_end_by_themselves_after_all_errors(pair):
    for code, out, err in pair.ends:
        assert code == 0, err
        assert out == ""


def test_the_program_ends_in_both_processes_if_the_folder_is_in_use(tmp_path):
    """Without torchrun, which would end the second process if it hung."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "recipe.json").write_text(json.dumps(SHORT.to_dict()))
    store = meeting_place()
    write_owner(folder, lease_seconds=900.0)
    before = files(folder)
    arguments = ["-m", "dualfocal", "train", "run", "--device", "cpu"]
    ends = wait_for_end(start_pair(arguments, store, (tmp_path, tmp_path)))
    assert files(folder) == before
    (code, out, err), (other_code, other_out, _) = ends
    assert code == 2
    assert other_code not in (0, -signal.SIGKILL)
    assert out == other_out == ""
    (line,) = [line for line in err.splitlines() if "learning rate" not in line]
    assert line.startswith("dualfocal: run: another process is training")


# Interrupted, and finished.


def test_killed_and_run_again_has_the_same_bits(pair):
    """The program was killed in both processes; the pair has continued its run."""
    run, uninterrupted = pair.run("killed"), pair.run("noisy")
    assert pair.outcomes("killed") == ["done", "done"]
    starts = [session["from_epoch"] for session in run.result.sessions]
    assert len(starts) == 2
    assert 1 < starts[1] <= NOISY.epochs
    assert_same_bytes(run, uninterrupted)
    for part in ("val", "test", "calibrated", "weights_of_epoch"):
        assert run.result.to_dict()[part] == uninterrupted.result.to_dict()[part], part


def test_ctrl_c_ends_all_processes_of_torchrun_and_one_process_continues(pair, tmp_path, recwarn):
    (tmp_path / "recipe.json").write_text(json.dumps(SUM.to_dict()))
    run = Run(tmp_path / "run")
    command = [*TORCHRUN, "train", "recipe.json", "--device", "cpu", "--out", "run"]
    torchrun = start(command, tmp_path, NAP="0.15")
    wait_for_checkpoint(run.path, [torchrun])
    pids = process_tree(torchrun.pid)
    assert len(pids) == 3
    torchrun.send_signal(signal.SIGINT)
    ((code, out, err),) = wait_for_end([torchrun])
    assert code not in (0, -signal.SIGKILL)
    assert still_running(pids) == []
    assert out == ""
    assert err.count("dualfocal: stopped; run the same command again to continue\n") == 1
    epochs = [line.split()[1] for line in err.splitlines() if line.startswith("epoch ")]
    assert epochs == [f"{number}/6" for number in range(1, len(epochs) + 1)]  # reported once, by one process
    assert run.state == "stopped"
    done = saved_position(run.path)["epoch"]
    assert 1 <= done < SUM.epochs
    assert len(run.log) in (done, done + 1)

    train(SUM, run.path, device="cpu", progress=False)
    assert [session["processes"] for session in run.result.sessions] == [2, 1]
    assert [session["from_epoch"] for session in run.result.sessions] == [1, done + 1]
    uninterrupted = pair.run("sum")
    torch.testing.assert_close(tensors(run), tensors(uninterrupted), **CLOSE)
    assert_close(without_times(run.log), without_times(uninterrupted.log))


def test_two_processes_continue_where_one_was_stopped_in_the_middle_of_an_epoch(pair):
    """The steps before the interruption count once in the training loss."""
    run, one = pair.run("in_the_middle"), pair.alone("sum")
    assert pair.outcomes("in_the_middle") == ["done", "done"]
    assert [session["processes"] for session in run.result.sessions] == [1, 2]
    torch.testing.assert_close(tensors(run), tensors(one), **CLOSE)
    assert_close(without_times(run.log), without_times(one.log))


def test_a_finished_run_is_reported_once_and_not_touched(pair):
    run = pair.run("finished")
    first, second = pair.outcomes("finished")
    assert json.loads(first) == {"run": str(run.path), **run.result.to_dict()}
    assert second == ""
    assert files(run.path) == files(pair.alone("short").path)
