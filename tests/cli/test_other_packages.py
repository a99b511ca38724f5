"""Commands of other packages, by the entry-point group `dualfocal.commands`."""

import sys
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from dualfocal.cli import app, full_app

GROUP = "dualfocal.commands"


def greet(name: str) -> None:
    """Greet."""
    print(f"hello {name}")


@pytest.fixture
def offer(monkeypatch):
    """Let packages offer these commands, ``name=module:object``, and nothing else."""
    own = [command for command in app.registered_commands if command.callback.__module__.startswith("dualfocal.")]
    monkeypatch.setattr(app, "registered_commands", own)
    monkeypatch.setattr(app, "registered_groups", [])

    def offer(**commands: str) -> None:
        found = [EntryPoint(name, value, GROUP) for name, value in commands.items()]
        monkeypatch.setattr("dualfocal.cli.entry_points", lambda group: found if group == GROUP else [])

    return offer


def test_a_command_of_another_package_runs_and_is_listed(offer, run, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "greeting", SimpleNamespace(greet=greet))
    offer(greet="greeting:greet")
    assert run("greet", "you") == ("hello you\n", "")
    assert "greet" in run("--help")[0]
    assert [command.name for command in full_app().registered_commands].count("greet") == 1


def test_a_package_that_cannot_be_imported_does_not_stop_the_others(offer, run) -> None:
    offer(broken="no_such_package:command")
    out, err = run("--help")
    assert "evaluate" in out
    assert "the command broken is left out" in err
    assert "no_such_package" in err


@pytest.mark.parametrize("name", ["train", "study", "runs", "data", "paper"])
def test_a_command_of_the_lab_says_what_to_install(name, offer, refused) -> None:
    offer()
    line = refused(name)
    assert f"{name} is a command of dualfocal-lab" in line
    assert "pip install -e lab" in line
