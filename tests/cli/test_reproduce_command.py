"""`dualfocal paper reproduce` as one types it: the list of a table, and one cell of it on tiny data, end to end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from official import cifar_files, some_images, write_folder

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
    assert "0.46" in text
    (file,) = (folder / "paper").glob("table1-x0.001-set-*.json")
    content = json.loads(file.read_text())
    before, after = content["rows"]
    assert (before["published"], before["stage"], after["stage"]) == (0.0046, "before", "after")
    assert len(before["ours"]) == len(after["temperatures"]) == 2
    assert before["interval"][0] < before["ours"][0] < before["interval"][1]
    assert before["agrees"] in (True, False)
    (run,) = (folder / "paper" / "runs").glob("cifar10_resnet50_dual_focal_x0.001_set-*-seed1")
    assert before["ours"][0] == json.loads((run / "result.json").read_text())["test"]["ece"]
    assert "SHORTENED" in file.with_suffix(".md").read_text()


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
        (["tabel1"], "got 'tabel1'; did you mean table1?"),
        (["table1", "--only", "dataset=cifar"], "--only dataset must be one of 20newsgroups, cifar10"),
        (["table1", "--only", "data=cifar10"], "--only is written field=value"),
        (["table1", "--seeds", "1,1"], "--seeds must be different numbers"),
        (["table1", "--epochs-scale", "2"], "epochs_scale must be above 0 and at most 1, got 2"),
        (["table1", "--set", "epoch=2"], "a recipe has no field 'epoch'"),
        (["table1", "--set", "model=densenet40"], "model is what a row of the table stands for"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = reproduce(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr
    assert not list(tmp_path.iterdir())
