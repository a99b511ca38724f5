"""Whether recipe, data, model and processes go together."""

from torch import nn

from dualfocal.data import DataSet
from dualfocal.runs.recipe import Recipe
from dualfocal.train.distributed import Group
from dualfocal.train.validation import follows_validation, looks_at_validation, watched_part


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
