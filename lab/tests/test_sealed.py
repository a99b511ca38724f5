"""Files with a checksum are checked in full."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dualfocal_lab._sealed import DamagedFileError, check_sealed, load_sealed, parse_sealed, save_sealed

ODD = 'größe, 猫, "quoted", \n \t \b \f \x01 \x7f \u2028 🎈 \\'  # JSON writes these in different ways


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
