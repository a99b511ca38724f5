"""`dualfocal study` as one types it."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

import dualfocal.study
from dualfocal.cli import main


def study(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dualfocal", "study", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("study")
    options = ["--gamma", "1,5", "--seeds", "0,1", "--set", "epochs=2", "--set", "data.val_size=100", "--device", "cpu"]
    return folder, study(*options, "--out", "out", cwd=folder)


def test_it_prints_a_table_and_a_reading(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    _, done = finished
    assert done.returncode == 0, done.stderr
    assert "digits, small_cnn: dual_focal by gamma, 2 seeds, 2 epochs, into out" in done.stdout
    assert "floor" in done.stdout
    text = " ".join(done.stdout.split())
    assert "Before temperature scaling, gamma " in text
    assert "Lowest validation NLL: gamma " in text
    assert max(map(len, done.stdout.splitlines()[:8])) <= 80


def test_it_writes_tables_and_a_figure(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out = finished[0] / "out"
    assert (out / "table.md").read_text().startswith("# digits, small_cnn: dual_focal by gamma")
    with (out / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["entry"], row["seed"]) for row in rows] == [(f"gamma {g}", s) for g in "15" for s in "01"]
    with Image.open(out / "study.png") as picture:
        assert picture.size[0] > 1000
    assert json.loads((out / "study.json").read_text())["gamma"]["criterion"] == "nll"


def test_again_it_trains_nothing_and_says_the_same(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, first = finished
    options = ["--gamma", "1,5", "--seeds", "0,1", "--set", "epochs=2", "--set", "data.val_size=100", "--out", "out"]
    again = study(*options, "--json", cwd=folder)
    assert again.returncode == 0, again.stderr
    content = json.loads(again.stdout)
    assert " ".join(content["reading"].split()) in " ".join(first.stdout.split())
    assert content["entries"]["gamma 5"]["recipe"]["loss_options"] == {"gamma": 5}


@pytest.mark.parametrize("trains", [True, False], ids=["trains", "starts"])
def test_ctrl_c_saves_what_is_running_and_starts_nothing_more(trains: bool, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "dualfocal",
        "study",
        "--losses",
        "cross_entropy",
        "--seeds",
        "0,1,2",
        "--jobs",
        "1",
    ]
    process = subprocess.Popen(
        [*command, "--device", "cpu"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    runs = tmp_path / "study" / "runs"
    end = time.monotonic() + 60
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while time.monotonic() < end:
        if list(runs.glob("*/log.jsonl")) if trains else len(children.read_text().split()) > 1:
            break
        time.sleep(0.1)
    time.sleep(0 if trains else 1)  # the process is on its way, importing torch
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told.splitlines()[-1] == "dualfocal: stopped; run the same command again to continue"
    assert "Traceback" not in told
    assert {folder.name for folder in runs.glob("*")} <= {"cross_entropy-seed0"}
    assert not (runs / "cross_entropy-seed0" / "result.json").exists()
    if trains:
        assert (runs / "cross_entropy-seed0" / "checkpoint.safetensors").exists()


@pytest.mark.parametrize("as_json", [[], ["--json"]], ids=["table", "json"])
def test_a_training_that_fails_is_told_whatever_is_printed(
    as_json: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = "study/runs/x: the loss is nan in epoch 1"
    monkeypatch.setattr(
        dualfocal.study, "run_study", lambda study, *_, **__: dict.fromkeys(study.folders(Path()), problem)
    )
    Path("study").mkdir()
    with pytest.raises(SystemExit) as ended:
        main(["study", "--losses", "focal", "--seeds", "0", *as_json])
    assert ended.value.code == 1
    captured = capsys.readouterr()
    assert captured.err == f"dualfocal: {problem}\n"
    assert not as_json or json.loads(captured.out)["failed"] == {"focal, seed 0": problem}


@pytest.mark.parametrize("ending", [KeyboardInterrupt(), SystemExit(143)], ids=["Ctrl-C", "SIGTERM"])
def test_stopped_it_says_what_to_do_next(
    ending: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise ending

    monkeypatch.setattr(dualfocal.study, "run_study", stopped)
    with pytest.raises(SystemExit) as ended:
        main(["study", "--losses", "focal"])
    assert ended.value.code in (130, 143)
    assert capsys.readouterr().err.splitlines()[-1] == "dualfocal: stopped; run the same command again to continue"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--losses", "fokal"], "got 'fokal'; did you mean focal?"),
        (["--seeds", "a"], "--seeds must be numbers separated by commas, got 'a'"),
        (["--criterion", "mce"], "'mce' is not one of 'nll', 'ece'"),
        (["--criterion", "ece"], "--criterion needs --gamma"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = study(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr
    assert not (tmp_path / "study").exists()
