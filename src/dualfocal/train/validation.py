"""Predictions of a part of the data, and what a line of the log says of them."""

from typing import TypeGuard

import torch
from torch import Tensor, nn

from dualfocal._tensors import wide_dtype
from dualfocal.data.dataset import DataSet
from dualfocal.losses import AdaFocalLoss
from dualfocal.losses.rival import true_and_rival
from dualfocal.metrics.bins import BinStats
from dualfocal.metrics.calibration import top_bins
from dualfocal.metrics.rows import as_rows
from dualfocal.metrics.scan import scan
from dualfocal.runs import Recipe
from dualfocal.train.distributed import Group
from dualfocal.train.forward import Forward, without_search

BATCH_CPU, BATCH_DEVICE = 128, 1000  # what stays in a cache; what fills a GPU
NUM_BINS = 15


@torch.no_grad()
def predict(forward: Forward, data: DataSet, part: str, group: Group) -> tuple[Tensor, Tensor]:
    """Logits and labels of this process's share of a part."""
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
    """Error, ECE, NLL, loss, mean p_k and p_j over the shares of all processes.

    Each process reduces its share to sums and bins, which are then added: bins and counts are integers, so that the
    error and the ECE do not depend on how the samples were shared.
    """
    wide = wide_dtype(logits)
    rows = as_rows(logits, target, input="logits")
    seen = scan(rows, scores=True)
    assert seen.nll is not None
    bins = top_bins(seen, rows, NUM_BINS, None)
    p_k, p_j = true_and_rival(logits.to(wide), target)
    # In batches as in training: some losses belong to a batch.
    parts = zip(torch.split(logits, batch_size), torch.split(target, batch_size), strict=True)
    loss = torch.stack([criterion(*part).to(wide) for part in parts]).sum()
    of_all = torch.stack([(~seen.right).sum(), torch.tensor(len(target), device=logits.device)])
    counts = group.sum(torch.cat([of_all, bins.count, bins.confidence, bins.correct]))
    sums = group.sum(torch.stack([seen.nll.sum(), loss, p_k.sum(), p_j.sum()]))
    wrong, number = counts[:2].tolist()
    count, confidence, correct = counts[2:].view(3, NUM_BINS)
    ece = float(BinStats(count, confidence, correct, bins.edges).ece())
    means = zip(("nll", "loss", "p_k", "p_j"), (sums / number).tolist(), strict=True)
    return {"error": wrong / number, "ece": ece, **dict(means)}


def follows_validation(criterion: nn.Module) -> TypeGuard[AdaFocalLoss]:
    """Whether the loss is updated after each epoch."""
    return isinstance(criterion, AdaFocalLoss) and not criterion.frozen


def looks_at_validation(recipe: Recipe, criterion: nn.Module) -> bool:
    """Whether training itself depends on validation data: by an adaptive loss, or by the choice of an epoch."""
    return follows_validation(criterion) or recipe.weights != "last"


def watched_part(data: DataSet) -> str:
    """Which part training itself looks at, if it does: a second validation part, if there is one."""
    return "val2" if "val2" in data.splits else "val"
