"""Checkpoints: the state of a training in one safetensors file, with other values as JSON metadata."""

import json
import math
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dualfocal_lab._sealed import DamagedFileError, parse_sealed
from dualfocal_lab.data import DataSet
from dualfocal_lab.runs import Run, RunError, layout
from dualfocal_lab.train.distributed import Group
from dualfocal_lab.train.randomness import host_random_states

SCHEMA = 1
KEY = "dualfocal_checkpoint"
# Fields of a Position that are not tensors.
PLAIN = ("epoch", "step", "seconds", "best_epoch", "best_score", "sessions")


@dataclass
class Position:
    """Progress of a training: everything besides the weights that the next step depends on.

    Attributes:
        epoch: Number of finished epochs.
        step: Number of finished steps of the next epoch (above 0 after an interruption within an epoch).
        losses: Losses of those steps, each summed over this process's share of the batch.
        norms: Gradient norms of those steps, before clipping.
        seconds: Time that those steps took.
        best_epoch: Epoch with the lowest validation score so far, counted from 1 (0: none, or not tracked).
        best_score: Validation score of that epoch.
        best_weights: Weights of that epoch.
        sessions: Device, versions and settings of each session of the training.
    """

    epoch: int = 0
    step: int = 0
    losses: list[Tensor] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)
    seconds: float = 0.0
    best_epoch: int = 0
    best_score: float | None = None
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    sessions: list[dict[str, Any]] = field(default_factory=list)


def resume(
    run: Run,
    model: nn.Module,
    optimizer: Optimizer,
    criterion: nn.Module,
    data: str,
    group: Group,
    *,
    epochs: int,
    steps: int,
) -> tuple[Position, dict[str, Tensor]]:
    """Load the checkpoint of a run into the model, the optimizer and the loss.

    If the checkpoint is damaged, it is set aside together with the log, with a warning, and the training starts again.
    Only after everything has been checked, lines after the checkpoint are removed from the log.

    Args:
        epochs: number of epochs of the training.
        steps: number of steps of an epoch.

    Returns:
        The position to continue from, and the states of the random generators at that position.

    Raises:
        RunError: the checkpoint belongs to other data or another model, or the log is damaged.
    """
    path = run.path / layout.CHECKPOINT
    at = Position()
    random_states: dict[str, Tensor] = {}
    if content := group.first_does(partial(_read, run)):
        try:
            at, random_states = unpack(content, model, optimizer, criterion, data, epochs=epochs, steps=steps)
        except ValueError as error:
            raise RunError(f"{path}: {error}") from error
    if not group.first:  # losses are summed over processes: count the finished steps once
        at.losses = [torch.zeros_like(loss) for loss in at.losses]
    group.first_does(partial(run.begin_log, at.epoch))
    group.first_does(partial(run.remove, layout.FAILURE))
    return at, random_states


def _read(run: Run) -> bytes | None:
    """Return the content of the checkpoint, or None if there is none, or a damaged one, which is set aside."""
    path = run.path / layout.CHECKPOINT
    if not path.exists():
        if (run.path / layout.MODEL).exists() and not run.damaged_checkpoint.exists():
            raise RunError(
                f"{run.path}: contains {layout.MODEL} but no {path.name}, so the run cannot be resumed; "
                "choose another folder"
            )
        return None
    content = path.read_bytes()
    try:
        parse_sealed(content, path)
    except DamagedFileError as error:
        names = " and ".join(sorted(renamed.name for renamed in run.set_aside()))
        warnings.warn(f"{error}; set aside as {names}, and the training starts again", stacklevel=2)
        return None
    return content


def identify(data: DataSet) -> str:
    """Return a fingerprint of the data: their description and a checksum of every byte."""
    digest = 0
    for tensor in (data.target, *data.splits.values(), data.inputs, *data.encoder.buffers()):
        digest = zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data, digest)
    return f"{data}; {digest:08x}"


def pack(
    position: Position, model: nn.Module, optimizer: Optimizer, criterion: nn.Module, data: str
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Collect the state of a training as the arguments of :meth:`Run.write_tensors`: tensors and metadata."""
    state = optimizer.state_dict()["state"]
    values = {f"{i}.{name}": value for i, s in state.items() for name, value in s.items() if value is not None}
    tensors = {
        **{f"model.{name}": tensor for name, tensor in model.state_dict().items()},
        **{f"loss.{name}": tensor for name, tensor in criterion.state_dict().items()},
        **{f"best.{name}": tensor for name, tensor in position.best_weights.items()},
        **{f"optimizer.{name}": value for name, value in values.items() if isinstance(value, Tensor)},
        **{f"number.{name}": _as_tensor(value) for name, value in values.items() if not isinstance(value, Tensor)},
        "random.cpu": torch.get_rng_state(),
        **{f"random.{name}": state for name, state in host_random_states().items()},
    }
    device = next(model.parameters()).device
    if device.type == "cuda":
        tensors["random.cuda"] = torch.cuda.get_rng_state(device)
    for name in ("losses", "norms"):
        if steps := getattr(position, name):
            tensors[name] = torch.stack(steps)
    metadata = {"schema": SCHEMA, "data": data, **{name: getattr(position, name) for name in PLAIN}}
    return tensors, {KEY: json.dumps(metadata, allow_nan=False)}


def unpack(
    content: bytes,
    model: nn.Module,
    optimizer: Optimizer,
    criterion: nn.Module,
    data: str,
    *,
    epochs: int,
    steps: int,
) -> tuple[Position, dict[str, Tensor]]:
    """Load a checkpoint into the model, the optimizer and the loss.

    Args:
        epochs: number of epochs of the training.
        steps: number of steps of an epoch.

    Returns:
        The position, and the states of the random generators.

    Raises:
        ValueError: the content is not a checkpoint, has another schema, belongs to other data, or does not fit the
            model.
    """
    try:
        tensors, texts = parse_sealed(content, Path(layout.CHECKPOINT))
        metadata = json.loads(texts[KEY])
        if metadata["schema"] != SCHEMA:
            raise ValueError(f"has schema {metadata['schema']}, but this version of dualfocal reads schema {SCHEMA}")
        if metadata["data"] != data:
            raise ValueError(f"was saved with other data: {metadata['data']}, now {data}")
        plain = {name: metadata[name] for name in PLAIN}
        check_ranges(plain, epochs=epochs, steps=steps)
        device = next(model.parameters()).device
        position = Position(
            best_weights=_part(tensors, "best."),
            losses=list(tensors["losses"].to(device)) if "losses" in tensors else [],
            norms=list(tensors["norms"].to(device)) if "norms" in tensors else [],
            **plain,
        )
        if len(position.losses) != position.step or len(position.norms) not in (0, position.step):
            got = f"{len(position.losses)} and {len(position.norms)}"
            raise ValueError(f"is damaged: it must have losses and norms of {position.step} steps, got {got}")
        model.load_state_dict(_part(tensors, "model."))  # copies in place: memory formats and devices stay
        criterion.load_state_dict(_part(tensors, "loss."))
        numbers = {name: tensor.item() for name, tensor in _part(tensors, "number.").items()}
        _restore(optimizer, _part(tensors, "optimizer."), numbers)
        return position, _part(tensors, "random.")
    except (json.JSONDecodeError, KeyError, IndexError, TypeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"is not a checkpoint of this run, or is damaged: {' '.join(str(error).split())}") from error


def check_ranges(position: dict[str, Any], *, epochs: int, steps: int) -> None:
    """Raise a ValueError if a value in the header of a checkpoint is impossible for a training of this length."""
    rules: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "epoch": (f"a whole number from 0 to {epochs}", lambda value: _is_whole(value, epochs)),
        "step": (f"a whole number from 0 to {steps}", lambda value: _is_whole(value, steps)),
        "best_epoch": ("a whole number from 0 to epoch", lambda value: _is_whole(value, position["epoch"])),
        "seconds": ("a number of at least 0", lambda value: _is_number(value) and value >= 0),
        "best_score": ("a finite number or null", lambda value: value is None or _is_number(value)),
        "sessions": (
            "a list of objects",
            lambda value: isinstance(value, list) and all(isinstance(session, dict) for session in value),
        ),
    }
    for name, (rule, holds) in rules.items():
        if not holds(position[name]):
            raise ValueError(f"is damaged: {name} must be {rule}, got {position[name]!r}")


def _is_whole(value: object, highest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= highest


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _as_tensor(number: float) -> Tensor:
    """Return a number of the state of a custom optimizer as a tensor with the same value."""
    return torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else None)


def _restore(optimizer: Optimizer, tensors: dict[str, Tensor], numbers: dict[str, float]) -> None:
    weights: list[Tensor] = [weight for group in optimizer.param_groups for weight in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for name, number in numbers.items():
        i, _, key = name.partition(".")
        state.setdefault(int(i), {})[key] = number
    for name, tensor in tensors.items():
        i, _, key = name.partition(".")
        weight = weights[int(i)]
        # The optimizer keeps its state in the memory format of the weight.
        if tensor.shape == weight.shape and tensor.ndim:
            tensor = torch.empty_like(weight, dtype=tensor.dtype).copy_(tensor)
        state.setdefault(int(i), {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    for number_of_weight, saved in state.items():
        loaded = optimizer.state[weights[number_of_weight]]
        for key, value in saved.items():
            # torch converts state to the dtype of the weight; some optimizers keep scalars in another one.
            if isinstance(value, Tensor) and loaded[key].dtype != value.dtype:
                loaded[key] = value.to(loaded[key].device)
