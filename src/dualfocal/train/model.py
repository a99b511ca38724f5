"""The model of a recipe: made, tried out, given its optimizer; and whether recipe, data and processes fit."""

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from dualfocal.data import DataSet
from dualfocal.models import make_model
from dualfocal.runs import Recipe
from dualfocal.train.distributed import Group
from dualfocal.train.forward import Forward, without_search
from dualfocal.train.randomness import seed_all
from dualfocal.train.validation import follows_validation, looks_at_validation, watched_part


def check_fit(recipe: Recipe, data: DataSet, group: Group) -> list[str]:
    """Raise a ValueError where recipe, data and processes do not go together; give remarks on what does."""
    criterion = recipe.make_loss()
    follows, has_validation = follows_validation(criterion), "val" in data.splits
    size = len(data.splits.get("train", ()))
    tail = 0 if recipe.drop_last else size % recipe.batch_size
    smallest = min([recipe.batch_size, *map(len, data.splits.values())])
    needs_validation = f"needs a validation part, data {recipe.data} has none: see data.val_size"
    problems = {
        f"data {recipe.data} has no training part": not size,
        f"data {recipe.data} has {data.num_classes} class, there must be two or more": data.num_classes < 2,
        f"drop_last leaves nothing: a batch is {recipe.batch_size}, the training part {size} samples": (
            recipe.drop_last and size < recipe.batch_size
        ),
        f"loss {recipe.loss} {needs_validation}": follows and not has_validation,
        f"weights {recipe.weights} {needs_validation}": recipe.weights != "last" and not has_validation,
        f"sync_bn needs CUDA, this is {group.device.type}": recipe.sync_bn and group.device.type != "cuda",
        f"loss {recipe.loss} belongs to a whole batch and cannot be split over {group.size} processes": (
            group.size > 1 and not criterion.per_sample
        ),
        f"the last batch has {tail} samples for {group.size} processes: drop_last=true leaves it out": (
            0 < tail < group.size
        ),
        f"{group.size} processes need as many samples in each batch and part, there are {smallest}": (
            group.size > 1 and smallest < group.size
        ),
    }
    for problem, holds in problems.items():
        if holds:
            raise ValueError(problem)
    first = recipe.milestones[0] if recipe.milestones else 0
    what = f"loss {recipe.loss}" if follows else f"the choice of an epoch, {recipe.weights},"
    notes = {
        "not repeatable to the bit: on CUDA that needs deterministic=true": (
            group.device.type == "cuda" and not recipe.deterministic
        ),
        f"the learning rate never falls: the first milestone is {first}, of {recipe.epochs} epochs": (
            recipe.schedule == "step" and first >= recipe.epochs
        ),
        "with schedule=cosine the milestones are not looked at": recipe.schedule == "cosine" and first > 0,
        f"{what} follows the validation part that also fits the temperature; data.val2_size gives it one of its own": (
            looks_at_validation(recipe, criterion) and watched_part(data) == "val"
        ),
        "there is no validation part: nothing to calibrate with, see data.val_size": not has_validation,
    }
    return [*data.notes, *(note for note, holds in notes.items() if holds)]


def notes_on(model: nn.Module, recipe: Recipe) -> list[str]:
    """What the result of a model should be read with."""
    saved = model.state_dict()
    hidden = ", ".join(name for name, _ in model.named_buffers() if name not in saved)
    return [f"model {recipe.model} keeps {hidden} out of its state_dict: nothing of it is saved"] if hidden else []


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
        hint = "; drop_last=true leaves the last batch out, which is as small" if last < recipe.batch_size else ""
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
        raise ValueError(
            f"model {recipe.model} fails in {mode} on inputs of {tuple(inputs.shape)}: {reason}{hint}"
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
