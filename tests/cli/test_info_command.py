"""`dualfocal info`."""

import json

import pytest
import torch

import dualfocal
from dualfocal.cli import main


def run(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["info", *arguments])
    assert ended.value.code == 0


def test_versions_and_missing_extras(capsys: pytest.CaptureFixture[str]) -> None:
    run("--json")
    content = json.loads(capsys.readouterr().out)
    assert content["versions"]["dualfocal"] == dualfocal.__version__
    assert content["versions"]["torch"] == torch.__version__
    assert content["extras"]["cli"] == []
    run()
    lines = capsys.readouterr().out.splitlines()
    for extra, missing in content["extras"].items():
        [line] = [line for line in lines if line.split()[:2] == ["extra", extra]]
        assert ("pip install" in line) == bool(missing)
