"""Find samples that are copies of others: the same predictions and the same label.

Equal predictions alone are no sign of copies. The probabilities of a tree, rounded probabilities and saturated logits
are equal for many samples. Such samples are still independent, and have different labels about as often as their
probabilities say: two samples with the probabilities p with probability 1 - sum_c p_c^2. Copies never have. Predictions
that more than 50 samples share are left out.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.metrics.samples import Samples

TILE = 1 << 20  # values at a time
SHARE_OF_COPIES = 0.1  # of the samples; fewer hardly matter
LEAST_EXPECTED = 10.0  # pairs with different labels that independent samples would have; with fewer, chance may decide
MOST_COPIES = 50  # of a sample; more samples with equal predictions have a model with few different predictions
SAME = "have the same predictions and the same label as others"
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def copies_warning(samples: Samples) -> str | None:
    """Return a warning if many samples are copies of others, or None.

    >>> logits, target = torch.randn(200, 3), torch.randint(3, (200,))
    >>> samples = Samples(logits.repeat(2, 1), target.repeat(2))
    >>> copies_warning(samples)[:73]
    '200 of 400 samples have the same predictions and the same label as others'
    """
    key, size = np.unique(_row_keys(samples.values), return_inverse=True, return_counts=True)[1:]
    repeated = np.flatnonzero((size > 1)[key] & (size <= MOST_COPIES)[key])
    if len(repeated) < SHARE_OF_COPIES * len(samples):
        return None
    label = samples.target.cpu().numpy()[repeated]
    cell, count = np.unique(key[repeated] * samples.num_classes + label, return_counts=True)
    copies = int((count - 1).sum())
    # Among n samples with equal predictions, in any order, this many neighbours have different labels on average.
    different = len(repeated) - float((count**2 / size[cell // samples.num_classes]).sum())
    later = repeated[np.setdiff1d(np.arange(len(repeated)), np.unique(key[repeated], return_index=True)[1])]
    expected = _expected_differences(samples, torch.from_numpy(later).to(samples.values.device))
    if copies < SHARE_OF_COPIES * len(samples) or expected < LEAST_EXPECTED or different > expected / 2:
        return None
    return (
        f"{copies:,} of {len(samples):,} samples {SAME}. If they are copies, p-values and intervals are too small: "
        "remove the copies, or give all copies of a sample the same cluster, with clusters=..."
    )


def _row_keys(values: Tensor) -> NDArray[np.int64]:
    """Return an integer for each row, which is the same for equal rows."""
    rng = np.random.default_rng(0)
    factors = torch.from_numpy(rng.integers(1 << 62, size=values.shape[1]) * 2 + 1).to(values.device)
    kind, step = INTEGERS[values.element_size()], max(1, TILE // values.shape[1])
    parts = [
        (values[start : start + step].contiguous().view(kind).long() * factors).sum(1)
        for start in range(0, len(values), step)
    ]
    keys: NDArray[np.int64] = torch.cat(parts).cpu().numpy()
    return keys


def _expected_differences(samples: Samples, index: Tensor) -> float:
    """Return how many of these samples would have another label than an independent one with the same probabilities."""
    total, step = 0.0, max(1, TILE // samples.num_classes)
    for start in range(0, len(index), step):
        p = samples.values[index[start : start + step]].double()
        p = p.softmax(1) if samples.input == "logits" else p / p.sum(1, keepdim=True)
        total += float((1 - (p * p).sum(1)).sum())
    return total
