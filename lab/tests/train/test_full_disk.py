"""A disk that is full, or a folder that cannot be written: the file is named, and no epoch is lost."""

import errno
import os
from pathlib import Path

import pytest
from small_runs import contents, go, outcome, small
from worker import files_up_to

from dualfocal.cli import main
from dualfocal_lab.runs import Run, RunError
from dualfocal_lab.runs import folder as run_folder

pytestmark = pytest.mark.usefixtures("nets", "quick")


def test_a_full_disk_on_the_command_line(stopped, expected, capsys) -> None:
    before = (stopped / "checkpoint.safetensors").read_bytes()
    with files_up_to(len(before) // 2), pytest.raises(SystemExit) as ended:
        main(["train", str(stopped), "--out", str(stopped), "--device", "cpu"])
    assert ended.value.code == 1
    out, err = capsys.readouterr()
    assert out == ""
    resumed, problem = err.splitlines()
    assert resumed == "resuming after epoch 2 of 4"
    assert problem.startswith(f"dualfocal: {stopped / 'checkpoint.safetensors'}: cannot be written: ")
    assert "File too large" in problem
    assert sorted(contents(stopped)) == ["checkpoint.safetensors", "log.jsonl", "recipe.json"]
    assert (stopped / "checkpoint.safetensors").read_bytes() == before
    assert outcome(go(small(), stopped).path) == expected


@pytest.mark.parametrize(("size", "name"), [(0, ".attempt"), (400, "recipe.json"), (1000, "checkpoint.safetensors")])
def test_a_disk_that_is_full_from_the_start(tmp_path, expected, size, name) -> None:
    with files_up_to(size), pytest.raises(RunError) as error:
        go(small(), tmp_path / "run")
    assert str(error.value).startswith(f"{tmp_path / 'run' / name}: cannot be written: ")
    assert "File too large" in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert not {path.name for path in (tmp_path / "run").iterdir()} - {"recipe.json", "log.jsonl"}
    assert outcome(go(small(), tmp_path / "run").path) == expected


def test_a_disk_that_is_full_when_predictions_are_written(stopped, expected, monkeypatch) -> None:
    def full(tensors, path, metadata=None) -> None:
        if "test_logits" not in tensors:
            return save(tensors, path, metadata)
        with files_up_to(1000):
            return save(tensors, path, metadata)

    save = run_folder.save_sealed
    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "save_sealed", full)
        with pytest.raises(RunError, match=r"/predictions\.safetensors: cannot be written: "):
            go(small(), stopped)
    assert sorted(contents(stopped)) == ["checkpoint.safetensors", "log.jsonl", "recipe.json"]
    assert outcome(go(small(), stopped).path) == expected


def test_a_disk_that_is_full_in_the_middle_of_a_line(stopped, expected, monkeypatch) -> None:
    size = (stopped / "log.jsonl").stat().st_size
    before = (stopped / "checkpoint.safetensors").read_bytes()
    append = Run.append

    def full(self, line) -> None:
        with files_up_to(size + 20):
            append(self, line)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "append", full)
        with pytest.raises(RunError, match=r"^\S+/run/log\.jsonl: cannot be written: File too large$"):
            go(small(), stopped)
    assert (stopped / "log.jsonl").stat().st_size == size + 20
    assert (stopped / "checkpoint.safetensors").read_bytes() == before
    assert outcome(go(small(), stopped).path) == expected


def test_a_disk_that_is_full_when_the_log_is_flushed(stopped, expected, monkeypatch) -> None:
    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunError, match=r"^\S+/run/log\.jsonl: cannot be written: No space left on device$"):
            go(small(), stopped)
    assert outcome(go(small(), stopped).path) == expected


def test_a_folder_that_cannot_be_made_is_named(tmp_path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(RunError, match=r"^\S+/file/run: cannot be written: Not a directory$"):
        go(small(), tmp_path / "file" / "run")
    with pytest.raises(RunError, match=r"^\S+/file: must be a folder, but is a file$"):
        go(small(), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_to_is_named(tmp_path) -> None:
    (tmp_path / "run").mkdir(mode=0o555)
    with pytest.raises(RunError, match=r"^\S+/run/\.attempt: cannot be written: Permission denied$"):
        go(small(), tmp_path / "run")


def test_the_file_that_cannot_be_written_is_named_once(stopped, monkeypatch) -> None:
    def refuse(self, **_) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(RunError) as error:
        go(small(), stopped)
    assert str(error.value) == f"{stopped / 'log.jsonl'}: cannot be written: Permission denied"


def test_a_log_that_cannot_be_written_is_noticed_before_an_epoch_is_trained(finished, at_step) -> None:
    for name in ("result.json", "model.safetensors", "log.jsonl"):
        (finished / name).unlink()
    (finished / "log.jsonl").mkdir()
    at_step(1, lambda logits: pytest.fail("a step was trained"))
    with pytest.raises(RunError, match=r"finished/log\.jsonl: cannot be written: Is a directory"):
        go(small(), finished)


def test_a_folder_that_cannot_be_claimed_is_named(tmp_path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".attempt").write_text("a file")
    with pytest.raises(RunError, match=r"run/\.attempt: must be a folder, but is a file"):
        go(small(), tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".attempt"]
