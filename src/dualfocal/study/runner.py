"""Many trainings in a few processes: those that are finished are left alone, those that were interrupted go on."""

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from dualfocal.data import load_data
from dualfocal.data.places import Root
from dualfocal.study.plan import Study
from dualfocal.train import DivergedError, Recipe, Run, RunError, train

LOOK = 0.5  # seconds between looks at how far the runs have come
CHECKPOINT_PAUSE = 30.0  # seconds: little is lost if a process is killed, and runs of short epochs are not held up

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
    """Train everything that is not trained yet.

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
            done = sum(_epochs(folder, recipes[key].epochs) for key, folder in folders.items())
            progress(done, total, sum(Run(folder).state == "finished" for folder in folders.values()))

    tell()
    if not left:
        return {}
    some = next(iter(recipes.values()))
    parts = load_data(some.data, data_root, **some.data_options).splits
    for part in ("val", "test"):
        if part not in parts:
            raise ValueError(f"data {some.data} has no {part} part, which the tables need: see data.{part}_size")
    on_gpu = torch.cuda.is_available() if device is None else device.startswith("cuda")
    cores = os.cpu_count() or 1
    jobs = min(jobs or (1 if on_gpu else cores), len(left))
    threads = max(1, cores // jobs)
    failed: dict[tuple[str, int], str] = {}
    # Spawned, not forked: a fork of a process that has used threads or a GPU may hang.
    context = multiprocessing.get_context("spawn")
    with _terminated_as_interrupted(), ProcessPoolExecutor(jobs, context, _begin, (threads,)) as pool:
        waiting: dict[Future[str | None], tuple[str, int]] = {}
        next_ones = iter(left.items())
        try:
            while True:
                # No more than there are processes: what a pool has in its queue it also does after Ctrl-C.
                with _interrupts_later():
                    for key, folder in islice(next_ones, jobs - len(waiting)):
                        waiting[pool.submit(_train, recipes[key], str(folder), data_root, device)] = key
                if not waiting:
                    break
                done, _ = wait(waiting, timeout=LOOK, return_when=FIRST_COMPLETED)
                for future in done:
                    key = waiting.pop(future)
                    if (problem := future.result()) is not None:
                        failed[key] = problem
                tell()
        except BrokenProcessPool as error:
            raise RunError(f"{out}: a process was killed, for want of memory perhaps; --jobs 1 takes less") from error
        except BaseException:
            left_over = {future for future in waiting if not future.cancel()}
            while left_over:  # again and again: who loads data, or torch itself, does not mind it yet
                for process in multiprocessing.active_children():
                    with suppress(ProcessLookupError, TypeError):
                        os.kill(process.pid, signal.SIGINT)  # type: ignore[arg-type]  # whoever trains saves, and ends
                left_over = wait(left_over, timeout=LOOK).not_done
            raise
    return failed


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


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends the processes, too; only a main thread can mind it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(*_: object) -> None:
        sys.exit(143)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _begin(threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a training minds it; an idle process has nothing to say
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    torch.set_num_threads(threads)


def _train(recipe: Recipe, folder: str, data_root: Any, device: str | None) -> str | None:
    """In a process of its own; gives what went wrong if the loss did not stay finite."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # notes are in the result, and would come once a run
            train(
                recipe,
                folder,
                data_root=data_root,
                device=device,
                checkpoint_pause=CHECKPOINT_PAUSE,
                progress=False,
            )
    except DivergedError as error:
        return str(error)
    except RunError as error:
        raise RunError(str(error)) from None
    return None


def _epochs(folder: Path, epochs: int) -> int:
    try:
        return min(epochs, (folder / "log.jsonl").read_bytes().count(b"\n"))
    except OSError:
        return 0
