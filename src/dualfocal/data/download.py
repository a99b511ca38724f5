"""Downloading official files: broken downloads go on where they stopped, and no file is used unchecked.

What a file must be is known beforehand, its size and its checksum. So a part needs no note of where it came from: the
rest may come from any place, and what does not fit together has the wrong checksum and is fetched anew.
"""

import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING

from dualfocal.data.sources import Source

if TYPE_CHECKING:
    import requests

Progress = Callable[[int, int | None], None]
"""Called with the bytes there so far, and the bytes in all (None: unknown)."""

CONNECT_SECONDS = 15.0  # for a server to take the call
READ_SECONDS = 60.0  # between two pieces of its answer
TRIES = 4  # at each place, in a row, that bring nothing
BACK_OFF = 0.5  # seconds before another try; doubles with each of those
CHUNK = 1 << 16  # bytes; what is lost at most when a connection hangs


class _FailedError(Exception):
    """Why a place does not give the file."""


class _BrokenError(_FailedError):
    """A failure that another try may not meet."""


class _WrongError(_FailedError):
    """All bytes are there, and they are not the official ones."""


def fetch(source: Source, folder: Path, *, progress: Progress | None = None) -> Path:
    """Download an official file into ``folder``, and check it; return its path.

    A file that is there already and right is kept. Until it is checked a file is called ``<file>.part``; after an
    interruption the next call goes on from that. One process at a time downloads a file, others wait for it. The empty
    ``.<file>.lock`` by which they know of each other stays; it holds nobody up once its process has ended.

    Args:
        source: Which file; its places are tried in order.
        folder: Made if missing.
        progress: Called as bytes arrive, never with fewer than before.

    Raises:
        ValueError: A place sent a file with the wrong checksum (it is deleted), and no other had the right one. Or
            another file has this name (it is left as it is).
        ConnectionError: No place gave all of the file. The message says why, for each.
        OSError: The disk is too small, or cannot be written to.
    """
    if source.file in ("", "..") or PureWindowsPath(source.file).name != source.file:  # knows all separators
        raise ValueError(f"{source.file!r}: must be the name of a file, without a folder")
    _new_hash(source.checksum)  # an error in it should not show after hours
    path = folder / source.file
    report = _forward(progress)
    if _is_there(path, source, report):
        return path
    from filelock import FileLock

    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f".{source.file}.lock"):  # the system's own lock, which ends with its process
        if not _is_there(path, source, report):  # unless the process waited for has brought it
            _fetch_from_any(source, path, report)
    return path


def checksum_is_right(path: Path, checksum: str, progress: Progress | None = None) -> bool:
    """Whether a file has a checksum, ``md5:...`` or ``sha256:...``. It is read piece by piece.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.txt")
    ...     _ = path.write_text("a")
    ...     checksum_is_right(path, "md5:0cc175b9c0f1b6a831c399e269772661")
    True
    """
    hash, digest = _new_hash(checksum)
    with path.open("rb") as file:
        total = os.fstat(file.fileno()).st_size
        while chunk := file.read(1 << 20):
            hash.update(chunk)
            if progress is not None:
                progress(file.tell(), total)
    return hash.hexdigest() == digest


def _new_hash(checksum: str) -> tuple["hashlib._Hash", str]:
    algorithm, _, digest = checksum.lower().partition(":")
    if algorithm not in ("md5", "sha256") or not digest:
        raise ValueError(f"checksum must be 'md5:...' or 'sha256:...', got {checksum!r}")
    return hashlib.new(algorithm, usedforsecurity=False), digest  # md5 is not to be had otherwise under FIPS


def _forward(progress: Progress | None) -> Progress:
    """``progress``, not called where a download begins anew until it is as far as it was."""
    most = -1

    def report(there: int, total: int | None) -> None:
        nonlocal most
        if progress is not None and there > most:
            most = there
            progress(there, total)

    return report


def _is_there(path: Path, source: Source, progress: Progress) -> bool:
    if not os.path.lexists(path):  # a link that leads nowhere is the user's, too, and opening it says so
        return False
    if not checksum_is_right(path, source.checksum, progress):
        raise ValueError(
            f"{path}: is there already, but is not the official file: its checksum is not {source.checksum}. "
            "It is left as it is; move it away to download the official one"
        )
    return True


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _fetch_from_any(source: Source, path: Path, progress: Progress) -> None:
    part = path.with_name(f"{path.name}.part")
    missing, free = source.size - _size(part), shutil.disk_usage(path.parent).free
    if missing > free:
        raise OSError(f"{source.file}: needs {missing:,} bytes more in {path.parent}, where {free:,} are free")
    failures: dict[str, _FailedError] = {}
    for url in source.urls:
        try:
            return _fetch_from(url, source, part, path, progress)
        except _FailedError as error:
            failures[url] = error
    reasons = "; ".join(f"{url}: {why}" for url, why in failures.items())
    message = f"{source.file}: cannot be downloaded: {reasons}"
    if there := _size(part):
        message += f"; {there:,} of {source.size:,} bytes are there; running the same command again goes on from there"
    wrong = any(isinstance(why, _WrongError) for why in failures.values())
    raise ValueError(message) if wrong else ConnectionError(message)


def _fetch_from(url: str, source: Source, part: Path, path: Path, progress: Progress) -> None:
    for last in (False, True):
        resumed = _complete(url, source, part, progress)
        try:
            return _check_and_move(url, source, part, path)
        except _WrongError:
            if last or not resumed:  # else the pieces may be of two files: once more, from nothing
                raise


def _check_and_move(url: str, source: Source, part: Path, path: Path) -> None:
    import pooch

    def hand_over(url: str, file: str, caller: object) -> None:
        """Give the part to pooch. It deletes its file when interrupted, so the part stays, where links are known."""
        os.unlink(file)
        try:
            os.link(part, file)
        except OSError:
            part.replace(file)

    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)  # it tells of each download
    try:
        pooch.retrieve(url, source.checksum, path.name, path.parent.resolve(), downloader=hand_over)
    except ValueError as error:
        part.unlink(missing_ok=True)
        raise _WrongError(str(error).rstrip(".")) from error  # names both checksums, and that the file was deleted
    finally:
        logger.setLevel(level)
    part.unlink(missing_ok=True)


def _complete(url: str, source: Source, part: Path, progress: Progress) -> bool:
    """Download until ``part`` has all bytes; return whether they came in more than one piece."""
    import requests

    in_vain = 0
    with requests.Session() as session:
        while True:
            before = _size(part)
            try:
                return _go_on(session, url, source.size, part, progress)
            except _BrokenError:
                in_vain = 0 if _size(part) > before else in_vain + 1
                if in_vain >= TRIES:
                    raise
                time.sleep(BACK_OFF * 2**in_vain)


def _go_on(session: "requests.Session", url: str, size: int, part: Path, progress: Progress) -> bool:
    """One request, for what ``part`` lacks; return whether it had a piece already."""
    from requests import exceptions
    from urllib3.exceptions import HTTPError

    if _size(part) > size:
        part.unlink()
    there = _size(part)
    progress(there, size)
    if there == size:
        return True
    headers = {"Accept-Encoding": "identity"}  # lengths and ranges are to mean bytes of the file
    if there:
        headers["Range"] = f"bytes={there}-"
    try:
        with session.get(url, headers=headers, stream=True, timeout=(CONNECT_SECONDS, READ_SECONDS)) as response:
            there = start = _start(response, there, size, part)
            with part.open("ab" if start else "wb") as file:
                # Not iter_content, which would unpack a .tar.gz that its server labels as gzip-encoded.
                for chunk in response.raw.stream(CHUNK, decode_content=False):
                    there += len(chunk)
                    if there > size:
                        break
                    file.write(chunk)
                    progress(there, size)
    except (exceptions.InvalidURL, exceptions.InvalidSchema, exceptions.TooManyRedirects) as error:
        raise _FailedError(_cause(error)) from error  # such as a redirect to file://
    except (exceptions.RequestException, HTTPError) as error:  # not OSError: a full disk is no matter of the place
        raise _BrokenError(f"{_cause(error)}, after {there:,} of {size:,} bytes") from error
    if there > size:
        part.unlink()
        raise _FailedError(f"sends more than the {size:,} bytes of the file")
    if there < size:
        raise _BrokenError(f"the answer ended after {there:,} of {size:,} bytes")
    return start > 0


def _start(response: "requests.Response", there: int, size: int, part: Path) -> int:
    """Where in the file the body of a response begins: at ``there``, or at 0 if the server knows no ranges."""
    status = response.status_code
    if status == 200:
        start, total = "0", response.headers.get("Content-Length", "")
    elif status in (206, 416):
        span = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", response.headers.get("Content-Range", ""))
        start, total = span.groups("") if span else ("", "")
    else:
        kind = _BrokenError if status >= 500 or status in (408, 429) else _FailedError
        raise kind(f"HTTP {status} {response.reason}")
    if total.isdecimal() and int(total) != size:
        raise _FailedError(f"has {int(total):,} bytes instead of {size:,}")
    if status == 416 or (status == 206 and start != str(there)):
        part.unlink(missing_ok=True)  # so that the next try asks for all of it
        raise _BrokenError(f"HTTP {status}, but not with the bytes from {there:,} on")
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity" and not total.isdecimal():  # with the right length it is a label, the bytes are the file
        raise _FailedError(f"sends the file in another encoding, {encoding}")
    return int(start)


def _cause(error: BaseException) -> str:
    """What is wrong at the bottom of it, in one line: requests and urllib3 wrap it several times."""
    while inner := error.__cause__ or next((a for a in error.args if isinstance(a, BaseException)), None):
        error = inner
    return " ".join(str(error).split()) or type(error).__name__
