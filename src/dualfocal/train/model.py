"""The model of a recipe: made, tried out on a few samples, and given its optimizer."""

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from dualfocal.data import DataSet
from dualfocal.models import make_model
from dualfocal.runs.recipe import Recipe
from dualfocal.train.distributed import Group
from dualfocal.train.forward import Forward, without_search
from dualfocal.train.randomness import seed_all


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
        hint = "drop_last=true leaves the last batch out, which is as small" if last < recipe.batch_size else ""
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
        end = f"; {hint}" if hint else ""
        raise ValueError(
            f"model {recipe.model} fails in {mode} on inputs of {tuple(inputs.shape)}: {reason}{end}"
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
