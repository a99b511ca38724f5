"""Training the runs of a study: in processes that end with their parent, once each, and with their warnings heard."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dualfocal_lab.data import load_data
from dualfocal_lab.runs import Recipe, Run, RunError
from dualfocal_lab.runs.layout import CHECKPOINT, LOG
from dualfocal_lab.study import Study, engine, local, make_study, run_study, summarize
from dualfocal_lab.train import train

NETS = """
import os, time, warnings
from torch import nn

class Nap(nn.Module):
    def forward(self, inputs):
        time.sleep(float(os.environ.get("NAP", "0")) if self.training else 0)
        return inputs

def linear(*, num_classes):
    warnings.warn("the net warns")
    warnings.warn("old", DeprecationWarning)
    return nn.Sequential(nn.Flatten(), Nap(), nn.Linear(64, num_classes))
"""
KILLED = """
from pathlib import Path
from dualfocal_lab.runs.recipe import load_recipe
from dualfocal_lab.study import Study, run_study

if __name__ == "__main__":
    run_study(Study("t", {"a": {0: load_recipe(Path("recipe.json"))}}), Path("out"), jobs=1, device="cpu")
"""
# The learning rate never falls: a note in the result.
RECIPE = Recipe(
    data="digits", data_options={"val_size": 100}, model="nets_of_study:linear", epochs=2, lr=0.01, milestones=(5,)
)


@pytest.fixture(autouse=True)
def _nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets_of_study.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)


def state_of(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.*")}


@pytest.mark.slow
def test_each_run_is_trained_once_whatever_the_others_do(tmp_path: Path) -> None:
    """Two processes, and four runs: one is finished before, one is missing, and the loss of two explodes."""
    study = Study(
        "t",
        {
            "fine": {seed: replace(RECIPE, seed=seed) for seed in (0, 1)},
            "explodes": {seed: replace(RECIPE, seed=seed, lr=1e30, milestones=()) for seed in (0, 1)},
        },
    )
    folders = study.folders(tmp_path / "out")
    with warnings.catch_warnings(action="ignore"):
        train(study.recipes["fine"][0], folders["fine", 0], device="cpu", progress=False)
    before = state_of(tmp_path / "out")
    progress: list[tuple[int, int, int]] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        failed = run_study(study, tmp_path / "out", jobs=2, device="cpu", progress=lambda *args: progress.append(args))

    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert (progress[0], progress[-1]) == ((2, 8, 1), (4, 8, 2))
    results = [Run(folders["fine", seed]).require_result() for seed in (0, 1)]
    assert results[1].sessions[0]["threads"] == max(1, local.num_cores() // 2)
    # A warning of several processes is given once, a deprecation and a note not at all.
    assert [str(warning.message) for warning in caught] == ["the net warns"]
    assert "the learning rate never falls" in results[1].notes[0]

    assert list(failed) == [("explodes", 0), ("explodes", 1)]
    assert "in epoch 1" in failed["explodes", 0]
    summary = summarize(study, tmp_path / "out", failed)
    assert summary.to_dict()["failed"]
    assert summary.table().rows[2][1] == "failed"
    assert summary.reading().startswith("No comparison: ")
    contents = [result.to_dict() for result in results]
    scaled = [content["calibrated"]["temperature"] for content in contents]
    assert summary.scores["fine"]["ece"] == [content["test"]["ece"] for content in contents]
    assert summary.scores["fine"]["nll_t"] == [entry["test"]["nll"] for entry in scaled]
    assert summary.scores["fine"]["temperature"] == [entry["temperature"] for entry in scaled]

    with pytest.raises(RunError, match=r"fine-seed0: was made by another recipe \(epochs: 2, not 3\)"):
        run_study(Study("t", {"fine": {0: replace(RECIPE, seed=0, epochs=3)}}), tmp_path / "out", device="cpu")


def wait_until(condition: Callable[[], object], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not (fulfilled := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(fulfilled)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_a_killed_study_leaves_no_process_behind_and_continues(tmp_path: Path) -> None:
    recipe = replace(RECIPE, epochs=20)
    (tmp_path / "recipe.json").write_text(json.dumps(recipe.to_dict()))
    (tmp_path / "killed.py").write_text(KILLED)
    variables = {"NAP": "0.05", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen([sys.executable, "killed.py"], env=os.environ | variables)
    run = Run("out/runs/a-seed0")
    assert wait_until(lambda: len(run.log) > 1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGKILL)
    process.wait()
    try:
        assert wait_until(lambda: not any(Path("/proc", child).exists() for child in children))
    finally:
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
    assert run.state == "stopped"
    assert (run.path / CHECKPOINT).exists()  # long before the next one by the clock
    done = len(run.log)
    assert 1 < done < 20
    train(recipe, run.path, device="cpu", progress=False)
    assert len(run.log) == 20
    assert [session["from_epoch"] for session in run.require_result().sessions] == [1, done + 1]


def test_all_data_are_checked_before_anything_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []

    def load(name: str, root: object = None, **options: Any) -> object:
        loaded.append((name, options))
        return load_data(name, root, **options)

    monkeypatch.setattr(engine, "load_data", load)
    other, missing = replace(RECIPE, data_options={"val_size": 0}), replace(RECIPE, data="nowhere.npz", data_options={})
    with pytest.raises(ValueError, match=r"nowhere\.npz"):
        run_study(Study("t", {"a": {0: RECIPE}, "b": {0: RECIPE}, "c": {0: missing}}), tmp_path / "out", device="cpu")
    assert loaded == [("digits", {"val_size": 100}), ("nowhere.npz", {})]
    with pytest.raises(ValueError, match=r"data digits has no val split.* set data\.val_size"):
        run_study(Study("t", {"a": {0: RECIPE}, "b": {0: other}}), tmp_path / "out", device="cpu")
    assert not list(tmp_path.rglob(LOG))


def test_jobs_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="jobs must be at least 1, got 0"):
        run_study(make_study(), tmp_path, jobs=0)
