"""Fixtures for the tests of all commands: an empty folder, commands run in this process, and a trained run."""

import contextlib
import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dualfocal.cli import main
from dualfocal.runs import Run


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


@dataclass
class Trained:
    """A run folder, and what the command printed."""

    folder: Path
    out: str
    err: str


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Trained:
    """Folder and output of `dualfocal train digits --set epochs=3 --set seed=3 --out runs/a`."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.chdir(tmp_path_factory.mktemp("trained"))
        patch.setenv("COLUMNS", "120")
        for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            patch.delenv(name, raising=False)
        with pytest.raises(SystemExit) as ended:
            main(["train", "digits", "--set", "epochs=3", "--set", "seed=3", "--out", "runs/a"])
        assert ended.value.code == 0
        return Trained(Path("runs/a").absolute(), out.getvalue(), err.getvalue())


@pytest.fixture
def finished(trained) -> Run:
    """A copy of the trained run, at runs/a."""
    shutil.copytree(trained.folder, "runs/a")
    return Run("runs/a")


@pytest.fixture
def stopped(finished) -> Run:
    """The same run before its last epoch, as a killed process leaves it."""
    for name in ("result.json", "model.safetensors", "predictions.safetensors"):
        (finished.path / name).unlink()
    lines = (finished.path / "log.jsonl").read_text().splitlines(keepends=True)
    (finished.path / "log.jsonl").write_text("".join(lines[:2]))
    return finished
