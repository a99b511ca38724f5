"""Train a model from a recipe into a run folder: check everything, claim the folder, and run the loop."""

import os
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial

import torch

from dualfocal.checks import check_count
from dualfocal_lab.checks import AT_MOST
from dualfocal_lab.data import load_data
from dualfocal_lab.data.paths import Root
from dualfocal_lab.runs import Recipe, Run, default_folder
from dualfocal_lab.runs.lease import EXPIRES
from dualfocal_lab.train.callbacks import Callbacks, TensorBoard
from dualfocal_lab.train.display import Display
from dualfocal_lab.train.distributed import processes
from dualfocal_lab.train.loop import Training
from dualfocal_lab.train.model import check_fit, notes_on, prepare_model, try_out
from dualfocal_lab.train.randomness import repeatable
from dualfocal_lab.train.sources import import_objects


def train(
    recipe: Recipe,
    out: str | os.PathLike[str] | None = None,
    *,
    data_root: Root = None,
    device: str | torch.device | None = None,
    checkpoint_every: int = 1,
    checkpoint_pause: float = 0.0,
    tensorboard: bool = False,
    progress: bool = True,
    callbacks: Sequence[object] = (),
    lease_seconds: float = EXPIRES,
) -> Run:
    """Train a model from a recipe into a run folder, or resume the run if an earlier call was interrupted.

    On the CPU, a resumed run gives the same bits as an uninterrupted one if all its sessions have the same number of
    threads (``torch.get_num_threads()``), the same kind of processor and the same versions of torch and NumPy: other
    ones add numbers in another order. If they differ, a note in the result says so. Started by ``torchrun``, all
    processes train one model together.

    Args:
        recipe: the data, model, loss and settings to train with.
        out: the run folder (default: a folder in ``runs/`` named after the recipe). A finished run is returned as it
            is.
        data_root: folder of the data, see :func:`~dualfocal_lab.data.load_data`.
        device: such as ``"cpu"`` or ``"cuda:1"`` (None: a GPU if there is one).
        checkpoint_every: number of epochs between checkpoints. After a crash, training resumes from the last
            checkpoint. Ctrl-C saves one first, except with several processes.
        checkpoint_pause: minimum number of seconds between checkpoints, so that saving does not slow down short epochs.
        tensorboard: whether to write scalars to ``tensorboard/`` in the run folder; the same as the callback
            :class:`~dualfocal_lab.train.TensorBoard`.
        progress: whether to show progress: bars on a terminal, and one line per epoch.
        callbacks: objects with any of the methods ``on_train_start(run)``, ``on_epoch_end(log)``, with the line of the
            log as a dict, and ``on_train_end(run)``, which is also called if the training stops or fails. With several
            processes, the first one calls them.
        lease_seconds: time without a sign of life of this process after which another machine may take over the folder.

    Returns:
        The finished run.

    Raises:
        RunError: the folder belongs to another recipe, is in use, was taken over by another process, or cannot be
            written, or a file is damaged. Files written so far are complete. Only a damaged checkpoint is no error: it
            is renamed, with a warning, and the training starts again.
        DivergedError: the loss, a weight or a prediction is not finite. The last checkpoint is kept, and
            ``failure.json`` describes the failure.
        CallbackError: a callback failed; the run is saved, and the same call continues it.
        KeyboardInterrupt: Ctrl-C was pressed; the run is saved. SIGTERM and SIGHUP raise SystemExit with code 143 and
            129.
    """
    check_count("checkpoint_every", checkpoint_every, high=AT_MOST["checkpoint_every"])
    if not checkpoint_pause >= 0:
        raise ValueError(f"checkpoint_pause must be at least 0 seconds, got {checkpoint_pause}")
    if not lease_seconds > 0:
        raise ValueError(f"lease_seconds must be above 0, got {lease_seconds}")
    run = Run(default_folder(recipe) if out is None else out)
    with processes(device) as group, ExitStack() as stack:

        def is_finished() -> bool:
            return group.first_does(lambda: run.state.encode()) == b"finished"

        group.first_does(partial(run.check_recipe, recipe))
        group.first_does(run.tidy)
        if is_finished():
            return run
        display = Display(progress and group.first)
        listeners = Callbacks([*callbacks, *([TensorBoard()] if tensorboard else [])] if group.first else [])
        requested, recipe = recipe, recipe.on(group.device, group.size)
        stack.enter_context(repeatable(recipe, group.device))
        stack.enter_context(listeners.ending(run))
        sources = import_objects(recipe)
        data = load_data(recipe.data, data_root, **recipe.data_options)
        notes = check_fit(recipe, data, group)
        model = prepare_model(recipe, data, group.device)
        all_used = try_out(model, recipe, data, group)
        notes += notes_on(model, recipe)
        for note in notes if group.first else ():
            warnings.warn(note, stacklevel=2)
        group.first_does(lambda: stack.enter_context(run.claimed(requested, lease_seconds=lease_seconds)))
        stack.enter_context(closing(display))
        if is_finished():  # by another program, before this one claimed the folder
            return run
        training = Training(
            recipe,
            run,
            data,
            model,
            group,
            display=display,
            callbacks=listeners,
            checkpoint_every=checkpoint_every,
            checkpoint_pause=checkpoint_pause,
            sources=sources,
            all_used=all_used,
        )
        training.run_epochs()
        training.finish(notes)
    return run
