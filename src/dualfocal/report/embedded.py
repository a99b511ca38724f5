"""The numbers a page carries, so that it can compute: logits, or what is left of them that is needed.

A page computes confidences softmax(z / T) at any temperature T of its slider. With few classes it gets the logits, as
float32. With many it gets of each sample log sum exp((z - max z) / T) for every position of the slider: the confidence
is its exp(-...), and that less (z_target - max z) / T is the NLL, so that nothing is approximated. Where even that
would make the page too large it gets a random part of the samples, and says so.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dualfocal.calibrators import log_probs
from dualfocal.metrics._rows import Rows

OCTAVES, STEPS = 2.5, 8  # of the slider: T from 2^-2.5 to 2^2.5, eight steps for each doubling
GRID = tuple(2.0 ** (k / STEPS) for k in range(-int(OCTAVES * STEPS), int(OCTAVES * STEPS) + 1))
BYTES = 4 / 3 * 4  # of base64 for a number of 32 bits
PADDING = 8
BLOCK = 1 << 22  # logits widened at a time


@dataclass(frozen=True)
class Embedded:
    """Base64 of little-endian arrays, one after the other, and how to read it."""

    kind: str  # "logits", "probs" or "log_sums"
    count: int  # samples
    total: int  # of which they are a random part, if it is larger
    num_classes: int
    positive: bool  # whether the confidence is that of class 1
    temperatures: tuple[float, ...]  # of log_sums; () otherwise
    text: str

    def describe(self) -> dict[str, object]:
        """All but the numbers themselves."""
        return {
            "kind": self.kind,
            "count": self.count,
            "total": self.total,
            "numClasses": self.num_classes,
            "positive": self.positive,
            "temperatures": list(self.temperatures),
        }


def embed(rows: Rows, predicted: Tensor, limit: float, *, fitted: float | None = None, seed: int = 0) -> Embedded:
    """Put as many samples as ``limit`` bytes of base64 hold into text, all if they fit.

    Args:
        rows: the samples.
        predicted: class of each.
        limit: bytes.
        fitted: a temperature that the slider shall have, too.
        seed: of the choice of samples.
    """
    n, num_classes = len(rows), rows.num_classes
    temperatures = tuple(sorted({*GRID, *([] if fitted is None else [fitted])}))
    whole, reduced = num_classes + 1, len(temperatures) + 3  # numbers for a sample
    few = n * whole * BYTES > limit and reduced < whole and not rows.positive
    count = min(n, max(1, int(limit / BYTES / (reduced if few else whole))))
    values, target = rows.values, rows.target
    if count < n:
        chosen = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:count].sort().values
        values, target, predicted = values[chosen], target[chosen], predicted[chosen]
    arrays: tuple[Tensor, ...]
    if few:
        logits = values if rows.input == "logits" else log_probs(values)
        arrays = (*_log_sums(logits, target, temperatures), target, predicted)
    else:
        arrays = (values, target)
    return Embedded(
        kind="log_sums" if few else rows.input,
        count=count,
        total=n,
        num_classes=num_classes,
        positive=rows.positive,
        temperatures=temperatures if few else (),
        text=base64.b64encode(b"".join(map(_bytes, arrays))).decode(),
    )


def deal(samples: Sequence[Rows], room: float) -> list[float]:
    """Bytes of base64 for each set of samples: for all logits of all of them if there is room, else fair shares."""
    whole = [len(rows) * (rows.num_classes + 1) * BYTES + PADDING for rows in samples]
    if sum(whole) <= room:
        return whole
    reduced = [len(rows) * (len(GRID) + 4) * BYTES + PADDING for rows in samples]
    least = [w if rows.positive else min(w, r) for rows, w, r in zip(samples, whole, reduced, strict=True)]
    return shares(least, room)


def shares(needs: list[float], total: float) -> list[float]:
    """Deal out ``total``: nobody gets more than he needs, and what one leaves goes to the others.

    >>> shares([10, 100, 100], 90)
    [10, 40.0, 40.0]
    """
    given = [0.0] * len(needs)
    order = sorted(range(len(needs)), key=needs.__getitem__)
    for place, i in enumerate(order):
        given[i] = min(needs[i], total / (len(order) - place))
        total -= given[i]
    return given


def _log_sums(logits: Tensor, target: Tensor, temperatures: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """log sum exp((z - max z) / T), (N, T), and z_target - max z, (N,)."""
    sums = torch.empty(len(logits), len(temperatures), dtype=torch.float64)
    of_target = torch.empty(len(logits), dtype=torch.float64)
    step = max(1, BLOCK // logits.shape[1])
    for start in range(0, len(logits), step):
        here = slice(start, start + step)
        below = logits[here].double()
        below -= below.amax(1, keepdim=True)
        of_target[here] = below.gather(1, target[here, None])[:, 0]
        for k, temperature in enumerate(temperatures):
            sums[here, k] = (below / temperature).exp_().sum(1).log_()
    return sums, of_target


def _bytes(array: Tensor) -> bytes:
    kind = "<f4" if array.is_floating_point() else "<u4"
    if array.dtype in (torch.float16, torch.bfloat16):
        array = array.float()
    return np.ascontiguousarray(array.cpu().numpy().astype(kind)).tobytes()
