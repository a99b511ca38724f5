"""A process that trains the runs of a study one after another, and does not outlive who started it."""

import multiprocessing
import os
import signal
import threading
import warnings
from typing import Any

import torch

from dualfocal.runs import Recipe, RunError
from dualfocal.train import DivergedError, train

CHECKPOINT_PAUSE = 30.0  # seconds: little is lost if a process is killed, and runs of short epochs are not held up
PATIENCE = 0.5  # seconds between one request to stop and the next: who loads data does not mind it yet
NOT_FOR_USERS = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)  # as Python has it

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
