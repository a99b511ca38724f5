"""Files are on the disk before they replace others, and files with a checksum are checked in full."""

import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dualfocal._files import atomic_path
from dualfocal._sealed import DamagedFileError, check_sealed, load_sealed, parse_sealed, save_sealed

ODD = 'größe, 猫, "quoted", \n \t \b \f \x01 \x7f \u2028 🎈 \\'  # JSON writes these in different ways


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


# Checksums.


@pytest.fixture
def path(tmp_path) -> Path:
    path = tmp_path / "a.safetensors"
    tensors = {"weight": torch.arange(6.0).view(2, 3), ODD: torch.ones(2).bfloat16(), "empty": torch.zeros(0)}
    save_sealed(tensors, path, {"names": ODD, "a": "1", "z": ""})
    return path


def test_tensors_and_metadata_come_back_also_in_other_programs(path) -> None:
    for tensors, metadata in (load_sealed(path), parse_sealed(path.read_bytes(), path)):
        assert metadata == {"names": ODD, "a": "1", "z": ""}
        assert tensors.keys() == {"weight", ODD, "empty"} == load_file(path).keys()
        assert torch.equal(tensors["weight"], torch.arange(6.0).view(2, 3))
        assert tensors[ODD].dtype == torch.bfloat16
    assert check_sealed(path)


def test_the_same_content_gives_the_same_bytes(path) -> None:
    before = path.read_bytes()
    for _ in range(10):  # safetensors would write the metadata in any order
        save_sealed(*load_sealed(path)[:1], path, load_sealed(path)[1])
        assert path.read_bytes() == before


def test_every_flipped_bit_is_noticed_except_in_the_name_of_the_checksum(path) -> None:
    content = path.read_bytes()
    start = content.index(b"dualfocal_crc32")
    unnoticed = set()
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            parse_sealed(bytes(damaged), path)
        except DamagedFileError:
            continue
        unnoticed.add(bit // 8)
    assert unnoticed <= set(range(start, start + len("dualfocal_crc32")))


@pytest.mark.parametrize("content", [b"", b"\0", b"\xff" * 100, b"text" * 50], ids=["empty", "zero", "ones", "text"])
def test_a_file_that_is_no_safetensors_file_is_named(path, content) -> None:
    path.write_bytes(content)
    for read in (load_sealed, lambda path: parse_sealed(content, path)):
        with pytest.raises(DamagedFileError, match=rf"^{path}: is damaged, or not a safetensors file: ") as error:
            read(path)
        assert len(str(error.value).splitlines()) == 1


def test_a_file_without_a_checksum_is_read(path) -> None:
    save_file({"a": torch.ones(1)}, path, {"KEY": '"dualfocal_crc32":"12345678"'})  # a text, not a field
    assert not check_sealed(path)
    assert load_sealed(path) == ({"a": torch.ones(1)}, {"KEY": '"dualfocal_crc32":"12345678"'})
