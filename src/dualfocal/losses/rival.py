"""Definitions of the rival p_j: the rows of the paper's table "Ablation Study".

``"next"`` is the published method: the largest probability strictly below that of the target. The ablation uses the
n-th largest below, the mean of the first two, of the first three or of all below, and constants. The ``"batch_"`` forms
average the rival over the batch into one scalar, as in the authors' ablation code. A missing class counts as
probability 0. Classes masked by a logit of -inf are ignored.
"""

import numpy as np
import torch
from torch import Tensor

from dualfocal._tensors import can_read_values, check_number

# Slice of the classes below the target, largest first, that is averaged.
PLACES = {"next": (0, 1), "2nd": (1, 2), "3rd": (2, 3), "mean2": (0, 2), "mean3": (0, 3)}
KINDS = (*PLACES, "mean_all")
NAMES = (*KINDS, *(f"batch_{kind}" for kind in KINDS))


def check_rival(rival: str | float) -> None:
    """Raise a ValueError unless ``rival`` is one of NAMES or a probability."""
    if isinstance(rival, str):
        if rival not in NAMES:
            raise ValueError(f"rival must be a number or one of {', '.join(map(repr, NAMES))}, got {rival!r}")
    else:
        check_number("a constant rival", rival, 0.0, 1.0)


def true_and_rival(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities p_k of the true class and p_j of its rival, the largest strictly below p_k (0 if none), (N,) each.

    >>> true_and_rival(torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([0]))
    (tensor([0.7000]), tensor([0.2000]))
    """
    p = logits.softmax(1)
    z_k = logits.gather(1, target[:, None])
    p_j = p.masked_fill(logits >= z_k, 0.0).amax(1)
    return p.gather(1, target[:, None])[:, 0], p_j


def rival_of_target(
    z: Tensor, z_t: Tensor, top: Tensor, total: Tensor, rival: str | float | None, keep: Tensor | None
) -> Tensor:
    """p_j of the target of each row, (M,), differentiable in z; softmax = exp(z - top) / total."""
    if not isinstance(rival, str):
        return torch.full_like(total[:, 0], rival or 0.0)
    kind = rival.removeprefix("batch_")
    below = (z < z_t) & (z > -torch.inf)
    masked = torch.where(below, z, -torch.inf).detach()
    if kind == "mean_all":
        sums = torch.where(below, (z - top).exp(), 0.0).sum(1)
        p_j = sums / total[:, 0] / below.sum(1).clamp_min(1)
    else:
        first, last = PLACES[kind]
        if last == 1:
            index = masked.max(1, keepdim=True).indices
        else:  # stable, so that of tied classes the lower index comes first
            index = masked.sort(dim=1, descending=True, stable=True).indices[:, first:last]
        exists = below.gather(1, index)
        e_j = torch.where(exists, (z.gather(1, index) - top).exp(), 0.0)
        p_j = e_j.sum(1) / total[:, 0] / (last - first)
    if kind == rival:
        return p_j
    if keep is None:
        return p_j.mean().expand_as(p_j)
    return (torch.where(keep, p_j, 0.0).sum() / keep.sum().clamp_min(1)).expand_as(p_j)


def rival_of_each_class(z: Tensor, p: Tensor, rival: str | float | None) -> Tensor:
    """p_{j(i)} of every class i of every row, (M, C), where j(i) is the rival of i as the target."""
    if not isinstance(rival, str):
        return torch.full_like(p, rival or 0.0)
    if rival not in KINDS:
        raise ValueError(
            f"rival {rival!r} needs class indices: with class probabilities or label smoothing "
            "there is not one rival per row"
        )
    order, first_below = _descending(z)
    p = p.gather(1, order)
    if rival == "mean_all":
        sums = torch.cat([p.flip(1).cumsum(1).flip(1), torch.zeros_like(p[:, :1])], 1)
        count = (z > -torch.inf).sum(1, keepdim=True) - first_below
        p_j = sums.gather(1, first_below) / count.clamp_min(1)
    else:
        first, last = PLACES[rival]
        padded = torch.cat([p, p.new_zeros(p.shape[0], last)], 1)
        p_j = torch.zeros_like(p)
        for n in range(first, last):
            p_j = p_j + padded.gather(1, first_below + n)
        p_j = p_j / (last - first)
    return torch.zeros_like(p_j).scatter(1, order, p_j)


def next_of_each_class(z: Tensor) -> Tensor:
    """Index of the largest class strictly below each class, (M, C); C if there is none."""
    order, first_below = _descending(z)
    below = torch.cat([order, torch.full_like(order[:, :1], z.shape[1])], 1).gather(1, first_below)
    return torch.empty_like(order).scatter_(1, order, below)


def _descending(z: Tensor) -> tuple[Tensor, Tensor]:
    """Classes of each row in descending order (stable), and the position of the first class strictly below each.

    The position is C if there is no class below.
    """
    num_classes = z.shape[1]
    fast = z.dtype == torch.float32 and can_read_values(z)
    order = _argsort_by_numpy(z) if fast else z.argsort(dim=1, descending=True, stable=True)
    z = z.gather(1, order)
    following = torch.arange(1, num_classes + 1, device=z.device).expand_as(z)
    drops = torch.cat([z[:, 1:] < z[:, :-1], torch.ones_like(z[:, :1], dtype=torch.bool)], 1)
    return order, torch.where(drops, following, num_classes).flip(1).cummin(1).values.flip(1)


def _argsort_by_numpy(z: Tensor) -> Tensor:
    """Stable, descending argsort of float32 rows by an integer sort of numpy, ten times faster than torch.

    Positive floats are ordered like their bits read as integers, negative floats in the opposite order.
    """
    bits = (z + 0.0).contiguous().numpy().view(np.int32)  # -0.0 becomes 0.0
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    key = (~ascending).astype(np.int64) << 32 | np.arange(z.shape[1])  # ties are ordered by class index
    key.sort(axis=1)
    return torch.from_numpy(key & 0xFFFFFFFF)
