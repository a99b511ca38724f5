"""Seeds, batch order and random states, so that a run can be repeated and resumed."""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualfocal_lab.data import DataSet
from dualfocal_lab.runs import Recipe
from dualfocal_lab.train.forward import float32_products
from dualfocal_lab.train.host_state import host_generators_restored

TF32 = {"float32": "ieee", "tf32": "tf32"}  # precision of float32 products on CUDA


def make_batches(recipe: Recipe, data: DataSet, epoch: int) -> tuple[Tensor, ...]:
    """Split the training set into the batches of an epoch; the order depends on the seed and the epoch only."""
    index = data.splits["train"]
    rng = torch.Generator().manual_seed(derived_seed(recipe.seed, epoch, "order"))
    order = torch.randperm(len(index), generator=rng).to(index.device)
    batches = torch.split(index.index_select(0, order), recipe.batch_size)
    return batches[:-1] if recipe.drop_last and len(batches[-1]) < recipe.batch_size else batches


def derived_seed(seed: int, epoch: int, purpose: str) -> int:
    """Derive a seed for one purpose in one epoch, so that no random state has to be kept between epochs."""
    words = [seed % 2**32, seed >> 32, epoch, *purpose.encode()]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> 1)


def seed_all(seed: int) -> None:
    """Seed torch on every device, Python and NumPy: a model may draw from any of them."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def set_random_states(states: dict[str, Tensor], device: torch.device) -> None:
    """Restore the random generators of torch, Python and NumPy from a checkpoint."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
    set_host_random_states(states)


def host_random_states() -> dict[str, Tensor]:
    """Return the states of Python's and NumPy's random generators as float64 tensors, which hold them exactly."""
    _, words, stored = random.getstate()
    numpy_state: Any = np.random.get_state()
    _, keys, *rest = numpy_state
    numbers = {"python": [*words, stored is not None, stored or 0.0], "numpy": [*keys.tolist(), *rest]}
    return {name: torch.tensor(state, dtype=torch.float64) for name, state in numbers.items()}


def set_host_random_states(states: dict[str, Tensor]) -> None:
    """Restore Python's and NumPy's random generators."""
    *words, has_stored, stored = states["python"].tolist()
    random.setstate((3, tuple(map(int, words)), stored if has_stored else None))
    *keys, place, has_stored, stored = states["numpy"].tolist()
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), int(place), int(has_stored), stored))


@contextmanager
def repeatable(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Set up torch for a training, and restore the caller's random states and settings on exit.

    Inside the context gradients are enabled and the default dtype is float32. On CUDA, the recipe decides between
    deterministic and fast algorithms.
    """
    on_cuda = device.type == "cuda"
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn: Any = torch.backends.cudnn
    benchmark, dtype = cudnn.benchmark, torch.get_default_dtype()
    if on_cuda and recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by cuBLAS
        torch.use_deterministic_algorithms(True)
    # Searching for the fastest convolutions takes 10 s or more, and gained 1 % for bfloat16: benchmarks/NOTES.md.
    cudnn.benchmark = on_cuda and not recipe.deterministic and recipe.precision != "bfloat16"
    torch.set_default_dtype(torch.float32)
    try:
        # Seeding affects every GPU that is in use.
        in_use = range(torch.cuda.device_count()) if on_cuda or torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.random.fork_rng(in_use),
            host_generators_restored(),
            float32_products(device, TF32.get(recipe.precision)),
        ):
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        cudnn.benchmark = benchmark
