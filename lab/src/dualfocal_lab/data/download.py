"""Download official files: interrupted downloads are resumed, and each file is checked before it is used.

Size and checksum of each file are known in advance. So the rest of a partial file can come from any URL: if the pieces
do not fit together, the checksum is wrong and the file is downloaded again.
"""

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from dualfocal_lab.data.paths import Root, data_root, look_for, on_disk
from dualfocal_lab.data.sources import OfficialFile, get_official

if TYPE_CHECKING:
    import requests

BytesDone = Callable[[int], object]  # called with the number of bytes that are on disk

CONNECT_SECONDS = 15.0  # timeout of a connection
READ_SECONDS = 60.0  # timeout of the head of an answer, and between two pieces of its body
LEAST_BYTES = 60_000  # of the body, in READ_SECONDS; also of a try, for not counting as a failure
TRIES = 4  # failures in a row at each URL
BACK_OFF = 0.5  # seconds before the next try, doubled each time
CHUNK = 1 << 16  # bytes that are read at once


class _FailedError(Exception):
    """A URL cannot deliver the file."""


class _BrokenError(_FailedError):
    """A failure that may not happen again: try again."""


def fetch(source: OfficialFile, folder: Path, *, progress: BytesDone | None = None) -> Path:
    """Download an official file into ``folder``, check it, and return its path.

    An existing file with the right checksum is kept. Until it has been checked, a download is named ``<file>.part``;
    after an interruption, the next call resumes it. Only one process at a time downloads a file, others wait for it.
    The empty lock file ``.<file>.lock`` stays; it has no effect once its process has ended.

    Args:
        source: the file; its URLs are tried in order.
        folder: destination, created if missing.
        progress: called with the number of bytes on disk as they arrive.

    Raises:
        ValueError: a different file with this name exists (it is not changed).
        ConnectionError: no URL delivered the official file; the message says why, for each URL.
        OSError: the disk is full or not writable.
    """
    from filelock import FileLock

    path = folder / source.file
    report = progress or (lambda num_bytes: None)
    if not _is_there(path, source):
        folder.mkdir(parents=True, exist_ok=True)
        # A lock of the operating system, which is released when its process ends.
        with FileLock(folder / f".{source.file}.lock"):
            if not _is_there(path, source):  # another process may have downloaded it
                _fetch_from_any(source, path, report)
    report(source.size)
    return path


def fetch_data(name: str, root: Root = None, *, progress: Callable[[str, int], object] | None = None) -> list[Path]:
    """Download the official files of a data set, unless they are on disk, and return their paths.

    Files that lie in the root itself stay there; the others go to a folder with the name of the data set.

    Args:
        name: a key of ``OFFICIAL``.
        root: see :func:`~dualfocal_lab.data.paths.data_root`.
        progress: called with the name of a file and the number of its bytes on disk.

    Returns:
        The paths of the files; empty if the data set is on disk in another form, such as a folder.

    Raises:
        ValueError: the data set has no download, or a different file with the same name exists.
        ConnectionError: see :func:`fetch`.
        OSError: see :func:`fetch`.
    """
    official = get_official(name)
    place = on_disk(name, root)
    unpacked = place is not None and place.name not in {source.file for source in official.sources}
    if unpacked and official.num_classes:  # not for word vectors: other widths are only in the archive
        return []
    if not official.sources:
        raise ValueError(f"{name}: cannot be downloaded automatically: {official.by_hand}")
    folder = data_root(root) / name
    places = [(source, look_for(name, root, source.file) or folder / source.file) for source in official.sources]
    return [fetch(source, path.parent, progress=progress and partial(progress, path.name)) for source, path in places]


def checksum_of(path: Path, like: str) -> str:
    """Return the checksum of a file, with the same algorithm as ``like``: ``md5:...`` or ``sha256:...``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.txt")
    ...     _ = path.write_text("a")
    ...     checksum_of(path, like="md5:d41d8cd98f00b204e9800998ecf8427e")
    'md5:0cc175b9c0f1b6a831c399e269772661'
    """
    algorithm = like.partition(":")[0]
    with path.open("rb") as file:  # FIPS systems allow md5 only if it is not for security
        digest = hashlib.file_digest(file, partial(hashlib.new, algorithm, usedforsecurity=False))
    return f"{algorithm}:{digest.hexdigest()}"


def _is_there(path: Path, source: OfficialFile) -> bool:
    if not os.path.lexists(path):  # lexists: a broken link is the user's file, too, and opening it raises an error
        return False
    if checksum_of(path, like=source.checksum) != source.checksum:
        raise ValueError(
            f"{path}: exists, but is not the official file: its checksum is not {source.checksum}. "
            "Move it away to download the official file"
        )
    return True


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _fetch_from_any(source: OfficialFile, path: Path, progress: BytesDone) -> None:
    part = path.with_name(f"{path.name}.part")
    missing, free = source.size - _size(part), shutil.disk_usage(path.parent).free
    if missing > free:
        text = f"{source.file}: needs {missing:,} more bytes in {path.parent}, but only {free:,} are free"
        raise OSError(errno.ENOSPC, text)
    failures = []
    for url in source.urls:
        try:
            _fetch_from(url, source, part, progress)
        except _FailedError as error:
            failures.append(f"{url}: {error}")
        else:
            part.replace(path)
            return
    if size := _size(part):
        failures.append(f"{size:,} of {source.size:,} bytes are on disk; run the same command again to resume")
    raise ConnectionError(f"{source.file}: cannot be downloaded: {'; '.join(failures)}")


def _fetch_from(url: str, source: OfficialFile, part: Path, progress: BytesDone) -> None:
    """Download until ``part`` is the official file."""
    failed, last = 0, False
    while True:
        before = _size(part)
        try:
            _request_rest(url, source.size, part, progress)
        except _BrokenError:
            failed = 0 if _size(part) - before >= LEAST_BYTES else failed + 1
            if failed >= TRIES:
                raise
            time.sleep(BACK_OFF * 2**failed)
            continue
        if (checksum := checksum_of(part, like=source.checksum)) == source.checksum:
            return
        part.unlink()
        if last or not before:
            raise _FailedError(f"delivered a file with checksum {checksum} instead of {source.checksum}; deleted")
        last = True  # the pieces may be of different files: try once more from the start


def _request_rest(url: str, size: int, part: Path, progress: BytesDone) -> None:
    """Make one request for the missing rest of ``part``."""
    import requests
    from urllib3.exceptions import HTTPError

    done = _size(part)
    progress(done)
    if done >= size:
        return
    # identity: lengths and ranges must count bytes of the file, not of a compressed answer.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
    try:
        with _ask(url, headers) as response:
            done = _start(response, done, size, part)
            with part.open("ab" if done else "wb") as file:
                for chunk in _body(response):
                    file.write(chunk)
                    done += len(chunk)
                    progress(done)
                    if done > size:  # stop an endless answer; its checksum will be wrong
                        return
    except (requests.RequestException, HTTPError) as error:  # not OSError: a full disk is not the URL's fault
        raise _BrokenError(f"{_cause(error)}, after {done:,} of {size:,} bytes") from error
    if done < size:
        raise _BrokenError(f"the answer ended after {done:,} of {size:,} bytes")


def _ask(url: str, headers: dict[str, str]) -> "requests.Response":
    """Request a URL and wait for the head of the answer, in a thread: timeouts of requests restart with each byte."""
    import requests

    answers: SimpleQueue[requests.Response | Exception] = SimpleQueue()

    def request() -> None:
        try:
            answers.put(requests.get(url, headers=headers, stream=True, timeout=(CONNECT_SECONDS, READ_SECONDS)))
        except Exception as error:
            answers.put(error)

    Thread(target=request, daemon=True).start()
    seconds = CONNECT_SECONDS + READ_SECONDS
    try:
        answer = answers.get(timeout=seconds)
    except Empty as error:
        raise _BrokenError(f"no answer within {seconds:g} seconds") from error
    if isinstance(answer, Exception):
        raise answer
    return answer


def _body(response: "requests.Response") -> Iterator[bytes]:
    """Yield the bytes of an answer as they arrive; raise an error if they arrive too slowly."""
    start, arrived = time.monotonic(), 0
    # Not iter_content, which would unpack a .tar.gz if the server labels it as gzip-encoded, and not read, which would
    # wait until a whole chunk is there.
    while chunk := response.raw.read1(CHUNK, decode_content=False):
        yield chunk
        arrived += len(chunk)
        if (seconds := time.monotonic() - start) > READ_SECONDS:
            if arrived < LEAST_BYTES:
                raise _BrokenError(f"too slow: {arrived:,} bytes in {seconds:.0f} seconds")
            start, arrived = time.monotonic(), 0


def _start(response: "requests.Response", done: int, size: int, part: Path) -> int:
    """Return the offset in the file of the body of a response: ``done``, or 0 if the server does not support ranges."""
    status = response.status_code
    if status == 416 or (status == 206 and not response.headers.get("Content-Range", "").startswith(f"bytes {done}-")):
        part.unlink(missing_ok=True)  # so that the next try requests the whole file
        raise _BrokenError(f"HTTP {status}, but not with the bytes from {done:,} on")
    if status not in (200, 206):
        kind = _BrokenError if status >= 500 or status in (408, 429) else _FailedError
        raise kind(f"HTTP {status} {response.reason}")
    start = done if status == 206 else 0
    length = response.headers.get("Content-Length", "")
    if length.isdecimal() and start + int(length) != size:
        raise _FailedError(f"has {start + int(length):,} bytes instead of {size:,}")
    return start


def _cause(error: BaseException) -> str:
    """Return the innermost reason of an error in one line: requests and urllib3 wrap it several times."""
    while inner := error.__cause__ or next((a for a in error.args if isinstance(a, BaseException)), None):
        error = inner
    return " ".join(str(error).split()) or type(error).__name__
