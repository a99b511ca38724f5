"""A training of a fraction of a second, with everything that a run folder can have, and the number of attacks on it."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from dualfocal_lab.runs import Recipe, Run
from dualfocal_lab.train import result, train

EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.mkdir")
FILES = ["log.jsonl", "model.safetensors", "predictions.safetensors", "recipe.json", "result.json"]
TIMES = ("seconds", "images_per_second")


def attacks(normally: int) -> int:
    """Return how many attacks to try: DUALFOCAL_ATTACK=100 tries 100 times as many as normally."""
    return normally * int(os.environ.get("DUALFOCAL_ATTACK", "1"))


def net(*, num_classes: int, in_channels: int) -> nn.Module:
    layers = nn.Linear(in_channels, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, num_classes)
    return nn.Sequential(*layers)


def write_data(path: Path) -> None:
    """Write 44 samples of 5 features in 3 classes."""
    rng = np.random.default_rng(0)
    target = np.arange(44) % 3
    inputs = rng.normal(size=(3, 5))[target] + rng.normal(size=(44, 5))
    np.savez(path, x=inputs.astype(np.float32), y=target, class_names=["ant", "bee", "cat"])


def recipe_for(data: Path, epochs: int = 3) -> Recipe:
    return Recipe(
        data=str(data),
        data_options={"val_size": 10, "val2_size": 6, "test_size": 10},
        model="tiny_runs:net",
        epochs=epochs,
        batch_size=6,
        milestones=(1,),
        weights="best_nll",
    )


def go(recipe: Recipe, out: Path) -> Run:
    return train(recipe, out, device="cpu", progress=False)


class Watch:
    """Act just before this process touches a folder for the n-th time from now on; it cannot be undone.

    Attributes:
        events: What was touched, such as ``"os.rename log.jsonl"``.
    """

    def __init__(self, folder: Path, number: int, act: Callable[[], object]) -> None:
        self.folder, self.number, self.act = str(folder), number, act
        self.events: list[str] = []
        self.fsync, os.fsync = os.fsync, self._flush
        sys.addaudithook(self._audit)

    def touch(self, event: str) -> None:
        """Count an event."""
        self.events.append(event)
        if len(self.events) == self.number:
            self.act()

    def _flush(self, descriptor: int) -> None:
        self.touch("os.fsync")
        self.fsync(descriptor)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in EVENTS or not str(arguments[0]).startswith(self.folder):
            return
        if event != "open" or arguments[1] not in ("r", "rb"):
            self.touch(f"{event} {Path(arguments[event == 'os.rename']).name}")


@contextmanager
def quick() -> Iterator[None]:
    """Skip git and the metrics, which take longer than the training."""
    before = result.commit, result.metrics_of
    result.commit, result.metrics_of = lambda: None, lambda predictions: ({}, {})
    try:
        yield
    finally:
        result.commit, result.metrics_of = before


def numbers_of(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line of a log without times, and without its checksum if a bit of its name has made it another field."""
    return {name: value for name, value in line.items() if name not in TIMES and not isinstance(value, str)}


def outcome(folder: Path) -> dict[str, Any]:
    """Return what must not depend on how often a training was stopped."""
    run, left_out = Run(folder), (*TIMES, "sessions")
    metrics = run.require_result().to_dict()
    return {
        "log": [numbers_of(line) for line in run.log],
        "result": json.dumps({name: value for name, value in metrics.items() if name not in left_out}),
        **{name: (folder / name).read_bytes() for name in FILES if name.endswith(".safetensors")},
    }
