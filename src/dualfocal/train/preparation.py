"""Before the first step: whether recipe, data and processes go together, and where all randomness comes from."""

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from dualfocal.data import DataSet
from dualfocal.losses import AdaFocalLoss
from dualfocal.models import MODELS, make_model
from dualfocal.models.normalization import kernels_on
from dualfocal.runs.recipe import Recipe
from dualfocal.train.distributed import Group
from dualfocal.train.forward import Forward, float32_products, without_search
from dualfocal.train.host import host_generators_kept, seed_host, set_host_random_states

TF32 = {"float32": "ieee", "tf32": "tf32"}  # what products of float32 numbers are in, on CUDA


def check_fit(recipe: Recipe, data: DataSet, group: Group) -> list[str]:
    """Raise a ValueError where recipe, data and processes do not go together; give remarks on what does."""
    size = len(data.splits.get("train", ()))
    criterion = recipe.make_loss()
    if not size:
        raise ValueError(f"data {recipe.data} has no training part")
    if data.num_classes < 2:
        raise ValueError(f"data {recipe.data} has {data.num_classes} class, there must be two or more")
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
        tail = 0 if recipe.drop_last else size % recipe.batch_size
        if 0 < tail < group.size:
            raise ValueError(
                f"the last batch has {tail} samples for {group.size} processes: drop_last=true leaves it out"
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
    if recipe.schedule == "cosine" and recipe.milestones:
        notes.append("with schedule=cosine the milestones are not looked at")
    if looks_at_validation(recipe, criterion) and watched_part(data) == "val":
        what = f"loss {recipe.loss}" if follows_validation(criterion) else f"the choice of an epoch, {recipe.weights},"
        notes.append(
            f"{what} follows the validation part that also fits the temperature; data.val2_size gives it one of its own"
        )
    if "val" not in data.splits:
        notes.append("there is no validation part: nothing to calibrate with, see data.val_size")
    return notes


def notes_on(model: nn.Module, recipe: Recipe) -> list[str]:
    """What the result of a model should be read with."""
    saved = model.state_dict()
    hidden = [name for name, _ in model.named_buffers() if name not in saved]
    if not hidden:
        return []
    return [f"model {recipe.model} keeps {', '.join(hidden)} out of its state_dict: nothing of it is saved"]


def slowed_by(model: nn.Module, recipe: Recipe, device: torch.device) -> str | None:
    """Why batch norm is not done by our kernels, where it should be. There has been a warning, but who reads those?"""
    if device.type != "cuda" or recipe.model not in MODELS:
        return None
    has_batch_norm = any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    return kernels_on(device).problem if has_batch_norm else None


def uses_kernels(model: nn.Module, recipe: Recipe, device: torch.device, step: str) -> bool:
    """Whether batch norm is done by our kernels in a step, for a model in training; its first one stands for all."""
    norm = next((module for module in model.modules() if isinstance(module, nn.BatchNorm2d)), None)
    if norm is None or device.type != "cuda" or recipe.model not in MODELS or step == "compiled":
        return False
    kernels = kernels_on(device).module
    dtype = torch.bfloat16 if recipe.precision == "bfloat16" else norm.weight.dtype
    layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
    like = torch.empty((2, norm.num_features, 2, 2), dtype=dtype, device=device, memory_format=layout)
    return kernels is not None and bool(kernels.applies(like, norm))


def follows_validation(criterion: nn.Module) -> TypeGuard[AdaFocalLoss]:
    """Whether the loss is updated after each epoch."""
    return isinstance(criterion, AdaFocalLoss) and not criterion.frozen


def identify(data: DataSet) -> str:
    """What tells the data of a checkpoint from others: their sizes, and a sum over every byte."""
    digest = 0
    for tensor in (data.target, *data.splits.values(), data.inputs, *data.encoder.buffers()):
        digest = zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data, digest)
    return f"{data}; {digest:08x}"


def looks_at_validation(recipe: Recipe, criterion: nn.Module) -> bool:
    """Whether training itself depends on validation data: by an adaptive loss, or by the choice of an epoch."""
    return follows_validation(criterion) or recipe.weights != "last"


def watched_part(data: DataSet) -> str:
    """Which part training itself looks at, if it does: a second validation part, if there is one."""
    return "val2" if "val2" in data.splits else "val"


def prepare_model(recipe: Recipe, data: DataSet, device: torch.device) -> nn.Module:
    """The model of a recipe with its initial weights, which are drawn on the CPU: the same for every device.

    Raises:
        ValueError: there is no such model, or it has nothing to train.
    """
    seed_all(recipe.seed)
    model = make_model(recipe.model, num_classes=data.num_classes, in_channels=data.in_channels)
    if not any(weight.requires_grad for weight in model.parameters()):
        raise ValueError(f"model {recipe.model} has no weights to train")
    model = model.to(device, dtype=torch.float64 if recipe.precision == "float64" else None)
    if recipe.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def try_out(model: nn.Module, recipe: Recipe, data: DataSet, group: Group) -> bool:
    """A few samples, before there is a run folder: a model that does not fit is the commonest mistake.

    Returns:
        Whether every weight got a gradient.

    Raises:
        ValueError: the model fails, in evaluation, in training or with the fewest samples that a batch will have; it
            gives something else than logits; or keeps state that no checkpoint can hold.
    """
    index = data.splits["train"]
    last = recipe.batch_size if recipe.drop_last else len(index) % recipe.batch_size or recipe.batch_size
    fewest = min(last, len(index)) // group.size
    model.eval()
    _pass(model, recipe, data, index[:2], group.device)  # lazy weights are made here
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise ValueError(f"model {recipe.model} keeps state that is no tensor, {name}: it could not be saved")
    try:
        trial = deepcopy(model).train()
    except Exception:  # some models cannot be copied
        return True
    logits, target = _pass(trial, recipe, data, index[:2], group.device)
    recipe.make_loss().to(group.device)(logits, target).backward()
    if fewest == 1:  # batch norm has nothing to say of one sample
        hint = "drop_last=true leaves the last batch out, which is as small" if last < recipe.batch_size else ""
        _pass(trial, recipe, data, index[:1], group.device, hint)
    return all(weight.grad is not None for weight in trial.parameters() if weight.requires_grad)


def _pass(
    model: nn.Module, recipe: Recipe, data: DataSet, index: Tensor, device: torch.device, hint: str = ""
) -> tuple[Tensor, Tensor]:
    inputs, target = (of.to(device) for of in data.batch(index, part="train"))
    mode = "training" if model.training else "evaluation"
    try:
        with torch.set_grad_enabled(model.training), without_search():
            logits = Forward(model, recipe, device)(inputs)
    except Exception as error:  # it may be anybody's code
        reason = " ".join(str(error).split()) or type(error).__name__
        end = f"; {hint}" if hint else ""
        raise ValueError(
            f"model {recipe.model} fails in {mode} on inputs of {tuple(inputs.shape)}: {reason}{end}"
        ) from error
    if logits.shape != (len(inputs), data.num_classes):
        raise ValueError(
            f"model {recipe.model} must give {(len(inputs), data.num_classes)} logits for inputs of "
            f"{tuple(inputs.shape)}, got {tuple(logits.shape)}"
        )
    return logits, target


def make_optimizer(recipe: Recipe, weights: list[nn.Parameter]) -> Optimizer:
    """The optimizer of a recipe; its learning rate is set each epoch: on CUDA in place, where graphs look for it."""
    on_cuda = weights[0].is_cuda
    lr = torch.tensor(recipe.lr, device=weights[0].device) if on_cuda else recipe.lr
    if recipe.optimizer == "adam":
        return Adam(weights, lr=lr, weight_decay=recipe.weight_decay, fused=True, capturable=on_cuda)
    optimizer = SGD(weights, lr=lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay, fused=True)
    if recipe.momentum:
        # Zeros give what a missing buffer gives, and fused SGD does not take some of them missing, as they are where
        # layers are left out at random.
        for weight in weights:
            optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    return optimizer


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


def seed_all(seed: int) -> None:
    """Of torch, on every device, and of Python's and NumPy's generators: a model may draw from any of them."""
    torch.manual_seed(seed)
    seed_host(seed)


def set_random_states(states: dict[str, Tensor], device: torch.device) -> None:
    """Put the generators back to where a checkpoint found them."""
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
    set_host_random_states(states)


@contextmanager
def repeatable(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Leave the caller's random numbers and settings as they are; on CUDA, choose between repeatable and fast.

    Within it gradients are there, and numbers are float32, whatever the caller has switched off or set.
    """
    on_cuda = device.type == "cuda"
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn: Any = torch.backends.cudnn
    benchmark, dtype = cudnn.benchmark, torch.get_default_dtype()
    if on_cuda and recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs for it
        torch.use_deterministic_algorithms(True)
    # A search for the fastest convolutions takes 10 s and more; for bfloat16 it gained about 1 %, benchmarks/NOTES.md.
    cudnn.benchmark = on_cuda and not recipe.deterministic and recipe.precision != "bfloat16"
    torch.set_default_dtype(torch.float32)
    try:
        # Seeding seeds every GPU that is in use, not only ours.
        in_use = range(torch.cuda.device_count()) if on_cuda or torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.random.fork_rng(in_use),
            host_generators_kept(),
            float32_products(device, TF32.get(recipe.precision)),
        ):
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        cudnn.benchmark = benchmark
