"""A flipped bit in any file that the package has written is noticed or does no harm; it never changes a number."""

import json
import random
import shutil
import signal
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_runs import attacks, go, numbers_of, outcome, quick, recipe_for, write_data
from torch import Tensor

from dualfocal.calibrators import VectorScaling, load_calibrator, save_calibrator
from dualfocal.predictions import load_predictions
from dualfocal_lab.data._cache import Samples, decoded
from dualfocal_lab.runs import Run
from dualfocal_lab.runs.recipe import load_recipe
from dualfocal_lab.train import loop

SET_ASIDE = {"checkpoint.damaged.safetensors", "log.damaged.jsonl"}


def flips(file: Path, number: int) -> list[bytes]:
    """Return the content of the file with one flipped bit, at random positions, the same ones in each test run."""
    content = file.read_bytes()
    bits = range(8 * len(content))
    changed = []
    for bit in sorted(random.Random(file.name).sample(bits, min(number, len(bits)))):
        copy = bytearray(content)
        copy[bit // 8] ^= 1 << bit % 8
        changed.append(bytes(copy))
    return changed


def attack(file: Path, use: Callable[[], object], expected: object, number: int) -> Counter[str]:
    """Use each damaged version of a file; count how it ended. Afterwards the file is as before."""
    original, counts = file.read_bytes(), Counter[str]()
    for damaged in flips(file, number):
        file.write_bytes(damaged)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            message = None
            try:
                assert use() == expected
            except ValueError as error:
                message = str(error)
        assert message is None or (str(file) in message and len(message.splitlines()) == 1)
        counts["refused" if message else "replaced" if caught else "harmless"] += 1
    file.write_bytes(original)
    print(f"{file.name}: {dict(counts)}")
    return counts


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    """A folder with a finished run, one without metrics, an interrupted one, and their data."""
    folder = tmp_path_factory.mktemp("flips")
    write_data(folder / "data.npz")
    go(recipe_for(folder / "data.npz"), folder / "finished")
    with quick():
        go(recipe_for(folder / "data.npz"), folder / "uninterrupted")
        steps = 0

        def interrupt(*arguments: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == 7:  # in the second of three epochs, which have three steps
                signal.raise_signal(signal.SIGINT)
            return forward(*arguments)

        forward = loop.Forward.__call__
        loop.Forward.__call__ = interrupt  # type: ignore[method-assign]
        try:
            with pytest.raises(KeyboardInterrupt):
                go(recipe_for(folder / "data.npz"), folder / "interrupted")
        finally:
            loop.Forward.__call__ = forward  # type: ignore[method-assign]
    assert (folder / "interrupted" / "checkpoint.safetensors").exists()
    return folder


def everything(run: Run) -> dict[str, Any]:
    """Return everything that can be read from a finished run, in a form that can be compared."""
    weights = {name: tensor.tolist() for name, tensor in run.model().state_dict().items()}
    parts = {part: load_predictions(run.path / "predictions.safetensors", split=part) for part in ("val", "test")}
    return {
        "recipe": run.recipe.to_dict(),
        "log": [numbers_of(line) for line in run.log],
        "result": run.require_result().to_dict(),
        "weights": weights,
        "predictions": {
            name: (part.values.tolist(), part.target.tolist(), part.class_names) for name, part in parts.items()
        },
    }


@pytest.mark.parametrize("name", ["recipe.json", "log.jsonl", "model.safetensors", "result.json"])
def test_a_finished_run(folders, tmp_path, name) -> None:
    run = Run(shutil.copytree(folders / "finished", tmp_path / "run"))
    counts = attack(run.path / name, lambda: everything(run), everything(run), attacks(40))
    assert counts["refused"] > 0.8 * counts.total()
    assert counts["replaced"] == 0


def test_shifted_logits(folders, tmp_path) -> None:
    run = Run(shutil.copytree(folders / "finished", tmp_path / "run"))
    logits = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
    np.savez_compressed(run.path / "shift.npz", **{f"severity{k}": logits + k for k in range(1, 6)})

    def read() -> list[Any]:
        return [run.shifted_logits(k).tolist() for k in range(1, 6)]  # type: ignore[union-attr]

    assert attack(run.path / "shift.npz", read, read(), attacks(40))["refused"] > 0


@pytest.mark.parametrize("name", ["recipe.json", "log.jsonl", "checkpoint.safetensors"])
def test_an_interrupted_run_that_is_resumed(folders, tmp_path, name) -> None:
    number, expected = 0, outcome(folders / "uninterrupted")

    def resume() -> dict[str, Any]:
        nonlocal number
        number += 1
        folder = shutil.copytree(tmp_path / "run", tmp_path / str(number))
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        try:
            go(load_recipe(folder), folder)
            if {path.name for path in folder.iterdir()} >= SET_ASIDE:
                assert (folder / "checkpoint.damaged.safetensors").read_bytes() == before["checkpoint.safetensors"]
                assert (folder / "log.damaged.jsonl").read_bytes() == before["log.jsonl"]
            return outcome(folder)
        except ValueError as error:
            assert {path.name: path.read_bytes() for path in folder.iterdir()} == before  # nothing is lost
            raise ValueError(str(error).replace(str(folder), str(tmp_path / "run"))) from error
        finally:
            shutil.rmtree(folder)

    shutil.copytree(folders / "interrupted", tmp_path / "run")
    with quick():
        counts = attack(tmp_path / "run" / name, resume, expected, attacks(20))
    noticed = counts["replaced" if name == "checkpoint.safetensors" else "refused"]
    assert noticed > 0.8 * counts.total()


def test_a_calibrator(tmp_path) -> None:
    path = tmp_path / "calibrator.npz"
    logits, target = torch.randn(60, 3), torch.arange(60) % 3
    save_calibrator(VectorScaling().fit(logits, target), path)

    def read() -> tuple[Any, ...]:
        calibrator = load_calibrator(path)
        assert calibrator.report is not None
        return calibrator(logits).tolist(), calibrator.report.to_dict(), calibrator.class_names, calibrator.fitted_on

    assert attack(path, read, read(), attacks(80))["refused"] > 60


def test_a_cache_of_decoded_data_is_decoded_again(tmp_path) -> None:
    inputs, target = torch.arange(120, dtype=torch.uint8).view(10, 3, 2, 2), torch.arange(10) % 3
    original = Samples(inputs, target, ("ant", "bee", "cat"), num_train=7)
    (tmp_path / "source").write_text("content")

    def read() -> str:
        samples = decoded("name", tmp_path, [tmp_path / "source"], lambda: original)
        return json.dumps(vars(samples), default=Tensor.tolist)

    expected = read()
    (file,) = (tmp_path / "decoded").iterdir()
    counts = attack(file, read, expected, attacks(80))
    assert counts["refused"] == 0
    assert counts["replaced"] > 60
