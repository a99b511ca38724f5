"""The multi-process service is started and stopped, with a program in the place of NVIDIA's that records its calls."""

import os
import warnings
from pathlib import Path

import pytest

from dualfocal_lab.study.multi_process_service import FOLDERS, multi_process_service

RECORDER = """#!/bin/sh
echo "$CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY $* $(cat)" >> "{record}"
{end}
"""


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Put a program into PATH that ends with a given command. Returns its calls: two folders, arguments and input."""
    for name in FOLDERS:
        monkeypatch.delenv(name, raising=False)
    record = tmp_path / "calls.txt"

    def install(end: str = "exit 0") -> Path:
        program = tmp_path / "nvidia-cuda-mps-control"
        program.write_text(RECORDER.format(record=record, end=end))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return record

    return install


def test_it_is_started_before_and_stopped_after_the_block(calls, monkeypatch):
    monkeypatch.setattr("dualfocal_lab.study.multi_process_service.PATIENCE", 1.0)
    record = calls(end="sleep 3 &")  # the service goes on, with the output of the program that starts it
    with multi_process_service() as running:
        assert running
        folder = os.environ[FOLDERS[0]]
        assert Path(folder).is_dir()
        assert record.read_text().split() == [folder, folder, "-d"]
    assert record.read_text().split()[3:] == [folder, folder, "quit"]
    assert not Path(folder).exists()
    assert not any(name in os.environ for name in FOLDERS)


def test_it_is_stopped_after_an_error_too(calls):
    record = calls()
    with pytest.raises(KeyboardInterrupt), multi_process_service():
        raise KeyboardInterrupt
    assert record.read_text().split()[-1] == "quit"
    assert not any(name in os.environ for name in FOLDERS)


def test_trainings_go_on_without_it(calls):
    calls(end="echo no permission >&2; exit 1")
    with pytest.warns(UserWarning, match="no permission"), multi_process_service() as running:
        assert not running


def test_nothing_is_started_if_not_wanted_or_missing_or_there_is_one(calls, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monkeypatch.setenv("PATH", "")
        with multi_process_service() as running:
            assert not running
        monkeypatch.undo()
        record = calls()
        with multi_process_service(wanted=False) as running:
            assert not running
        monkeypatch.setenv(FOLDERS[0], "mine")
        with multi_process_service() as running:
            assert not running
            assert os.environ[FOLDERS[0]] == "mine"
        assert not record.exists()
