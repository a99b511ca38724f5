"""Predictions that a validation keeps in memory, and what its processes exchange."""

import math
from typing import TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

T = TypeVar("T")


def num_processes() -> int:
    """Return the number of processes of torch.distributed; 1 without it."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gathered(content: T) -> list[T]:
    """Return the contents of all processes, in the order of their ranks."""
    contents = [content] * num_processes()
    if len(contents) > 1:
        dist.all_gather_object(contents, content)
    return contents


class KeptRows:
    """At most ``limit`` rows of predictions and their targets on the CPU, evenly spread over all rows that were added.

    >>> kept = KeptRows(limit=4)
    >>> for start in (0, 3, 6):
    ...     kept.add(torch.arange(start, start + 3)[:, None], torch.arange(start, start + 3))
    >>> kept.gathered()[1]
    tensor([0, 4, 8])
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._stride, self._added = 1, 0
        self._values: list[Tensor] = []
        self._target: list[Tensor] = []

    def add(self, values: Tensor, target: Tensor) -> None:
        """Add a batch."""
        chosen = slice(-self._added % self._stride, None, self._stride)
        self._added += len(target)
        self._values.append(values[chosen].to("cpu", copy=True))  # a copy: a view would keep the whole batch
        self._target.append(target[chosen].to("cpu", copy=True))
        while math.ceil(self._added / self._stride) > self.limit:
            self._stride *= 2
            self._values, self._target = ([torch.cat(parts)[::2].clone()] for parts in (self._values, self._target))

    def gathered(self) -> tuple[Tensor, Tensor]:
        """Return the values and targets of all processes; at least one of them must have some."""
        own = (torch.cat(self._values), torch.cat(self._target)) if self._target else None
        pairs = [pair for pair in gathered(own) if pair is not None]
        return torch.cat([values for values, _ in pairs]), torch.cat([target for _, target in pairs])
