"""Read ``.eval`` archives of inspect_ai: zip files whose members are JSON, packed by deflate or Zstandard."""

import json
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dualfocal.predictions._formats.interface import PredictionsError, shortened
from dualfocal.predictions._formats.json_lines import BYTES_PER_CHARACTER

ZSTANDARD = 93  # compression method that the zipfile of Python 3.11 does not know
READABLE = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # other methods unpack a block of any size at once
LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, lengths of name and extra field
HEADERS = ("header.json", "_journal/start.json")  # the second exists also if the run was stopped


class EvalArchive:
    """An ``.eval`` file. Members are parsed as JSON, one at a time; no name in it becomes a path.

    Args:
        path: the file.
        check_memory: called with the bytes that a member may need; raises an error if these are too many.
    """

    def __init__(self, path: Path, check_memory: Callable[[int], None]) -> None:
        self.path, self.check_memory = path, check_memory

    def header(self) -> Any:
        """Return what the archive says about the run."""
        with zipfile.ZipFile(self.path) as archive:
            names = archive.namelist()
            name = next((name for name in HEADERS if name in names), None)
            if name is None:
                raise PredictionsError(f"{self.path}: is not a log of inspect_ai: it has no header.json")
            return self._parse(archive, archive.getinfo(name))

    def samples(self) -> Iterator[Any]:
        """Yield the samples, parsed."""
        with zipfile.ZipFile(self.path) as archive:
            for member in archive.infolist():
                if member.filename.startswith("samples/") and member.filename.endswith(".json"):
                    yield self._parse(archive, member)

    def _parse(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Any:
        self.check_memory(member.file_size * BYTES_PER_CHARACTER)
        try:
            return json.loads(self._unpack(archive, member))
        except ValueError as error:
            if isinstance(error, PredictionsError):
                raise
            name = shortened(repr(member.filename))
            raise PredictionsError(f"{self.path}: {name} is not JSON: {shortened(str(error), 200)}") from None

    def _unpack(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
        """Return the content of a member, of which no more is unpacked than the directory promises."""
        if member.compress_type in READABLE:
            return archive.read(member)
        if member.compress_type != ZSTANDARD:
            raise PredictionsError(f"{self.path}: compression method {member.compress_type} is not supported")
        try:
            import pyarrow  # type: ignore[import-untyped]
        except ImportError:
            raise PredictionsError(
                f"{self.path}: is packed by Zstandard, which needs pyarrow: pip install 'dualfocal[cli]', or "
                "convert the log with `inspect log convert --to json`"
            ) from None
        with self.path.open("rb") as file:
            file.seek(member.header_offset)
            signature, name, extra = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
            if signature != b"PK\x03\x04":
                raise PredictionsError(f"{self.path}: {shortened(repr(member.filename))} has a damaged header")
            file.seek(name + extra, 1)
            packed = file.read(member.compress_size)
        with pyarrow.CompressedInputStream(pyarrow.BufferReader(packed), "zstd") as stream:
            content: bytes = stream.read(member.file_size + 1)
        if len(content) != member.file_size:
            raise PredictionsError(f"{self.path}: {shortened(repr(member.filename))} has not the size that it states")
        return content
