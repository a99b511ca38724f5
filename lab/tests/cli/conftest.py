"""The fixtures for the tests of all commands, and a trained run."""

import contextlib
import io
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_fixtures import _folder, files, record, refused, run

from dualfocal.cli import main
from dualfocal_lab.runs import Run

__all__ = ["_folder", "files", "record", "refused", "run"]


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
