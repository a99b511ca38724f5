"""Optimizers by name, and the arguments that a recipe gives to an optimizer."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim import (
    ASGD,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
)

from dualfocal_lab.objects import check_options, is_object_name, takes, unknown_name

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": SGD,
    "adam": Adam,
    "adamw": AdamW,
    "adadelta": Adadelta,
    "adafactor": Adafactor,
    "adagrad": Adagrad,
    "adamax": Adamax,
    "asgd": ASGD,
    "nadam": NAdam,
    "radam": RAdam,
    "rmsprop": RMSprop,
    "rprop": Rprop,
}
FIELDS = ("lr", "weight_decay")  # arguments of every optimizer that are fields of the recipe
# Arguments of torch's optimizers that are no options, because the training chooses them.
CHOSEN = ("params", "fused", "foreach", "capturable", "differentiable", "maximize")
# With the momentum buffers that the training creates, dampening would differ from torch's in the first step.
OF_SGD = ("momentum", "dampening")


def check_optimizer(name: str, options: Mapping[str, Any], *, momentum: float, weight_decay: float) -> None:
    """Check the name and the options of an optimizer. A custom optimizer is not imported: its options are not checked.

    Raises:
        ValueError: the name or an option is unknown or invalid.
    """
    if name not in OPTIMIZERS and not is_object_name(name):
        raise ValueError(unknown_name("optimizer", name, OPTIMIZERS))
    for field in (*FIELDS, *(["momentum"] if name == "sgd" else [])):
        if field in options:
            raise ValueError(f"optimizer.{field}: {field} is a field of the recipe; set {field}={options[field]}")
    if name in OPTIMIZERS:
        make = OPTIMIZERS[name]
        arguments = optimizer_arguments(name, make, options, momentum=momentum, weight_decay=weight_decay)
        try:
            if options:  # the first optimizer of a process takes seconds, since it imports a part of torch
                make([torch.zeros(1)], lr=1e-3, **arguments)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"optimizer {name}: {error}") from error


def optimizer_arguments(
    name: str, make: Callable[..., Any], options: Mapping[str, Any], *, momentum: float, weight_decay: float
) -> dict[str, Any]:
    """Return the keyword arguments of an optimizer, besides the learning rate: options, momentum of sgd, weight decay.

    Args:
        name: name of the optimizer, for messages.
        make: the class or function that makes the optimizer.
        options: the options of the recipe.
        momentum: the momentum of sgd.
        weight_decay: the weight decay; an optimizer without this argument needs 0.

    Raises:
        ValueError: an option is unknown, or the optimizer has no weight decay.
    """
    reserved = (*FIELDS, *(CHOSEN if name in OPTIMIZERS else ("params",)), *(OF_SGD if name == "sgd" else ()))
    check_options("optimizer", name, make, options, reserved)
    if weight_decay and not takes(make, "weight_decay"):
        raise ValueError(f"optimizer {name} has no weight decay, got weight_decay={weight_decay:g}; set weight_decay=0")
    arguments = {option: tuple(value) if isinstance(value, list) else value for option, value in options.items()}
    if name == "sgd":
        arguments["momentum"] = momentum
    if takes(make, "weight_decay"):
        arguments["weight_decay"] = weight_decay
    return arguments
