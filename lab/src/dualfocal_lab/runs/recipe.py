"""Recipes of training runs: every setting that affects the result, in one frozen object that reads and writes JSON."""

import hashlib
import inspect
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Self, get_type_hints

import torch
from torch import nn

from dualfocal.checks import check_choice, did_you_mean
from dualfocal.losses import LOSSES
from dualfocal.tables import quantity
from dualfocal_lab.checks import AT_MOST
from dualfocal_lab.models import MODELS
from dualfocal_lab.objects import is_object_name, unknown_name
from dualfocal_lab.runs._settings import checked, from_text, option_from_text, plain
from dualfocal_lab.runs.layout import RECIPE, SCHEMA, RunError, check_content, read_json
from dualfocal_lab.runs.losses import make_loss
from dualfocal_lab.runs.optimizers import check_optimizer

CHOICES = {
    "reduction": ("sum", "mean"),
    "schedule": ("step", "cosine"),
    "weights": ("last", "best_error", "best_nll"),
    "precision": ("auto", "float32", "tf32", "bfloat16", "float64"),
    "step": ("auto", "eager", "captured", "compiled"),
}
AT_LEAST = {"epochs": 1, "batch_size": 1, "seed": 0, "lr": 0.0, "momentum": 0.0, "weight_decay": 0.0, "lr_factor": 0.0}
OWNERS = ("loss", "data", "optimizer")  # fields with options


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of a training run. The defaults are the paper's for images: SGD, 350 epochs, summed loss, clip_norm=2.

    >>> recipe = Recipe(data="cifar10", model="resnet50", loss_options={"gamma": 5})
    >>> recipe.lr, recipe.milestones, recipe.reduction, recipe.clip_norm
    (0.1, (150, 250), 'sum', 2.0)
    >>> recipe.with_settings(["epochs=30", "loss=focal", "loss.gamma=3"]).loss_options
    {'gamma': 3}

    Attributes:
        data: Name of a data set, a folder of images by class, an .npz file, or package.module:function.
        data_options: Options of the data set, such as val_size; to set one: data.val_size=1000.
        model: Name of a model, or package.module:function.
        loss: Name of a loss, or package.module:object.
        loss_options: Options of the loss, such as gamma; to set one: loss.gamma=3.
        reduction: Reduction of the loss over the batch: sum (published together with clip_norm=2) or mean.
        clip_norm: Clip the global gradient norm to this value (none: no clipping).
        optimizer: sgd, adam, adamw, the name of another class of torch.optim, or package.module:object.
        optimizer_options: Options of the optimizer, such as betas; to set one: optimizer.eps=1e-6.
        lr: Learning rate at the start.
        momentum: Momentum of sgd.
        weight_decay: Weight decay, on all weights.
        schedule: Schedule of the learning rate: step (at the milestones) or cosine (down to 0).
        milestones: Epochs after which schedule=step multiplies the learning rate by lr_factor (none: constant).
        lr_factor: Factor of the learning rate at each milestone.
        epochs: Number of passes over the training part.
        batch_size: Samples per step, over all processes.
        drop_last: Leave out the last batch of an epoch if it is smaller.
        weights: Weights to keep: of the last epoch, or of the one with best_error or best_nll on validation data.
        seed: Seed of initial weights, sample order, augmentation and dropout; the data split has its own option.
        precision: float32; tf32, on CUDA; bfloat16, by autocast; float64; auto: bfloat16 if the GPU has it, or
            float32.
        channels_last: Channels-last memory format of images and weights (none: true on CUDA).
        step: How steps run on CUDA: eager; captured, as one graph; compiled and captured; auto: captured.
        deterministic: Bit-identical repeats on CUDA, but slower (the CPU always repeats exactly).
        sync_bn: Batch norm over the global batch, with several CUDA processes.
        test_each_epoch: Also log the test split each epoch: for plots, not for model selection.
    """

    data: str
    data_options: dict[str, Any] = field(default_factory=dict)
    model: str
    loss: str = "dual_focal"
    loss_options: dict[str, Any] = field(default_factory=dict)
    reduction: str = "sum"
    clip_norm: float | None = 2.0
    optimizer: str = "sgd"
    optimizer_options: dict[str, Any] = field(default_factory=dict)
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: str = "step"
    milestones: tuple[int, ...] = (150, 250)
    lr_factor: float = 0.1
    epochs: int = 350
    batch_size: int = 128
    drop_last: bool = False
    weights: str = "last"
    seed: int = 1
    precision: str = "auto"
    channels_last: bool | None = None
    step: str = "auto"
    deterministic: bool = False
    sync_bn: bool = False
    test_each_epoch: bool = False

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(Recipe).items():
            object.__setattr__(self, name, checked(name, getattr(self, name), hint))
        for name, choices in CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        for name, low in AT_LEAST.items():
            if not low <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and at least {low:g}, got {getattr(self, name)!r}")
            if name in AT_MOST and getattr(self, name) > AT_MOST[name]:
                raise ValueError(f"{name} must be at most {AT_MOST[name]:,}, got {getattr(self, name)!r}")
        if self.momentum >= 1:
            raise ValueError(f"momentum must be below 1, got {self.momentum:g}")
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise ValueError(f"clip_norm must be finite and above 0, or none, got {self.clip_norm}")
        if any(m < 1 for m in self.milestones) or any(a >= b for a, b in pairwise(self.milestones)):
            raise ValueError(f"milestones must be increasing epochs from 1, got {_text(self.milestones)}")
        if not self.data:
            raise ValueError("data must name a data set, a folder or an .npz file, got ''")
        self._check_names()

    def _check_names(self) -> None:
        """Check names and options; nothing is imported, so that a recipe can be read without its custom objects."""
        if self.model not in MODELS and ":" not in self.model:
            raise ValueError(unknown_name("model", self.model, MODELS, "package.module:function"))
        if self.loss not in LOSSES and not is_object_name(self.loss):
            raise ValueError(unknown_name("loss", self.loss, LOSSES))
        if self.loss in LOSSES:
            self.make_loss()
        numbers = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        check_optimizer(self.optimizer, self.optimizer_options, **numbers)

    def make_loss(self) -> nn.Module:
        """Return the loss module, with ``reduction="sum"``; a custom loss is imported.

        Raises:
            ValueError: the loss or one of its options is unknown or invalid.
        """
        return make_loss(self.loss, self.loss_options)

    def on(self, device: torch.device, processes: int = 1) -> Self:
        """Return the recipe with auto and none replaced by the settings for a device.

        >>> recipe = Recipe(data="cifar10", model="resnet50").on(torch.device("cuda"))
        >>> recipe.precision, recipe.channels_last, recipe.step
        ('bfloat16', True, 'captured')

        Raises:
            ValueError: a setting is not available on the device.
        """
        on_cuda = device.type == "cuda"
        if self.step in ("captured", "compiled"):
            if not on_cuda:
                raise ValueError(f"step={self.step} needs CUDA, this is {device.type}")
            if processes > 1:
                raise ValueError(f"step={self.step} needs one process, there are {processes}")
        if self.precision == "tf32" and not on_cuda:
            raise ValueError(f"precision=tf32 needs CUDA, this is {device.type}")
        if self.step == "compiled" and self.deterministic:
            raise ValueError("deterministic=true is not available with step=compiled: use step=captured or step=eager")
        precision, channels_last, step = self.precision, self.channels_last, self.step
        if precision == "auto":
            # Without CUDA on this machine, assume a recent GPU.
            recent = not torch.cuda.is_available() or not on_cuda or torch.cuda.get_device_capability(device) >= (8, 0)
            precision = "bfloat16" if on_cuda and recent else "float32"
        if channels_last is None:
            channels_last = on_cuda
        if step == "auto":
            step = "captured" if on_cuda and processes == 1 else "eager"
        return replace(self, precision=precision, channels_last=channels_last, step=step)

    def lr_at(self, epoch: int) -> float:
        """Return the learning rate of an epoch; epochs are counted from 0.

        >>> recipe = Recipe(data="cifar10", model="resnet50")
        >>> recipe.lr_at(149), round(recipe.lr_at(150), 6), round(recipe.lr_at(349), 6)
        (0.1, 0.01, 0.001)
        """
        if self.schedule == "cosine":
            return self.lr * (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        return self.lr * self.lr_factor ** sum(epoch >= milestone for milestone in self.milestones)

    def with_settings(self, settings: Iterable[str]) -> Self:
        """Return a copy with settings changed.

        If the loss, the data set or the optimizer changes, its options start from their defaults. If only the number
        of epochs changes, and a milestone would lie beyond the last epoch, the milestones are scaled with the epochs.

        Args:
            settings: texts ``field=value``, ``loss.option=value``, ``data.option=value`` or ``optimizer.option=value``.

        Raises:
            ValueError: a field is unknown (the message suggests the nearest name), or a value has the wrong type.
        """
        hints = get_type_hints(Recipe)
        changes: dict[str, Any] = {}
        options: dict[str, dict[str, Any]] = {}
        for setting in settings:
            name, equals, text = (part.strip() for part in setting.partition("="))
            owner, dot, option = name.partition(".")
            if not equals or not name:
                raise ValueError(f"a setting is written field=value, got {setting!r}")
            if dot and owner in OWNERS and option:
                options.setdefault(f"{owner}_options", {})[option] = option_from_text(text)
            elif name in hints:
                changes[name] = from_text(name, text, hints[name])
            else:
                known = (*hints, *(f"{owner}.OPTION" for owner in OWNERS))
                raise ValueError(
                    f"a recipe has no field {name!r}; it has {', '.join(known)}{did_you_mean(name, known)}"
                )
        for owner in OWNERS:
            if owner in changes and changes[owner] != getattr(self, owner):
                changes.setdefault(f"{owner}_options", {})
        for name, new_options in options.items():
            changes[name] = changes.get(name, getattr(self, name)) | new_options
        epochs = changes.get("epochs", self.epochs)
        if "milestones" not in changes and self.milestones and epochs <= self.milestones[-1] < self.epochs:
            scaled = {max(1, round(milestone * epochs / self.epochs)) for milestone in self.milestones}
            changes["milestones"] = tuple(sorted(scaled))
        return replace(self, **changes)

    @property
    def description(self) -> str:
        """Data, model and optimisation in one line of text."""
        milestones = " and ".join(map(str, self.milestones)) or "never"
        schedule = "cosine" if self.schedule == "cosine" else f"times {self.lr_factor:g} after {milestones}"
        momentum = f", momentum {self.momentum:g}" if self.optimizer == "sgd" else ""
        clip = "" if self.clip_norm is None else f", gradient norm clipped to {self.clip_norm:g}"
        data = "".join(f", {name} {value}" for name, value in self.data_options.items() if name != "split_seed")
        options = "".join(f", {name} {value}" for name, value in self.optimizer_options.items())
        return (
            f"{self.data}{data}; {self.model}; {self.optimizer}, lr {self.lr:g} ({schedule}){momentum}{options}"
            f", weight decay {self.weight_decay:g}, {quantity(self.epochs, 'epoch')}, batches of {self.batch_size}"
            f", {self.reduction} of the loss{clip}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain content for JSON, which :meth:`from_dict` reads."""
        return {"schema": SCHEMA, **{f.name: plain(f.name, getattr(self, f.name)) for f in fields(self)}}

    @classmethod
    def from_dict(cls, content: object) -> Self:
        """Read the output of :meth:`to_dict`.

        Raises:
            ValueError: the schema is not supported, or fields are missing, unknown or invalid.
        """
        values = check_content("recipe", content, may_be_edited=True)
        del values["schema"]
        known = {f.name for f in fields(cls)}
        for name in values.keys() - known:
            raise ValueError(f"a recipe has no field {name!r}{did_you_mean(str(name), known)}")
        if missing := known - values.keys():
            raise ValueError(f"recipe lacks {', '.join(sorted(missing))}")
        return cls(**values)

    def differences(self, other: "Recipe") -> list[str]:
        """Return ``"epochs: 30, not 60"`` for each field with another value in ``other``, the second."""
        pairs = {f.name: [_text(plain(f.name, getattr(r, f.name))) for r in (self, other)] for f in fields(self)}
        return [f"{name}: {mine}, not {theirs}" for name, (mine, theirs) in pairs.items() if mine != theirs]

    @property
    def digest(self) -> str:
        """Hash of the recipe, eight hexadecimal digits."""
        return hashlib.sha256(_text(self.to_dict()).encode()).hexdigest()[:8]


def load_recipe(path: Path) -> Recipe:
    """Read a recipe from a JSON file, which may be the edited copy of another recipe, or from a run folder.

    Raises:
        RunError: the file cannot be read, or is not a recipe; or see :func:`recipe_of_run`.
    """
    return recipe_of_run(path) if path.is_dir() else _recipe(path, read_json(path, may_be_edited=True))


def recipe_of_run(folder: Path) -> Recipe:
    """Read the recipe of a run folder.

    Raises:
        RunError: the file cannot be read, is not a recipe, or has changed since it was written.
    """
    return _recipe(folder / RECIPE, read_json(folder / RECIPE))


def _recipe(path: Path, content: dict[str, Any]) -> Recipe:
    try:
        return Recipe.from_dict(content)
    except ValueError as error:
        raise RunError(f"{path}: {error}") from error


def field_docs() -> dict[str, str]:
    """Return the description of each field, from the docstring of :class:`Recipe`."""
    attributes = inspect.cleandoc(Recipe.__doc__ or "").partition("Attributes:\n")[2]
    _, *parts = re.split(r"^    (\w+): ", attributes, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
