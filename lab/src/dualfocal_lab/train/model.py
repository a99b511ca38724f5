"""Build the model of a recipe, try it out with its loss and optimizer, and check that recipe and data fit together."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from dualfocal.losses import LOSSES
from dualfocal.tables import quantity
from dualfocal_lab.data import DataSet
from dualfocal_lab.models import MODELS, make_model
from dualfocal_lab.runs import Recipe
from dualfocal_lab.runs.losses import check_loss
from dualfocal_lab.train.distributed import Group
from dualfocal_lab.train.forward import Forward, without_search
from dualfocal_lab.train.optimizer import CAPTURABLE, try_optimizer
from dualfocal_lab.train.randomness import seed_all
from dualfocal_lab.train.validation import follows_validation, looks_at_validation, watched_part


def check_fit(recipe: Recipe, data: DataSet, group: Group) -> list[str]:
    """Check that recipe, data and processes fit together.

    Returns:
        Notes on settings that are allowed but may surprise.

    Raises:
        ValueError: they do not fit; the message names the rule.
    """
    criterion = recipe.make_loss()
    follows, has_validation = follows_validation(criterion), "val" in data.splits
    size = len(data.splits.get("train", ()))
    tail = 0 if recipe.drop_last else size % recipe.batch_size
    smallest = min([recipe.batch_size, *map(len, data.splits.values())])
    needs_validation = f"needs a validation split, but data {recipe.data} has none; set data.val_size"
    problems = {
        f"data {recipe.data} has no training split": not size,
        f"data {recipe.data} has {data.num_classes} class, but training needs two or more": data.num_classes < 2,
        f"drop_last=true drops all samples: batch_size is {recipe.batch_size}, the training split has {size}": (
            recipe.drop_last and size < recipe.batch_size
        ),
        f"loss {recipe.loss} {needs_validation}": follows and not has_validation,
        f"weights={recipe.weights} {needs_validation}": recipe.weights != "last" and not has_validation,
        f"sync_bn=true needs a CUDA device, but the device is {group.device.type}": recipe.sync_bn
        and group.device.type != "cuda",
        f"loss {recipe.loss} is computed over a whole batch and cannot be split over {group.size} processes": (
            group.size > 1 and not getattr(criterion, "per_sample", True)
        ),
        f"the last batch has {quantity(tail, 'sample')} for {group.size} processes; drop_last=true leaves it out": (
            0 < tail < group.size
        ),
        f"{group.size} processes need at least {group.size} samples in each batch and split, but one has {smallest}": (
            group.size > 1 and smallest < group.size
        ),
    }
    for problem, holds in problems.items():
        if holds:
            raise ValueError(problem)
    first = recipe.milestones[0] if recipe.milestones else 0
    what = f"loss {recipe.loss}" if follows else f"weights={recipe.weights}"
    notes = {
        "results on CUDA are not reproducible to the bit; set deterministic=true for that": (
            group.device.type == "cuda" and not recipe.deterministic
        ),
        f"the learning rate never falls: the first milestone is epoch {first}, the last epoch {recipe.epochs}": (
            recipe.schedule == "step" and first >= recipe.epochs
        ),
        "schedule=cosine ignores the milestones": recipe.schedule == "cosine" and first > 0,
        f"{what} uses the validation split that also fits the temperature; set data.val2_size to give it its own": (
            looks_at_validation(recipe, criterion) and watched_part(data) == "val"
        ),
        "there is no validation split, so no temperature is fitted; set data.val_size": not has_validation,
    }
    return [*data.notes, *(note for note, holds in notes.items() if holds)]


def notes_on(model: nn.Module, recipe: Recipe) -> list[str]:
    """Return notes on the state of a model that is not saved."""
    saved = model.state_dict()
    hidden = ", ".join(name for name, _ in model.named_buffers() if name not in saved)
    return [f"model {recipe.model} has buffers outside its state_dict, which are not saved: {hidden}"] if hidden else []


def prepare_model(recipe: Recipe, data: DataSet, device: torch.device) -> nn.Module:
    """Build the model of a recipe. Initial weights are drawn on the CPU, so they are the same for every device.

    Raises:
        ValueError: the model is unknown, or has no trainable weights.
    """
    seed_all(recipe.seed)
    model = make_model(recipe.model, num_classes=data.num_classes, in_channels=data.in_channels)
    if not any(weight.requires_grad for weight in model.parameters()):
        raise ValueError(f"model {recipe.model} has no trainable weights")
    model = model.to(device, dtype=torch.float64 if recipe.precision == "float64" else None)
    if recipe.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def try_out(model: nn.Module, recipe: Recipe, data: DataSet, group: Group) -> bool:
    """Run model, custom loss and other optimizers on a few samples before the run folder is made.

    A model that does not fit is common.

    Returns:
        Whether every trainable weight got a gradient.

    Raises:
        ValueError: the model fails in evaluation, in training or on the smallest batch, does not return logits of the
            right shape, or has state that is not a tensor; or a custom loss or optimizer fails, see
            :func:`~dualfocal_lab.runs.losses.check_loss` and :func:`~dualfocal_lab.train.optimizer.try_optimizer`.
    """
    if recipe.loss not in LOSSES:
        dtype = torch.float64 if recipe.precision == "float64" else torch.float32
        loss = recipe.make_loss().to(group.device)
        check_loss(recipe.loss, loss, num_classes=data.num_classes, device=group.device, dtype=dtype)
    index = data.splits["train"]
    last = recipe.batch_size if recipe.drop_last else len(index) % recipe.batch_size or recipe.batch_size
    fewest = min(last, len(index)) // group.size
    model.eval()
    _pass(model, recipe, data, index[:2], group.device)  # creates lazy weights
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise ValueError(f"model {recipe.model} has state that is not a tensor and cannot be saved: {name}")
    try:
        trial = deepcopy(model).train()
    except Exception:  # some models cannot be copied
        return True
    logits, target = _pass(trial, recipe, data, index[:2], group.device)
    recipe.make_loss().to(group.device)(logits, target).backward()
    if fewest == 1:  # batch norm fails on one sample
        hint = "; the last batch is that small, set drop_last=true to leave it out" if last < recipe.batch_size else ""
        _pass(trial, recipe, data, index[:1], group.device, hint)
    weights = [weight for weight in trial.parameters() if weight.requires_grad]
    all_used = all(weight.grad is not None for weight in weights)
    if recipe.optimizer not in CAPTURABLE:
        try_optimizer(recipe, weights)
    return all_used


def _pass(
    model: nn.Module, recipe: Recipe, data: DataSet, index: Tensor, device: torch.device, hint: str = ""
) -> tuple[Tensor, Tensor]:
    inputs, target = (tensor.to(device) for tensor in data.batch(index, part="train"))
    mode = "training" if model.training else "evaluation"
    try:
        with torch.set_grad_enabled(model.training), without_search():
            logits = Forward(model, recipe, device)(inputs)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # any user model
        reason = " ".join(str(error).split()) or type(error).__name__
        hint = hint or "; set model=package.module:function for a network of your own" * (recipe.model in MODELS)
        raise ValueError(
            f"model {recipe.model} fails in {mode} on inputs of shape {tuple(inputs.shape)}: {reason}{hint}"
        ) from error
    if logits.shape != (len(inputs), data.num_classes):
        raise ValueError(
            f"model {recipe.model} must return logits of shape {(len(inputs), data.num_classes)} for inputs of shape "
            f"{tuple(inputs.shape)}, got {tuple(logits.shape)}"
        )
    return logits, target
