"""Many trainings in a few processes: those that are finished are left alone, those that were interrupted go on."""

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
from dualfocal.data.places import Root
from dualfocal.runs import Recipe, Run, RunError
from dualfocal.study.plan import Study
from dualfocal.train import DivergedError, train
from dualfocal.train.distributed import num_cores
from dualfocal.train.failure import Interrupts

LOOK = 0.5  # seconds between looks at how far the runs have come
CHECKPOINT_PAUSE = 30.0  # seconds: little is lost if a process is killed, and runs of short epochs are not held up
PATIENCE = 0.5  # seconds between one request to stop and the next: who loads data does not mind it yet
NOT_FOR_USERS = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)  # as Python has it

Progress = Callable[[int, int, int], None]  # epochs that are done, of how many, and runs that are finished


def run_study(
    study: Study,
    out: Path,
    *,
    jobs: int | None = None,
    data_root: Root = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> dict[tuple[str, int], str]:
    """Train everything that is not trained yet. What a training warns of, its own notes apart, is warned of once.

    Args:
        study: what.
        out: where; each run has a folder in ``out/runs``.
        jobs: how many trainings at a time, each in a process; by default one per core, on a GPU one.
        data_root: folder of the data.
        device: None: a GPU if there is one.
        progress: told twice a second how far it is.

    Returns:
        What went wrong, for the runs that failed: their loss did not stay finite.

    Raises:
        RunError, ValueError: a recipe that cannot be trained, a folder of something else.
        KeyboardInterrupt: on Ctrl-C, once all runs are saved.
    """
    if jobs is not None:
        check_count("jobs", jobs)
    folders = study.folders(out)
    recipes = {key: study.recipes[key[0]][key[1]] for key in folders}
    for key, folder in folders.items():
        Run(folder).check_recipe(recipes[key])
    left = {key: folder for key, folder in folders.items() if Run(folder).state != "finished"}

    def tell() -> None:
        if progress is not None:
            done = sum(min(recipes[key].epochs, Run(folder).num_epochs) for key, folder in folders.items())
            finished = sum(Run(folder).state == "finished" for folder in folders.values())
            progress(done, sum(recipe.epochs for recipe in recipes.values()), finished)

    tell()
    if not left:
        return {}
    _check_data((recipes[key] for key in left), data_root)
    on_gpu = torch.cuda.is_available() if device is None else device.startswith("cuda")
    jobs = min(jobs or (1 if on_gpu else num_cores()), len(left))
    threads = max(1, num_cores() // jobs)
    failed: dict[tuple[str, int], str] = {}
    warned: set[str] = set()
    # Spawned, not forked: a fork of a process that has used threads or a GPU may hang.
    context = multiprocessing.get_context("spawn")
    with Interrupts() as interrupts, ProcessPoolExecutor(jobs, context, begin, (threads,)) as pool:
        waiting: dict[Future[tuple[str | None, list[str]]], tuple[str, int]] = {}
        next_ones = iter(left.items())
        try:
            while True:
                # No more than there are processes: what a pool has in its queue it also does after Ctrl-C.
                with _interrupts_later():
                    for key, folder in islice(next_ones, jobs - len(waiting)):
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
                    for message in (of for of in messages if of not in warned):  # runs of a study have much in common
                        warnings.warn(message, stacklevel=2)
                    warned.update(messages)
                tell()
        except BrokenProcessPool as error:
            raise RunError(f"{out}: a process was killed, for want of memory perhaps; --jobs 1 takes less") from error
        except BaseException:
            _stop({future for future in waiting if not future.cancel()})
            raise
    return failed


def _stop(running: set[Future[tuple[str | None, list[str]]]]) -> None:
    """Have the processes save and end. A process that is loading data or torch misses the signal: it is repeated."""
    while running:
        for process in multiprocessing.active_children():
            with suppress(ProcessLookupError, TypeError):
                os.kill(process.pid, signal.SIGINT)  # type: ignore[arg-type]
        running = wait(running, timeout=LOOK).not_done


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Ctrl-C waits until processes are started, and in those until they are ready: none ends with a traceback."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # new processes inherit it
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _check_data(recipes: Iterable[Recipe], data_root: Root) -> None:
    """Raise a ValueError, before anything is trained, if data of a recipe are missing, or lack a part."""
    different = {json.dumps([of.data, of.data_options], sort_keys=True): of for of in recipes}
    for recipe in different.values():
        parts = load_data(recipe.data, data_root, **recipe.data_options).splits
        for part in ("val", "test"):
            if part not in parts:
                raise ValueError(f"data {recipe.data} has no {part} part, which the tables need: see data.{part}_size")


# In the processes that train, one run after another; none outlives who started it.

_at_work = threading.Lock()


def begin(threads: int) -> None:
    """Before the first training."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a training minds it; an idle process has nothing to say
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    torch.set_num_threads(threads)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def train_run(recipe: Recipe, folder: str, data_root: Any, device: str | None) -> tuple[str | None, list[str]]:
    """Train one run. Returns why it failed, if its loss did not stay finite, and the warnings besides its notes."""
    problem, notes = None, []
    with _at_work, warnings.catch_warnings(record=True) as caught:
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
    """Once who started this process is gone, killed perhaps: have a training save, as on Ctrl-C, and end."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    while not _at_work.acquire(timeout=PATIENCE):
        signal.raise_signal(signal.SIGINT)
    os._exit(1)  # with the lock: no other training begins. The queue of tasks would be waited for forever.
