"""The training loop: epochs, validation, checkpoints and the final predictions, on one device or several."""

import warnings
from contextlib import closing
from dataclasses import replace
from functools import partial
from time import monotonic, perf_counter
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from dualfocal_lab.checks import finite
from dualfocal_lab.data import DataSet
from dualfocal_lab.runs import Recipe, Run, layout
from dualfocal_lab.train.callbacks import Callbacks
from dualfocal_lab.train.checkpoint import identify, pack, resume
from dualfocal_lab.train.display import Display
from dualfocal_lab.train.distributed import Group
from dualfocal_lab.train.failure import DivergedError, Interrupts, diagnosis
from dualfocal_lab.train.forward import Forward, float32_products
from dualfocal_lab.train.optimizer import make_optimizer
from dualfocal_lab.train.randomness import derived_seed, make_batches, seed_all, set_random_states
from dualfocal_lab.train.result import finish, notes_on_sessions, session, speed_settings
from dualfocal_lab.train.sources import notes_on_sources
from dualfocal_lab.train.step import make_step
from dualfocal_lab.train.validation import follows_validation, looks_at_validation, predict, summarize, watched_part


class Training:
    """A training in progress: model, loss, optimizer, step and position.

    Args:
        recipe: the recipe, with the settings for the device.
        run: the run folder, which the first process has claimed.
        data: the data set, on the CPU.
        model: the model, on the device.
        group: the processes that train together.
        display: shows the progress.
        callbacks: callbacks of the user.
        checkpoint_every: number of epochs between checkpoints.
        checkpoint_pause: minimum number of seconds between checkpoints.
        sources: files of the custom objects of the recipe.
        all_used: whether every trainable weight gets a gradient in each step.
    """

    def __init__(
        self,
        recipe: Recipe,
        run: Run,
        data: DataSet,
        model: nn.Module,
        group: Group,
        *,
        display: Display,
        callbacks: Callbacks,
        checkpoint_every: int,
        checkpoint_pause: float,
        sources: dict[str, Any],
        all_used: bool,
    ) -> None:
        self.recipe, self.run, self.model, self.group = recipe, run, model, group
        self.display, self.callbacks = display, callbacks
        self.checkpoint_every, self.checkpoint_pause = checkpoint_every, checkpoint_pause
        self.data_identity = identify(data)
        self.data = data.to(group.device)
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.criterion = recipe.make_loss().to(group.device)
        self.optimizer = make_optimizer(recipe, self.weights)
        steps = len(make_batches(recipe, self.data, 0))
        self.at, self.random_states = resume(
            run, model, self.optimizer, self.criterion, self.data_identity, group, epochs=recipe.epochs, steps=steps
        )
        self.log = run.log if group.first else []
        self.saved = self.at.epoch if (run.path / layout.CHECKPOINT).exists() else None
        self.saved_at = monotonic()
        self.at.sessions.append(session(recipe, group, self.at.epoch) | ({"sources": sources} if sources else {}))
        for note in notes_on_sources(self.at.sessions[-2:]) if group.first else ():
            warnings.warn(note, stacklevel=3)
        forward = Forward(group.wrap(model, sync_bn=recipe.sync_bn, all_used=all_used), recipe, group.device)
        # Without DDP: ranks may have different numbers of batches.
        self.eval_forward = Forward(model, recipe, group.device)
        self.step = make_step(recipe, self.data, forward, self.criterion, self.optimizer, group, say=display.say)
        self.watched = watched_part(data)
        wanted = {"val": True, "val2": looks_at_validation(recipe, self.criterion), "test": recipe.test_each_epoch}
        self.logged_parts = [part for part in wanted if wanted[part] and part in data.splits]

    def run_epochs(self) -> None:
        """Train the remaining epochs.

        Raises:
            DivergedError: the loss, a weight or a prediction is not finite.
            KeyboardInterrupt, SystemExit: a signal was received; the run is saved.
        """
        self.display.begin(self.recipe, self.at, len(self.data.splits["train"]), self.log)
        self.group.first_does(partial(self.callbacks.start, self.run))
        with Interrupts(catch=self.group.size == 1) as stop, closing(self.step):
            for epoch in range(self.at.epoch, self.recipe.epochs):
                line = self._train_epoch(epoch, stop)
                self._keep_best(line)
                self.group.first_does(partial(self._append, line))
                asked = stop.asked is not None
                # The clock of the first process decides whether a checkpoint is due.
                self.group.first_does(partial(self._save, asked))
                self.display.epoch(line)
                self.group.first_does(partial(self.callbacks.end_epoch, line, self._save))
                if asked:
                    stop.leave()
            stop.leave()

    def finish(self, notes: list[str]) -> None:
        """Predict the validation and the test split with the final or best weights, and write the result."""
        recipe, group = self.recipe, self.group
        if recipe.weights != "last":
            self.model.load_state_dict(self.at.best_weights)
        forward = self.eval_forward
        if recipe.precision in ("bfloat16", "tf32"):
            # Predictions are kept in float32: a logit of 12 in bfloat16 is off by up to .03.
            forward = Forward(self.model, replace(recipe, precision="float32"), group.device)
        predictions = {}
        with float32_products(group.device, "ieee"):
            for part in ("val", "test"):
                if part in self.data.splits:
                    logits, target = map(group.gather, predict(forward, self.data, part, group))
                    predictions[part] = logits.cpu(), target.cpu()
        notes += dict.fromkeys(why for session in self.at.sessions for why in session.get("slowed_by", []))
        notes += notes_on_sessions(self.at.sessions) + notes_on_sources(self.at.sessions)
        group.first_does(partial(finish, recipe, self.run, self.data, self.model, self.at, predictions, notes))

    def _train_epoch(self, epoch: int, stop: Interrupts) -> dict[str, Any]:
        """Train and validate one epoch. Returns its log line."""
        began = perf_counter() - self.at.seconds
        ready, warm = self.step.seconds, self.step.samples
        batches = self._take_steps(epoch, stop)
        sound = _finite(self.at.losses[-1], get_total_norm(self.weights)).all()  # waits for the last step
        seconds = perf_counter() - began - (self.step.seconds - ready)
        self.at.sessions[-1] |= speed_settings(self.step, self.model)
        if self.at.step < len(batches) and sound:  # interrupted
            self.at.seconds = seconds
            self._save(now=True)
            stop.leave()

        self.group.same_buffers(self.model)
        predicted = {
            part: predict(self.eval_forward, self.data, part, self.group) for part in self.logged_parts if sound
        }
        losses = self.group.sum(torch.stack(self.at.losses).cpu().double())  # one per batch, summed over processes
        sound &= _finite(losses.sum(), *(logits.sum() for logits, _ in predicted.values())).all()
        if int(self.group.sum(sound.long())) < self.group.size:
            self._fail(epoch, batches, losses)

        number = sum(map(len, batches))
        timed = number - (self.step.samples - warm)  # samples of the warm-up do not count in the speed
        norms = self.at.norms
        return {
            "epoch": epoch + 1,
            "lr": self.recipe.lr_at(epoch),
            "train_loss": float(losses.sum()) / number,
            "grad_norm": finite(float(torch.stack(norms).cpu().double().mean())) if norms else None,
            **self._validate(predicted),
            "images_per_second": timed / seconds if timed else None,
            "seconds": perf_counter() - began,
        }

    def _take_steps(self, epoch: int, stop: Interrupts) -> tuple[Tensor, ...]:
        """Take the remaining steps of an epoch, up to a signal or a loss that is not finite. Returns its batches."""
        at, group = self.at, self.group
        seed_all(derived_seed(self.recipe.seed, epoch, f"dropout {group.rank}"))
        if at.step and group.first:
            set_random_states(self.random_states, group.device)
        batches = make_batches(self.recipe, self.data, epoch)
        self.step.begin(epoch)
        for batch in batches[at.step :]:
            result = self.step(batch)
            at.losses.append(result.loss)
            if not result.updated:
                break
            if result.norm is not None:
                at.norms.append(result.norm)
            at.step += 1
            self.display.step(len(batch), result.loss, len(group.share(batch)))
            if stop.asked is not None:
                break
        return batches

    def _validate(self, predicted: dict[str, tuple[Tensor, Tensor]]) -> dict[str, Any]:
        """Compute the log entries of each split, and update an adaptive loss with its validation split."""
        entries: dict[str, Any] = {}
        for part, (logits, target) in predicted.items():
            summary = summarize(logits, target, self.criterion, self.recipe.batch_size, self.group)
            entries |= {f"{part}_{name}": value for name, value in summary.items()}
        if follows_validation(self.criterion):
            self.criterion.update(*map(self.group.gather, predicted[self.watched]))
            if isinstance(gamma := getattr(self.criterion, "gamma", None), Tensor):
                entries["gamma"] = gamma.tolist()
        return entries

    def _keep_best(self, line: dict[str, Any]) -> None:
        """Advance the position to the next epoch, and keep the weights if they have the best score so far."""
        self.at = replace(self.at, epoch=line["epoch"], step=0, losses=[], norms=[], seconds=0.0)
        if self.recipe.weights == "last":
            return
        score = line[f"{self.watched}_{self.recipe.weights.removeprefix('best_')}"]
        if self.at.best_score is None or score < self.at.best_score:
            best = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
            self.at = replace(self.at, best_epoch=line["epoch"], best_score=score, best_weights=best)

    def _append(self, line: dict[str, Any]) -> None:
        """Add a line to the log; if the file was deleted meanwhile, write the earlier lines again, too."""
        if self.run.log_is_lost:
            self.run.write_log(self.log)
            path = self.run.path / layout.LOG
            warnings.warn(
                f"{path}: was deleted or replaced during the training; its lines are written again", stacklevel=2
            )
        self.run.append(line)
        self.log.append(line)

    def _fail(self, epoch: int, batches: tuple[Tensor, ...], losses: Tensor) -> NoReturn:
        report = diagnosis(
            self.recipe,
            self.data,
            self.step.draws,
            batches,
            losses.tolist(),
            self.at.norms,
            epoch,
            self.model,
            self.saved,
        )
        self.group.first_does(partial(self.run.write_json, layout.FAILURE, report))
        raise DivergedError(self.run, report)

    def _save(self, now: bool) -> None:
        """Save a checkpoint if ``now``, after the last epoch, or if one is due."""
        is_due = self.at.epoch % self.checkpoint_every == 0 and monotonic() - self.saved_at >= self.checkpoint_pause
        if now or is_due or self.at.epoch == self.recipe.epochs:
            packed = pack(self.at, self.model, self.optimizer, self.criterion, self.data_identity)
            self.run.write_tensors(layout.CHECKPOINT, *packed)
            self.saved, self.saved_at = self.at.epoch, monotonic()


def _finite(*numbers: Tensor) -> Tensor:
    return torch.stack([number.detach().cpu().double() for number in numbers]).isfinite()
