"""Build the optimizer of a recipe, and try out custom ones."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from dualfocal_lab.objects import current_folder_first, load_object, takes
from dualfocal_lab.runs import Recipe
from dualfocal_lab.runs.optimizers import OPTIMIZERS, optimizer_arguments

CONTRACT = (
    "a custom optimizer is a class or function that takes the list of weights, then lr and its options as keywords, "
    "and returns a torch.optim.Optimizer"
)
CAPTURABLE = ("sgd", "adam", "adamw")


def make_optimizer(recipe: Recipe, weights: list[nn.Parameter]) -> Optimizer:
    """Build the optimizer of a recipe. On CUDA, a CUDA graph reads the learning rate of sgd, adam and adamw: a tensor.

    Raises:
        ValueError: a custom optimizer cannot be imported or made, or an option is invalid.
    """
    name = recipe.optimizer
    make, arguments = load_optimizer(recipe)
    on_cuda = weights[0].is_cuda
    lr = torch.tensor(recipe.lr, device=weights[0].device) if on_cuda else recipe.lr
    if name in ("adam", "adamw"):
        return make(weights, lr=lr, **arguments, fused=True, capturable=on_cuda)  # type: ignore[no-any-return]
    if name != "sgd":
        return _make_other(name, make, weights, {**arguments, "lr": recipe.lr})
    optimizer = SGD(weights, lr=lr, **arguments, fused=True)
    if recipe.momentum:
        # Zeros are equivalent to missing buffers. Fused SGD fails if only some buffers are missing, as happens for
        # models that skip layers at random.
        for weight in weights:
            optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    return optimizer


def load_optimizer(recipe: Recipe) -> tuple[Any, dict[str, Any]]:
    """Return the class or function that makes the optimizer, and its arguments; a custom one is imported.

    Raises:
        ValueError: it cannot be imported, or cannot be called with a learning rate and the options.
    """
    name = recipe.optimizer
    make = OPTIMIZERS[name] if name in OPTIMIZERS else load_object("optimizer", name)
    if not callable(make) or isinstance(make, Optimizer):
        raise ValueError(f"optimizer {name}: is {type(make).__name__}, but {CONTRACT}")
    if not takes(make, "lr"):
        raise ValueError(f"optimizer {name}: does not accept lr as a keyword argument, but {CONTRACT}")
    numbers = {"momentum": recipe.momentum, "weight_decay": recipe.weight_decay}
    return make, optimizer_arguments(name, make, recipe.optimizer_options, **numbers)


def _make_other(name: str, make: Any, weights: list[nn.Parameter], arguments: dict[str, Any]) -> Optimizer:
    try:
        with current_folder_first():  # a custom optimizer may import more
            optimizer = make(weights, **arguments)
    except Exception as error:  # any code of the user
        raise ValueError(f"optimizer {name}: {str(error) or type(error).__name__}") from error
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"optimizer {name}: returned {type(optimizer).__name__}, but {CONTRACT}")
    return optimizer


def try_optimizer(recipe: Recipe, weights: list[nn.Parameter]) -> None:
    """Take a step with the optimizer of a recipe, on weights that have gradients and are not used afterwards.

    Raises:
        ValueError: the step fails, or the optimizer has state that a checkpoint cannot hold.
    """
    name, optimizer = recipe.optimizer, make_optimizer(recipe, weights)
    before = _settings(optimizer)
    if not all("lr" in settings for settings in before):
        raise ValueError(f"optimizer {name}: its param_groups must have an lr, which follows the schedule")
    try:
        optimizer.step()
    except Exception as error:  # any code of the user
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"optimizer {name} fails in a step: {reason}") from error
    for state in optimizer.state.values():
        for key, value in state.items():
            if value is not None and not isinstance(value, Tensor | bool | int | float):
                raise ValueError(
                    f"optimizer {name}: its state must be tensors and numbers, which a checkpoint can hold, but {key} "
                    f"is {type(value).__name__}"
                )
    for old, new in zip(before, _settings(optimizer), strict=True):
        if changed := [key for key in new if key not in old or old[key] != new[key]]:
            raise ValueError(
                f"optimizer {name}: a step changes {', '.join(changed)} of its param_groups, which a checkpoint does "
                "not hold; such values belong into its state"
            )


def _settings(optimizer: Optimizer) -> list[dict[str, str]]:
    """Return the settings of each group of weights, as text, which does not change with the values."""
    groups = optimizer.param_groups
    return [{key: repr(value) for key, value in group.items() if key != "params"} for group in groups]
