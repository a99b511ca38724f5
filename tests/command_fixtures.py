"""Fixtures for tests of commands: an empty folder, and commands run in this process."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dualfocal.cli import main


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """Files have short names, and output is plain text of a known width."""
    monkeypatch.chdir(tmp_path)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("DUALFOCAL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def run(capsys):
    """Run a command, check its exit code, and return its stdout and stderr."""

    def run(*arguments: object, code: int = 0) -> tuple[str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        assert ended.value.code == code
        captured = capsys.readouterr()
        return captured.out, captured.err

    return run


@pytest.fixture
def record(run):
    """Run a command with `--json` and return the content; stdout must be strict JSON and nothing else."""

    def record(*arguments: object) -> dict[str, Any]:
        return json.loads(run(*arguments, "--json")[0], parse_constant=pytest.fail)

    return record


@pytest.fixture
def refused(run):
    """Run a command that ends with exit code 2, or ``code``, and return its one-line message; stdout stays empty."""

    def refused(*arguments: object, code: int = 2) -> str:
        out, err = run(*arguments, code=code)
        assert out == ""
        *before, line = err.splitlines()
        files = "|".join(re.escape(str(argument)) for argument in arguments)
        for other in before:
            assert re.fullmatch(
                rf"(?:{files}): (?:logits|probabilities) from .+, (?:labels from '.+'.*|no labels.*)", other
            )
        assert line.startswith("dualfocal: ")
        return line.removeprefix("dualfocal: ")

    return refused


@pytest.fixture
def files() -> Callable[[], dict[str, tuple[bytes, int] | None]]:
    """All files in the current folder, with contents and times; None for a folder."""
    return lambda: {
        str(path): None if path.is_dir() else (path.read_bytes(), path.stat().st_mtime_ns) for path in Path().rglob("*")
    }
