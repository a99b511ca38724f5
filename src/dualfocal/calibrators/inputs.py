"""Inputs of a calibrator: logits or probabilities, replacement of zero probabilities, digest of the fitted data."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dualfocal._tensors import compute_dtype
from dualfocal.calibrators.notes import Note
from dualfocal.metrics.arrays import Array, are_numbered, as_tensor, column_names, in_column_order
from dualfocal.metrics.samples import Samples

TINY = torch.finfo(torch.float32).tiny
SAMPLED = 1024  # number of rows that enter the digest
NAMES = {"logits": "logits", "probs": "probabilities", "log-odds": "one score per sample"}


@dataclass(frozen=True)
class FittedOn:
    """Facts about the data of a fit that are needed to apply the calibrator."""

    kind: str  # "logits", "probs", or "log-odds" for one score per sample
    zeros: tuple[float, ...] | None  # replacements of probability 0, one per class if there are two; None for logits
    digest: str

    def __post_init__(self) -> None:
        if self.kind not in NAMES or not all(0 < zero < 1 for zero in self.zeros or ()):
            raise ValueError(f"kind must be one of {', '.join(NAMES)} and zeros must lie in (0, 1), got {self}")

    @property
    def input(self) -> str:
        """Whether the values were ``"logits"`` or ``"probs"``; also known for one score per sample."""
        return "logits" if self.zeros is None else "probs"

    def matches(self, values: Tensor, target: Tensor | None, *, input: str, ignore_index: int = -100) -> bool:
        """Whether these are the data of the fit. Labels matter only through ``ignore_index``."""
        if self.kind != kind_of(values, input):
            return False
        return digest(kept_rows(values, target, input=input, ignore_index=ignore_index).values) == self.digest


def kind_of(values: Tensor, input: str) -> str:
    """Kind of input, which decides the constant added to each row: a key of ``NAMES``."""
    return "log-odds" if values.ndim == 1 else input


def names_of_fit(values: Array, class_names: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the names of the classes: the given ones, or the columns of a data frame; None if there are none.

    None also if both are there and differ: names are then no means to recognise the columns of later data frames.
    """
    columns = column_names(values)
    if class_names is None:
        return None if are_numbered(columns) else columns
    names = tuple(class_names)
    return names if are_numbered(columns) or columns == names else None


def class_columns(values: Array, class_names: tuple[str, ...] | None) -> Tensor:
    """Return predictions as a tensor; the columns of a data frame are put into the order of the classes.

    Raises:
        ValueError: the columns of the data frame are not named like the classes.
    """
    return as_tensor("logits", in_column_order("the data frame", values, class_names or (), "in the fit"))


def kept_rows(values: Tensor, target: Tensor | None, *, input: str | None, ignore_index: int = -100) -> Samples:
    """Samples that are not ignored, with all labels set to 0; ``target`` may be missing or unusable."""
    labels = torch.zeros(values.shape[:1] + values.shape[2:], dtype=torch.int64, device=values.device)
    if target is not None and target.shape == labels.shape and bool((target != ignore_index).any()):
        labels = torch.where(target == ignore_index, -100, labels)
    return Samples.from_arrays(values, labels, input=input, binary="top_label" if values.ndim == 1 else None)


def log_probs(probs: Array, zeros: tuple[float, ...] | None = None) -> Tensor:
    """Convert probabilities to logits for a calibrator.

    ``(N, C)`` probabilities become logarithms, ``(N,)`` probabilities of class 1 become log-odds. Calibrators do this
    themselves with ``input="probs"``, and then choose the replacement of 0 from the data of the fit.

    Args:
        probs: probabilities, a tensor or a numpy array.
        zeros: replacement of probability 0, one value or one per class. Default: the smallest normal float32.

    Returns:
        Logits of the shape of ``probs``, float32 or float64.

    >>> log_probs(torch.tensor([[1.0, 0.0]]))
    tensor([[  0.0000, -87.3365]])
    >>> log_probs(torch.tensor([0.5]))
    tensor([0.])
    """
    probs = as_tensor("probabilities", probs)
    probs = probs.to(compute_dtype(probs)).clamp_min(0.0)  # 1 - p can be -1e-10
    zero = (TINY,) if zeros is None else zeros
    if probs.ndim == 1:
        return _log(probs, probs.new_tensor(zero[-1:])) - _log(1 - probs, probs.new_tensor(zero[:1]))
    zero = zero if len(zero) in (1, probs.shape[1]) else (max(zero),)
    floor = probs.new_tensor(zero).view(-1, *[1] * (probs.ndim - 2))
    # The replacement must stay below all other values of its row, which may be smaller than those of the fit.
    return _log(probs, torch.minimum(floor, probs.where(probs > 0, math.inf).amin(1, keepdim=True) / 2))


def _log(probs: Tensor, floor: Tensor) -> Tensor:
    return torch.where(probs == 0, floor, probs).clamp(min=TINY).log()


def zero_values(samples: Samples) -> tuple[float, ...]:
    """Replacement of probability 0: half of the smallest non-zero probability, at most 1 / C^2.

    A 0 is a probability that was rounded down, so it was smaller than the smallest one left. The limit keeps the zeros
    of a row together below the probabilities that the model gives. With two classes each class has its own value,
    because the column computed as 1 - p is rounded more coarsely.
    """
    values = given_values(samples)
    columns = values.T if samples.num_classes == 2 else [values]
    least = (float(column.where(column > 0, 1.0).min()) for column in columns)
    return tuple(max(min(value / 2, samples.num_classes**-2), TINY) for value in least)


def impossible_labels(samples: Samples, zeros: tuple[float, ...]) -> list[Note]:
    """Note of the true classes whose probability is 0, if there are any."""
    count = int((given_values(samples).gather(1, samples.target[:, None]) == 0).sum())
    return [Note("impossible_labels", count, len(samples), zeros)] if count else []


def log_values(samples: Samples, zeros: tuple[float, ...]) -> Tensor:
    """Return logits of probabilities, ``(N, C)``, as a call of the calibrator makes them of what was given."""
    values = given_values(samples).to(samples.dtype)
    if not samples.one_score:
        return log_probs(values, zeros)
    z = log_probs(values[:, 1], zeros).double()
    return torch.stack([torch.zeros_like(z), z], dim=1)


def given_values(samples: Samples) -> Tensor:
    """Return the probabilities as they were given: rows that were made to sum to 1 have fewer zeros."""
    if samples.rounding is None:
        return samples.values
    one = 10**samples.rounding.decimals
    return samples.values.mul(one).round().div(one)  # at most half a step was added


def digest(rows: Tensor) -> str:
    """Hash of the shape and of evenly spaced rows of (N, C) values."""
    sample = rows[:: max(1, len(rows) // SAMPLED)].detach().cpu().double().contiguous()
    return hashlib.blake2b(f"{tuple(rows.shape)}".encode() + sample.numpy().tobytes(), digest_size=16).hexdigest()
