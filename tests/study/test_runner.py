"""The processes of a study: they go when who started them is killed, and what they warn of is heard."""

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dualfocal.data import load_data
from dualfocal.runs import Recipe, Run
from dualfocal.runs.layout import CHECKPOINT, LOG
from dualfocal.study import Study, make_study, run_study, runner

NETS = """
import warnings
from torch import nn

def warns(*, num_classes):
    warnings.warn("the net was made with a hot needle")
    warnings.warn("old", DeprecationWarning)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
"""
KILLED = """
from pathlib import Path
from dualfocal.study import make_study, run_study, runner

if __name__ == "__main__":
    runner.num_cores = lambda: 1  # one thread: others may use the machine, too
    study = make_study(["cross_entropy"], seeds=[0], settings=["epochs=60", "data.val_size=100"])
    run_study(study, Path("out"), jobs=1, device="cpu")
"""


def until(what: Callable[[], object], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not (actual := what()) and time.monotonic() < end:
        time.sleep(0.05)
    return bool(actual)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
def test_killed_it_leaves_no_process_behind_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "num_cores", lambda: 1)
    process = subprocess.Popen([sys.executable, "killed.py"])
    run = Run("out/runs/cross_entropy-seed0")
    assert until(lambda: len(run.log) > 2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGKILL)
    process.wait()
    try:
        assert until(lambda: not any(Path("/proc", child).exists() for child in children), 20)
    finally:
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
    assert run.state == "stopped"
    assert (run.path / CHECKPOINT).exists()  # long before the next one by the clock
    done = len(run.log)
    study = make_study(["cross_entropy"], seeds=[0], settings=["epochs=60", "data.val_size=100"])
    assert run_study(study, Path("out"), jobs=1, device="cpu") == {}
    assert run.result is not None
    assert len(run.log) == 60
    assert [session["from_epoch"] for session in run.result.sessions] == [1, done + 1]


def test_warnings_are_given_on_once_and_notes_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets_that_warn.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.fspath(tmp_path))
    # The learning rate never falls: a note.
    settings = ["epochs=1", "schedule=step", "milestones=5"]
    study = make_study(["cross_entropy"], model="nets_that_warn:warns", seeds=[0, 1], settings=settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_study(study, tmp_path / "out", jobs=1, device="cpu")
    assert [str(warning.message) for warning in caught] == ["the net was made with a hot needle"]
    result = Run(tmp_path / "out" / "runs" / "cross_entropy-seed1").result
    assert result is not None
    assert "the learning rate never falls" in result.notes[0]


def test_all_data_are_looked_at_before_anything_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(name: str, root: object = None, **options: object) -> object:
        asked.append((name, options))
        return load_data(name, root, **options)

    monkeypatch.setattr(runner, "load_data", load)
    first = Recipe(data="digits", model="small_cnn", epochs=1, milestones=())
    second = Recipe(data="digits", data_options={"val_size": 0}, model="small_cnn", epochs=1, milestones=())
    third = Recipe(data="nowhere.npz", model="small_cnn", epochs=1, milestones=())
    with pytest.raises(ValueError, match=r"nowhere\.npz"):
        run_study(Study("t", {"a": {0: first}, "b": {0: first}, "c": {0: third}}), tmp_path / "out", device="cpu")
    assert asked == [("digits", {}), ("nowhere.npz", {})]
    with pytest.raises(ValueError, match="data digits has no val split"):
        run_study(Study("t", {"a": {0: first}, "b": {0: second}}), tmp_path / "out", device="cpu")
    assert not list(tmp_path.rglob(LOG))
