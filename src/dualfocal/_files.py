"""Writing files: all of a file or nothing."""

import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def check_place(path: Path) -> None:
    """Raise a ValueError unless a file may lie at ``path``: known before the work that is to be saved there."""
    if path.is_dir():
        raise ValueError(f"{path}: must be a file, but is a folder")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {str(path.parent)!r}")


def leftovers(folder: Path) -> list[Path]:
    """Temporary files of processes that were killed while they wrote, or are at it."""
    # Ours, and what safetensors writes beside it before it takes its place.
    pattern = re.compile(r"\.([0-9a-f]{16}(\.\w+)?|tmp\w{6})")
    return [path for path in folder.iterdir() if pattern.fullmatch(path.name) and path.is_file()]


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary file to write instead of ``path``, which it replaces when the block ends without an error.

    It is empty at first, has the suffix of ``path`` and lies in the same folder, so that the rename stays on one disk.
    After an error it is gone, and what was at ``path`` is as it was. Permissions are those of the file replaced, or of
    any new file; where ``path`` is a symbolic link, the file it leads to is replaced.

    Raises:
        ValueError: ``path`` is a folder, or its folder is missing or cannot be written to.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_path(Path(folder, "a.txt")) as temporary:
    ...         _ = temporary.write_text("all of it")
    ...     Path(folder, "a.txt").read_text()
    'all of it'
    """
    check_place(path)
    end = Path(os.path.realpath(path))
    temporary = end.with_name(f".{secrets.token_hex(8)}{path.suffix}")  # path's own name may be as long as names get
    try:
        temporary.touch(exist_ok=False)  # by the umask, which the functions of tempfile do not follow
        mode = stat.S_IMODE((end if end.exists() else temporary).stat().st_mode)
    except OSError as error:
        raise ValueError(f"{path}: cannot be written: {error.strerror}") from error
    try:
        yield temporary
        temporary.chmod(mode)  # safetensors puts a file of its own there, that only its owner may read
        temporary.replace(end)
    finally:
        temporary.unlink(missing_ok=True)
