"""The training loop: from a recipe to a run folder, on one device or several, interrupted or not."""

import os
import time
import warnings
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from dualfocal.data import DataSet, load_data
from dualfocal.data.places import Root
from dualfocal.metrics.evaluation import finite
from dualfocal.runs.layout import CHECKPOINT, FAILURE
from dualfocal.runs.recipe import Recipe
from dualfocal.runs.run import Run, default_folder
from dualfocal.train.checkpoint import Pace, resume, save_checkpoint
from dualfocal.train.display import Silent, make_display
from dualfocal.train.distributed import Group, processes
from dualfocal.train.failure import DivergedError, diagnosis
from dualfocal.train.forward import Forward, float32_products
from dualfocal.train.interrupts import Interrupts
from dualfocal.train.outcome import finish, how_it_runs, session
from dualfocal.train.preparation import (
    check_fit,
    derived_seed,
    follows_validation,
    identify,
    looks_at_validation,
    make_batches,
    make_optimizer,
    notes_on,
    prepare_model,
    repeatable,
    seed_all,
    set_random_states,
    try_out,
    watched_part,
)
from dualfocal.train.step import make_step
from dualfocal.train.validation import predict, summarize


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
) -> Run:
    """Train as a recipe says, into a run folder; go on where an earlier call was interrupted.

    On the CPU the result has the same bits, interrupted or not. Started by ``torchrun``, all processes train one model.

    Args:
        recipe: what to train, and how.
        out: the run folder, by default one in ``runs/`` that belongs to this recipe. If the run is finished, nothing is
            done.
        data_root: folder of the data, see :func:`~dualfocal.data.load_data`.
        device: None: a GPU if there is one.
        checkpoint_every: epochs; what was done since is done again after a crash. Ctrl-C loses nothing, but with
            several processes it is a crash, too.
        checkpoint_pause: seconds from one to the next at least, so that short epochs are not held up by saving.
        tensorboard: whether to write scalars to ``tensorboard/`` in the run folder.
        progress: whether to show it, as bars on a terminal, as lines elsewhere.

    Returns:
        The finished run.

    Raises:
        RunError: the folder is another recipe's, or in use, or cannot be written; what was written stays whole.
        DivergedError: the loss did not stay finite; the last checkpoint is kept, and ``failure.json`` tells more.
        KeyboardInterrupt: on Ctrl-C, once everything is saved; on SIGTERM a SystemExit of 143.
    """
    pace = Pace(checkpoint_every, checkpoint_pause)
    run = Run(default_folder(recipe) if out is None else out)
    with processes(device) as group:
        group.first_does(partial(run.check_recipe, recipe))
        group.first_does(run.tidy)
        if group.tell(run.state.encode() if group.first else None) == b"finished":
            return run
        display = make_display(run, tensorboard, progress) if group.first else Silent()
        asked, recipe = recipe, recipe.on(group.device, group.size)
        with repeatable(recipe, group.device):
            data = load_data(recipe.data, data_root, **recipe.data_options)
            notes = check_fit(recipe, data, group)
            model = prepare_model(recipe, data, group.device)
            all_used = try_out(model, recipe, data, group)
            notes += notes_on(model, recipe)
            for note in notes if group.first else ():
                warnings.warn(note, stacklevel=2)
            with ExitStack() as stack:
                group.first_does(lambda: stack.enter_context(run.claimed(asked)))
                stack.enter_context(display)
                # Another process may have been quicker; now nobody can be.
                if group.tell(run.state.encode() if group.first else None) != b"finished":
                    _train(recipe, run, data, model, all_used, group, notes, pace, display)
    return run


def _train(
    recipe: Recipe,
    run: Run,
    data: DataSet,
    model: nn.Module,
    all_used: bool,
    group: Group,
    notes: list[str],
    pace: Pace,
    display: Silent,
) -> None:
    identity = identify(data)
    data = data.to(group.device)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    criterion = recipe.make_loss().to(group.device)
    optimizer = make_optimizer(recipe, weights)

    def save() -> None:
        save_checkpoint(run, at, model, optimizer, criterion, identity)
        pace.saved(at.epoch)

    def save_if_due(asked: bool) -> None:
        if asked or at.epoch == recipe.epochs or pace.is_due(at.epoch):
            save()

    at, random_states = resume(run, model, optimizer, criterion, identity, group)
    pace.saved(at.epoch if (run.path / CHECKPOINT).exists() else None)
    at.sessions.append(session(recipe, group, at.epoch))
    forward = Forward(group.wrap(model, sync_bn=recipe.sync_bn, all_used=all_used), recipe, group.device)
    plain = Forward(model, recipe, group.device)  # for predictions: processes need not take as many steps
    step = make_step(recipe, data, forward, criterion, optimizer, group, say=display.say)
    watched = watched_part(data)
    wanted = {"val": True, "val2": looks_at_validation(recipe, criterion), "test": recipe.test_each_epoch}
    parts = [part for part in wanted if wanted[part] and part in data.splits]
    display.begin(recipe, at, len(data.splits["train"]), run.log if group.first else [])

    with Interrupts(catch=group.size == 1) as stop, closing(step):
        for epoch in range(at.epoch, recipe.epochs):
            began = time.perf_counter() - at.seconds
            seed_all(derived_seed(recipe.seed, epoch, f"dropout {group.rank}"))
            if at.step and group.first:
                set_random_states(random_states, group.device)
            batches = make_batches(recipe, data, epoch)
            step.begin(epoch)
            ready, warm = step.seconds, step.samples
            for batch in batches[at.step :]:
                taken = step(batch)
                at.losses.append(taken.loss)
                if not taken.updated:
                    break
                if taken.norm is not None:
                    at.norms.append(taken.norm)
                at.step += 1
                display.step(len(batch), taken.loss, len(group.share(batch)))
                if stop.asked is not None:
                    break
            sound = _finite(at.losses[-1], get_total_norm(weights)).all()  # waits for the last step
            trained = time.perf_counter() - began - (step.seconds - ready)
            at.sessions[-1] |= how_it_runs(step, model)
            if at.step < len(batches) and sound:
                at.seconds = trained
                save()
                stop.leave()

            group.same_buffers(model)
            predicted = {part: predict(plain, data, part, group) for part in parts if sound}
            losses = group.sum(torch.stack(at.losses).cpu().double())  # of the batches, over all processes
            sound &= _finite(losses.sum(), *(logits.sum() for logits, _ in predicted.values())).all()
            if int(group.sum(sound.long())) < group.size:
                report = diagnosis(
                    recipe, data, step.draws, batches, losses.tolist(), at.norms, epoch, model, pace.epoch
                )
                group.first_does(partial(run.write_json, FAILURE, report))
                raise DivergedError(run, report)

            number = sum(map(len, batches))
            line: dict[str, Any] = {"epoch": epoch + 1, "lr": recipe.lr_at(epoch)}
            line |= {
                "train_loss": float(losses.sum()) / number,
                "grad_norm": None if not at.norms else finite(float(torch.stack(at.norms).cpu().double().mean())),
            }
            for part in parts:
                summary = summarize(*predicted[part], criterion, recipe.batch_size, group)
                line |= {f"{part}_{name}": value for name, value in summary.items()}
            if follows_validation(criterion):
                criterion.update(*map(group.gather, predicted[watched]))
                line["gamma"] = criterion.gamma.tolist()
            timed = number - (step.samples - warm)  # those before the step was ready have no part in its speed
            line |= {"images_per_second": timed / trained if timed else None, "seconds": time.perf_counter() - began}

            at = replace(at, epoch=epoch + 1, step=0, losses=[], norms=[], seconds=0.0)
            if recipe.weights != "last":
                score = line[f"{watched}_{recipe.weights.removeprefix('best_')}"]
                if at.best_score is None or score < at.best_score:
                    best = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
                    at = replace(at, best_epoch=epoch + 1, best_score=score, best_weights=best)
            group.first_does(partial(run.append, line))
            asked = stop.asked is not None
            group.first_does(partial(save_if_due, asked))  # by the first one's clock
            display.epoch(line)
            if asked:
                stop.leave()
        stop.leave()

    if recipe.weights != "last":
        model.load_state_dict(at.best_weights)
    if recipe.precision in ("bfloat16", "tf32"):
        # Steps may be coarse; what is measured and kept is not: a logit of 12 in bfloat16 is off by up to .03.
        plain = Forward(model, replace(recipe, precision="float32"), group.device)
    predictions = {}
    with float32_products(group.device, "ieee"):
        for part in ("val", "test"):
            if part in data.splits:
                logits, target = map(group.gather, predict(plain, data, part, group))
                predictions[part] = logits.cpu(), target.cpu()
    notes += dict.fromkeys(why for of in at.sessions for why in of.get("slowed_by", []))
    group.first_does(partial(finish, recipe, run, data, model, at, predictions, notes))


def _finite(*numbers: Tensor) -> Tensor:
    return torch.stack([number.detach().cpu().double() for number in numbers]).isfinite()
