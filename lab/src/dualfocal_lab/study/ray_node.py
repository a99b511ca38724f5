"""What runs on the nodes of a Ray cluster: the check of a node, and a training."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dualfocal_lab.runs import Recipe, RunBusyError, RunError
from dualfocal_lab.study.engine import Outcome, check_data, train_run

TOKEN = "token"  # file in the meeting folder that shows that a node sees the storage of the driver
TOKEN_SECONDS = 10.0  # until a new file must be visible on every node
BUSY_SECONDS = 180.0  # to wait for a run folder: a lost node still holds it for about a minute
PATIENCE = 1.0  # seconds between two attempts


@dataclass(frozen=True)
class Settings:
    """What a node needs to know besides the recipe and the folder of a run.

    Attributes:
        meeting: Folder in which the driver and the nodes leave small files for each other.
        working_folder: That of the driver: paths of data and modules of models may be relative to it.
        data_root: Folder of the data.
        device: ``"cpu"`` or ``"cuda"``.
        threads: Number of threads of a training.
        checkpoint_pause: Minimum number of seconds between checkpoints.
    """

    meeting: str
    working_folder: str
    data_root: str | None
    device: str
    threads: int
    checkpoint_pause: float


def check_node(node: str, settings: Settings, recipes: list[dict[str, Any]]) -> None:
    """Raise an error if this node does not share the storage of the driver, or lacks data; leave a file named ``node``.

    Raises:
        RunError: the storage is not shared.
        ValueError: data are missing or have no validation or test split.
    """
    _enter(settings)
    (Path(settings.meeting) / node).touch()
    check_data(map(Recipe.from_dict, recipes), settings.data_root)


def train_on_node(recipe: dict[str, Any], folder: str, settings: Settings) -> Outcome:
    """Train one run, or resume it. If the folder is in use, wait until the process there has ended or is given up."""
    import ray

    _enter(settings)
    node = Path(settings.meeting) / Path(folder).name
    node.write_text(ray.get_runtime_context().get_node_id())
    torch.set_num_threads(settings.threads)
    arguments = Recipe.from_dict(recipe), folder, settings.data_root, settings.device, settings.checkpoint_pause
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return train_run(*arguments)
        except RunBusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(PATIENCE)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds; return False if it does not within that time."""
    deadline = time.monotonic() + seconds
    while not (fulfilled := condition()) and time.monotonic() < deadline:
        time.sleep(PATIENCE)
    return fulfilled


def _enter(settings: Settings) -> None:
    """Check that the storage is shared, and enter the working folder of the driver, if this node has it."""
    meeting = Path(settings.meeting)
    if not wait_until((meeting / TOKEN).exists, TOKEN_SECONDS):
        raise RunError(
            f"{meeting.parent} is not the folder of that name on the machine that started the study: "
            "--out must be on storage that all nodes share, under the same path"
        )
    with suppress(OSError):
        os.chdir(settings.working_folder)
