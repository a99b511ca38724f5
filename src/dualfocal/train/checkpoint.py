"""Where a training stands, as one safetensors file: tensors as tensors, the rest as JSON in its header."""

import json
import zlib
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn
from torch.optim import Optimizer

from dualfocal.data import DataSet
from dualfocal.runs import Run, RunError, layout
from dualfocal.train.distributed import Group
from dualfocal.train.randomness import host_random_states

SCHEMA = 1
NOT_JSON = (json.JSONDecodeError, UnicodeDecodeError)
KEY = "dualfocal_checkpoint"
PLAIN = ("epoch", "step", "seconds", "best_epoch", "best_score", "sessions")  # what of a position is no tensor


@dataclass
class Position:
    """How far a training has come, besides weights: all that the next step depends on.

    Attributes:
        epoch: Epochs that are finished.
        step: Steps of the next epoch that are done: after an interruption in the middle of it.
        losses: Of those steps, summed over this process's part of the batch.
        norms: Of those steps' gradients, before they were clipped.
        seconds: That those steps took.
        best_epoch: Which epoch had the lowest validation score so far, from 1; 0: none yet, or not looked for.
        sessions: Where and with what each part of the training was done.
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
    run: Run, model: nn.Module, optimizer: Optimizer, criterion: nn.Module, data: str, group: Group
) -> tuple[Position, dict[str, Tensor]]:
    """Where to go on, and the states of the random generators there; weights and the rest are put back.

    Raises:
        RunError: the checkpoint is damaged, or of something else.
    """
    path = run.path / layout.CHECKPOINT

    def read() -> bytes | None:
        if path.exists():
            return path.read_bytes() or b"\0"  # an empty file is a damaged one
        if (run.path / layout.MODEL).exists():
            raise RunError(f"{run.path}: holds {layout.MODEL}, but no {path.name}: choose another folder")
        return None

    at = Position()
    random_states: dict[str, Tensor] = {}
    if content := group.first_does(read):
        try:
            at, random_states = unpack(content, model, optimizer, criterion, data)
        except ValueError as error:
            raise RunError(f"{path}: {error}") from error
    if not group.first:  # the steps that are done are counted once
        at.losses = [torch.zeros_like(loss) for loss in at.losses]
    group.first_does(partial(run.cut_log, at.epoch))
    group.first_does(partial((run.path / layout.FAILURE).unlink, missing_ok=True))
    return at, random_states


def identify(data: DataSet) -> str:
    """What tells the data of a checkpoint from others: their sizes, and a sum over every byte."""
    digest = 0
    for tensor in (data.target, *data.splits.values(), data.inputs, *data.encoder.buffers()):
        digest = zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data, digest)
    return f"{data}; {digest:08x}"


def pack(
    position: Position, model: nn.Module, optimizer: Optimizer, criterion: nn.Module, data: str
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Everything, as what ``safetensors.torch.save`` takes: tensors and metadata."""
    state = optimizer.state_dict()["state"]
    tensors = {
        **{f"model.{name}": tensor for name, tensor in model.state_dict().items()},
        **{f"loss.{name}": tensor for name, tensor in criterion.state_dict().items()},
        **{f"best.{name}": tensor for name, tensor in position.best_weights.items()},
        **{f"optimizer.{i}.{name}": of for i, some in state.items() for name, of in some.items() if of is not None},
        "random.cpu": torch.get_rng_state(),
        **{f"random.{name}": state for name, state in host_random_states().items()},
    }
    device = next(model.parameters()).device
    if device.type == "cuda":
        tensors["random.cuda"] = torch.cuda.get_rng_state(device)
    for name in ("losses", "norms"):
        if steps := getattr(position, name):
            tensors[name] = torch.stack(steps)
    about = {"schema": SCHEMA, "data": data, **{name: getattr(position, name) for name in PLAIN}}
    return tensors, {KEY: json.dumps(about, allow_nan=False)}


def unpack(
    content: bytes, model: nn.Module, optimizer: Optimizer, criterion: nn.Module, data: str
) -> tuple[Position, dict[str, Tensor]]:
    """Put everything back where it was; gives the position, and the states of the random generators.

    Raises:
        ValueError: it is no checkpoint, of another schema, of other data, or does not fit the model.
    """
    length = int.from_bytes(content[:8], "little")  # of the header, which is JSON
    try:
        about = json.loads(json.loads(content[8 : 8 + length])["__metadata__"][KEY])
        tensors = load(content)
        if about["schema"] != SCHEMA:
            raise ValueError(f"has schema {about['schema']}, this version of dualfocal reads schema {SCHEMA}")
        if about["data"] != data:
            raise ValueError(f"was made with other data ({about['data']}, now {data})")
        device = next(model.parameters()).device
        model.load_state_dict(_part(tensors, "model."))  # copies, so that memory formats and devices stay
        criterion.load_state_dict(_part(tensors, "loss."))
        _restore(optimizer, _part(tensors, "optimizer."))
        position = Position(
            best_weights=_part(tensors, "best."),
            losses=list(tensors["losses"].to(device)) if "losses" in tensors else [],
            norms=list(tensors["norms"].to(device)) if "norms" in tensors else [],
            **{name: about[name] for name in PLAIN},
        )
        return position, _part(tensors, "random.")
    except (*NOT_JSON, SafetensorError, KeyError, IndexError, TypeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"is not a checkpoint of this run, or damaged: {' '.join(str(error).split())}") from error


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _restore(optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    weights: list[Tensor] = [weight for group in optimizer.param_groups for weight in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        i, _, of = name.partition(".")
        weight = weights[int(i)]
        # As the optimizer had it: in the memory format of the weight.
        like = torch.empty_like(weight).copy_(tensor) if tensor.shape == weight.shape and tensor.ndim else tensor
        state.setdefault(int(i), {})[of] = like
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
