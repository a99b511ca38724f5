"""Atomic writing of files; also for packages built on this one."""

import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["atomic_path", "check_place", "check_readable", "leftovers"]


def check_place(path: Path) -> None:
    """Raise a ValueError if ``path`` is a folder or its folder is missing; call it before long computations."""
    if path.is_dir():
        raise ValueError(f"{path}: must be a file, but is a folder")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {str(path.parent)!r}")


def check_readable(path: Path) -> None:
    """Raise a ValueError unless ``path`` is a regular file."""
    if path.is_dir():
        raise ValueError(f"{path}: must be a file, but is a folder")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: must be a regular file, not a pipe or a device: save its content to a file first")
    if not path.exists():
        raise ValueError(f"{path}: there is no such file")


def leftovers(folder: Path) -> list[Path]:
    """Temporary files of processes that were killed while writing, or are still writing."""
    # Temporary files of atomic_path, and those of safetensors.
    pattern = re.compile(r"\.([0-9a-f]{16}(\.\w+)?|tmp\w{6})")
    return [path for path in folder.iterdir() if pattern.fullmatch(path.name) and path.is_file()]


@contextmanager
def atomic_path(path: Path, folder: Path | None = None) -> Iterator[Path]:
    """Context manager that yields a temporary file, which replaces ``path`` if the block ends without an error.

    The temporary file is empty, has the suffix of ``path`` and is in the same folder, or in ``folder``, which must be
    on the same disk. After an error it is deleted, and ``path`` is unchanged. Content and rename are flushed to the
    disk, so that after a power failure, too, ``path`` is the old file or the new one. The new file has the permissions
    of the replaced one, or the default permissions. If ``path`` is a symbolic link, the linked file is replaced; with
    ``folder`` the link itself, since the linked file may be on another disk.

    Raises:
        ValueError: ``path`` is a folder, or its folder is missing or cannot be written to.
        OSError: the disk is full; the error names ``path``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_path(Path(folder, "a.txt")) as temporary:
    ...         _ = temporary.write_text("content")
    ...     Path(folder, "a.txt").read_text()
    'content'
    """
    check_place(path)
    end = Path(os.path.realpath(path)) if folder is None else path
    temporary = (folder or end.parent) / f".{secrets.token_hex(8)}{path.suffix}"  # path.name may be too long
    try:
        temporary.touch(exist_ok=False)  # follows the umask, unlike the functions of tempfile
        mode = stat.S_IMODE((end if end.exists() else temporary).stat().st_mode)
    except OSError as error:
        raise ValueError(f"{path}: cannot be written: {error.strerror}") from error
    try:
        yield temporary
        flush(temporary)
        temporary.chmod(mode)  # safetensors creates files that only the owner can read
        temporary.replace(end)
        flush_folder(end.parent)
    except OSError as error:  # a full disk: an error of writing has no file name, or that of the temporary file
        if error.errno is not None and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until the content of a file is on the disk."""
    with path.open("r+b") as file:  # Windows flushes only files that are open for writing
        os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where the system can do that: Windows cannot."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
