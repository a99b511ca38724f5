"""A loss that does not stay finite: what there is to know about it."""

import math
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from dualfocal.data import DataSet
from dualfocal.metrics.evaluation import finite
from dualfocal.runs import Recipe, Run, layout

SCHEMA = 1
RECENT = 10


class DivergedError(RuntimeError):
    """Training stopped because the loss, a weight or a prediction was not finite; ``report`` is ``failure.json``."""

    def __init__(self, run: Run, report: dict[str, Any]) -> None:
        self.report = report
        kept = report["checkpoint_of_epoch"]
        what_is_kept = "there was no checkpoint yet" if kept is None else f"the checkpoint of epoch {kept} is kept"
        super().__init__(
            f"{run.path}: {report['what']} in epoch {report['epoch']}, step {report['step']} of {report['steps']}, "
            f"at a learning rate of {report['lr']:g}; {what_is_kept}; "
            f"the batch is described in {run.path / layout.FAILURE}. A lower lr, or clip_norm, may help."
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
    kept: int | None,
) -> dict[str, Any]:
    """Which step it was, its batch, and what led to it."""
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
        "checkpoint_of_epoch": kept,
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
    found = {"min": good.amin(), "max": good.amax(), "mean": good.mean(), "std": good.std()} if len(good) else {}
    return {
        **{name: finite(float(value)) for name, value in found.items()},
        "not_finite": int((~values.isfinite()).sum()),
        "shape": list(values.shape),
    }


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Within it SIGINT and SIGTERM are only noted, in ``asked``; a second one has its usual effect."""

    def __init__(self, catch: bool = True) -> None:
        # Python hears signals in its main thread only.
        self.catch = catch and threading.current_thread() is threading.main_thread()
        self.asked: int | None = None

    def __enter__(self) -> Self:
        self.before: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS if self.catch}
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
        """End as the signal would have: KeyboardInterrupt, or exit code 143."""
        if self.asked == signal.SIGINT:
            raise KeyboardInterrupt
        if self.asked is not None:
            raise SystemExit(128 + self.asked)
