"""What a calibrator is given: logits or probabilities; what a probability of 0 stands for; how to know data again."""

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dualfocal._tensors import compute_dtype
from dualfocal.metrics.rows import Array, Rows, as_rows, as_tensor

TINY = torch.finfo(torch.float32).tiny
SAMPLED = 1024  # rows that a digest is made of
NAMES = {"logits": "logits", "probs": "probabilities", "log-odds": "one score a sample"}


@dataclass(frozen=True)
class FittedOn:
    """What has to be known of the data of a fit when others are to be calibrated."""

    kind: str  # "logits", "probs" or, of one score a sample, "log-odds"
    zeros: tuple[float, ...] | None  # what a probability of 0 counts as, of two classes for each; None of logits
    digest: str

    def __post_init__(self) -> None:
        if self.kind not in NAMES or not all(0 < zero < 1 for zero in self.zeros or ()):
            raise ValueError(f"not what a calibrator is fitted on: {self}")

    def matches(self, values: Tensor, target: Tensor | None, *, input: str, ignore_index: int = -100) -> bool:
        """Whether these are the data of the fit. Of the labels only matters which samples they leave out."""
        if self.kind != kind_of(values, input):
            return False
        return digest(kept_rows(values, target, input=input, ignore_index=ignore_index).values) == self.digest


def kind_of(values: Tensor, input: str) -> str:
    """Logits have any offset, logarithms of probabilities none, and one score a sample that of its two columns."""
    return "log-odds" if values.ndim == 1 else input


def kept_rows(values: Tensor, target: Tensor | None, *, input: str, ignore_index: int = -100) -> Rows:
    """The rows of samples that are not ignored; labels are optional, may be wrong, and are replaced by 0."""
    labels = torch.zeros(values.shape[:1] + values.shape[2:], dtype=torch.int64, device=values.device)
    if target is not None and target.shape == labels.shape and bool((target != ignore_index).any()):
        labels = torch.where(target == ignore_index, -100, labels)
    return as_rows(values, labels, input=input, binary="top_label" if values.ndim == 1 else None)


def log_probs(probs: Array, zeros: tuple[float, ...] | None = None) -> Tensor:
    """Logarithms of probabilities, as logits for a calibrator; of 0, that of the smallest normal float32 unless told.

    ``(N,)`` probabilities of class 1 become log-odds. A calibrator that is told ``input="probs"`` takes probabilities
    themselves, and finds in the data of its fit what a 0 stands for.

    >>> log_probs(torch.tensor([[1.0, 0.0]]))
    tensor([[  0.0000, -87.3365]])
    >>> log_probs(torch.tensor([0.5]))
    tensor([0.])
    """
    probs = as_tensor("probabilities", probs)
    probs = probs.to(compute_dtype(probs))
    zero = (TINY,) if zeros is None else zeros
    if probs.ndim == 1:
        return _log(probs, probs.new_tensor(zero[-1:])) - _log(1 - probs, probs.new_tensor(zero[:1]))
    zero = zero if len(zero) in (1, probs.shape[1]) else (max(zero),)
    floor = probs.new_tensor(zero).view(-1, *[1] * (probs.ndim - 2))
    # A 0 must stay below all else in its row, also where that is smaller than in the fitted data.
    return _log(probs, torch.minimum(floor, probs.where(probs > 0, math.inf).amin(1, keepdim=True) / 2))


def _log(probs: Tensor, floor: Tensor) -> Tensor:
    return torch.where(probs == 0, floor, probs).clamp(min=TINY).log()


def zero_values(rows: Rows) -> tuple[float, ...]:
    """What a 0 among these probabilities stands for: half of the smallest other one, and at most 1 / C^2.

    A 0 is what has been rounded away, and that was less than what has not been. With many classes it is less again: all
    zeros of a row together must not weigh as much as what the model says. Of two classes each has a number of its own:
    where one of them was 1 - p, it is coarser.
    """
    columns = rows.values.T if rows.num_classes == 2 else [rows.values]
    least = (float(column.where(column > 0, 1.0).min()) for column in columns)
    return tuple(max(min(value / 2, rows.num_classes**-2), TINY) for value in least)


def digest(rows: Tensor) -> str:
    """Of (N, C) values as they were given: their number, and a part of them evenly spread."""
    some = rows[:: max(1, len(rows) // SAMPLED)].detach().cpu().double().contiguous()
    return hashlib.blake2b(f"{tuple(rows.shape)}".encode() + some.numpy().tobytes(), digest_size=16).hexdigest()
