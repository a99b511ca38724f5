"""Train the runs of a study with an engine; finished runs are skipped, interrupted ones are resumed."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from dualfocal_lab.data.paths import Root
from dualfocal_lab.runs import Run
from dualfocal_lab.study.engine import Engine, Task, Update
from dualfocal_lab.study.local import LocalEngine
from dualfocal_lab.study.plan import Study
from dualfocal_lab.study.shards import Shard


@dataclass(frozen=True)
class RunStatus:
    """Progress of one run of a study.

    Attributes:
        name: Name of the run folder.
        state: ``"waiting"``, ``"running"``, ``"finished"`` or ``"failed"``.
        epoch: Number of finished epochs.
        epochs: Number of all epochs.
        node: Name of the machine that trains the run (empty: this one, or none).
    """

    name: str
    state: str
    epoch: int
    epochs: int
    node: str = ""


StudyProgress = Callable[[int, int, int], None]  # finished epochs, all epochs, finished runs
StudyWatcher = Callable[[Sequence[RunStatus]], None]


def add_up(runs: Sequence[RunStatus]) -> tuple[int, int, int]:
    """Return the numbers of finished epochs, of all epochs and of finished runs."""
    finished = sum(run.state == "finished" for run in runs)
    return sum(run.epoch for run in runs), sum(run.epochs for run in runs), finished


def run_study(
    study: Study,
    out: Path,
    *,
    engine: Engine | None = None,
    shard: Shard | None = None,
    jobs: int | None = None,
    data_root: Root = None,
    device: str | None = None,
    progress: StudyProgress | None = None,
    watch: StudyWatcher | None = None,
) -> dict[tuple[str, int], str]:
    """Train the runs of a study that are not finished yet. Equal warnings of several runs are given once.

    Args:
        study: the recipes to train.
        out: the folder of the study; each run has a folder in ``out/runs``.
        engine: where to train (default: ``LocalEngine(jobs, device)``, processes of this machine).
        shard: train only this share of the runs.
        jobs: number of trainings at a time, each in its own process (default: one per core, or one on a GPU).
        data_root: folder of the data.
        device: such as ``"cpu"`` or ``"cuda:1"`` (None: a GPU if there is one).
        progress: called twice a second with the numbers of finished epochs, of all epochs and of finished runs.
        watch: called twice a second with the status of each run, in the order of the study.

    Returns:
        Entry and seed of each run that diverged -> message, in the order of the study.

    Raises:
        RunError, ValueError: a recipe cannot be trained, or a folder belongs to another recipe.
        KeyboardInterrupt: Ctrl-C was pressed; all runs are saved.
    """
    if engine is None:
        engine = LocalEngine(jobs, device)
    elif jobs is not None or device is not None:
        raise ValueError("jobs and device belong to the local engine: use engine=LocalEngine(jobs=..., device=...)")
    folders = study.folders(out)
    keys = list(folders) if shard is None else shard.select(list(folders))
    tasks = {key: Task(study.recipes[key[0]][key[1]], folders[key]) for key in keys}
    for task in tasks.values():
        Run(task.folder).check_recipe(task.recipe)
    board = _Board(list(tasks.values()), progress, watch)
    board.report()
    if not board.unfinished:
        return {}
    problems: dict[Path, str | None] = {}  # by folder
    warned: set[str] = set()
    with closing(engine.train(board.unfinished, out, data_root)) as updates:
        for update in updates:
            board.show(update)
            for folder, outcome in update.ended.items():
                problems[folder] = outcome.problem
                for message in outcome.warnings:
                    if message not in warned:  # runs often have the same ones
                        warnings.warn(message, stacklevel=2)
                        warned.add(message)
    return {key: problem for key, task in tasks.items() if (problem := problems.get(task.folder))}


class _Board:
    """The status of each run."""

    def __init__(self, tasks: list[Task], progress: StudyProgress | None, watch: StudyWatcher | None) -> None:
        finished = {task.folder for task in tasks if Run(task.folder).state == "finished"}
        self.unfinished = [task for task in tasks if task.folder not in finished]
        self.progress, self.watch = progress, watch
        self.statuses = {
            task.folder: RunStatus(
                task.folder.name,
                "finished" if task.folder in finished else "waiting",
                min(task.recipe.epochs, Run(task.folder).num_epochs),
                task.recipe.epochs,
            )
            for task in tasks
        }

    def show(self, update: Update) -> None:
        """Change the status of the runs that an engine reports on."""
        for folder, status in self.statuses.items():
            if folder in update.ended:
                state, node = "finished" if update.ended[folder].problem is None else "failed", status.node
            elif folder in update.running:
                state, node = "running", update.running[folder]
            elif status.state == "running":  # its machine was lost
                state, node = "waiting", ""
            else:
                continue
            epoch = min(status.epochs, Run(folder).num_epochs)
            self.statuses[folder] = replace(status, state=state, node=node, epoch=epoch)
        self.report()

    def report(self) -> None:
        """Call the functions that want to know."""
        statuses = list(self.statuses.values())
        if self.watch is not None:
            self.watch(statuses)
        if self.progress is not None:
            self.progress(*add_up(statuses))
