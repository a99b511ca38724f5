"""Read the files of a folder, a tar or a zip. Archives are read in place, never unpacked to disk.

No name in an archive is ever used as a path. As a further protection, an archive is refused if it has names that lead
out of it, links, devices, duplicate files, or more bytes than its data set can have.
"""

import gzip
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

MAX_FILES = 1_000_000
MAX_HEADER = 2**18  # bytes of the headers of one file in a tar
DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, LookupError, OverflowError, OSError),
    RuntimeError,  # a zip that is encrypted, or uses a compression that Python does not support
)
Wanted = Callable[[str], bool]


def read_files(path: Path, wanted: Wanted, *, limit: int) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each wanted file in a folder or an archive.

    Args:
        path: folder, tar or zip.
        wanted: whether to read the file with this name. Names are posix paths that start with the top folder. The order
            is that of the archive; files of a folder are sorted.
        limit: maximum number of bytes of the wanted files of a folder, or of all files of an archive.

    Raises:
        ValueError: the archive is damaged or suspicious; the message names it and says why.
    """
    reader = _read_folder if path.is_dir() else _read_zip if path.suffix == ".zip" else _read_tar
    try:
        yield from reader(path, wanted, limit)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except DAMAGE as error:
        if isinstance(error, OSError) and error.filename is not None:  # the file could not be opened
            raise
        raise ValueError(f"{path}: is damaged, or not a supported archive: {error}") from error


def list_files(path: Path, *, limit: int) -> list[str]:
    """Return the names of all files in a folder or an archive; slow for a tar, which has no table of contents."""
    names: list[str] = []

    def collect(name: str) -> bool:
        names.append(name)
        return False

    for _ in read_files(path, collect, limit=limit):
        pass
    return names


def _read_folder(path: Path, wanted: Wanted, limit: int) -> Iterator[tuple[str, bytes]]:
    above = path.absolute().parent  # absolute, because path may be "."
    for file in walk(path.absolute()):
        name = file.relative_to(above).as_posix()
        if wanted(name):
            status = file.stat()
            limit = _reduced(limit, name, status.st_size, regular=stat.S_ISREG(status.st_mode))
            yield name, file.read_bytes()


def walk(folder: Path, within: tuple[tuple[int, int], ...] = ()) -> Iterator[Path]:
    """Yield all files below a folder, sorted; links are followed, because the folder is the user's.

    Raises:
        ValueError: a link leads to a folder that contains it.
    """
    status = folder.stat()
    if (status.st_dev, status.st_ino) in within:
        raise ValueError(f"{folder} leads back to a folder that contains it")
    entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    yield from (Path(entry.path) for entry in entries if not entry.is_dir())
    for entry in entries:
        if entry.is_dir():
            yield from walk(Path(entry.path), (*within, (status.st_dev, status.st_ino)))


def _read_tar(path: Path, wanted: Wanted, limit: int) -> Iterator[tuple[str, bytes]]:
    names: set[str] = set()
    with (
        path.open("rb") as raw,
        gzip.GzipFile(fileobj=raw) if path.name.endswith("gz") else raw as plain,
        tarfile.open(fileobj=cast(IO[bytes], source := _Bounded(plain)), mode="r:") as archive,
    ):
        while (member := archive.next()) is not None:
            cast(Any, archive).members.clear()  # tarfile would keep all of them in memory
            name = _checked_name(member.name, names, folder=member.isdir())
            source.left = MAX_HEADER
            if member.isdir():
                continue
            regular = member.isreg() and not member.issparse() and member.size >= 0
            limit = _reduced(limit, name, member.size, regular=regular)
            if wanted(name):
                file = archive.extractfile(member)
                assert file is not None  # None only for links and folders
                source.left = member.size
                yield name, file.read()
                source.left = MAX_HEADER
        if source.last != bytes(tarfile.BLOCKSIZE):
            raise EOFError("it has no end mark, or an invalid header")  # tarfile takes that for the end
        while padding := plain.read(2**16):  # read to the end of a gz, where its checksum is
            limit -= len(padding)
            _check_limit(limit + 2**20)


def _read_zip(path: Path, wanted: Wanted, limit: int) -> Iterator[tuple[str, bytes]]:
    names: set[str] = set()
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = _checked_name(member.filename, names, folder=member.filename.endswith("/"))
            if member.filename.endswith("/"):
                continue
            kind = stat.S_IFMT(member.external_attr >> 16)
            limit = _reduced(limit, name, member.file_size, regular=kind in (0, stat.S_IFREG))
            if wanted(name):
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise ValueError(f"has {name!r} with the unsupported compression method {member.compress_type}")
                with archive.open(member) as file:
                    yield name, file.read(member.file_size)  # decompresses at most that much, then checks it


class _Bounded:
    """A file with a limit on reads: the headers of a malicious tar can ask for any number of bytes."""

    def __init__(self, file: Any) -> None:
        self._file, self.left, self.last = file, MAX_HEADER, b""
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        self.left -= size
        _check_limit(self.left)
        self.last = cast(bytes, self._file.read(size))
        return self.last


def _checked_name(name: str, names: set[str], *, folder: bool) -> str:
    pure = PurePosixPath(name)
    if not name or pure.is_absolute() or ".." in pure.parts or "\\" in name or ":" in name.split("/")[0]:
        raise ValueError(f"has {name!r}, a path that leads out of it")
    plain = pure.as_posix()
    if plain in names and not folder:
        raise ValueError(f"has {name!r} twice")
    names.add(plain)
    if len(names) > MAX_FILES:
        raise ValueError(f"has more than {MAX_FILES:,} files")
    return plain


def _reduced(limit: int, name: str, size: int, *, regular: bool) -> int:
    """Return the limit minus the size of a file; raise a ValueError if it is not a regular file or too large."""
    if not regular:
        raise ValueError(f"has {name!r}, a link, device or other special file; only files and folders are read")
    _check_limit(limit - size)
    return limit - size


def _check_limit(left: int) -> None:
    if left < 0:
        raise ValueError(f"has at least {-left:,} bytes more than this data set can have")
