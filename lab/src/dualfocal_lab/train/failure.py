"""Failures of a training: a diverged loss, and interruption by a signal."""

import math
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from dualfocal_lab.checks import finite
from dualfocal_lab.data import DataSet
from dualfocal_lab.runs import Recipe, Run, layout

SCHEMA = 1
RECENT = 10


class DivergedError(RuntimeError):
    """Training stopped because the loss, a weight or a prediction is not finite.

    Attributes:
        report: The content of ``failure.json``: the step, its batch, recent losses and gradient norms.
    """

    def __init__(self, run: Run, report: dict[str, Any]) -> None:
        self.report = report
        saved = report["checkpoint_of_epoch"]
        checkpoint = "no checkpoint was saved yet" if saved is None else f"the checkpoint of epoch {saved} is kept"
        super().__init__(
            f"{run.path}: {report['what']} in epoch {report['epoch']}, step {report['step']} of {report['steps']}, "
            f"at a learning rate of {report['lr']:g}; {checkpoint}; "
            f"{run.path / layout.FAILURE} describes the batch. A lower lr, or a clip_norm, may help."
        )


@torch.no_grad()
def diagnosis(
    recipe: Recipe,
    data: DataSet,
    draws: Tensor | None,
    batches: tuple[Tensor, ...],
    losses: list[float],
    norms: list[Tensor],
    epoch: int,
    model: nn.Module,
    saved_epoch: int | None,
) -> dict[str, Any]:
    """Describe the failed step: its batch, and the losses and gradient norms before it."""
    step = next((i for i, loss in enumerate(losses) if not math.isfinite(loss)), None)
    index = batches[len(losses) - 1 if step is None else step]
    inputs, target = data.batch(index, draws, part="train")
    size = float(get_total_norm(model.parameters()))
    return {
        "schema": SCHEMA,
        "what": "the weights or predictions are not finite" if step is None else f"the loss is {losses[step]}",
        "epoch": epoch + 1,
        "step": len(losses) if step is None else step + 1,
        "steps": len(batches),
        "lr": recipe.lr_at(epoch),
        "checkpoint_of_epoch": saved_epoch,
        "recent_losses": [finite(loss) for loss in losses[: None if step is None else step + 1][-RECENT:]],
        "recent_grad_norms": [finite(float(norm)) for norm in norms[:step][-RECENT:]],
        "weight_norm": finite(size),
        "batch": {
            "samples": index.tolist(),
            "targets": target.tolist(),
            "inputs": _statistics(inputs),
            "logits": _statistics(model(inputs.to(next(model.parameters()).dtype))) if math.isfinite(size) else None,
        },
    }


def _statistics(values: Tensor) -> dict[str, Any]:
    good = values[values.isfinite()].double()
    moments = {"min": good.amin(), "max": good.amax(), "mean": good.mean(), "std": good.std()} if len(good) else {}
    return {
        **{name: finite(float(value)) for name, value in moments.items()},
        "not_finite": int((~values.isfinite()).sum()),
        "shape": list(values.shape),
    }


HANGUP = getattr(signal, "SIGHUP", None)  # the terminal was closed; Windows has no such signal
SIGNALS = (signal.SIGINT, signal.SIGTERM, *(() if HANGUP is None else (HANGUP,)))


class Interrupts:
    """Context that only records the first signal of ``SIGNALS``, in ``asked``; a second one has its usual effect.

    If SIGHUP is ignored, as by ``nohup``, it stays ignored.
    """

    def __init__(self, catch: bool = True) -> None:
        # Python handles signals in the main thread only.
        self.catch = catch and threading.current_thread() is threading.main_thread()
        self.asked: int | None = None

    def __enter__(self) -> Self:
        self.before: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS if self.catch}
        if HANGUP is not None and self.before.get(HANGUP) == signal.SIG_IGN:
            del self.before[HANGUP]
        for number in self.before:
            signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = number
        signal.signal(number, self.before[number])

    def leave(self) -> None:
        """Raise what the recorded signal would have: KeyboardInterrupt, or SystemExit with 128 + its number."""
        if self.asked == signal.SIGINT:
            raise KeyboardInterrupt
        if self.asked is not None:
            raise SystemExit(128 + self.asked)
