"""Train the runs of a study in several processes; finished runs are skipped, interrupted ones are resumed."""

import json
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from dualfocal._checks import check_count
from dualfocal.data import load_data
from dualfocal.data.paths import Root
from dualfocal.runs import Recipe, Run, RunError
from dualfocal.study.plan import Study
from dualfocal.train import DivergedError, train
from dualfocal.train.distributed import num_cores
from dualfocal.train.failure import Interrupts

LOOK = 0.5  # seconds between updates of the progress
CHECKPOINT_PAUSE = (
    30.0  # seconds between checkpoints: little is lost if a process is killed, and short epochs are not slowed down
)
PATIENCE = 0.5  # seconds between signals to a training: it ignores them while it loads data
NOT_FOR_USERS = (
    DeprecationWarning,
    PendingDeprecationWarning,
    ImportWarning,
    ResourceWarning,
)  # hidden by default in Python, too

StudyProgress = Callable[[int, int, int], None]  # finished epochs, all epochs, finished runs


def run_study(
    study: Study,
    out: Path,
    *,
    jobs: int | None = None,
    data_root: Root = None,
    device: str | None = None,
    progress: StudyProgress | None = None,
) -> dict[tuple[str, int], str]:
    """Train the runs of a study that are not finished yet. Equal warnings of several runs are given once.

    Args:
        study: the recipes to train.
        out: the folder of the study; each run has a folder in ``out/runs``.
        jobs: number of trainings at a time, each in its own process (default: one per core, or one on a GPU).
        data_root: folder of the data.
        device: such as ``"cpu"`` or ``"cuda:1"`` (None: a GPU if there is one).
        progress: called twice a second with the numbers of finished epochs, of all epochs and of finished runs.

    Returns:
        Entry and seed of each run that diverged -> message.

    Raises:
        RunError, ValueError: a recipe cannot be trained, or a folder belongs to another recipe.
        KeyboardInterrupt: Ctrl-C was pressed; all runs are saved.
    """
    if jobs is not None:
        check_count("jobs", jobs)
    folders = study.folders(out)
    recipes = {key: study.recipes[key[0]][key[1]] for key in folders}
    for key, folder in folders.items():
        Run(folder).check_recipe(recipes[key])
    unfinished = {key: folder for key, folder in folders.items() if Run(folder).state != "finished"}

    def report_progress() -> None:
        if progress is not None:
            done = sum(min(recipes[key].epochs, Run(folder).num_epochs) for key, folder in folders.items())
            finished = sum(Run(folder).state == "finished" for folder in folders.values())
            progress(done, sum(recipe.epochs for recipe in recipes.values()), finished)

    report_progress()
    if not unfinished:
        return {}
    _check_data((recipes[key] for key in unfinished), data_root)
    on_gpu = torch.cuda.is_available() if device is None else device.startswith("cuda")
    jobs = min(jobs or (1 if on_gpu else num_cores()), len(unfinished))
    threads = max(1, num_cores() // jobs)
    failed: dict[tuple[str, int], str] = {}
    warned: set[str] = set()
    # Spawn, since a fork of a process that has used threads or a GPU may hang.
    context = multiprocessing.get_context("spawn")
    with Interrupts() as interrupts, ProcessPoolExecutor(jobs, context, begin, (threads,)) as pool:
        waiting: dict[Future[tuple[str | None, list[str]]], tuple[str, int]] = {}
        queue = iter(unfinished.items())
        try:
            while True:
                # Submit no more than there are processes: a pool also runs its queued tasks after Ctrl-C.
                with _interrupts_later():
                    for key, folder in islice(queue, jobs - len(waiting)):
                        waiting[pool.submit(train_run, recipes[key], str(folder), data_root, device)] = key
                if not waiting:
                    break
                done, _ = wait(waiting, timeout=LOOK, return_when=FIRST_COMPLETED)
                interrupts.leave()
                for future in done:
                    key = waiting.pop(future)
                    problem, messages = future.result()
                    if problem is not None:
                        failed[key] = problem
                    for message in (
                        text for text in messages if text not in warned
                    ):  # runs often give the same warnings
                        warnings.warn(message, stacklevel=2)
                    warned.update(messages)
                report_progress()
        except BrokenProcessPool as error:
            raise RunError(
                f"{out}: a training process was killed, perhaps because memory ran out; --jobs 1 needs less"
            ) from error
        except BaseException:
            _stop({future for future in waiting if not future.cancel()})
            raise
    return failed


def _stop(running: set[Future[tuple[str | None, list[str]]]]) -> None:
    """Make the processes save and end. The signal is repeated, as a process that is still loading misses it."""
    while running:
        for process in multiprocessing.active_children():
            with suppress(ProcessLookupError, TypeError):
                os.kill(process.pid, signal.SIGINT)  # type: ignore[arg-type]
        running = wait(running, timeout=LOOK).not_done


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Delay Ctrl-C until the new processes are ready for it, so that none ends with a traceback."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # new processes inherit it
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _check_data(recipes: Iterable[Recipe], data_root: Root) -> None:
    """Raise a ValueError before any training if data of a recipe are missing or have no validation or test split."""
    different = {json.dumps([recipe.data, recipe.data_options], sort_keys=True): recipe for recipe in recipes}
    for recipe in different.values():
        parts = load_data(recipe.data, data_root, **recipe.data_options).splits
        for part in ("val", "test"):
            if part not in parts:
                raise ValueError(f"data {recipe.data} has no {part} split, which a study needs; set data.{part}_size")


# What follows runs in the worker processes, which train one run after another.

_training_lock = threading.Lock()


def begin(threads: int) -> None:
    """Set up a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only a training handles it
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    torch.set_num_threads(threads)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def train_run(recipe: Recipe, folder: str, data_root: Any, device: str | None) -> tuple[str | None, list[str]]:
    """Train one run. Returns why it diverged, or None, and the warnings that are not among its notes."""
    problem, notes = None, []
    with _training_lock, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for category in NOT_FOR_USERS:
            warnings.simplefilter("ignore", category)
        try:
            run = train(
                recipe,
                folder,
                data_root=data_root,
                device=device,
                checkpoint_pause=CHECKPOINT_PAUSE,
                progress=False,
            )
            notes = run.require_result().notes
        except DivergedError as error:
            problem = str(error)
        except RunError as error:
            raise RunError(str(error)) from None
    messages = dict.fromkeys(str(warning.message) for warning in caught)
    return problem, [message for message in messages if message not in notes]


def _leave_with_parent() -> None:
    """Wait until the parent process is gone, then make a training save, as on Ctrl-C, and exit."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    while not _training_lock.acquire(timeout=PATIENCE):
        signal.raise_signal(signal.SIGINT)
    os._exit(1)  # holding the lock, so that no training starts; a normal exit would wait for tasks forever
