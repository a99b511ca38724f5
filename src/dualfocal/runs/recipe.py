"""What a training run is: every choice that decides its result, as one frozen object that reads and writes JSON."""

import ast
import dataclasses
import hashlib
import inspect
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Self, get_type_hints

import torch
from torch import nn

from dualfocal._checks import did_you_mean
from dualfocal.losses import LOSSES
from dualfocal._checks import check_choice
from dualfocal.models import MODELS
from dualfocal.runs._values import check_like, checked, from_text, option_from_text, plain

SCHEMA = 1
CHOICES = {
    "reduction": ("sum", "mean"),
    "optimizer": ("sgd", "adam"),
    "schedule": ("step", "cosine"),
    "weights": ("last", "best_error", "best_nll"),
    "precision": ("auto", "float32", "tf32", "bfloat16", "float64"),
    "step": ("auto", "eager", "captured", "compiled"),
}
AT_LEAST = {"epochs": 1, "batch_size": 1, "seed": 0, "lr": 0.0, "momentum": 0.0, "weight_decay": 0.0, "lr_factor": 0.0}
NOT_OPTIONS = ("weight", "ignore_index", "reduction")  # of a loss: tensors, and what the recipe says itself


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training run. The defaults are the paper's for images: SGD, 350 epochs, summed loss, gradient norm up to 2.

    >>> recipe = Recipe(data="cifar10", model="resnet50", loss_options={"gamma": 5})
    >>> recipe.lr, recipe.milestones, recipe.reduction, recipe.clip_norm
    (0.1, (150, 250), 'sum', 2.0)
    >>> recipe.with_settings(["epochs=30", "loss=focal", "loss.gamma=3"]).loss_options
    {'gamma': 3}
    """

    data: str
    """Name of a data set, a folder of images by class, or an .npz file."""
    data_options: dict[str, Any] = field(default_factory=dict)
    """Options of the data set, such as val_size; to set one: data.val_size=1000."""
    model: str
    """Name of a model, or package.module:function."""
    loss: str = "dual_focal"
    """Name of a loss."""
    loss_options: dict[str, Any] = field(default_factory=dict)
    """Options of the loss, such as gamma; to set one: loss.gamma=3."""
    reduction: str = "sum"
    """Over the batch: sum, with clip_norm=2, is the published pair; or mean."""
    clip_norm: float | None = 2.0
    """Longest gradient of all weights together; none: not clipped."""
    optimizer: str = "sgd"
    """sgd, or adam."""
    lr: float = 0.1
    """Learning rate at the start."""
    momentum: float = 0.9
    """Of sgd."""
    weight_decay: float = 5e-4
    """On all weights."""
    schedule: str = "step"
    """Of the learning rate: step, at the milestones, or cosine, down to 0."""
    milestones: tuple[int, ...] = (150, 250)
    """Epochs after which schedule=step multiplies the learning rate by lr_factor; none: it stays."""
    lr_factor: float = 0.1
    """See milestones."""
    epochs: int = 350
    """How often the training part is gone through."""
    batch_size: int = 128
    """Samples a step, of all processes together."""
    drop_last: bool = False
    """Leave out the last batch of an epoch if it is smaller."""
    weights: str = "last"
    """Which are kept: of the last epoch, or of the one of best_error or best_nll on validation data."""
    seed: int = 1
    """Of initial weights, order, augmentation and dropout. What splits the data is an option of the data."""
    precision: str = "auto"
    """Of steps: float32; tf32, on CUDA; bfloat16, by autocast; float64. auto: bfloat16 if a GPU has it, or float32."""
    channels_last: bool | None = None
    """Memory format of images and weights. none: true on CUDA."""
    step: str = "auto"
    """On CUDA, how steps are run: eager; captured, as one graph; compiled and captured. auto: captured."""
    deterministic: bool = False
    """On CUDA: the same bits each time, but slower. The CPU always gives them."""
    sync_bn: bool = False
    """With several CUDA processes: batch norm over the global batch."""
    test_each_epoch: bool = False
    """Log the test part each epoch, too: to draw it, not to choose by it."""

    def __post_init__(self) -> None:
        for name, hint in _hints().items():
            object.__setattr__(self, name, checked(name, getattr(self, name), hint))
        for name, choices in CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        for name, low in AT_LEAST.items():
            if not low <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and at least {low:g}, got {getattr(self, name)!r}")
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise ValueError(f"clip_norm must be finite and above 0, or none, got {self.clip_norm}")
        if self.momentum >= 1:
            raise ValueError(f"momentum must be below 1, got {self.momentum:g}")
        if any(m < 1 for m in self.milestones) or any(a >= b for a, b in pairwise(self.milestones)):
            raise ValueError(f"milestones must be increasing epochs from 1, got {_text(self.milestones)}")
        if self.model not in MODELS and ":" not in self.model:
            near = did_you_mean(self.model, MODELS)
            raise ValueError(
                f"model must be one of {', '.join(MODELS)}, or package.module:function, got {self.model!r}{near}"
            )
        if not self.data:
            raise ValueError("data must name a data set, a folder or an .npz file, got ''")
        self.make_loss()

    def make_loss(self) -> nn.Module:
        """The loss, summed over whatever it is given.

        Raises:
            ValueError: no such loss, or no such option of it.
        """
        if self.loss not in LOSSES:
            near = did_you_mean(self.loss, LOSSES)
            raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {self.loss!r}{near}")
        parameters = inspect.signature(LOSSES[self.loss]).parameters
        known = [name for name in parameters if name not in NOT_OPTIONS]
        for name, value in self.loss_options.items():
            if name in known:
                check_like(f"loss {self.loss}: {name}", value, parameters[name].default)
            else:
                has = f"has the options {', '.join(known)}" if known else "has no options"
                raise ValueError(f"loss {self.loss} {has}; got {name}{did_you_mean(name, known)}")
        try:
            return LOSSES[self.loss](**self.loss_options, reduction="sum")
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"loss {self.loss}: {error}") from error

    def on(self, device: torch.device, processes: int = 1) -> Self:
        """The same with nothing left to choose: what auto and none mean on a device.

        >>> recipe = Recipe(data="cifar10", model="resnet50").on(torch.device("cuda"))
        >>> recipe.precision, recipe.channels_last, recipe.step
        ('bfloat16', True, 'captured')

        Raises:
            ValueError: a choice cannot be had there.
        """
        on_cuda = device.type == "cuda"
        if self.step in ("captured", "compiled") and not on_cuda:
            raise ValueError(f"step={self.step} needs CUDA, this is {device.type}")
        if self.step in ("captured", "compiled") and processes > 1:
            raise ValueError(f"step={self.step} needs one process, there are {processes}")
        if self.precision == "tf32" and not on_cuda:
            raise ValueError(f"precision=tf32 needs CUDA, this is {device.type}")
        if self.step == "compiled" and self.deterministic:
            raise ValueError("deterministic=true cannot be had with step=compiled, but with captured and eager")
        automatic = "bfloat16" if _has_bfloat16(device) else "float32"
        return dataclasses.replace(
            self,
            precision=automatic if self.precision == "auto" else self.precision,
            channels_last=on_cuda if self.channels_last is None else self.channels_last,
            step=self.step if self.step != "auto" else "captured" if on_cuda and processes == 1 else "eager",
        )

    def lr_at(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0.

        >>> recipe = Recipe(data="cifar10", model="resnet50")
        >>> recipe.lr_at(149), round(recipe.lr_at(150), 6), round(recipe.lr_at(349), 6)
        (0.1, 0.01, 0.001)
        """
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        return self.lr * self.lr_factor ** sum(epoch >= milestone for milestone in self.milestones)

    def with_settings(self, settings: Iterable[str]) -> Self:
        """The same but for some fields, given as text: ``field=value``, ``loss.option=value``, ``data.option=value``.

        Another loss or data set starts from its own default options.

        Raises:
            ValueError: no such field, with the nearest name; or not of its type.
        """
        hints = _hints()
        changes: dict[str, Any] = {}
        options: dict[str, dict[str, Any]] = {}
        for setting in settings:
            name, equals, text = (part.strip() for part in setting.partition("="))
            of, dot, option = name.partition(".")
            if not equals or not name:
                raise ValueError(f"a setting is written field=value, got {setting!r}")
            if dot and of in ("loss", "data") and option:
                options.setdefault(f"{of}_options", {})[option] = option_from_text(text)
            elif name in hints:
                changes[name] = from_text(name, text, hints[name])
            else:
                known = (*hints, "loss.OPTION", "data.OPTION")
                raise ValueError(
                    f"a recipe has no field {name!r}{did_you_mean(name, known)}; it has {', '.join(known)}"
                )
        for of in ("loss", "data"):
            if of in changes and changes[of] != getattr(self, of):
                changes.setdefault(f"{of}_options", {})
        for name, some in options.items():
            changes[name] = {**changes.get(name, getattr(self, name)), **some}
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; :meth:`from_dict` reads it."""
        return {"schema": SCHEMA, **{of.name: plain(of.name, getattr(self, of.name)) for of in fields(self)}}

    @classmethod
    def from_dict(cls, found: object) -> Self:
        """What :meth:`to_dict` gave.

        Raises:
            ValueError: of another schema, or fields are missing, unknown or wrong.
        """
        if not isinstance(found, dict):
            raise ValueError(f"a recipe must be a JSON object, got {type(found).__name__}")
        if found.get("schema") != SCHEMA:
            raise ValueError(
                f"recipe has schema {found.get('schema')}, this version of dualfocal reads schema {SCHEMA}"
            )
        known = {of.name for of in fields(cls)}
        for name in found:
            if name not in known and name != "schema":
                raise ValueError(f"a recipe has no field {name!r}{did_you_mean(str(name), known)}")
        if missing := known - found.keys():
            raise ValueError(f"recipe lacks {', '.join(sorted(missing))}")
        return cls(**{name: found[name] for name in known})

    def differences(self, other: "Recipe") -> list[str]:
        """``"epochs: 30, not 60"`` for each field in which ``other``, the second, differs."""
        mine, theirs = ({name: _text(of) for name, of in recipe.to_dict().items()} for recipe in (self, other))
        return [f"{name}: {mine[name]}, not {theirs[name]}" for name in mine if mine[name] != theirs[name]]

    @property
    def digest(self) -> str:
        """Eight digits that hardly another recipe has."""
        return hashlib.sha256(_text(self.to_dict()).encode()).hexdigest()[:8]


def load_recipe(path: Path) -> Recipe:
    """A recipe from its JSON file, or from a run folder.

    Raises:
        ValueError: it cannot be read, or is no recipe.
    """
    path = path / "recipe.json" if path.is_dir() else path
    try:
        return Recipe.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: is not JSON, or damaged: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def field_docs() -> dict[str, str]:
    """What the source says below each field; nothing where there is no source."""
    try:
        body = ast.parse(inspect.getsource(Recipe)).body[0]
    except OSError:
        return {}
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for of, below in pairwise(body.body):
        if not (isinstance(of, ast.AnnAssign) and isinstance(of.target, ast.Name) and isinstance(below, ast.Expr)):
            continue
        if isinstance(below.value, ast.Constant):
            docs[of.target.id] = str(below.value.value)
    return docs


def _has_bfloat16(device: torch.device) -> bool:
    """Whether a device computes in it; a CUDA device that is not here is taken for a recent one."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return device.type == "cuda"
    return torch.cuda.get_device_capability(device) >= (8, 0)


def _hints() -> dict[str, Any]:
    return get_type_hints(Recipe)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
