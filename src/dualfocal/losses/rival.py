"""Which probability stands for p_j: the rows of the paper's table "Ablation Study".

``"next"`` is the method: the largest class strictly below the target. The n-th below, means of the first two or
three or of all below, and constants are the ablation; the ``"batch_"`` forms average the rival over the batch into
one scalar, as the authors' ablation code did. A class that does not exist counts as probability 0. Classes masked
by a logit of -inf are not classes.
"""

import numpy as np
import torch
from torch import Tensor

from dualfocal._tensors import check_number
from dualfocal.losses._common import may_look

# The slice of the classes below, largest first, that is averaged.
PLACES = {"next": (0, 1), "2nd": (1, 2), "3rd": (2, 3), "mean2": (0, 2), "mean3": (0, 3)}
KINDS = (*PLACES, "mean_all")
NAMES = (*KINDS, *(f"batch_{kind}" for kind in KINDS))


def check_rival(rival: str | float) -> None:
    """Raise a ValueError unless ``rival`` is one of NAMES or a probability."""
    if isinstance(rival, str):
        if rival not in NAMES:
            raise ValueError(f"rival must be a constant or one of {', '.join(map(repr, NAMES))}, got {rival!r}")
    else:
        check_number("a constant rival", rival, 0.0, 1.0)


def true_and_rival(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The probabilities p_k of the true class and p_j of its rival, the largest below it (0 if none), (N,) each.

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
    """p_j of each row's target, (M,); differentiable in z through softmax = exp(z - top) / total."""
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
        else:  # stable: of tied classes the lower index comes first
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
    """p_{j(i)} of every class i of every row, (M, C): the rival each would have were it the target."""
    if not isinstance(rival, str):
        return torch.full_like(p, rival or 0.0)
    if rival not in KINDS:
        raise ValueError(f"rival {rival!r} needs class indices: a batch of soft targets has no single rival")
    order, place = _descending(z)
    p = p.gather(1, order)
    if rival == "mean_all":
        sums = torch.cat([p.flip(1).cumsum(1).flip(1), torch.zeros_like(p[:, :1])], 1)
        count = (z > -torch.inf).sum(1, keepdim=True) - place
        p_j = sums.gather(1, place) / count.clamp_min(1)
    else:
        first, last = PLACES[rival]
        padded = torch.cat([p, p.new_zeros(p.shape[0], last)], 1)
        p_j = sum((padded.gather(1, place + n) for n in range(first, last)), torch.zeros_like(p)) / (last - first)
    return torch.zeros_like(p_j).scatter(1, order, p_j)


def next_of_each_class(z: Tensor) -> Tensor:
    """The class j(i) largest below each class i, (M, C); C where there is none."""
    order, place = _descending(z)
    below = torch.cat([order, torch.full_like(order[:, :1], z.shape[1])], 1).gather(1, place)
    return torch.empty_like(order).scatter_(1, order, below)


def _descending(z: Tensor) -> tuple[Tensor, Tensor]:
    """The classes of each row, largest first, of tied ones the lower index; the place where those strictly below begin.

    The place is C for a class that has none below it.
    """
    num_classes = z.shape[1]
    fast = z.dtype == torch.float32 and may_look(z)
    order = _argsort_by_numpy(z) if fast else z.argsort(dim=1, descending=True, stable=True)
    z = z.gather(1, order)
    place = torch.arange(1, num_classes + 1, device=z.device).expand_as(z)
    drops = torch.cat([z[:, 1:] < z[:, :-1], torch.ones_like(z[:, :1], dtype=torch.bool)], 1)
    return order, torch.where(drops, place, num_classes).flip(1).cummin(1).values.flip(1)


def _argsort_by_numpy(z: Tensor) -> Tensor:
    """A stable, descending argsort of float32 rows, which numpy's sort of integers makes ten times as fast.

    Of two floats the larger has the larger bits, read as an integer, and of two negative ones the smaller bits.
    """
    bits = (z + 0.0).contiguous().numpy().view(np.int32)  # -0.0 becomes 0.0, its equal
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    key = (~ascending).astype(np.int64) << 32 | np.arange(z.shape[1])  # the class makes ties go by its number
    key.sort(axis=1)
    return torch.from_numpy(key & 0xFFFFFFFF)
