"""State on the CPU that a CUDA graph does not capture, or that must not change during a capture."""

import gc
import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pause garbage collection: destroying the CUDA graph of an earlier training would abort a capture."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def host_generators_restored() -> Iterator[None]:
    """Restore the states of Python's and NumPy's random generators on exit."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def host_state(model: nn.Module) -> list[Any]:
    """Return what a CUDA graph would treat as constant: random states, and the attributes of the modules."""
    attributes = [
        (name, key, _snapshot(value))
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if key not in ("_parameters", "_modules", "_buffers")
    ]
    # The values of buffers may change in place.
    attributes += [("", name, _Identity(buffer)) for name, buffer in model.named_buffers()]
    state: Any = np.random.get_state(legacy=False)
    return [attributes, torch.get_rng_state().tolist(), random.getstate(), repr(state)]


def _snapshot(value: Any) -> Any:
    """Return an object that differs if the value has changed; tensors on a GPU are compared by identity only."""
    if isinstance(value, Tensor):
        return _Identity(value), value.tolist() if value.device.type == "cpu" and value.numel() < 1000 else None
    if isinstance(value, torch.Generator):
        return value.get_state().tolist() if value.device.type == "cpu" else None
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, dict):
        return [(key, _snapshot(item)) for key, item in value.items()]
    if isinstance(value, list | tuple | set | frozenset | deque):
        return [_snapshot(item) for item in value]
    return value if isinstance(value, int | float | str) else None


class _Identity:
    """Compares a tensor by identity, and keeps it alive."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.tensor is other.tensor

    def __hash__(self) -> int:
        return id(self.tensor)
