"""Download official files: a broken download is resumed, and no file is used before its checksum is right.

Size and checksum of a file are known beforehand. So a partial file needs no note of where it came from: the rest may
come from any URL, and pieces that do not fit together have the wrong checksum and are downloaded again.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dualfocal.data.paths import Root, data_root, look_for, on_disk
from dualfocal.data.sources import OfficialFile, get_official

if TYPE_CHECKING:
    import requests

BytesDone = Callable[[int], object]  # called with the number of bytes that are on disk

CONNECT_SECONDS = 15.0  # for a server to take the call
READ_SECONDS = 60.0  # between two pieces of its answer
TRIES = 4  # at each URL, in a row, that bring nothing
BACK_OFF = 0.5  # seconds before another try; doubles with each of those
CHUNK = 1 << 16  # bytes; what is lost at most when a connection hangs


class _FailedError(Exception):
    """Why a URL does not give the file."""


class _BrokenError(_FailedError):
    """A failure that another try may not meet."""


def fetch(source: OfficialFile, folder: Path, *, progress: BytesDone | None = None) -> Path:
    """Download an official file into ``folder``, check it, and return its path.

    A file that is there already and right is kept. Until it is checked a file is called ``<file>.part``; after an
    interruption the next call resumes it. One process at a time downloads a file, others wait for it. The empty
    ``.<file>.lock`` by which they know of each other stays; it blocks nobody once its process has ended.

    Args:
        source: Which file; its URLs are tried in order.
        folder: Made if missing.
        progress: Called as bytes arrive.

    Raises:
        ValueError: Another file has this name (it is left as it is).
        ConnectionError: No URL gave the official file. The message says why, for each.
        OSError: The disk is too small, or cannot be written to.
    """
    from filelock import FileLock

    path = folder / source.file
    report = progress or (lambda there: None)
    if not _is_there(path, source):
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".{source.file}.lock"):  # the system's own lock, which ends with its process
            if not _is_there(path, source):  # unless the process waited for has brought it
                _fetch_from_any(source, path, report)
    report(source.size)
    return path


def fetch_data(name: str, root: Root = None, *, progress: Callable[[str, int], object] | None = None) -> list[Path]:
    """Download the official files of a data set, unless it is there already, and return their paths.

    What lies in the root itself stays there; the rest goes to a folder of the data set's name.

    Args:
        name: a key of ``OFFICIAL``.
        root: see :func:`~dualfocal.data.paths.data_root`.
        progress: called with a file's name and the number of its bytes that are on disk.

    Returns:
        No paths if the data set is there in another form, such as a folder, or comes with scikit-learn.

    Raises:
        ValueError: there is nothing to download, or as in :func:`fetch`; other errors are as there, too.
    """
    official = get_official(name)
    place = on_disk(name, root)
    unpacked = place is not None and place.name not in {source.file for source in official.sources}
    if unpacked and official.num_classes:  # not word vectors: those of other widths are only in the archive
        return []
    if not official.sources:
        raise ValueError(f"{name}: there is nothing to download: {official.by_hand}")
    folder = data_root(root) / name
    places = [(source, look_for(name, root, source.file) or folder / source.file) for source in official.sources]
    return [fetch(source, path.parent, progress=progress and partial(progress, path.name)) for source, path in places]


def checksum_of(path: Path, like: str) -> str:
    """Return the checksum of a file by the algorithm of another one, ``md5:...`` or ``sha256:...``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.txt")
    ...     _ = path.write_text("a")
    ...     checksum_of(path, like="md5:d41d8cd98f00b204e9800998ecf8427e")
    'md5:0cc175b9c0f1b6a831c399e269772661'
    """
    algorithm = like.partition(":")[0]
    with path.open("rb") as file:  # md5 is not to be had under FIPS, unless it is not for security
        digest = hashlib.file_digest(file, partial(hashlib.new, algorithm, usedforsecurity=False))
    return f"{algorithm}:{digest.hexdigest()}"


def _is_there(path: Path, source: OfficialFile) -> bool:
    if not os.path.lexists(path):  # a link that leads nowhere is the user's, too, and opening it says so
        return False
    if checksum_of(path, like=source.checksum) != source.checksum:
        raise ValueError(
            f"{path}: is there already, but is not the official file: its checksum is not {source.checksum}. "
            "It is left as it is; move it away to download the official one"
        )
    return True


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _fetch_from_any(source: OfficialFile, path: Path, progress: BytesDone) -> None:
    part = path.with_name(f"{path.name}.part")
    missing, free = source.size - _size(part), shutil.disk_usage(path.parent).free
    if missing > free:
        raise OSError(f"{source.file}: needs {missing:,} bytes more in {path.parent}, where {free:,} are free")
    failures = []
    for url in source.urls:
        try:
            _fetch_from(url, source, part, progress)
        except _FailedError as error:
            failures.append(f"{url}: {error}")
        else:
            part.replace(path)
            return
    if there := _size(part):
        failures.append(
            f"{there:,} of {source.size:,} bytes are there; running the same command again goes on from there"
        )
    raise ConnectionError(f"{source.file}: cannot be downloaded: {'; '.join(failures)}")


def _fetch_from(url: str, source: OfficialFile, part: Path, progress: BytesDone) -> None:
    """Download until ``part`` is the official file."""
    in_vain, last = 0, False
    while True:
        before = _size(part)
        try:
            _request_rest(url, source.size, part, progress)
        except _BrokenError:
            in_vain = 0 if _size(part) > before else in_vain + 1
            if in_vain >= TRIES:
                raise
            time.sleep(BACK_OFF * 2**in_vain)
            continue
        if (checksum := checksum_of(part, like=source.checksum)) == source.checksum:
            return
        part.unlink()
        if last or not before:
            raise _FailedError(f"sends a file whose checksum is {checksum} instead of {source.checksum}; deleted")
        last = True  # the pieces may be of two files: once more, from nothing


def _request_rest(url: str, size: int, part: Path, progress: BytesDone) -> None:
    """Request once what ``part`` lacks."""
    import requests
    from urllib3.exceptions import HTTPError

    there = _size(part)
    progress(there)
    if there >= size:
        return
    # Lengths and ranges are to mean bytes of the file.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={there}-"} if there else {})
    try:
        with requests.get(url, headers=headers, stream=True, timeout=(CONNECT_SECONDS, READ_SECONDS)) as response:
            there = _start(response, there, size, part)
            with part.open("ab" if there else "wb") as file:
                # Not iter_content, which would unpack a .tar.gz that its server labels as gzip-encoded.
                for chunk in response.raw.stream(CHUNK, decode_content=False):
                    file.write(chunk)
                    there += len(chunk)
                    progress(there)
                    if there > size:  # an endless answer; its checksum will be wrong
                        return
    except (requests.RequestException, HTTPError) as error:  # not OSError: a full disk is no matter of the URL
        raise _BrokenError(f"{_cause(error)}, after {there:,} of {size:,} bytes") from error
    if there < size:
        raise _BrokenError(f"the answer ended after {there:,} of {size:,} bytes")


def _start(response: "requests.Response", there: int, size: int, part: Path) -> int:
    """Return where in the file the body of a response begins: at ``there``, or at 0 if the server knows no ranges."""
    status = response.status_code
    if status == 416 or (status == 206 and not response.headers.get("Content-Range", "").startswith(f"bytes {there}-")):
        part.unlink(missing_ok=True)  # so that the next try asks for all of it
        raise _BrokenError(f"HTTP {status}, but not with the bytes from {there:,} on")
    if status not in (200, 206):
        kind = _BrokenError if status >= 500 or status in (408, 429) else _FailedError
        raise kind(f"HTTP {status} {response.reason}")
    start = there if status == 206 else 0
    length = response.headers.get("Content-Length", "")
    if length.isdecimal() and start + int(length) != size:
        raise _FailedError(f"has {start + int(length):,} bytes instead of {size:,}")
    return start


def _cause(error: BaseException) -> str:
    """Return the innermost reason in one line: requests and urllib3 wrap it several times."""
    while inner := error.__cause__ or next((a for a in error.args if isinstance(a, BaseException)), None):
        error = inner
    return " ".join(str(error).split()) or type(error).__name__
