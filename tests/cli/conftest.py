"""What tests of every command use: a folder of their own, and the program run as a user runs it."""

import json
import re
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
    """Run a command; gives what it printed to stdout and to stderr, and checks the exit code."""

    def run(*arguments: object, code: int = 0) -> tuple[str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        assert ended.value.code == code
        captured = capsys.readouterr()
        return captured.out, captured.err

    return run


@pytest.fixture
def record(run):
    """What `--json` says: stdout must be JSON, whole and strict."""

    def record(*arguments: object) -> dict[str, Any]:
        return json.loads(run(*arguments, "--json")[0], parse_constant=pytest.fail)

    return record


@pytest.fixture
def refused(run):
    """The one line that says what is wrong; before it may only stand what was read, and stdout stays empty."""

    def refused(*arguments: object) -> str:
        out, err = run(*arguments, code=2)
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
