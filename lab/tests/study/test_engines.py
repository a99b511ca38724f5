"""Engines and shards: what each takes, and that shares of a study add up to the study."""

import importlib.util
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualfocal_lab.data.paths import Root
from dualfocal_lab.runs import Recipe, Run, RunBusyError, RunError
from dualfocal_lab.study import LocalEngine, RayEngine, RunStatus, Shard, Study, run_study
from dualfocal_lab.study.engine import Outcome, Task, Update, train_run

RECIPE = Recipe(data="digits", data_options={"val_size": 100}, model="small_cnn", epochs=1, milestones=())


@given(number=st.integers(0, 40), count=st.integers(1, 12))
def test_each_run_belongs_to_one_shard(number: int, count: int) -> None:
    shares = [Shard(index, count).select(range(number)) for index in range(1, count + 1)]
    assert sorted(run for share in shares for run in share) == list(range(number))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_shards_are_counted_from_one() -> None:
    assert Shard.parse("2/8") == Shard(2, 8)
    assert str(Shard(2, 8)) == "2/8"
    for text in ("0/8", "9/8", "2", "2/", "/8", "-1/8", "1.0/8", "1/0", "2/8 ", "\u0662/8", ""):
        with pytest.raises(ValueError, match="must be I/N with I from 1 to N, such as 2/8; got"):
            Shard.parse(text)


class Recorder:
    """An engine that trains nothing; each run ends with the outcome that its seed has here."""

    def __init__(self, outcomes: dict[int, Outcome] | None = None) -> None:
        self.outcomes = outcomes or {}
        self.names: list[str] = []
        self.closed = False

    def train(self, tasks: Sequence[Task], out: Path, data_root: Root) -> Generator[Update, None, None]:
        try:
            for task in tasks:
                self.names.append(task.folder.name)
                yield Update({task.folder: "far"}, {})
                yield Update({}, {task.folder: self.outcomes.get(task.recipe.seed, Outcome(None, []))})
        finally:
            self.closed = True


FIRST_SEEDS = {"a": 0, "b": 10}
STUDY = Study(
    "t",
    {entry: {i: replace(RECIPE, seed=first + i) for i in (0, 1, 2)} for entry, first in FIRST_SEEDS.items()},
)


def test_a_shard_trains_its_share_and_reports_on_it(tmp_path: Path) -> None:
    engine, shown = Recorder({1: Outcome("exploded", [])}), []
    failed = run_study(STUDY, tmp_path, engine=engine, shard=Shard(2, 3), watch=shown.append)
    assert engine.names == ["a-seed1", "b-seed1"]
    assert failed == {("a", 1): "exploded"}
    waiting, running = RunStatus("a-seed1", "waiting", 0, 1), RunStatus("a-seed1", "running", 0, 1, "far")
    assert [runs[0] for runs in shown[:3]] == [waiting, running, replace(running, state="failed")]
    assert shown[-1][1].state == "finished"


def test_an_engine_is_closed_if_its_progress_cannot_be_shown(tmp_path: Path) -> None:
    engine = Recorder()

    def fail(runs: Sequence[RunStatus]) -> None:
        if runs[0].state == "running":
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run_study(STUDY, tmp_path, engine=engine, watch=fail)
    assert engine.closed


def test_settings_of_the_local_engine_are_not_for_others(tmp_path: Path) -> None:
    for options in ({"jobs": 1}, {"device": "cpu"}):
        with pytest.raises(ValueError, match="belong to the local engine"):
            run_study(STUDY, tmp_path, engine=Recorder(), **options)


def test_engines_refuse_what_cannot_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"device must be cpu, cuda, .* got 'x'"):
        LocalEngine(device="x")
    for options, words in (
        ({"cpus_per_run": 0}, "cpus_per_run must be at least 1"),
        ({"gpus_per_run": 1.5}, "gpus_per_run must be at least 0 and at most 1, got 1.5"),
        ({"gpus_per_run": -1}, "at least 0"),
    ):
        with pytest.raises(ValueError, match=words):
            RayEngine(**options)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'needs Ray: pip install "dualfocal\[ray\]"'):
        RayEngine()


def test_a_folder_in_use_is_an_error_of_its_own(tmp_path: Path) -> None:
    """The Ray engine waits for it, since the machine that holds the folder may be lost."""
    with Run(tmp_path / "run").claimed(RECIPE), pytest.raises(RunBusyError, match="another process is training there"):
        train_run(RECIPE, str(tmp_path / "run"), None, "cpu")
    with pytest.raises(RunError, match="another recipe") as other:
        train_run(replace(RECIPE, seed=7), str(tmp_path / "run"), None, "cpu")
    assert not isinstance(other.value, RunBusyError)
