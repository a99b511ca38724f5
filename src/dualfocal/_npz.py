"""Read ``.npz`` and ``.npy`` files. The size of an array is known, and checked, before it is read or unpacked."""

import math
import zipfile
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

BYTES_PER_TEXT = 80  # of a Python string and a reference to it, at least
# Other methods unpack a block of any size at once. numpy writes only these.
BOUNDED_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


Header = tuple[tuple[int, ...], np.dtype[Any]]  # shape and dtype


def read_npy_header(file: IO[bytes], size: int) -> Header:
    """Return shape and dtype of an array in the ``.npy`` format, which is not read.

    Args:
        file: the open file.
        size: its bytes.

    Raises:
        ValueError: the file is not an array of plain values, or has not the size that its header promises.
    """
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0)):  # 3 is for the names of fields of records
        raise ValueError(f"version {version[0]}.{version[1]} of the .npy format is not supported")
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError(
            "Object arrays are pickles, which are never loaded: save texts as array.astype(str), numbers as "
            "array.astype(float)"
        )
    promised, stored = math.prod(shape) * dtype.itemsize, size - file.tell()
    if promised != stored or dtype.itemsize == 0 or min(shape, default=0) < 0:
        raise ValueError(f"its header promises {promised:,} bytes ({dtype} {shape}), but it has {stored:,}")
    return shape, dtype


def npy_num_bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the memory that an array needs, in native byte order; for text, also as Python strings."""
    per_entry = dtype.itemsize * (1 if dtype.isnative else 2) + (BYTES_PER_TEXT if dtype.kind == "U" else 0)
    return math.prod(shape) * per_entry


def read_npy(file: IO[bytes]) -> NDArray[Any]:
    """Read an array in the ``.npy`` format, in native byte order; its header was checked by ``read_npy_header``."""
    array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
    return array.astype(array.dtype.newbyteorder("="), copy=False)  # torch only reads native byte order


class NpzArchive:
    """An open ``.npz`` archive: a mapping from names to arrays, which are read on access. Pickles are never loaded."""

    def __init__(self, path: Path) -> None:
        self._archive = zipfile.ZipFile(path)
        self._names = [member.filename.removesuffix(".npy") for member in self._archive.infolist()]
        self._members = dict(zip(self._names, self._archive.infolist(), strict=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._archive.close()

    def keys(self) -> list[str]:
        """Names of all arrays; a damaged archive can have a name twice."""
        return self._names

    def header(self, name: str) -> Header:
        """Return shape and dtype of an array, which is not unpacked.

        Raises:
            KeyError: there is no such array.
            ValueError: the member is not an array of plain values, or has not the size that its header promises.
        """
        member = self._members[name]
        with self._open(member) as file:
            return read_npy_header(file, member.file_size)

    def num_bytes(self, name: str) -> int:
        """Return the memory that an array needs, see :func:`npy_num_bytes`."""
        return npy_num_bytes(*self.header(name))

    def __getitem__(self, name: str) -> NDArray[Any]:
        self.header(name)
        with self._open(self._members[name]) as file:  # which gives no more bytes than the directory promises
            return read_npy(file)

    def _open(self, member: zipfile.ZipInfo) -> IO[bytes]:
        if member.compress_type not in BOUNDED_METHODS:
            raise ValueError(f"compression method {member.compress_type} is not one that numpy writes")
        return self._archive.open(member)
