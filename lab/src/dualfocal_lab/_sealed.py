"""Safetensors files with a checksum, so that damage on a disk is noticed when a file is read again."""

import json
import os
import re
import zlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

from torch import Tensor

# CRC-32 of all bytes of the file, from the length of the header to the last tensor, with these eight digits as zeros.
# It is meant for failing disks and memory, not for forgers, who could write a right checksum anyway: it finds every
# flipped bit and every damaged stretch of up to 32 bits, and misses other damage once in 4 billion times. For 184 MB,
# the size of CIFAR-10, zlib.crc32 takes 0.07 s, SHA-256 0.12 s where the processor computes it (BLAKE2b: 0.29 s).
# NumPy's sum of 64-bit integers takes 0.02 s, but does not notice two values that have changed places.
KEY = "dualfocal_crc32"
BLANK = "00000000"
FIELD = re.compile(rb'"%s":"(.{8})"' % KEY.encode(), re.DOTALL)  # quotes inside of JSON texts have a backslash
MAX_HEADER = 100_000_000  # bytes, a limit of safetensors
BLOCK = 2**20


class DamagedFileError(ValueError):
    """A safetensors file is damaged, or is none; the message names it."""


class Checksum(NamedTuple):
    """The checksum of a safetensors file, and the one that its header states (None: the header has no checksum)."""

    actual: str
    stated: str | None
    position: int  # of the stated checksum


def save_sealed(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors and metadata with a checksum; call it inside :func:`~dualfocal.files.atomic_path`.

    The same arguments give the same bytes: safetensors itself writes metadata in any order.

    Raises:
        OSError: the file cannot be written.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.safetensors")
    ...     save_sealed({"ones": torch.ones(2)}, path, {"about": "ones"})
    ...     load_sealed(path)
    ({'ones': tensor([1., 1.])}, {'about': 'ones'})
    """
    from safetensors import SafetensorError  # imported late: only torch and numpy may be needed at import
    from safetensors.torch import save_file

    try:
        save_file(dict(tensors), path, {**(metadata or {}), KEY: BLANK})
    except SafetensorError as error:
        if (match := re.search(r"\(os error ([0-9]+)\)", str(error))) is None:
            raise
        raise OSError(int(match[1]), os.strerror(int(match[1]))) from error
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(length)
        if len(text) != length:
            raise ValueError(f"the header must stay {length} bytes long, got {len(text)}")
        file.seek(8)
        file.write(text)
        file.seek(0)
        checksum = _scan(file)
        file.seek(checksum.position)
        file.write(checksum.actual.encode())


def load_sealed(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Check a file and return its tensors, memory-mapped, and its metadata without the checksum.

    Raises:
        DamagedFileError: see :func:`check_sealed`.
        OSError: the file cannot be opened or read.
    """
    from safetensors import SafetensorError, safe_open

    check_sealed(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = {name: text for name, text in (file.metadata() or {}).items() if name != KEY}
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118, not a dict
    except SafetensorError as error:
        raise DamagedFileError(f"{path}: is damaged, or not a safetensors file: {_line(error)}") from error


def parse_sealed(content: bytes, path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Like :func:`load_sealed`, for the content of a file that has been read."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    _check(BytesIO(content), path)
    try:
        tensors = load(content)
    except SafetensorError as error:
        raise DamagedFileError(f"{path}: is damaged, or not a safetensors file: {_line(error)}") from error
    length = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    return tensors, {name: text for name, text in metadata.items() if name != KEY}


def check_sealed(path: Path) -> bool:
    """Compare the checksum of a file with the one in its header.

    Every byte is read, by ``read`` and not by a memory map, where a failing disk would kill the process.

    Returns:
        Whether the file has a checksum. Files of other programs have none.

    Raises:
        DamagedFileError: the checksums differ.
        OSError: the file cannot be opened or read.
    """
    with path.open("rb") as file:
        return _check(file, path)


def _check(file: BinaryIO, path: Path) -> bool:
    actual, stated, _ = _scan(file)
    if stated not in (None, actual):
        raise DamagedFileError(f"{path}: is damaged: its checksum is {actual}, but should be {stated}")
    return stated is not None


def _scan(file: BinaryIO) -> Checksum:
    start = file.read(8)
    header = file.read(min(int.from_bytes(start, "little"), MAX_HEADER))
    field = FIELD.search(header)
    stated, position = None, 0
    if field is not None:
        position = len(start) + field.start(1)
        stated = field[1].decode("latin-1")
        header = header[: field.start(1)] + BLANK.encode() + header[field.end(1) :]
    checksum = zlib.crc32(header, zlib.crc32(start))
    while block := file.read(BLOCK):
        checksum = zlib.crc32(block, checksum)
    return Checksum(f"{checksum:08x}", stated, position)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def storable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors in the form that safetensors needs: on the CPU, contiguous, and without shared memory."""
    storages: set[int] = set()
    stored = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        if plain.numel() and (
            plain.untyped_storage().data_ptr() in storages or plain.untyped_storage().nbytes() > plain.nbytes
        ):
            plain = plain.clone()  # tied weights, or a view of a larger tensor
        storages.add(plain.untyped_storage().data_ptr())
        stored[name] = plain
    return stored
