"""Files are on the disk before they replace others."""

import errno
import os
from pathlib import Path

import pytest

from dualfocal.files import atomic_path


@pytest.fixture
def events(monkeypatch) -> list[str]:
    """Names of what is flushed and renamed, in order."""
    fsync, replace, events = os.fsync, Path.replace, []

    def flushed(descriptor: int) -> None:
        events.append(f"flush {os.path.basename(os.readlink(f'/proc/self/fd/{descriptor}'))}")
        fsync(descriptor)

    def renamed(self: Path, target: Path) -> Path:
        events.append(f"rename {self.name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "replace", renamed)
    return events


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_file_is_flushed_before_and_its_folder_after_the_rename(tmp_path, events) -> None:
    with atomic_path(tmp_path / "a.txt") as temporary:
        temporary.write_text("content")
    assert events == [f"flush {temporary.name}", f"rename {temporary.name}", f"flush {tmp_path.name}"]


def test_a_disk_that_is_full_when_a_file_is_flushed(tmp_path, monkeypatch) -> None:
    (tmp_path / "a.txt").write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with (
        pytest.raises(OSError, match=r"No space left on device: '.*/a\.txt'$"),
        atomic_path(tmp_path / "a.txt") as temporary,
    ):
        temporary.write_text("new")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_a_folder_that_cannot_be_flushed_is_no_error(tmp_path, monkeypatch) -> None:
    def refuse(path: object, flags: int) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch, atomic_path(tmp_path / "a.txt") as temporary:
        temporary.write_text("content")
        patch.setattr(os, "open", refuse)  # as on Windows
    assert (tmp_path / "a.txt").read_text() == "content"
