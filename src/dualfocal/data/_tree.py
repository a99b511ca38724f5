"""Files of a folder, a tar or a zip, read alike, and archives where they are: nothing is ever unpacked onto the disk.

So no name in an archive becomes a path of ours. Still, an archive is refused if it has names that lead out of it,
links, devices, files twice, or more bytes than its data set can have.
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
MAX_HEADER = 2**18  # bytes of all headers of one file in a tar
DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, LookupError, OverflowError, OSError),
    RuntimeError,  # of a zip: encrypted, or packed in a way that Python does not know
)
Wanted = Callable[[str], bool]


def read_files(path: Path, wanted: Wanted, *, limit: int) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each wanted file below ``path``.

    Names are posix paths that begin with the top folder, be it on disk or in an archive; the order is that of the
    archive, or sorted. ``limit`` is how many bytes the files may have together: of an archive all, wanted or not.

    Raises:
        ValueError: the archive is damaged, or has what no data set of ours has; the message names it.
    """
    reader = _of_folder if path.is_dir() else _of_zip if path.suffix == ".zip" else _of_tar
    try:
        yield from reader(path, wanted, limit)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except DAMAGE as error:
        if isinstance(error, OSError) and error.filename is not None:  # it could not be opened
            raise
        raise ValueError(f"{path}: is damaged, or no archive that can be read: {error}") from error


def list_files(path: Path, *, limit: int) -> list[str]:
    """The names that :func:`read_files` would offer: quick for folders and zips, which have a table of contents."""
    names: list[str] = []

    def note(name: str) -> bool:
        names.append(name)
        return False

    for _ in read_files(path, note, limit=limit):
        pass
    return names


def _of_folder(path: Path, wanted: Wanted, limit: int) -> Iterator[tuple[str, bytes]]:
    above = path.absolute().parent  # of a folder that may be given as "."
    for file in walk(path.absolute()):
        name = file.relative_to(above).as_posix()
        if wanted(name):
            of = file.stat()
            limit = _reduced(limit, name, of.st_size, regular=stat.S_ISREG(of.st_mode))
            yield name, file.read_bytes()


def walk(folder: Path, within: tuple[tuple[int, int], ...] = ()) -> Iterator[Path]:
    """Everything below a folder that is no folder, sorted; links are followed, for it is the user's own.

    Raises:
        ValueError: a link leads back to a folder that it is in.
    """
    of = folder.stat()
    if (of.st_dev, of.st_ino) in within:
        raise ValueError(f"{folder} leads back to a folder that it is in")
    entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    yield from (Path(entry.path) for entry in entries if not entry.is_dir())
    for entry in entries:
        if entry.is_dir():
            yield from walk(Path(entry.path), (*within, (of.st_dev, of.st_ino)))


def _of_tar(path: Path, wanted: Wanted, limit: int) -> Iterator[tuple[str, bytes]]:
    seen: set[str] = set()
    with (
        path.open("rb") as raw,
        gzip.GzipFile(fileobj=raw) if path.name.endswith("gz") else raw as plain,
        tarfile.open(fileobj=cast(IO[bytes], source := _Bounded(plain)), mode="r:") as archive,
    ):
        while (member := archive.next()) is not None:
            cast(Any, archive).members.clear()  # it would keep all of them
            name = _checked_name(member.name, seen, folder=member.isdir())
            source.left = MAX_HEADER
            if member.isdir():
                continue
            plainly = member.isreg() and not member.issparse() and member.size >= 0
            limit = _reduced(limit, name, member.size, regular=plainly)
            if wanted(name):
                file = archive.extractfile(member)
                assert file is not None  # which it is for links and folders only
                source.left = member.size
                yield name, file.read()
                source.left = MAX_HEADER
        if source.last != bytes(tarfile.BLOCKSIZE):
            raise EOFError("it has no end, or a header that is none")  # which tarfile takes for the end
        while padding := plain.read(2**16):  # a gz has its checksum at its end
            limit -= len(padding)
            _check_limit(limit + 2**20)


def _of_zip(path: Path, wanted: Wanted, limit: int) -> Iterator[tuple[str, bytes]]:
    seen: set[str] = set()
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = _checked_name(member.filename, seen, folder=member.filename.endswith("/"))
            if member.filename.endswith("/"):
                continue
            kind = stat.S_IFMT(member.external_attr >> 16)
            limit = _reduced(limit, name, member.file_size, regular=kind in (0, stat.S_IFREG))
            if wanted(name):
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise ValueError(f"has {name!r}, compressed by method {member.compress_type}")
                with archive.open(member) as file:
                    yield name, file.read(member.file_size)  # no more than that is unfolded; then it is checked


class _Bounded:
    """A file that gives only so many bytes: headers of a tar can ask for any number, or for one after the other."""

    def __init__(self, file: Any) -> None:
        self._file, self.left, self.last = file, MAX_HEADER, b""
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        self.left -= size
        _check_limit(self.left)
        self.last = cast(bytes, self._file.read(size))
        return self.last


def _checked_name(name: str, seen: set[str], *, folder: bool) -> str:
    pure = PurePosixPath(name)
    if not name or pure.is_absolute() or ".." in pure.parts or "\\" in name or ":" in name.split("/")[0]:
        raise ValueError(f"has {name!r}, a path that leads out of it")
    plain = pure.as_posix()
    if plain in seen and not folder:
        raise ValueError(f"has {name!r} twice")
    seen.add(plain)
    if len(seen) > MAX_FILES:
        raise ValueError(f"has more than {MAX_FILES:,} files")
    return plain


def _reduced(limit: int, name: str, size: int, *, regular: bool) -> int:
    """What is left of the limit after a file, which must be one."""
    if not regular:
        raise ValueError(f"has {name!r}, which is a link, a device or the like; only files and folders are read")
    _check_limit(limit - size)
    return limit - size


def _check_limit(left: int) -> None:
    if left < 0:
        raise ValueError(f"has {-left:,} bytes or more beyond what this data set can have")
