"""Losses by name, and custom losses."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from dualfocal.losses import LOSSES
from dualfocal_lab.objects import check_options, current_folder_first, load_object, takes

NOT_OPTIONS = ("weight", "ignore_index", "reduction")  # arguments of losses that cannot be options of a recipe
CONTRACT = (
    "a custom loss is a class or function that takes its options and reduction='sum' as keywords, and returns a "
    "torch.nn.Module that maps (logits, target) to the sum of the losses of the samples"
)
TOLERANCE = 1e-3  # relative, of sums of losses


def make_loss(name: str, options: Mapping[str, Any]) -> nn.Module:
    """Create a loss with ``reduction="sum"``.

    Args:
        name: a key of ``LOSSES``, or ``package.module:object`` for a custom loss.
        options: options of the loss, such as gamma.

    >>> make_loss("focal", {"gamma": 2})
    FocalLoss(gamma=2, reduction='sum')

    Raises:
        ValueError: the object cannot be imported, does not fulfil the contract of a loss, or an option is invalid.
    """
    factory = LOSSES[name] if name in LOSSES else _load(name)
    check_options("loss", name, factory, options, NOT_OPTIONS)
    try:
        with nullcontext() if name in LOSSES else current_folder_first():  # a custom loss may import more
            loss = factory(**options, reduction="sum")
    except Exception as error:
        rule = f"; {CONTRACT}" if isinstance(error, TypeError) and name not in LOSSES else ""
        raise ValueError(f"loss {name}: {str(error) or type(error).__name__}{rule}") from error
    if not isinstance(loss, nn.Module):
        raise ValueError(f"loss {name}: returned {type(loss).__name__}, but {CONTRACT}")
    return loss


def _load(name: str) -> Callable[..., Any]:
    factory = load_object("loss", name)
    if isinstance(factory, nn.Module) or not callable(factory):
        raise ValueError(f"loss {name}: is {type(factory).__name__}, but {CONTRACT}")
    if not takes(factory, "reduction"):
        raise ValueError(f"loss {name}: does not accept reduction as a keyword argument, but {CONTRACT}")
    return factory  # type: ignore[no-any-return]


def check_loss(name: str, loss: nn.Module, *, num_classes: int, device: torch.device, dtype: torch.dtype) -> None:
    """Compute a custom loss, and its gradient, on three samples.

    Raises:
        ValueError: the loss fails, is not a finite scalar, has no gradient, or is not the sum over the samples (unless
            its attribute ``per_sample`` is False: it is computed over a whole batch).
    """
    target = torch.tensor([0, 1, num_classes - 1], device=device)
    values = torch.linspace(-1, 1, 3 * num_classes, device=device, dtype=dtype).sin().view(3, num_classes)
    logits = values.requires_grad_()
    try:
        total = loss(logits, target)
        if not isinstance(total, Tensor) or total.shape != () or not total.isfinite():
            what = f"shape {tuple(total.shape)}" if isinstance(total, Tensor) and total.ndim else repr(total)
            raise ValueError(f"must return a finite scalar tensor, got {what}; {CONTRACT}")
        if torch.autograd.grad(total, logits, allow_unused=True)[0] is None:
            raise ValueError("has no gradient: it does not depend on the logits")
        if not getattr(loss, "per_sample", True):
            return
        together = float(total.detach())
        each = sum(float(loss(logits[i : i + 1], target[i : i + 1]).detach()) for i in range(3))
    except Exception as error:
        raise ValueError(f"loss {name}: {str(error) or type(error).__name__}") from error
    if abs(each - together) > TOLERANCE * max(abs(each), abs(together)):
        raise ValueError(
            f"loss {name}: is {together:.4g} for three samples, but the sum of their losses is {each:.4g}; with "
            "reduction='sum' it must return the sum over the samples; if it is computed over a whole batch, set its "
            "attribute per_sample = False"
        )
