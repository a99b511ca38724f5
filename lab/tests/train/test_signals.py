"""A training handles signals while it runs, and puts the handlers of the caller back."""

import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from small_runs import Killed, go, small

from dualfocal_lab.train.failure import SIGNALS, Interrupts

CONFTEST = Path(__file__).parents[3] / "conftest.py"


def current_handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in SIGNALS}


@pytest.fixture
def handlers():
    """Custom handlers of the caller."""
    before = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
    yield current_handlers()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("nets", "quick")
@pytest.mark.parametrize("stop", [None, Killed, *SIGNALS])
def test_the_handlers_of_signals_are_put_back(tmp_path, at_step, handlers, stop) -> None:
    during = []

    def act(_: object) -> None:
        during.append(current_handlers())
        if stop is Killed:
            raise Killed
        if stop is not None:
            signal.raise_signal(stop)

    at_step(2, act)
    with nullcontext() if stop is None else pytest.raises((Killed, KeyboardInterrupt, SystemExit)):
        go(small(), tmp_path / "run")
    assert during[0] != handlers
    assert current_handlers() == handlers


def test_a_signal_while_the_handlers_are_installed_is_noted(handlers, monkeypatch) -> None:
    install, stop, raised = signal.signal, Interrupts(), []

    def interrupted(number: int, handler: Any) -> Any:
        before = install(number, handler)
        if number == signal.SIGINT and not raised:
            raised.append(number)
            signal.raise_signal(signal.SIGINT)
        return before

    monkeypatch.setattr(signal, "signal", interrupted)
    with stop:
        assert stop.asked == signal.SIGINT


def test_a_hangup_that_is_ignored_stays_ignored(handlers) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as by nohup
    with Interrupts() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert stop.asked is None
        signal.raise_signal(signal.SIGTERM)
        assert stop.asked == signal.SIGTERM
    assert current_handlers() == handlers | {signal.SIGHUP: signal.SIG_IGN}


def test_tests_do_not_depend_on_signals_that_their_parent_ignores() -> None:
    """As in ``nohup make test``, and in a background job of a shell without job control."""
    ignored = signal.SIGINT, signal.SIGHUP
    code = f"""
import runpy, signal
for number in {tuple(map(int, ignored))}:
    signal.signal(number, signal.SIG_IGN)
runpy.run_path({str(CONFTEST)!r})
print([signal.getsignal(number) is signal.SIG_IGN for number in {tuple(map(int, ignored))}])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[False,", "False]"]
