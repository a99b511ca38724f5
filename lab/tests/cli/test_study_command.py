"""`dualfocal study` from the command line."""

import csv
import io
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import dualfocal_lab.study
from dualfocal.cli import main
from dualfocal_lab.study import local, make_study
from dualfocal_lab.train import train

SMALL = ["study", "--gamma", "1,5", "--seeds", "0,1", "--set", "epochs=2", "--set", "data.val_size=100", "--out", "out"]
LONG = ["study", "--losses", "cross_entropy", "--seeds", "0,1,2", "--jobs", "1", "--device", "cpu"]
STOPPED = "dualfocal: stopped; run the same command again to continue"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a finished study, and what the command printed at 80 columns."""
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "80")
        settings = ["epochs=2", "data.val_size=100"]
        planned = make_study(["dual_focal"], seeds=[0, 1], gammas=[1, 5], settings=settings)
        for (entry, seed), run in planned.folders(Path("out")).items():  # here, as a process costs seconds
            train(planned.recipes[entry][seed], run, device="cpu", progress=False)
        with redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit) as ended:
            main(SMALL)
    assert ended.value.code == 0
    return folder, printed.getvalue()


def test_it_prints_a_table_and_a_reading(finished: tuple[Path, str]) -> None:
    printed = finished[1]
    assert "digits, small_cnn: dual_focal by gamma, 2 seeds, 2 epochs, into out" in printed
    assert "floor" in printed
    text = " ".join(printed.split())
    assert "Lowest NLL: gamma " in text
    assert "Lowest validation NLL: gamma " in text
    assert "*: significantly below gamma 1" in text  # a mark that a file and a pipe keep
    assert max(map(len, printed.splitlines()[:8])) <= 80


def test_it_writes_tables_and_a_figure(finished: tuple[Path, str]) -> None:
    out = finished[0] / "out"
    assert (out / "table.md").read_text().startswith("# digits, small_cnn: dual_focal by gamma")
    with (out / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["entry"], row["seed"]) for row in rows] == [(f"gamma {g}", s) for g in "15" for s in "01"]
    with Image.open(out / "study.png") as picture:
        assert picture.size[0] > 1000
    assert json.loads((out / "study.json").read_text())["gamma"]["criterion"] == "nll"


def test_a_second_call_trains_nothing_and_has_the_same_reading(
    finished: tuple[Path, str], record: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, printed = finished
    monkeypatch.chdir(folder)
    before = {path: path.stat().st_mtime_ns for path in Path("out/runs").rglob("*")}
    content = record(*SMALL)
    assert " ".join(content["reading"].split()) in " ".join(printed.split())
    assert content["entries"]["gamma 5"]["recipe"]["loss_options"] == {"gamma": 5}
    assert {path: path.stat().st_mtime_ns for path in Path("out/runs").rglob("*")} == before


def test_runs_that_the_table_leaves_out_are_counted(
    finished: tuple[Path, str], run: Callable[..., tuple[str, str]], tmp_path: Path
) -> None:
    shutil.copytree(finished[0] / "out", tmp_path / "out")
    out, _ = run(*(word.replace("1,5", "5") for word in SMALL))
    text = " ".join(out.split())
    assert "No comparison: gamma 5 is the only entry" in text
    assert "2 runs in out/runs are not in the table: list all losses and seeds" in text
    assert "not in the table" not in finished[1]


@pytest.mark.slow
def test_ctrl_c_saves_the_running_training_and_starts_no_other() -> None:
    command = [sys.executable, "-m", "dualfocal", *LONG]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    runs = Path("study/runs")
    end = time.monotonic() + 120
    while not list(runs.glob("*/log.jsonl")) and process.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # a terminal, too, sends it to all processes
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == STOPPED
    assert "Traceback" not in errors
    assert [folder.name for folder in runs.iterdir()] == ["cross_entropy-seed0"]
    assert (runs / "cross_entropy-seed0" / "checkpoint.safetensors").exists()
    assert not (runs / "cross_entropy-seed0" / "result.json").exists()


def test_ctrl_c_while_a_process_starts_leaves_no_traceback(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new process is still importing torch when it gets the signal."""

    def interrupt() -> None:
        while not (children := multiprocessing.active_children()):
            time.sleep(0.01)
        for pid in (os.getpid(), *(child.pid for child in children)):
            os.kill(pid, signal.SIGINT)

    monkeypatch.setattr(local, "num_cores", lambda: 1)  # one thread: other tests use the machine, too
    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(SystemExit) as ended:
        main(LONG)
    thread.join()
    assert ended.value.code == 130
    errors = capfd.readouterr().err
    assert errors.splitlines()[-1] == STOPPED
    assert "Traceback" not in errors
    assert {folder.name for folder in Path("study/runs").glob("*")} <= {"cross_entropy-seed0"}
    assert not list(Path("study").rglob("result.json"))


def test_a_failed_training_is_reported_whatever_is_printed(
    run: Callable[..., tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code is 1, also where JSON is asked for."""
    problem = "study/runs/x: the loss is nan in epoch 1"
    monkeypatch.setattr(
        dualfocal_lab.study, "run_study", lambda study, *_, **__: dict.fromkeys(study.folders(Path()), problem)
    )
    Path("study").mkdir()
    assert run("study", "--losses", "focal", "--seeds", "0", code=1)[1] == f"dualfocal: {problem}\n"
    out, err = run("study", "--losses", "focal", "--seeds", "0", "--json", code=1)
    assert err == f"dualfocal: {problem}\n"
    assert json.loads(out)["failed"] == {"focal, seed 0": problem}


def test_sigterm_ends_with_the_remedy_and_its_own_exit_code(
    run: Callable[..., tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise SystemExit(143)

    monkeypatch.setattr(dualfocal_lab.study, "run_study", stop)
    assert run("study", "--losses", "focal", code=143)[1].splitlines()[-1] == STOPPED


def test_bad_input_is_refused_before_anything_is_written(refused: Callable[..., str]) -> None:
    for arguments, words in (
        (["--losses", "fokal"], "got 'fokal'; did you mean focal?"),
        (["--seeds", "a"], "--seeds must be numbers separated by commas, got 'a'"),
        (["--criterion", "mce"], "'mce' is not one of 'nll', 'ece'"),
        (["--criterion", "ece"], "--criterion needs --gamma"),
    ):
        assert words in refused("study", *arguments), arguments
    assert not list(Path().iterdir())
