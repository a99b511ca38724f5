"""Predict a split and compute its metrics for the log."""

from typing import Protocol, TypeGuard

import torch
from torch import Tensor, nn

from dualfocal.losses import true_and_rival
from dualfocal.metrics import evaluate
from dualfocal_lab.data.dataset import DataSet
from dualfocal_lab.runs import Recipe
from dualfocal_lab.train.distributed import Group
from dualfocal_lab.train.forward import Forward, without_search

BATCH_CPU, BATCH_DEVICE = 128, 1000  # fits in a CPU cache; fills a GPU


@torch.no_grad()
def predict(forward: Forward, data: DataSet, part: str, group: Group) -> tuple[Tensor, Tensor]:
    """Return the logits and labels of this process's share of a split."""
    forward.model.eval()
    logits, target = [], []
    size = BATCH_CPU if group.device.type == "cpu" else BATCH_DEVICE
    with without_search():
        for index in torch.split(group.share(data.splits[part]), size):
            inputs, labels = data.batch(index, part=part)
            logits.append(forward(inputs))
            target.append(labels)
    return torch.cat(logits), torch.cat(target)


@torch.no_grad()
def summarize(logits: Tensor, target: Tensor, criterion: nn.Module, batch_size: int, group: Group) -> dict[str, float]:
    """Return error, ECE, NLL, loss and the means of p_k and p_j over the shares of all processes."""
    # In batches, as in training: some losses are computed over a whole batch.
    parts = zip(torch.split(logits, batch_size), torch.split(target, batch_size), strict=True)
    loss = torch.stack([criterion(*part).double() for part in parts]).sum()
    all_logits, all_target = group.gather(logits), group.gather(target)
    scores = evaluate(all_logits, all_target, input="logits", inference=False)
    p_k, p_j = true_and_rival(all_logits.double(), all_target)
    return {
        "error": scores.error,
        "ece": scores.ece,
        "nll": scores.nll,
        "loss": float(group.sum(loss)) / len(all_target),
        "p_k": float(p_k.mean()),
        "p_j": float(p_j.mean()),
    }


class AdaptiveLoss(Protocol):
    """A loss that changes with the predictions on validation data."""

    def update(self, logits: Tensor, target: Tensor, /) -> object:
        """Adapt the loss to logits and labels of the validation split."""


def follows_validation(criterion: nn.Module) -> TypeGuard[AdaptiveLoss]:
    """Return whether the loss is updated with validation data after each epoch: it has ``update`` and is not frozen."""
    return callable(getattr(criterion, "update", None)) and not getattr(criterion, "frozen", False)


def looks_at_validation(recipe: Recipe, criterion: nn.Module) -> bool:
    """Return whether training depends on validation data: through an adaptive loss, or the choice of the best epoch."""
    return follows_validation(criterion) or recipe.weights != "last"


def watched_part(data: DataSet) -> str:
    """Return the validation split that training uses: the second one if there is one."""
    return "val2" if "val2" in data.splits else "val"
