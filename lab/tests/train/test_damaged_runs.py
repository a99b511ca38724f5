"""Damaged files of a run, and files of other versions, are named, and nothing is lost."""

import json
import math
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from small_runs import Killed, contents, go, outcome, small

from dualfocal.cli import main
from dualfocal_lab.runs import Recipe, Run, RunError
from dualfocal_lab.runs.recipe import load_recipe
from dualfocal_lab.train.checkpoint import KEY

pytestmark = pytest.mark.usefixtures("nets", "quick")


# The log.


@pytest.mark.parametrize(
    "more",
    [
        b'{"schema": 1, "epo',
        b'{"schema": 1, "epoch": 3}',  # whole, but for the end of the line
        b'{"schema": 1, "epoch": 3, "lr": 1}\n{"schema": 1, "epoch": 4}\n{"schema": 1, "ep',
        b"\0" * 100,
        b"\0" * 100 + b"\n",
        b"\xff\xfe garbage \n\n\r\n[]\n",
        b"\n",
    ],
    ids=["half", "no end", "epochs", "zeros", "line of zeros", "garbage", "empty line"],
)
def test_what_no_checkpoint_bears_out_is_cut_off_the_log(stopped, expected, more) -> None:
    with (stopped / "log.jsonl").open("ab") as file:
        file.write(more)
    assert [line["epoch"] for line in Run(stopped).log][:2] == [1, 2]
    assert outcome(go(small(), stopped).path) == expected


@pytest.mark.parametrize(
    ("keep", "epochs"),
    [
        (lambda lines: lines[:1], 1),
        (lambda lines: [lines[0], lines[1][:-1]], 1),
        (lambda lines: lines[1:], 0),
        (lambda lines: [lines[0], b"garbage\n", lines[1]], 1),
        (lambda lines: [], 0),
        (None, 0),
    ],
    ids=["second line missing", "no end", "first line missing", "garbage", "empty", "no file"],
)
def test_a_log_that_lacks_epochs_is_an_error_and_left_alone(stopped, keep, epochs) -> None:
    path = stopped / "log.jsonl"
    path.write_bytes(b"".join(keep(path.read_bytes().splitlines(keepends=True)))) if keep else path.unlink()
    before = contents(stopped)
    with pytest.raises(RunError, match=rf"/run/log\.jsonl: has {epochs} epochs, but the checkpoint is of epoch 2"):
        go(small(), stopped)
    assert contents(stopped) == before


def without(line: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key != name}


@pytest.mark.parametrize("number", [1, 2])
def test_another_number_in_the_log_is_noticed(stopped, number) -> None:
    path = stopped / "log.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[number - 1]["val_nll"] += 1e-9
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    before = contents(stopped)
    with pytest.raises(RunError, match=rf"has {number - 1} epochs, .* epoch 2: the log is damaged; restore it"):
        go(small(), stopped)
    assert contents(stopped) == before


def test_a_damaged_line_in_the_log_of_a_finished_run_is_named(finished) -> None:
    path = finished / "log.jsonl"
    path.write_text(path.read_text().replace('"epoch": 3', '"epoch": 7'))
    with pytest.raises(RunError, match=r"/log\.jsonl: line 3 is damaged$"):
        _ = Run(finished).log


def delete(log: Path) -> Callable[[object], None]:
    return lambda _: log.unlink()


def edit(log: Path) -> Callable[[object], None]:
    """Editors write a new file and rename it."""

    def edit(_: object) -> None:
        log.with_name("new").write_bytes(b"edited\n" + log.read_bytes())
        log.with_name("new").rename(log)

    return edit


@pytest.mark.parametrize("act", [delete, edit])
def test_a_log_that_is_deleted_or_edited_during_the_training_is_written_again(tmp_path, at_step, expected, act) -> None:
    at_step(8, act(tmp_path / "run" / "log.jsonl"))
    with pytest.warns(UserWarning, match=r"/run/log\.jsonl: was deleted or replaced .*; its lines are written again"):
        go(small(), tmp_path / "run")
    assert outcome(tmp_path / "run") == expected


def test_a_lease_that_is_deleted_during_the_training_ends_it(tmp_path, at_step, expected) -> None:
    at_step(8, lambda _: shutil.rmtree(tmp_path / "run" / ".attempt"))
    with pytest.raises(RunError, match=r"/run: was taken over by another process, or \.attempt was deleted; "):
        go(small(), tmp_path / "run")
    assert [line["epoch"] for line in Run(tmp_path / "run").log] == [1, 2]
    assert Run(tmp_path / "run").state == "stopped"
    assert outcome(go(small(), tmp_path / "run").path) == expected


# Schemas and results.


def test_a_result_or_recipe_that_was_changed_is_refused(finished) -> None:
    for name, changes in {"result.json": {"num_weights": 5}, "recipe.json": {"lr": 0.5}}.items():
        change(finished / name, **changes)
        with pytest.raises(RunError, match=rf"/{name}: is damaged, or was edited: its checksum is \w+, but should be "):
            _ = Run(finished).result, Run(finished).recipe
        (finished / name).unlink()


def test_a_recipe_outside_of_a_run_folder_may_be_edited(finished, tmp_path) -> None:
    (tmp_path / "own.json").write_text((finished / "recipe.json").read_text().replace('"epochs": 4', '"epochs": 6'))
    assert load_recipe(tmp_path / "own.json") == replace(small(), epochs=6)


def change(path: Path, **changes: Any) -> None:
    """Change fields of a JSON file, or of the last line of a log."""
    *lines, last = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    path.write_text("\n".join([*lines, json.dumps(json.loads(last) | changes)]) + "\n")


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("recipe.json", lambda run: run.recipe),
        ("log.jsonl", lambda run: run.log),
        ("result.json", lambda run: run.result),
        ("result.json", lambda run: run.model()),
    ],
)
def test_files_of_another_schema_are_refused(finished, name, read) -> None:
    for schema in (0, 2, None, "1"):
        change(finished / name, schema=schema)
        with pytest.raises(ValueError, match=rf"/{name}: .*has schema {schema}, .*reads "):
            read(Run(finished))


def test_other_schemas_are_not_trained_over(stopped) -> None:
    for name in ("log.jsonl", "recipe.json"):
        change(stopped / name, schema=2)
        before = contents(stopped)
        with pytest.raises(ValueError, match=rf"/{name}: .*has schema 2, this version of dualfocal reads "):
            go(small(), stopped)
        assert contents(stopped) == before


def test_a_damaged_result_is_refused(finished) -> None:
    for text in ("", "{", "[]", "null", "\0\0"):
        (finished / "result.json").write_text(text)
        with pytest.raises(RunError, match=r"/result\.json: (is not JSON, or damaged|has schema None)"):
            _ = Run(finished).result


def test_on_the_command_line_a_damaged_result_is_one_line(finished, capsys) -> None:
    change(finished / "result.json", schema=2)
    with pytest.raises(SystemExit) as ended:
        main(["train", str(finished), "--out", str(finished)])
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


# Checkpoints.


def rewrite(path: Path, about: dict[str, Any] | None = None, **tensors: torch.Tensor | None) -> None:
    """Change metadata or tensors of a checkpoint."""
    with safe_open(path, framework="pt") as file:
        known = json.loads(file.metadata()[KEY])
    kept = {name: tensor for name, tensor in (load_file(path) | tensors).items() if tensor is not None}
    metadata = {name: value for name, value in (known | (about or {})).items() if value is not ...}
    save_file(kept, path, metadata={KEY: json.dumps(metadata)})


DAMAGES = {
    "a bit of a tensor": lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
    "a bit of the epoch": lambda path: path.write_bytes(path.read_bytes().replace(b'epoch\\": 2', b'epoch\\": 0', 1)),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "cut in half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "cut in the header": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "empty": lambda path: path.write_bytes(b""),
    "a byte": lambda path: path.write_bytes(b"\0"),
    "text": lambda path: path.write_text("not safetensors" * 100),
    "random bytes": lambda path: path.write_bytes(np.random.default_rng(0).bytes(5000)),
    "zeros": lambda path: path.write_bytes(bytes(5000)),
    "header of any size": lambda path: path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_set_aside_with_its_log_and_the_training_starts_again(
    stopped, expected, damage
) -> None:
    path = stopped / "checkpoint.safetensors"
    DAMAGES[damage](path)
    before = contents(stopped)
    with pytest.warns(UserWarning, match="damaged") as caught:
        run = go(small(), stopped)
    (warning,) = caught
    assert str(warning.message).startswith(f"{path}: is damaged")
    assert str(warning.message).endswith(
        "set aside as checkpoint.damaged.safetensors and log.damaged.jsonl, and the training starts again"
    )
    assert outcome(run.path) == expected
    after = contents(stopped)
    assert after["checkpoint.damaged.safetensors"] == before["checkpoint.safetensors"]
    assert after["log.damaged.jsonl"] == before["log.jsonl"]
    assert [session["from_epoch"] for session in run.result.sessions] == [1]


def test_a_process_that_is_killed_while_it_sets_a_checkpoint_aside_loses_nothing(
    stopped, expected, monkeypatch
) -> None:
    DAMAGES["zeros"](stopped / "checkpoint.safetensors")
    (stopped / "model.safetensors").write_bytes(b"of the last step")
    log = (stopped / "log.jsonl").read_bytes()
    remove = Run.remove

    def kill_at(name: str, *, after: bool = False) -> None:
        def kill(self: Run, file: str) -> None:
            if file == name and not after:
                raise Killed
            remove(self, file)
            if file == name:
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(Run, "remove", kill)
            with pytest.raises(Killed):
                go(small(), stopped)

    kill_at("log.jsonl")
    kill_at("log.jsonl", after=True)
    kill_at("checkpoint.safetensors")
    with pytest.warns(UserWarning, match="set aside as checkpoint.damaged.safetensors, and"):
        go(small(), stopped)
    assert outcome(stopped) == expected
    assert (stopped / "log.damaged.jsonl").read_bytes() == log


FOREIGN = {
    "foreign tensors": lambda path: save_file({"a": torch.zeros(1)}, path),
    "foreign metadata": lambda path: save_file({"a": torch.zeros(1)}, path, metadata={"format": "pt"}),
    "metadata of no dictionary": lambda path: save_file({"a": torch.zeros(1)}, path, metadata={KEY: "[]"}),
    "metadata of nothing": lambda path: save_file({"a": torch.zeros(1)}, path, metadata={KEY: "{}"}),
    "field missing": lambda path: rewrite(path, {"epoch": ...}),
    "weights of another shape": lambda path: rewrite(path, **{"model.1.weight": torch.zeros(3, 3)}),
    "weights missing": lambda path: rewrite(path, **{"model.1.weight": None}),
    "weights too many": lambda path: rewrite(path, **{"model.9.weight": torch.zeros(1)}),
    "momentum of nothing": lambda path: rewrite(path, **{"optimizer.99.momentum_buffer": torch.zeros(1)}),
    "losses of no step": lambda path: rewrite(path, losses=torch.zeros(2)),
    **{
        f"{name} {value!r}": lambda path, name=name, value=value: rewrite(path, {name: value})
        for name, values in {
            "epoch": (-5, 5, 10**30, True, "2", None, 1.0, [2]),
            "step": (-1, 4, 10**9, 0.5),
            "best_epoch": (-1, 3),
            "seconds": (-1.0, math.inf, "x"),
            "best_score": (math.nan, "x", [1]),
            "sessions": ("x", {}, ["x"], None),
        }.items()
        for value in values
    },
}


@pytest.mark.parametrize("damage", FOREIGN)
def test_a_checkpoint_that_is_whole_but_does_not_fit_is_named_and_left_alone(stopped, damage) -> None:
    path = stopped / "checkpoint.safetensors"
    FOREIGN[damage](path)
    before = contents(stopped)
    with pytest.raises(RunError) as error:
        go(small(), stopped)
    assert str(error.value).startswith(f"{path}: ")
    assert "damaged" in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert contents(stopped) == before
    assert Run(stopped).state == "stopped"


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"schema": 0}, "has schema 0.* reads schema 1"),
        ({"schema": 2}, "has schema 2.* reads schema 1"),
        ({"data": "letters: 5 train"}, "was saved with other data: letters: 5 train, now digits: 600 train, 100 val"),
    ],
)
def test_a_checkpoint_of_another_schema_or_other_data_is_refused(stopped, about, words) -> None:
    rewrite(stopped / "checkpoint.safetensors", about)
    before = contents(stopped)
    with pytest.raises(RunError, match=rf"/checkpoint\.safetensors: {words}"):
        go(small(), stopped)
    assert contents(stopped) == before


def test_data_that_have_changed_since_are_noticed(tmp_path, at_step) -> None:
    def write(number: int) -> None:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(number, 5)).astype(np.float32)
        np.savez(tmp_path / "own.npz", x=x, y=np.arange(number) % 3)

    recipe = Recipe(data="own.npz", model="nets_for_tests:loud", epochs=2, milestones=(), batch_size=10)
    write(60)
    at_step(3, lambda _: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        go(recipe, tmp_path / "run")
    write(70)
    with pytest.raises(RunError, match=r"was saved with other data: own: 43 train, .*, now own: 50 train, "):
        go(recipe, tmp_path / "run")
