"""Whether recipe, data, model and processes go together."""

from torch import nn

from dualfocal.data import DataSet
from dualfocal.runs import Recipe
from dualfocal.train.distributed import Group
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
