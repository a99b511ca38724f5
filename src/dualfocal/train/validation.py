"""Predict a split and compute its metrics for the log."""

from typing import Protocol, TypeGuard

import torch
from torch import Tensor, nn

from dualfocal._tensors import wide_dtype
from dualfocal.data.dataset import DataSet
from dualfocal.losses.rival import true_and_rival
from dualfocal.metrics.bins import BinStats
from dualfocal.metrics.calibration import top_bins
from dualfocal.metrics.rows import as_rows
from dualfocal.metrics.scan import scan
from dualfocal.runs import Recipe
from dualfocal.train.distributed import Group
from dualfocal.train.forward import Forward, without_search

BATCH_CPU, BATCH_DEVICE = 128, 1000  # fits in a CPU cache; fills a GPU
NUM_BINS = 15


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
    """Return error, ECE, NLL, loss and the means of p_k and p_j over all processes.

    Each process reduces its share to sums and bins, which are then added. Bins and counts are integers, so the error
    and the ECE do not depend on how the samples were split over processes.
    """
    wide = wide_dtype(logits)
    rows = as_rows(logits, target, input="logits")
    scanned = scan(rows, scores=True)
    assert scanned.nll is not None
    bins = top_bins(scanned, rows, NUM_BINS, None)
    p_k, p_j = true_and_rival(logits.to(wide), target)
    # In batches, as in training: some losses are computed over a whole batch.
    parts = zip(torch.split(logits, batch_size), torch.split(target, batch_size), strict=True)
    loss = torch.stack([criterion(*part).to(wide) for part in parts]).sum()
    totals = torch.stack([(~scanned.right).sum(), torch.tensor(len(target), device=logits.device)])
    counts = group.sum(torch.cat([totals, bins.count, bins.whole, bins.units, bins.correct]))
    sums = group.sum(torch.stack([scanned.nll.sum(), loss, p_k.sum(), p_j.sum()]))
    wrong, number = counts[:2].tolist()
    count, whole, units, correct = counts[2:].view(4, NUM_BINS)
    ece = float(BinStats.from_sums(count, units, correct, bins.edges, whole).ece())
    means = zip(("nll", "loss", "p_k", "p_j"), (sums / number).tolist(), strict=True)
    return {"error": wrong / number, "ece": ece, **dict(means)}


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
