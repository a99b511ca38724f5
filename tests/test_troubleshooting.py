"""docs/troubleshooting.md: each mistake is made, and the message is the one on the page."""

import contextlib
import io
import re
import shlex
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from dualfocal.cli import main
from dualfocal_lab.train import result as train_result
from dualfocal_lab.train.step import Step

PAGE = (Path(__file__).parents[1] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
# A mistake: code or commands, and the message that follows. A section can have several.
MISTAKES = re.findall(r"^((?:```python\n.*?^```\n)|(?:    \$ [^\n]*\n)+)\n?```text\n(.*?)\n```$", PAGE, re.M | re.S)


def test_every_section_has_a_mistake() -> None:
    assert PAGE.count("\n## ") + 1 == len(MISTAKES) == 14


@pytest.fixture
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DUALFOCAL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(train_result, "metrics_of", lambda predictions: ({}, {}))
    rng = np.random.default_rng(0)
    np.savez("features.npz", x=rng.normal(size=(60, 5)), y=np.arange(60) % 3)


def run_code(code: str) -> str:
    """Return what the code prints, or the message of its error."""
    logits = 3 * torch.randn(200, 4)
    target = torch.multinomial(logits.softmax(1), 1)[:, 0]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec(code, {"logits": logits, "target": target})
        except (ValueError, TypeError, IndexError) as error:
            return str(error)
    return printed.getvalue()


def run_commands(commands: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return what the last command writes to stderr."""
    for command in commands:
        capsys.readouterr()
        with pytest.raises(SystemExit):
            main(shlex.split(command, comments=True)[1:])
    return capsys.readouterr().err


@pytest.mark.usefixtures("_folder")
def test_messages_name_the_remedies(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    for mistake, message in MISTAKES:
        commands = re.findall(r"^    \$ (.*)$", mistake, re.M)
        with monkeypatch.context() as patch, warnings.catch_warnings():
            if "CUDA out of memory" in message:  # there may be no GPU
                patch.setattr(Step, "take", no_memory)
            code = mistake.removeprefix("```python\n").removesuffix("```\n")
            output = run_commands(commands, capsys) if commands else run_code(code)
        pattern = ".*".join(re.escape(part.strip()) for part in message.split("..."))
        assert re.search(pattern, output, re.S), f"{mistake}{message}\n---\n{output}"
