"""`dualfocal paper reproduce`: the list of a table, and one cell of it on tiny data, end to end."""

import dataclasses
import io
import json
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
from official import newsgroup_files, vector_lines, write_folder
from run_results import make_result

from dualfocal.cli import main
from dualfocal.metrics import evaluate
from dualfocal_lab.paper import reproduce as table_runs
from dualfocal_lab.paper.ood import STAGES
from dualfocal_lab.paper.published import published
from dualfocal_lab.paper.reproduce import plan
from dualfocal_lab.paper.trainings import trainings
from dualfocal_lab.runs import Run
from dualfocal_lab.runs.result import Scaled
from dualfocal_lab.study import local

ONE = ["--only", "dataset=cifar10,model=resnet50,method=dual_focal"]
SETTINGS = ["data.test_size=12", "data.val_size=8", "batch_size=16"]
TINY = ["--only", "dataset=20newsgroups,method=dual_focal", "--epochs-scale", "0.04", "--data-root", "data"]
TINY += ["--device", "cpu", *(f"--set={setting}" for setting in SETTINGS)]
GROUPS = ("alt.atheism", "comp.graphics", "sci.space")
NOTE = "2 of 19 words have a vector in glove.6B.100d.txt"


def test_all_cells_of_the_first_table_are_listed(record: Callable[..., dict[str, Any]]) -> None:
    rows = {row["training"]: row for row in record("paper", "reproduce", "table1", "--dry-run")["trainings"]}
    assert len(rows) == 70
    assert "20newsgroups text_cnn brier" in rows
    assert rows["cifar10 wide_resnet26_10 brier"]["special"] == "epochs 550"
    assert rows["cifar10 resnet50 dual_focal"]["hours_on_an_h200"] == pytest.approx(0.23, abs=0.01)
    assert not list(Path().iterdir())


def test_the_list_is_readable(run: Callable[..., tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text, _ = run("paper", "reproduce", "gamma", "--dry-run", "--epochs-scale", "0.2", "--seeds", "1,2")
    lines = text.splitlines()
    assert "SHORTENED to 0.2 of the paper's epochs" in lines[0]
    assert "cifar10 resnet50 dual_focal 10" in text
    assert "5 trainings x 2 seeds" in text
    assert max(map(len, lines[:7])) <= 80


def test_several_values_of_a_field_add_up(record: Callable[..., dict[str, Any]]) -> None:
    only = "method=dual_focal,dataset=cifar10,method=flsd,model=resnet50"
    rows = record("paper", "reproduce", "table1", "--dry-run", "--only", only)["trainings"]
    assert [row["training"] for row in rows] == ["cifar10 resnet50 flsd", "cifar10 resnet50 dual_focal"]


def test_of_two_settings_of_a_field_the_second_counts() -> None:
    planned = plan("gamma", settings=["lr=1", "epochs=3", "lr = 2"])
    assert planned.study.title.endswith("CHANGED: lr=2, epochs=3")
    assert {(training.recipe.lr, training.recipe.epochs) for training in planned.trainings.values()} == {(2.0, 3)}


def test_a_failed_training_is_reported_whatever_is_printed(
    run: Callable[..., tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code is 1, also where JSON is asked for."""
    problem = "paper/runs/x: the loss is nan in epoch 1"
    monkeypatch.setattr(
        table_runs, "run_study", lambda study, *_, **__: dict.fromkeys(study.folders(tmp_path), problem)
    )
    Path("paper").mkdir()
    assert run("paper", "reproduce", "table1", *ONE, code=1)[1] == f"dualfocal: {problem}\n"
    out, err = run("paper", "reproduce", "table1", *ONE, "--json", code=1)
    assert err == f"dualfocal: {problem}\n"
    assert json.loads(out)["failed"] == json.loads(Path("paper/table1.json").read_text())["failed"] == [problem]


def test_the_file_has_the_whole_table(run: Callable[..., tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has runs of every method, seed and extra; other recipes in a folder of that name are left out."""
    expected = trainings(published("table1"), extras=True)
    names = ["cifar10 resnet50 dual_focal", "cifar10 resnet50 cross_entropy decay 1e-3", "cifar10 resnet50 brier"]
    logits, target = torch.randn(50, 10, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 10
    scores = evaluate(logits, target, inference=True, draws=100)
    for name in names:
        for seed in (1, 12):
            folder = Run(Path("paper/runs") / f"{name.replace(' ', '_')}-seed{seed}")
            folder.path.mkdir(parents=True)
            changes = ["lr=7"] if name.endswith("brier") and seed == 12 else []
            folder.write_json("recipe.json", expected[name].recipe.with_settings([f"seed={seed}", *changes]).to_dict())
            parts = {"test": dataclasses.replace(scores, ece=seed / 1000)}
            folder.write_result(make_result(parts, {"temperature_ece": Scaled(2.0, parts)}, notes=[name]))
    monkeypatch.setattr(table_runs, "run_study", lambda *_, **__: {})
    run("paper", "reproduce", "table1", *ONE)
    content = json.loads(Path("paper/table1.json").read_text())
    rows = {(row["training"], row["stage"]): (row["seeds"], row["ours"]) for row in content["rows"]}
    both = [1, 12], [0.001, 0.012]
    assert rows == {(name, stage): both if name != names[2] else ([1], [0.001]) for name in names for stage in STAGES}
    assert sorted(content["notes"]) == sorted(names)


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with one cell of table 1 on two seeds, and what the command printed."""
    folder = tmp_path_factory.mktemp("reproduced")
    texts = {group: {i: f"{group} {i} words" for i in range(12)} for group in GROUPS}
    vectors = {"glove.6B.100d.txt": vector_lines({"atheism": [0.5] * 100, "space": [-0.5] * 100})}
    write_folder(folder / "data", newsgroup_files("20_newsgroups", texts) | vectors)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "120")
        patch.setattr(local, "num_cores", lambda: 1)  # one thread: other tests use the machine, too
        with redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit) as ended:
            main(["paper", "reproduce", "table1", *TINY, "--jobs", "1", "--seeds", "1,2"])
    assert ended.value.code == 0
    return folder, printed.getvalue()


@pytest.fixture
def table_file(reproduced: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The table in a copy of the folder, which is the working directory."""
    shutil.copytree(reproduced[0], tmp_path, dirs_exist_ok=True)
    (file,) = Path("paper").glob("table1-x0.04-set-*.json")
    return file


def test_one_cell_end_to_end(reproduced: tuple[Path, str], table_file: Path) -> None:
    """Official files, the paper's net and recipe, a few steps of training; our number beside 1.79."""
    printed = reproduced[1]
    text = " ".join(printed.split())
    assert f"SHORTENED to 0.04 of the paper's epochs, CHANGED: {', '.join(SETTINGS)}" in text
    assert "1.79 (1.0)" in text  # after scaling: with the temperature
    content, markdown = json.loads(table_file.read_text()), table_file.with_suffix(".md").read_text()
    before, after = content["rows"]
    assert (before["published"], before["stage"], after["stage"]) == (0.0179, "before", "after")
    assert len(before["ours"]) == len(after["temperatures"]) == 2
    assert (before["published_temperature"], after["published_temperature"]) == (None, 1.0)
    low, high = sorted(after["temperatures"])
    ours = f"{100 * sum(after['ours']) / 2:.2f} ({low:.1f}{'' if low == high else f' to {high:.1f}'})"
    assert ours in markdown
    assert "agrees" in printed.split("Numbers are printed")[0]
    assert before["interval"][0] < before["ours"][0] < before["interval"][1]
    assert before["agrees"] is (before["interval"][0] <= 0.0179 <= before["interval"][1])
    (run,) = Path("paper/runs").glob("20newsgroups_text_cnn_dual_focal_x0.04_set-*-seed1")
    assert before["ours"][0] == json.loads((run / "result.json").read_text())["test"]["ece"]
    assert "SHORTENED" in markdown
    assert NOTE in text
    assert NOTE in content["notes"][0]
    assert NOTE in markdown


def test_fewer_seeds_lose_nothing_that_was_written(
    table_file: Path, run: Callable[..., tuple[str, str]], record: Callable[..., dict[str, Any]]
) -> None:
    """The chosen seeds are printed; the file has every run of the table in the folder."""
    before = table_file.read_text(), table_file.with_suffix(".md").read_text()
    command = ["paper", "reproduce", "table1", *TINY, "--seeds", "2"]
    printed, whole = record(*command), json.loads(before[0])
    assert [row["seeds"] for row in whole["rows"]] == [[1, 2], [1, 2]]
    assert [row["seeds"] for row in printed["rows"]] == [[2], [2]]
    assert [row["ours"] for row in printed["rows"]] == [row["ours"][1:] for row in whole["rows"]]
    assert printed["rows"][0]["agrees"] is None
    columns = run(*command)[0].split("Numbers are printed")[0]
    assert "seeds" in columns
    assert "agrees" not in columns  # one seed has no interval
    assert (table_file.read_text(), table_file.with_suffix(".md").read_text()) == before


def test_another_table_reads_the_same_run(table_file: Path, record: Callable[..., dict[str, Any]]) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path("paper/runs").rglob("*.*")}
    rows = record("paper", "reproduce", "error", *TINY, "--seeds", "1,2")["rows"]
    assert [row["metric"] for row in rows] == ["error"]
    assert {path: path.stat().st_mtime_ns for path in Path("paper/runs").rglob("*.*")} == before


def test_bad_input_is_refused_before_anything_is_written(refused: Callable[..., str]) -> None:
    for arguments, words in (
        (["tabel1"], "did you mean table1?"),
        (["table1", "--only", "dataset=cifar"], "dataset must be one of 20newsgroups, cifar10, "),
        (["table1", "--only", "data=cifar10"], "got 'data'; did you mean dataset?"),
        (["table1", "--only", ""], "FIELD=VALUE,... with a field of dataset, "),
        (["table1", "--seeds", ""], "one or more different numbers, got none"),
        (["table1", "--seeds", "1,1"], "one or more different numbers, got 1, 1"),
        (["table1", "--epochs-scale", "2"], "above 0 and at most 1, got 2"),
        (["table1", "--set", "epoch=2"], "no field 'epoch'"),
        (["table1", "--set", "model=densenet40"], "cannot change model"),
    ):
        assert words in refused("paper", "reproduce", *arguments), arguments
    assert not list(Path().iterdir())
