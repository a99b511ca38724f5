"""The log of a run: one JSON object per finished epoch, each with a checksum."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dualfocal_lab.runs.layout import SCHEMA, ChecksumError, RunError, check_content, seal


def log_line(content: Mapping[str, Any]) -> str:
    """Return a line of the log as text."""
    return json.dumps(seal({"schema": SCHEMA, **content}), allow_nan=False) + "\n"


def read_log(path: Path) -> list[tuple[dict[str, Any], int]]:
    """Return the sound, consecutive lines at the start of a log, each with the position of its end.

    Raises:
        RunError: a line has another schema.
    """
    lines: list[tuple[dict[str, Any], int]] = []
    end = 0
    for text in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        end += len(text)
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            break
        if not text.endswith(b"\n") or not isinstance(content, dict):  # the process was killed
            break
        try:
            line = check_content(f"{path}:", content)
        except ChecksumError:
            break
        if line.get("epoch") != len(lines) + 1:
            break
        lines.append((line, end))
    return lines


def first_epochs(path: Path, epochs: int) -> bytes:
    """Return the lines of the first epochs.

    Raises:
        RunError: the log has fewer epochs.
    """
    lines = read_log(path)
    if len(lines) < epochs:
        raise RunError(
            f"{path}: has {len(lines)} epochs, but the checkpoint is of epoch {epochs}: the log is damaged; restore "
            "it, or choose another folder"
        )
    return path.read_bytes()[: lines[epochs - 1][1]] if epochs else b""


class OpenLog:
    """A log that stays open, so that lines are added to this file even if another one has got its name.

    Args:
        path: the file, which must exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0))

    @property
    def has_its_name(self) -> bool:
        """Whether the file was neither deleted nor replaced by another one."""
        try:
            return os.path.samestat(os.fstat(self._file), self.path.stat())
        except FileNotFoundError:
            return False

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line, and flush it to the disk."""
        rest = log_line(line).encode()
        while rest:
            rest = rest[os.write(self._file, rest) :]
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
