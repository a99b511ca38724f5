"""What the engines of a study share: a training, how it ended, the check of the data, and the training of one run."""

import json
import warnings
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dualfocal_lab.data import load_data
from dualfocal_lab.data.paths import Root
from dualfocal_lab.runs import Recipe, RunError
from dualfocal_lab.train import DivergedError, train

LOOK = 0.5  # seconds between updates of the progress
# Seconds between checkpoints: little is lost if a process is killed, and short epochs are not slowed down.
CHECKPOINT_PAUSE = 30.0
# Warnings that Python hides by default, too.
NOT_FOR_USERS = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)


@dataclass(frozen=True)
class Task:
    """A training that an engine has to do."""

    recipe: Recipe
    folder: Path


@dataclass(frozen=True)
class Outcome:
    """How a training ended.

    Attributes:
        problem: Why the training diverged, or None.
        warnings: Warnings that are not among the notes of the result.
    """

    problem: str | None
    warnings: Sequence[str]


@dataclass(frozen=True)
class Update:
    """What an engine reports of its trainings.

    Attributes:
        running: Folder of each running training -> name of its machine (empty: this one).
        ended: Folder of each training that has ended since the last update -> how.
    """

    running: Mapping[Path, str]
    ended: Mapping[Path, Outcome]


class Engine(Protocol):
    """Trains many runs."""

    def train(self, tasks: Sequence[Task], out: Path, data_root: Root) -> Generator[Update, None, None]:
        """Train runs whose folders lie in ``out``, and report about twice a second.

        If a signal arrives, the generator is closed or a training fails, the other trainings are saved and stopped.

        Raises:
            RunError, ValueError: a run cannot be trained.
            KeyboardInterrupt, SystemExit: a signal was received.
        """
        ...


def check_data(recipes: Iterable[Recipe], data_root: Root) -> None:
    """Raise a ValueError before any training if data of a recipe are missing or have no validation or test split."""
    different = {json.dumps([recipe.data, recipe.data_options], sort_keys=True): recipe for recipe in recipes}
    for recipe in different.values():
        parts = load_data(recipe.data, data_root, **recipe.data_options).splits
        for part in ("val", "test"):
            if part not in parts:
                raise ValueError(f"data {recipe.data} has no {part} split, which a study needs; set data.{part}_size")


def train_run(
    recipe: Recipe, folder: str, data_root: Root, device: str | None, checkpoint_pause: float = CHECKPOINT_PAUSE
) -> Outcome:
    """Train one run in this process."""
    problem, notes = None, []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for category in NOT_FOR_USERS:
            warnings.simplefilter("ignore", category)
        try:
            run = train(
                recipe,
                folder,
                data_root=data_root,
                device=device,
                checkpoint_pause=checkpoint_pause,
                progress=False,
            )
            notes = run.require_result().notes
        except DivergedError as error:
            problem = str(error)
        except RunError as error:
            raise type(error)(str(error)) from None  # without its cause, which may not be picklable
    messages = dict.fromkeys(str(warning.message) for warning in caught)
    return Outcome(problem, [message for message in messages if message not in notes])
