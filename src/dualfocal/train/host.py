"""The host: its cores, and what of it a CUDA graph cannot see, or not bear in a capture."""

import gc
import os
import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def num_cores() -> int:
    """How many this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


@contextmanager
def no_garbage_collected() -> Iterator[None]:
    """No graph of an earlier training may be destroyed during a capture: that would end it."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def host_generators_kept() -> Iterator[None]:
    """Whatever a trial draws of Python's and NumPy's random numbers, the training draws them, too."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def host_state(model: nn.Module) -> list[Any]:
    """What a graph would take for a constant, as far as it can be seen: generators, numbers and tensors in modules."""
    attributes = [
        (name, key, _seen(value))
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if key not in ("_parameters", "_modules", "_buffers")
    ]
    attributes += [("", name, _Same(buffer)) for name, buffer in model.named_buffers()]  # their values may move
    state: Any = np.random.get_state(legacy=False)
    return [attributes, torch.get_rng_state().tolist(), random.getstate(), repr(state)]


def _seen(value: Any) -> Any:
    """Something that differs if a value has changed; a tensor on a device, only if it is another one."""
    if isinstance(value, Tensor):
        return _Same(value), value.tolist() if value.device.type == "cpu" and value.numel() < 1000 else None
    if isinstance(value, torch.Generator):
        return value.get_state().tolist() if value.device.type == "cpu" else None
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, dict):
        return [(key, _seen(of)) for key, of in value.items()]
    if isinstance(value, list | tuple | set | frozenset | deque):
        return [_seen(of) for of in value]
    return value if isinstance(value, int | float | str) else None


class _Same:
    """Equal to another one of the same tensor, which it keeps."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.tensor is other.tensor

    def __hash__(self) -> int:
        return id(self.tensor)
