"""Shell completion: the right words, from the real scripts, without waiting for torch."""

import os
import shutil
import stat
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from dualfocal_lab.train.presets import PRESETS


@pytest.fixture(autouse=True)
def _command(monkeypatch):
    """Put a command `dualfocal` into PATH, also where the package is not installed."""
    place = Path("bin/dualfocal")
    place.parent.mkdir()
    place.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dualfocal "$@"\n')
    place.chmod(place.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{place.parent.absolute()}{os.pathsep}{os.environ['PATH']}")


@cache
def script(shell: str) -> str:
    """The script that `dualfocal --show-completion` prints."""
    environment = os.environ | {"_DUALFOCAL_COMPLETE": f"source_{shell}"}
    return subprocess.run(["dualfocal"], env=environment, capture_output=True, text=True, check=True).stdout


def completed(line: str) -> list[str]:
    """What bash offers after Tab at the end of a line."""
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    commands = f"""{script("bash")}
COMP_WORDS=({quoted})
COMP_CWORD={len(words) - 1}
_dualfocal_completion dualfocal
printf "%s\\n" "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", commands], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_commands_and_options() -> None:
    assert completed("dualfocal ev") == ["evaluate"]
    assert completed("dualfocal paper re") == ["reproduce", "replication"]
    assert completed("dualfocal evaluate --cal") == ["--calibrate"]
    assert completed("dualfocal study --engine ") == ["local", "ray"]


def test_names() -> None:
    assert completed("dualfocal train ") == list(PRESETS)
    assert completed("dualfocal data fetch cifar100") == ["cifar100"]
    assert completed("dualfocal study --model dense") == ["densenet121", "densenet40"]
    assert completed("dualfocal calibrate a.npz --method h") == ["histogram"]
    assert completed("dualfocal paper reproduce table1") == ["table1", *(f"table{n}" for n in range(10, 14))]


def test_lists_of_names() -> None:
    assert completed("dualfocal study --losses brier,fo") == ["brier,focal"]
    assert completed("dualfocal evaluate a.npz --calibrate a") == ["all"]
    assert completed("dualfocal evaluate a.npz --calibrate ets+vector,b") == ["ets+vector,beta", "ets+vector,bbq"]


def test_no_name_fits_so_that_the_shell_offers_files() -> None:
    assert completed("dualfocal train my_folder/") == []
    assert "complete -o default " in script("bash")


def test_the_scripts_of_other_shells_name_the_command() -> None:
    assert "#compdef dualfocal\n" in script("zsh")
    assert "complete --command dualfocal " in script("fish")
    environment = os.environ | {"_DUALFOCAL_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "dualfocal ev"}
    zsh = subprocess.run(["dualfocal"], env=environment, capture_output=True, text=True, check=True).stdout
    assert '"evaluate":"Is this model calibrated' in zsh
    environment |= {"_DUALFOCAL_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    fish = subprocess.run(["dualfocal"], env=environment, capture_output=True, text=True, check=True).stdout
    assert fish.startswith("evaluate\t")


@pytest.mark.parametrize(("shell", "check"), [("zsh", ["zsh", "-n"]), ("fish", ["fish", "--no-execute"])])
def test_the_scripts_of_other_shells_are_valid(shell, check) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    Path("script").write_text(script(shell))
    assert subprocess.run([*check, "script"], capture_output=True, text=True, check=True).stderr == ""


def test_completion_does_not_wait_for_torch() -> None:
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print([name for name in ('torch', 'numpy', 'scipy') if name in sys.modules]))\n"
        "from dualfocal.cli import main\n"
        "main([])"
    )
    environment = os.environ | {
        "_DUALFOCAL_COMPLETE": "complete_bash",
        "COMP_WORDS": "dualfocal study --losses dual",
        "COMP_CWORD": "3",
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["dual_focal", "[]"]
