"""Before the first step: whether recipe, data and processes go together, and where all randomness comes from."""

import os
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from dualfocal.data import DataSet
from dualfocal.losses import AdaFocalLoss
from dualfocal.models import make_model
from dualfocal.train.distributed import Group
from dualfocal.train.forward import Forward
from dualfocal.train.recipe import Recipe


def check_fit(recipe: Recipe, data: DataSet, group: Group) -> list[str]:
    """Raise a ValueError where recipe, data and processes do not go together; give remarks on what does."""
    size = len(data.splits.get("train", ()))
    criterion = recipe.make_loss()
    if not size:
        raise ValueError(f"data {recipe.data} has no training part")
    if recipe.drop_last and size < recipe.batch_size:
        raise ValueError(f"drop_last leaves nothing: a batch is {recipe.batch_size}, the training part {size} samples")
    if "val" not in data.splits:
        for needs, what in (
            (follows_validation(criterion), f"loss {recipe.loss}"),
            (recipe.weights != "last", f"weights {recipe.weights}"),
        ):
            if needs:
                raise ValueError(f"{what} needs a validation part, data {recipe.data} has none: see data.val_size")
    if recipe.sync_bn and group.device.type != "cuda":
        raise ValueError(f"sync_bn needs CUDA, this is {group.device.type}")
    if group.size > 1:
        if not criterion.per_sample:
            raise ValueError(
                f"loss {recipe.loss} belongs to a whole batch and cannot be split over {group.size} processes"
            )
        smallest = min(recipe.batch_size, *(len(index) for index in data.splits.values()))
        if smallest < group.size:
            raise ValueError(
                f"{group.size} processes need as many samples in each batch and part, there are {smallest}"
            )
    notes = list(data.notes)
    if group.device.type == "cuda" and not recipe.deterministic:
        notes.append("not repeatable to the bit: on CUDA that needs deterministic=true")
    if recipe.schedule == "step" and recipe.milestones and recipe.milestones[0] >= recipe.epochs:
        notes.append(
            f"the learning rate never falls: the first milestone is {recipe.milestones[0]}, of {recipe.epochs} epochs"
        )
    if follows_validation(criterion) and followed_part(data) == "val":
        notes.append(
            f"loss {recipe.loss} follows the validation part that also fits the temperature; "
            "data.val2_size gives it one of its own"
        )
    if "val" not in data.splits:
        notes.append("there is no validation part: nothing to calibrate with, see data.val_size")
    if group.first:
        for note in notes:
            warnings.warn(note, stacklevel=3)
    return notes


def follows_validation(criterion: nn.Module) -> TypeGuard[AdaFocalLoss]:
    """Whether the loss is updated after each epoch."""
    return isinstance(criterion, AdaFocalLoss) and not criterion.frozen


def identify(data: DataSet) -> str:
    """What tells the data of a checkpoint from others: their sizes, labels and splits."""
    digest = 0
    for tensor in (data.target, *data.splits.values()):
        digest = zlib.crc32(tensor.contiguous().numpy().data, digest)
    return f"{data}; labels and splits {digest:08x}"


def followed_part(data: DataSet) -> str:
    """Which part adaptive losses are updated on: a second validation part, if there is one."""
    return "val2" if "val2" in data.splits else "val"


def prepare_model(recipe: Recipe, data: DataSet, device: torch.device) -> nn.Module:
    """The model of a recipe with its initial weights, which are drawn on the CPU: the same for every device.

    Raises:
        ValueError: there is no such model, it has nothing to train, or does not fit the data.
    """
    torch.manual_seed(recipe.seed)
    model = make_model(recipe.model, num_classes=data.num_classes, in_channels=data.in_channels)
    if not any(weight.requires_grad for weight in model.parameters()):
        raise ValueError(f"model {recipe.model} has no weights to train")
    model = model.to(device, dtype=torch.float64 if recipe.precision == "float64" else None)
    if recipe.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    _try(model, recipe, data, device)
    return model


@torch.no_grad()
def _try(model: nn.Module, recipe: Recipe, data: DataSet, device: torch.device) -> None:
    """Two samples, before there is a run folder: a model that does not fit is the commonest mistake."""
    inputs, _ = data.batch(data.splits["train"][:2], part="train")
    model.eval()
    try:
        logits = Forward(model, recipe, device)(inputs.to(device))
    except (RuntimeError, TypeError, AttributeError, IndexError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"model {recipe.model} fails on inputs of {tuple(inputs.shape)}: {reason}") from error
    if logits.shape != (len(inputs), data.num_classes):
        raise ValueError(
            f"model {recipe.model} must give {(len(inputs), data.num_classes)} logits for inputs of "
            f"{tuple(inputs.shape)}, got {tuple(logits.shape)}"
        )


def make_optimizer(recipe: Recipe, weights: list[nn.Parameter]) -> Optimizer:
    """The optimizer of a recipe; its learning rate is set each epoch."""
    if recipe.optimizer == "adam":
        return Adam(weights, lr=recipe.lr, weight_decay=recipe.weight_decay, fused=True)
    return SGD(weights, lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay, fused=True)


def make_batches(recipe: Recipe, data: DataSet, epoch: int) -> tuple[Tensor, ...]:
    """The training part in the order of an epoch, in batches: decided by seed and epoch alone."""
    index = data.splits["train"]
    rng = torch.Generator().manual_seed(derived_seed(recipe.seed, epoch, "order"))
    order = torch.randperm(len(index), generator=rng).to(index.device)
    batches = torch.split(index.index_select(0, order), recipe.batch_size)
    return batches[:-1] if recipe.drop_last and len(batches[-1]) < recipe.batch_size else batches


def derived_seed(seed: int, epoch: int, purpose: str) -> int:
    """A seed for one purpose in one epoch, so that no generator has to be remembered between epochs."""
    words = [seed % 2**32, seed >> 32, epoch, *purpose.encode()]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> 1)


def set_random_states(states: dict[str, Tensor], device: torch.device) -> None:
    """Put the generators back to where a checkpoint found them."""
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)


@contextmanager
def repeatable(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Leave the caller's random numbers and settings as they are; on CUDA, choose between repeatable and fast."""
    on_cuda = device.type == "cuda"
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    if on_cuda and recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs for it
        torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = on_cuda and not recipe.deterministic
    try:
        # Seeding seeds every GPU that is in use, not only ours.
        in_use = range(torch.cuda.device_count()) if on_cuda or torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
        with torch.random.fork_rng(in_use):
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = benchmark
