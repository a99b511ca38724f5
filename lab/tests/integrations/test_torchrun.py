"""Four gloo processes of torchrun: a killed one is restarted, by torchrun or by hand, and costs not a bit."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from launch import TORCHRUN, Process, process_tree, saved_position, start, still_running, wait_for_end, wait_until
from pair import NOISY
from small_runs import assert_same_bytes

from dualfocal_lab.runs import Run

RECIPE = replace(NOISY, epochs=12, batch_size=70)
FOUR = [part.replace("=2", "=4") for part in TORCHRUN]


def torchrun(folder: Path, *, restarts: int = 0, nap: float = 0.0) -> Process:
    """Start a training that sleeps for ``nap`` seconds in each step."""
    (folder / "recipe.json").write_text(json.dumps(RECIPE.to_dict()))
    command = [FOUR[0], f"--max-restarts={restarts}", *FOUR[1:], "train", "recipe.json", "--device", "cpu"]
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if restarts else {}
    return start([*command, "--out", "run"], folder, NAP=str(nap), **variables)


def kill_a_worker(process: Process, run: Path, epoch: int) -> list[int]:
    """Kill the last of the four workers after this epoch. Returns the processes that were running."""
    wait_until(lambda: saved_position(run)["epoch"] >= epoch, [process])
    agent, *workers = process_tree(process.pid)
    assert len(workers) == 4
    os.kill(workers[-1], signal.SIGKILL)
    return [agent, *workers]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("uninterrupted")
    ((code, _, err),) = wait_for_end([torchrun(folder)])
    assert code == 0, err
    return Run(folder / "run")


def test_torchrun_started_again_after_a_worker_was_killed_continues_with_the_same_bits(tmp_path, uninterrupted):
    first = torchrun(tmp_path, nap=0.05)
    pids = kill_a_worker(first, tmp_path / "run", 2)
    ((code, _, _),) = wait_for_end([first])
    assert code not in (0, -signal.SIGKILL)
    assert still_running(pids) == []
    run = Run(tmp_path / "run")
    assert run.state == "stopped"

    ((code, _, err),) = wait_for_end([torchrun(tmp_path)])
    assert code == 0, err
    assert [session["processes"] for session in run.result.sessions] == [4, 4]
    assert_same_bytes(run, uninterrupted)


def test_torchrun_restarts_the_workers_by_itself_with_the_same_bits(tmp_path, uninterrupted):
    process = torchrun(tmp_path, restarts=1, nap=0.05)
    kill_a_worker(process, tmp_path / "run", 2)
    ((code, _, err),) = wait_for_end([process])
    assert code == 0, err
    run = Run(tmp_path / "run")
    starts = [session["from_epoch"] for session in run.result.sessions]
    assert len(starts) == 2
    assert 2 < starts[1] <= RECIPE.epochs
    assert_same_bytes(run, uninterrupted)
