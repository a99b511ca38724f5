"""Start two processes as torchrun does, and wait for their end; no process outlives its test."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import worker
from safetensors import safe_open
from torch.distributed import TCPStore
from worker import LIMIT

TORCHRUN = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node=2", "-m", "dualfocal"]
Process = subprocess.Popen[str]


def meeting_place() -> TCPStore:
    """Open the store where the processes find each other, at a free port that stays reserved."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def start(command: list[str], cwd: Path, **variables: str) -> Process:
    """Start a process that can import ``worker`` and the package under test."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    paths = [str(Path(worker.__file__).parent), *filter(None, [environment.get("PYTHONPATH")])]
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "ignore"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=cwd, env=environment | variables, text=True, **pipes)


def start_pair(arguments: list[str], store: TCPStore, cwd: tuple[Path, Path], **variables: str) -> list[Process]:
    """Start Python twice with the variables of torchrun, which itself would take longer to start."""
    variables |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    variables["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    return [
        start([sys.executable, *arguments], folder, RANK=str(rank), LOCAL_RANK=str(rank), **variables)
        for rank, folder in enumerate(cwd)
    ]


def wait_for_end(processes: list[Process]) -> list[tuple[int, str, str]]:
    """Return exit code, stdout and stderr of each process; one that hangs is killed and has the exit code -9."""
    deadline = time.monotonic() + LIMIT
    ends = []
    for process in processes:
        try:
            out, err = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            for pid in process_tree(process.pid):
                os.kill(pid, signal.SIGKILL)
            out, err = process.communicate()
        ends.append((process.returncode, out, err))
    return ends


def process_tree(pid: int) -> list[int]:
    """Return the process and all its descendants that are still running."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # the process has ended meanwhile
            continue
        if state != "Z":
            parents[int(path.parent.name)] = int(parent)
    pids = [pid]
    for ancestor in pids:
        pids += [child for child, parent in parents.items() if parent == ancestor]
    return [pid for pid in pids if pid in parents]


def still_running(pids: list[int]) -> list[int]:
    """Return the processes that do not end within ten seconds."""
    deadline = time.monotonic() + 10
    while (running := [pid for pid in pids if process_tree(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return running


def saved_position(run: Path) -> dict[str, Any]:
    """Return the metadata of the run's checkpoint, or epoch 0 if there is none."""
    try:
        with safe_open(run / "checkpoint.safetensors", "pt") as checkpoint:
            return json.loads(checkpoint.metadata()["dualfocal_checkpoint"])
    except FileNotFoundError:
        return {"epoch": 0}


def wait_for_checkpoint(run: Path, processes: list[Process]) -> None:
    """Wait until the processes have saved an epoch."""
    wait_until(lambda: saved_position(run)["epoch"] >= 1, processes)


def wait_until(holds: Callable[[], bool], processes: list[Process]) -> None:
    """Wait until a condition holds; the test fails if a process ends before."""
    deadline = time.monotonic() + LIMIT
    while not holds():
        if time.monotonic() > deadline or any(process.poll() is not None for process in processes):
            pytest.fail(f"the processes did not get so far: {wait_for_end(processes)}")
        time.sleep(0.01)
