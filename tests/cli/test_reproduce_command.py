"""`dualfocal paper reproduce` as one types it: the list of a table, and one cell of it on tiny data, end to end."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from official import cifar_files, some_images, write_folder
from run_results import make_result

from dualfocal.cli import main
from dualfocal.metrics import evaluate
from dualfocal.paper import reproduce as table_runs
from dualfocal.paper.ood import STAGES
from dualfocal.paper.published import published
from dualfocal.paper.reproduce import plan
from dualfocal.paper.trainings import trainings
from dualfocal.runs import Run
from dualfocal.runs.result import Scaled

ONE = ["--only", "dataset=cifar10,model=resnet50,method=dual_focal"]


def reproduce(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dualfocal", "paper", "reproduce", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=200)


def test_all_cells_of_the_first_table_are_listed(tmp_path: Path) -> None:
    done = reproduce("table1", "--dry-run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["trainings"]
    assert len(found) == 70
    assert {row["training"] for row in found} >= {"cifar10 resnet50 dual_focal", "20newsgroups text_cnn brier"}
    by_name = {row["training"]: row for row in found}
    assert by_name["cifar10 wide_resnet26_10 brier"]["special"] == "epochs 550"
    assert by_name["cifar10 resnet50 dual_focal"]["hours_on_an_h200"] == pytest.approx(0.23, abs=0.01)
    assert by_name["cifar10 resnet110 dual_focal"]["hours_on_an_h200"] is None  # never measured
    assert not list(tmp_path.iterdir())


def test_the_list_is_readable(tmp_path: Path) -> None:
    done = reproduce("gamma", "--dry-run", "--epochs-scale", "0.2", "--seeds", "1,2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "SHORTENED to 0.2 of the paper's epochs" in lines[0]
    assert "cifar10 resnet50 dual_focal 10" in done.stdout
    assert "5 trainings x 2 seeds" in done.stdout
    assert max(map(len, lines[:7])) <= 80


def test_several_values_of_a_field_add_up(record: Callable[..., dict[str, Any]]) -> None:
    only = "method=dual_focal,dataset=cifar10,method=flsd,model=resnet50"
    found = record("paper", "reproduce", "table1", "--dry-run", "--only", only)["trainings"]
    assert [row["training"] for row in found] == ["cifar10 resnet50 flsd", "cifar10 resnet50 dual_focal"]


def test_of_two_settings_of_a_field_the_second_counts() -> None:
    planned = plan("gamma", settings=["lr=1", "epochs=3", "lr = 2"])
    assert planned.study.title.endswith("CHANGED: lr=2, epochs=3")
    assert {(training.recipe.lr, training.recipe.epochs) for training in planned.trainings.values()} == {(2.0, 3)}


def test_a_training_that_fails_is_told_whatever_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its exit code is 1, also where JSON is asked for."""
    problem = "paper/runs/x: the loss is nan in epoch 1"
    monkeypatch.setattr(
        table_runs, "run_study", lambda study, *_, **__: dict.fromkeys(study.folders(tmp_path), problem)
    )
    Path("paper").mkdir()
    for as_json in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["paper", "reproduce", "table1", *ONE, *as_json])
        assert ended.value.code == 1
        captured = capsys.readouterr()
        assert captured.err == f"dualfocal: {problem}\n"
        if as_json:
            assert json.loads(captured.out)["failed"] == [problem]
    assert json.loads(Path("paper/table1.json").read_text())["failed"] == [problem]


def test_the_file_has_the_whole_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whatever recipe, seed or extra there are runs; other recipes in a folder of that name are left out."""
    wanted = trainings(published("table1"), extras=True)
    names = ["cifar10 resnet50 dual_focal", "cifar10 resnet50 cross_entropy decay 1e-3", "cifar10 resnet50 brier"]
    logits, target = torch.randn(50, 10, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 10
    scores = evaluate(logits, target, inference=True, draws=100)
    for name in names:
        for seed in (1, 12):
            run = Run(Path("paper/runs") / f"{name.replace(' ', '_')}-seed{seed}")
            run.path.mkdir(parents=True)
            changed = ["lr=7"] if name.endswith("brier") and seed == 12 else []
            run.write_json("recipe.json", wanted[name].recipe.with_settings([f"seed={seed}", *changed]).to_dict())
            parts = {"test": dataclasses.replace(scores, ece=seed / 1000)}
            run.write_result(make_result(parts, {"temperature_ece": Scaled(2.0, parts)}, notes=[name]))
    monkeypatch.setattr(table_runs, "run_study", lambda *_, **__: {})
    with pytest.raises(SystemExit) as ended:
        main(["paper", "reproduce", "table1", *ONE])
    assert ended.value.code == 0
    content = json.loads(Path("paper/table1.json").read_text())
    found = {(row["training"], row["stage"]): (row["seeds"], row["ours"]) for row in content["rows"]}
    both = [1, 12], [0.001, 0.012]
    assert found == {(name, stage): both if name != names[2] else ([1], [0.001]) for name in names for stage in STAGES}
    assert sorted(content["notes"]) == sorted(names)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("paper")
    write_folder(folder / "data", cifar_files("cifar10", *some_images(48)))
    options = ["--epochs-scale", "0.001", "--set", "data.val_size=8", "--set", "batch_size=16", "--data-root", "data"]
    command = ["table1", *ONE, *options, "--device", "cpu", "--jobs", "2", "--seeds", "1,2"]
    return folder, command, reproduce(*command, cwd=folder)


def test_one_cell_end_to_end(finished: tuple[Path, list[str], subprocess.CompletedProcess[str]]) -> None:
    """Official files, the paper's net and recipe, a few steps of it; our number beside 0.46."""
    folder, _, done = finished
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "SHORTENED to 0.001 of the paper's epochs, CHANGED: data.val_size=8, batch_size=16" in text
    assert "0.46 (1.0)" in text  # after scaling, by which temperature, theirs and ours
    (file,) = (folder / "paper").glob("table1-x0.001-set-*.json")
    content = json.loads(file.read_text())
    before, after = content["rows"]
    assert (before["published"], before["stage"], after["stage"]) == (0.0046, "before", "after")
    assert len(before["ours"]) == len(after["temperatures"]) == 2
    assert (before["published_temperature"], after["published_temperature"]) == (None, 1.0)
    low, high = sorted(after["temperatures"])
    ours = f"{100 * sum(after['ours']) / 2:.2f} ({low:.1f}{'' if low == high else f' to {high:.1f}'})"
    assert ours in file.with_suffix(".md").read_text()
    assert "agrees" in done.stdout.split("Numbers are printed")[0]
    assert before["interval"][0] < before["ours"][0] < before["interval"][1]
    assert before["agrees"] in (True, False)
    (run,) = (folder / "paper" / "runs").glob("cifar10_resnet50_dual_focal_x0.001_set-*-seed1")
    assert before["ours"][0] == json.loads((run / "result.json").read_text())["test"]["ece"]
    assert "SHORTENED" in file.with_suffix(".md").read_text()


def test_fewer_seeds_lose_nothing_of_what_was_written(
    finished: tuple[Path, list[str], subprocess.CompletedProcess[str]],
) -> None:
    """What is shown is what was asked for; the file has every run of the table that is there."""
    folder, command, _ = finished
    (file,) = (folder / "paper").glob("table1-x0.001-set-*.json")
    before = file.read_text(), file.with_suffix(".md").read_text()
    done = reproduce(*command[:-1], "2", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    whole = json.loads(before[0])
    assert [row["seeds"] for row in whole["rows"]] == [[1, 2], [1, 2]]
    assert [row["seeds"] for row in shown["rows"]] == [[2], [2]]
    assert [row["ours"] for row in shown["rows"]] == [row["ours"][1:] for row in whole["rows"]]
    assert shown["rows"][0]["agrees"] is None
    columns = reproduce(*command[:-1], "2", cwd=folder).stdout.split("Numbers are printed")[0]
    assert "seeds" in columns
    assert "agrees" not in columns  # one seed: nothing would stand there
    assert (file.read_text(), file.with_suffix(".md").read_text()) == before


def test_images_that_are_missing_are_told(finished: tuple[Path, list[str], subprocess.CompletedProcess[str]]) -> None:
    folder, _, done = finished
    note = "cifar10 has 40 + 8 images instead of 50,000 + 10,000"
    assert note in " ".join(done.stdout.split())
    (file,) = (folder / "paper").glob("table1-x0.001-set-*.json")
    assert note in json.loads(file.read_text())["notes"][0]
    assert note in file.with_suffix(".md").read_text()


def test_another_table_reads_the_same_run(
    finished: tuple[Path, list[str], subprocess.CompletedProcess[str]],
) -> None:
    folder, command, _ = finished
    before = {path: path.stat().st_mtime_ns for path in (folder / "paper" / "runs").rglob("*.*")}
    done = reproduce("nll", *command[1:], "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert [row["metric"] for row in json.loads(done.stdout)["rows"]] == ["nll", "nll"]
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tabel1"], "did you mean table1?"),
        (
            ["table1", "--only", "dataset=cifar"],
            "dataset must be one of 20newsgroups, cifar10, ",
        ),
        (["table1", "--only", "data=cifar10"], "got 'data'; did you mean dataset?"),
        (["table1", "--only", ""], "--only must be FIELD=VALUE,... with a field of dataset, "),
        (["table1", "--seeds", ""], "seeds must be one or more different numbers, got none"),
        (["table1", "--seeds", "1,1"], "seeds must be one or more different numbers, got 1, 1"),
        (["table1", "--epochs-scale", "2"], "epochs_scale must be above 0 and at most 1, got 2"),
        (["table1", "--set", "epoch=2"], "a recipe has no field 'epoch'"),
        (["table1", "--set", "model=densenet40"], "--set cannot change model"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = reproduce(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr
    assert not list(tmp_path.iterdir())
