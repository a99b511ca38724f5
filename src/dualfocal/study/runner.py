"""Many trainings in a few processes: those that are finished are left alone, those that were interrupted go on."""

import json
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

import torch

from dualfocal.data import load_data
from dualfocal.data.places import Root
from dualfocal.runs import Recipe, Run, RunError
from dualfocal.study.plan import Study
from dualfocal.study.worker import begin, train_run
from dualfocal.train.failure import Interrupts
from dualfocal.train.host import num_cores

LOOK = 0.5  # seconds between looks at how far the runs have come

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
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    folders = study.folders(out)
    recipes = {key: study.recipes[key[0]][key[1]] for key in folders}
    for key, folder in folders.items():
        Run(folder).check_recipe(recipes[key])
    left = {key: folder for key, folder in folders.items() if Run(folder).state != "finished"}
    total = sum(recipe.epochs for recipe in recipes.values())

    def tell() -> None:
        if progress is not None:
            done = sum(min(recipes[key].epochs, Run(folder).num_epochs) for key, folder in folders.items())
            progress(done, total, sum(Run(folder).state == "finished" for folder in folders.values()))

    tell()
    if not left:
        return {}
    _check_data((recipes[key] for key in left), data_root)
    on_gpu = torch.cuda.is_available() if device is None else device.startswith("cuda")
    cores = num_cores()
    jobs = min(jobs or (1 if on_gpu else cores), len(left))
    threads = max(1, cores // jobs)
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
                    for message in messages:
                        if message not in warned:  # the runs of a study have much in common
                            warnings.warn(message, stacklevel=2)
                    warned |= set(messages)
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
