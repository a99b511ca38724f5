"""Short trainings on digits, and what must not depend on how often they were stopped."""

from pathlib import Path
from typing import Any

from toys import without_times

from dualfocal_lab.runs import Recipe, Run
from dualfocal_lab.train import train
from dualfocal_lab.train.presets import preset

Outcome = tuple[list[dict[str, Any]], bytes, bytes]  # log without times, predictions, model
SMALL = ["epochs=4", "batch_size=200", "data.val_size=100", "data.val2_size=100"]  # 3 steps an epoch


class Killed(BaseException):
    """Stands for the end of a process that is killed."""


def small(*settings: str) -> Recipe:
    return preset("digits", [*SMALL, "model=nets_for_tests:dropout", "weights=best_nll", *settings])


def go(recipe: Recipe, out: Path, **options: Any) -> Run:
    return train(recipe, out, device="cpu", progress=False, **options)


def outcome(folder: Path) -> Outcome:
    return (
        without_times(Run(folder).log),
        (folder / "predictions.safetensors").read_bytes(),
        (folder / "model.safetensors").read_bytes(),
    )


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return bytes and time of each file, without the folder of the owner."""
    files = (path for path in folder.iterdir() if path.is_file())
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def assert_same_bytes(one: Run, other: Run) -> None:
    for first, second in zip(outcome(one.path), outcome(other.path), strict=True):
        assert first == second
