"""Callbacks: when they are called, with what, and what happens if they fail."""

import signal
from pathlib import Path
from typing import Any

import pytest
from small_runs import assert_same_bytes
from toys import go, recipe_for

from dualfocal_lab.runs import Run
from dualfocal_lab.train import CallbackError, DivergedError

pytestmark = pytest.mark.usefixtures("quick")


class Recording:
    """Records its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_train_start(self, run: Run) -> None:
        self.calls.append(("start", len(run.log)))

    def on_epoch_end(self, log: dict[str, Any]) -> None:
        self.calls.append(log["epoch"])
        log.clear()  # a copy

    def on_train_end(self, run: Run) -> None:
        self.calls.append(("end", run.state))


class Failing(Recording):
    """Fails in one of its methods, of which ``on_epoch_end`` fails in the second epoch."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method

    def on_train_start(self, run: Run) -> None:
        super().on_train_start(run)
        assert self.method != "on_train_start", "my mistake"

    def on_epoch_end(self, log: dict[str, Any]) -> None:
        epoch = log["epoch"]
        super().on_epoch_end(log)
        assert self.method != "on_epoch_end" or epoch != 2, "my mistake"

    def on_train_end(self, run: Run) -> None:
        super().on_train_end(run)
        assert self.method != "on_train_end", "my mistake"


class Only:
    def on_epoch_end(self, log: dict[str, Any]) -> None:
        self.last = log


def test_each_method_is_called_and_none_is_needed(toy: Path, tmp_path: Path) -> None:
    recording, only = Recording(), Only()
    run = go(recipe_for(toy), tmp_path / "run", callbacks=[recording, only])
    assert recording.calls == [("start", 0), 1, 2, 3, ("end", "finished")]
    assert only.last == {name: value for name, value in run.log[-1].items() if name != "schema"}
    again = Recording()
    go(recipe_for(toy), tmp_path / "run", callbacks=[again])
    assert again.calls == []


def test_a_signal_ends_and_the_next_session_starts_with_the_log(toy: Path, tmp_path: Path) -> None:
    class Stopping(Recording):
        def on_epoch_end(self, log: dict[str, Any]) -> None:
            super().on_epoch_end(log)
            if self.calls[-1] == 2:
                signal.raise_signal(signal.SIGINT)

    first, second = Stopping(), Recording()
    with pytest.raises(KeyboardInterrupt):
        go(recipe_for(toy), tmp_path / "run", callbacks=[first])
    assert first.calls[-1] == ("end", "stopped")
    go(recipe_for(toy), tmp_path / "run", callbacks=[second])
    done = first.calls.count(1) + first.calls.count(2) + first.calls.count(3)
    assert second.calls == [("start", done), *range(done + 1, 4), ("end", "finished")]


@pytest.mark.parametrize(
    ("method", "calls", "state"),
    [
        ("on_train_start", [("start", 0)], "stopped"),
        ("on_epoch_end", [("start", 0), 1, 2, ("end", "stopped")], "stopped"),
        ("on_train_end", [("start", 0), 1, 2, 3, ("end", "finished")], "finished"),
    ],
)
def test_a_failing_callback_stops_the_training_which_is_saved(
    method: str, calls: list[Any], state: str, toy: Path, tmp_path: Path
) -> None:
    failing, other = Failing(method), Recording()
    with pytest.raises(
        CallbackError, match=f"callback Failing failed in {method}: AssertionError: my mistake"
    ) as error:
        go(recipe_for(toy), tmp_path / "run", callbacks=[other, failing], checkpoint_every=100)
    assert isinstance(error.value.__cause__, AssertionError)
    assert failing.calls == calls
    assert other.calls[-1] == ("end", state)
    assert Run(tmp_path / "run").state == state
    whole = go(recipe_for(toy), tmp_path / "whole")
    resumed = Recording()
    assert_same_bytes(go(recipe_for(toy), tmp_path / "run", callbacks=[resumed]), whole)
    if method == "on_epoch_end":
        assert resumed.calls == [("start", 2), 3, ("end", "finished")]  # nothing is trained twice


def test_a_failure_of_the_training_is_not_hidden(toy: Path, tmp_path: Path) -> None:
    failing = Failing("on_train_end")
    with (
        pytest.raises(DivergedError),
        pytest.warns(UserWarning, match="callback Failing failed in on_train_end"),
    ):
        go(recipe_for(toy, lr=1e300, clip_norm=None), tmp_path / "run", callbacks=[failing])
    assert failing.calls[-1] == ("end", "failed")


def test_what_is_no_callback_is_refused(toy: Path, tmp_path: Path) -> None:
    for callback, words in ((Recording, r"got the class Recording: write Recording\(\)"), (print, "on_epoch_end")):
        with pytest.raises(TypeError, match=words):
            go(recipe_for(toy), tmp_path / "run", callbacks=[callback])
    assert not (tmp_path / "run").exists()
