"""What a training shows: lines or bars on stderr, and scalars for TensorBoard."""

import re
import signal
import sys
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from toys import go, recipe_for

from dualfocal_lab.runs import Run
from dualfocal_lab.train import display
from dualfocal_lab.train.checkpoint import Position

FOLLOWS = "ignore:loss ada_.* uses the validation split"


@pytest.fixture
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_no_terminal", "quick")
def test_lines_on_stderr(toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = go(recipe_for(toy), tmp_path / "run", progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 3
    for line, values in zip(lines, run.log, strict=True):
        assert line.startswith(f"epoch {values['epoch']}/3  lr 0.1  loss {values['train_loss']:.4f}  ")
        assert f"val error {100 * values['val_error']:.2f} %  ECE {100 * values['val_ece']:.2f} %" in line
        assert (
            f"NLL {values['val_nll']:.4f}  {values['images_per_second']:,.0f} samples/s  {values['seconds']:.1f} s"
            in line
        )


@pytest.mark.usefixtures("_no_terminal", "quick")
def test_lines_without_validation(toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match="no validation split"):
        go(recipe_for(toy, data_options={"val_size": 0}, epochs=1), tmp_path / "run", progress=True)
    assert re.fullmatch(r"epoch 1/1  lr 0\.1  loss \d\.\d{4}  [\d,]+ samples/s  \d+\.\d s\n", capsys.readouterr().err)


def test_nothing_is_printed_without_progress(toy: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    go(recipe_for(toy, epochs=1), tmp_path / "run", progress=False)
    assert capfd.readouterr() == ("", "")


def terminal(text: StringIO) -> Console:
    return Console(force_terminal=True, file=text, width=160, color_system=None, legacy_windows=False)


def plain(text: StringIO) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.getvalue())


def test_bars(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "EVERY", -1.0)
    text = StringIO()
    line = {"epoch": 2, "lr": 0.1, "train_loss": 0.25, "val_error": 0.125, "val_ece": 0.0625, "val_nll": 0.5}
    monkeypatch.setattr(display, "_Console", lambda **options: terminal(text))
    with closing(display.Display(progress=True)) as bars:
        bars.begin(recipe_for(toy), Position(epoch=1, step=1), 48, [])
        bars.progress.refresh()
        assert "resuming after epoch 1 + 1 step of 3" in plain(text)
        assert re.search(r"3 epochs .* 33%", plain(text))
        for _ in range(2):
            bars.step(16, torch.tensor(4.0), 8)
        bars.progress.refresh()
        assert re.search(r"3 epochs .* 67%", plain(text))
        assert re.search(r"epoch 2 .* 100% .* loss 0\.5000  [\d,]+ samples/s", plain(text))
        bars.epoch({**line, "images_per_second": 1234.5, "seconds": 2.0})
        bars.progress.refresh()
        assert "epoch 2/3  lr 0.1  loss 0.2500  val error 12.50 %  ECE 6.25 %  NLL 0.5000  1,234 samples/s" in plain(
            text
        )
        assert re.search(r"3 epochs .* 67% .* val error 12\.50 %  ECE 6\.25 %", plain(text))
        assert re.search(r"epoch 3 .* 0%", plain(text))
        bars.epoch({**line, "epoch": 3, "images_per_second": 1234.5, "seconds": 2.0})
        bars.progress.refresh()
        assert re.search(r"3 epochs .* 100%", plain(text))
        assert "evaluating" in plain(text)


@pytest.mark.usefixtures("quick")
def test_bars_on_a_terminal(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = StringIO()
    monkeypatch.setattr(display, "_Console", lambda **options: terminal(text))
    monkeypatch.setattr(display, "EVERY", -1.0)
    run = go(recipe_for(toy), tmp_path / "run", progress=True)
    shown = plain(text)
    for line in run.log:
        assert display.describe(line, 3) in shown
    assert re.search(r"3 epochs .* 100%", shown)
    assert text.getvalue().endswith(("\x1b[?25h", "\x1b[2K"))  # the cursor is back, the bars are gone
    assert (run.path / "result.json").exists()


class Closed(StringIO):
    """A pipe whose reader is gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.usefixtures("_no_terminal", "quick")
def test_a_closed_stderr_does_not_stop_the_training(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not in a fixture, because pytest replaces the streams after the fixtures.
    with (tmp_path / "stdout").open("w") as stdout, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", Closed())
        patched.setattr(sys, "stdout", stdout)
        run = go(recipe_for(toy, epochs=2), tmp_path / "run", progress=True)
        print("what comes after", flush=True)
    assert len(run.log) == 2
    assert (tmp_path / "stdout").read_text() == "what comes after\n"


# TensorBoard.


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def assert_scalars_are_the_log(run: Run) -> None:
    actual = scalars(run.path / "tensorboard")
    expected: dict[str, list[tuple[int, float]]] = {}
    for line in run.log:
        for name, value in line.items():
            if name in ("schema", "epoch", "gamma"):
                continue
            part, _, rest = name.partition("_")
            tag = f"{part}/{rest}" if part in ("train", "val", "test") else f"run/{name}"
            expected.setdefault(tag, []).append((line["epoch"], pytest.approx(value, rel=1e-6)))
    assert actual == expected
    for i in range(15 if "gamma" in run.log[0] else 0):
        folder = run.path / "tensorboard" / f"run_gamma_{i:02}"
        (values,) = scalars(folder).values()
        assert values == [(line["epoch"], pytest.approx(line["gamma"][i], rel=1e-6)) for line in run.log]


@pytest.mark.usefixtures("quick")
@pytest.mark.filterwarnings(FOLLOWS)
def test_tensorboard_shows_the_log(toy: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run = go(recipe_for(toy, loss="ada_focal", test_each_epoch=True), tmp_path / "run", tensorboard=True)
    assert_scalars_are_the_log(run)


@pytest.mark.usefixtures("quick")
def test_tensorboard_after_an_interruption(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the fifth step, in the second epoch; and nothing is there twice."""
    pytest.importorskip("tensorboard")
    recipe = recipe_for(toy)
    steps = []

    def interrupt(shown: display.Display, *args: object) -> None:
        steps.append(args)
        if len(steps) == 5:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(display.Display, "step", interrupt)
        with pytest.raises(KeyboardInterrupt):
            go(recipe, tmp_path / "run", tensorboard=True)
    assert len(scalars(tmp_path / "run" / "tensorboard")["val/ece"]) == 1
    run = go(recipe, tmp_path / "run", tensorboard=True)
    assert len(run.log) == 3
    assert_scalars_are_the_log(run)


def test_a_missing_tensorboard_is_refused(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r"pip install tensorboard"):
        go(recipe_for(toy), tmp_path / "run", tensorboard=True)
    assert not (tmp_path / "run").exists()
