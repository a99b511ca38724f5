"""Train the runs of a study in several processes of this machine."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from dualfocal.checks import check_count
from dualfocal_lab.checks import AT_MOST
from dualfocal_lab.data.paths import Root
from dualfocal_lab.runs import Recipe, RunError
from dualfocal_lab.study.engine import LOOK, Outcome, Task, Update, check_data, train_run
from dualfocal_lab.study.multi_process_service import multi_process_service
from dualfocal_lab.train.distributed import choose_device, num_cores
from dualfocal_lab.train.failure import Interrupts

PATIENCE = 0.5  # seconds between signals to a training: it ignores them while it loads data


@dataclass(frozen=True)
class LocalEngine:
    """Trains runs in processes of this machine, which end with this process.

    Attributes:
        jobs: Number of trainings at a time (None: one per core, or one on a GPU). They share the cores; on a GPU, they
            share it by CUDA's multi-process service, if that is installed.
        device: Such as ``"cpu"`` or ``"cuda:1"`` (None: a GPU if there is one).
    """

    jobs: int | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        if self.jobs is not None:
            check_count("jobs", self.jobs, high=AT_MOST["jobs"])
        if self.device is not None:
            choose_device(self.device)  # raises a ValueError before any process is started

    def train(self, tasks: Sequence[Task], out: Path, data_root: Root) -> Generator[Update, None, None]:
        """Train runs whose folders lie in ``out``, see :meth:`dualfocal_lab.study.engine.Engine.train`."""
        check_data((task.recipe for task in tasks), data_root)
        on_gpu = torch.cuda.is_available() if self.device is None else self.device.startswith("cuda")
        jobs = min(self.jobs or (1 if on_gpu else num_cores()), len(tasks))
        threads = max(1, num_cores() // jobs)
        # Spawn, since a fork of a process that has used threads or a GPU may hang.
        context = multiprocessing.get_context("spawn")
        with (
            Interrupts() as interrupts,
            multi_process_service(on_gpu and jobs > 1),
            ProcessPoolExecutor(jobs, context, begin, (threads,)) as pool,
        ):
            waiting: dict[Future[Outcome], Path] = {}
            queue = iter(tasks)
            try:
                while True:
                    # Submit no more than there are processes: a pool also runs its queued tasks after Ctrl-C.
                    with _interrupts_later():
                        for task in islice(queue, jobs - len(waiting)):
                            arguments = task.recipe, str(task.folder), data_root, self.device
                            waiting[pool.submit(_train, *arguments)] = task.folder
                    if not waiting:
                        break
                    done, _ = wait(waiting, timeout=LOOK, return_when=FIRST_COMPLETED)
                    interrupts.leave()
                    ended = {waiting.pop(future): future.result() for future in done}
                    yield Update(dict.fromkeys(waiting.values(), ""), ended)
            except BrokenProcessPool as error:
                raise RunError(
                    f"{out}: a training process was killed, perhaps because memory ran out; --jobs 1 needs less"
                ) from error
            except BaseException:
                _stop({future for future in waiting if not future.cancel()})
                raise


def _stop(running: set[Future[Outcome]]) -> None:
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


# What follows runs in the worker processes, which train one run after another.

_training_lock = threading.Lock()


def begin(threads: int) -> None:
    """Set up a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only a training handles it
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    torch.set_num_threads(threads)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _train(recipe: Recipe, folder: str, data_root: Root, device: str | None) -> Outcome:
    with _training_lock:
        return train_run(recipe, folder, data_root, device)


def _leave_with_parent() -> None:
    """Wait until the parent process is gone, then make a training save, as on Ctrl-C, and exit."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    while not _training_lock.acquire(timeout=PATIENCE):
        signal.raise_signal(signal.SIGINT)
    os._exit(1)  # holding the lock, so that no training starts; a normal exit would wait for tasks forever
