"""`--engine` and `--shard` of `study` and `paper reproduce`."""

import importlib.util
import io
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import dualfocal_lab.study
from dualfocal_lab.cli._engines import EngineName, runs_table, training_display
from dualfocal_lab.data.paths import Root
from dualfocal_lab.paper import reproduce as table_runs
from dualfocal_lab.runs.layout import MODEL, PREDICTIONS
from dualfocal_lab.study import RunStatus
from dualfocal_lab.study.engine import Task, Update, train_run

STUDY = ["study", "--losses", "focal", "--seeds", "0,1,2", "--set", "epochs=1", "--set", "data.val_size=100"]
COMMANDS = (["study"], ["paper", "reproduce", "table1"])


@dataclass(frozen=True)
class InThisProcess:
    """A local engine without the cost of starting processes."""

    jobs: int | None = None
    device: str | None = None

    def train(self, tasks: Sequence[Task], out: Path, data_root: Root) -> Generator[Update, None, None]:
        for task in tasks:
            yield Update({}, {task.folder: train_run(task.recipe, str(task.folder), data_root, "cpu")})


def test_shards_with_one_folder_make_the_same_study(
    run: Callable[..., tuple[str, str]], record: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dualfocal_lab.study, "LocalEngine", InThisProcess)
    run(*STUDY, "--out", "whole")
    command = [*STUDY, "--out", "parts", "--shard"]
    content = record(*command, "2/2")
    assert content == {"schema": 1, "shard": "2/2", "runs": 3, "states": {"absent": 2, "finished": 1}}
    printed, _ = run(*command, "2/2")
    assert "Shard 2/2 is done (1 run). 1 of the 3 runs of all shards are finished." in " ".join(printed.split())
    assert [path.name for path in Path("parts").rglob("*-seed*")] == ["focal-seed1"]
    assert [path.name for path in Path("parts").iterdir()] == ["runs"]  # no table yet
    printed, _ = run(*command, "1/2")
    assert "parts/table.md" in printed
    for name in ("table.md", "table.csv", "study.json"):
        assert Path("parts", name).read_bytes() == Path("whole", name).read_bytes(), name
    for folder in Path("whole/runs").iterdir():
        for name in (MODEL, PREDICTIONS):
            assert (folder / name).read_bytes() == Path("parts/runs", folder.name, name).read_bytes(), folder


def test_a_shard_of_a_table_that_is_not_finished_writes_no_table(
    run: Callable[..., tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = []
    monkeypatch.setattr(table_runs, "run_study", lambda *_, shard, **__: shards.append(shard) or {})
    printed, _ = run("paper", "reproduce", "table1", "--only", "dataset=cifar10,method=brier", "--shard", "2/8")
    assert "0 of the 4 runs of all shards are finished." in " ".join(printed.split())
    assert [str(shard) for shard in shards] == ["2/8"]
    assert not list(Path().iterdir())


def test_a_failure_in_a_shard_has_exit_code_1(
    run: Callable[..., tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dualfocal_lab.study, "run_study", lambda study, *_, **__: {("focal", 0): "exploded"})
    printed, errors = run(*STUDY, "--shard", "1/2", code=1)
    assert "Shard 1/2 is done" in printed
    assert errors == "dualfocal: exploded\n"


def test_options_of_the_other_engine_are_refused(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for command in COMMANDS:
        for arguments, words in (
            (["--address", "auto"], "--address needs --engine ray; options of --engine local are --jobs, --device"),
            (["--cpus-per-run", "2"], "--cpus-per-run needs --engine ray"),
            (["--gpus-per-run", "0"], "--gpus-per-run needs --engine ray"),
            (["--engine", "ray", "--jobs", "2"], "--jobs needs --engine local"),
            (["--engine", "ray", "--device", "cpu"], "--device needs --engine local"),
            (["--engine", "slurm"], "'slurm' is not one of 'local', 'ray'"),
            (["--engine", "ray"], 'pip install "dualfocal[ray]"'),
            (["--engine", "ray", "--gpus-per-run", "2"], "less than or equal to 1, got 2"),
            (["--shard", "0/8"], "--shard: a shard must be I/N with I from 1 to N, such as 2/8; got 0/8"),
            (["--shard", "two"], "got 'two'"),
            (["--device", "x"], "device must be cpu, cuda, cuda:1, ..., got 'x'"),
        ):
            assert words in refused(*command, *arguments), (command, arguments)
    assert not list(Path().iterdir())


RUNS = [
    RunStatus("a-seed0", "finished", 9, 9, "node-1"),
    RunStatus("a-seed1", "waiting", 0, 9),
    RunStatus("b-seed0", "running", 4, 9, "node-2"),
]


def test_running_trainings_come_first_and_the_rest_is_counted() -> None:
    console = Console(file=io.StringIO(), width=60)
    console.print(runs_table(RUNS, height=3))
    console.print(runs_table(RUNS, height=2))
    lines = [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert lines[1] == ["b-seed0", "running", "node-2", "4/9"]
    assert [line[0] for line in lines[2:4]] == ["a-seed1", "a-seed0"]
    assert lines[5][0] == "b-seed0"
    assert lines[6] == ["and", "1", "waiting,", "1", "finished"]


def test_without_a_terminal_each_change_is_a_line() -> None:
    console = Console(file=io.StringIO(), width=60)
    with training_display(console, EngineName.ray) as update:
        update(RUNS)
        update(RUNS)
        update([*RUNS[:2], RunStatus("b-seed0", "finished", 9, 9, "node-2")])
    assert console.file.getvalue() == "b-seed0: finished on node-2, 9 of 9 epochs\n"  # type: ignore[attr-defined]
