"""The numbers a page carries, so that it can compute: logits, or what is left of them that is needed.

A page computes confidences softmax(z / T) at any temperature T of its slider. With few classes it gets the logits, as
float32. With many it gets of each sample log sum exp((z - max z) / T) for every position of the slider: the confidence
is its exp(-...), and that less (z_target - max z) / T is the NLL, so that nothing is approximated. Where even that
would make the page too large it gets a random part of the samples, and says so.

Where float32 loses something - of float64 input, or by log sums of probabilities that do not quite sum to 1 - the page
also gets confidence and NLL at T = 1 in float64, as the tables have them. The predicted class always comes along.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dualfocal.calibrators.inputs import log_probs, zero_values
from dualfocal.metrics.rows import Rows
from dualfocal.metrics.scan import Scan

OCTAVES, STEPS = 2.5, 8  # of the slider: T from 2^-2.5 to 2^2.5, eight steps for each doubling
GRID = tuple(2.0 ** (k / STEPS) for k in range(-int(OCTAVES * STEPS), int(OCTAVES * STEPS) + 1))
BYTES = 4 / 3 * 4  # of base64 for a number of 32 bits
PADDING = 8
BLOCK = 1 << 22  # logits widened at a time
EXACT = 4  # numbers of 32 bits for confidence and NLL in float64
SIGNIFICANT = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}  # bits of a dtype
LOWEST = float(torch.finfo(torch.float32).min)


@dataclass(frozen=True)
class Embedded:
    """Base64 of little-endian arrays, one after the other, and how to read it."""

    kind: str  # "logits", "probs" or "log_sums"
    input: str  # what they were made from, "logits" or "probs"
    count: int  # samples
    total: int  # of which they are a random part, if it is larger
    num_classes: int
    positive: bool  # whether the confidence is that of class 1
    exact: bool  # whether confidence and NLL at T = 1 come along
    edge_bits: int  # to which edges of bins are rounded at T = 1
    clipped: bool  # whether logits lie further below the largest than float32 can say
    zeros: tuple[float, ...]  # what a probability of 0 counts as at other temperatures, of two classes for each
    temperatures: tuple[float, ...]  # of log_sums; () otherwise
    text: str

    def describe(self) -> dict[str, object]:
        """All but the numbers themselves."""
        return {
            "kind": self.kind,
            "input": self.input,
            "count": self.count,
            "total": self.total,
            "numClasses": self.num_classes,
            "positive": self.positive,
            "exact": self.exact,
            "edgeBits": self.edge_bits,
            "clipped": self.clipped,
            "zeros": list(self.zeros),
            "temperatures": list(self.temperatures),
        }


def embed(
    rows: Rows, seen: Scan, predicted: Tensor, limit: float, *, fitted: float | None = None, seed: int = 0
) -> Embedded:
    """Put as many samples as ``limit`` bytes of base64 hold into text, all if they fit.

    Args:
        rows: the samples.
        seen: their confidence and NLL.
        predicted: class of each.
        limit: bytes.
        fitted: a temperature that the slider shall have, too.
        seed: of the choice of samples.
    """
    assert seen.nll is not None
    n = len(rows)
    temperatures = tuple(sorted({*GRID, *([] if fitted is None else [fitted])}))
    whole, reduced = _whole(rows), len(temperatures) + 3 + EXACT  # numbers for a sample
    few = n * whole * BYTES > limit and reduced < whole and not rows.positive
    count = min(n, max(1, int(limit / BYTES / (reduced if few else whole))))
    chosen: slice | Tensor = slice(None)
    if count < n:
        chosen = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:count].sort().values
    values, target = rows.values[chosen], rows.target[chosen]
    exact = few or rows.values.dtype == torch.float64
    zeros = zero_values(rows) if rows.input == "probs" and n else ()
    clipped = False
    if few:
        logits = values if rows.input == "logits" else log_probs(values, zeros)
        sums, of_target = _log_sums(logits, target, temperatures)
        of_target, clipped = _in_range(of_target)
        arrays: tuple[Tensor, ...] = (sums, of_target)
    else:
        if rows.input == "logits" and exact:
            values, clipped = _in_range(values - values.amax(1, keepdim=True))
        arrays = (values,)
    text = b"".join(_bytes(array) for array in (*arrays, target, predicted[chosen]))
    if exact:  # first: eight bytes must lie at a multiple of eight
        text = _bytes(seen.confidence[chosen].double(), "<f8") + _bytes(seen.nll[chosen], "<f8") + text
    return Embedded(
        kind="log_sums" if few else rows.input,
        input=rows.input,
        count=count,
        total=n,
        num_classes=rows.num_classes,
        positive=rows.positive,
        exact=exact,
        edge_bits=SIGNIFICANT[rows.dtype],
        clipped=clipped,
        zeros=zeros,
        temperatures=temperatures if few else (),
        text=base64.b64encode(text).decode(),
    )


def deal(samples: Sequence[Rows], room: float) -> list[float]:
    """Bytes of base64 for each set of samples: for all logits of all of them if there is room, else fair shares."""
    whole = [len(rows) * _whole(rows) * BYTES + PADDING for rows in samples]
    if sum(whole) <= room:
        return whole
    reduced = [len(rows) * (len(GRID) + 4 + EXACT) * BYTES + PADDING for rows in samples]
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


def _whole(rows: Rows) -> int:
    """Numbers of 32 bits for a sample with all its classes."""
    return rows.num_classes + 2 + (EXACT if rows.values.dtype == torch.float64 else 0)


def _log_sums(logits: Tensor, target: Tensor, temperatures: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """log sum exp((z - max z) / T), (N, T), and z_target - max z, (N,)."""
    sums = torch.empty(len(logits), len(temperatures), dtype=torch.float64)
    of_target = torch.empty(len(logits), dtype=torch.float64)
    step = max(1, BLOCK // logits.shape[1])
    for start in range(0, len(logits), step):
        here = slice(start, start + step)
        below = logits[here].double()
        below = below - below.amax(1, keepdim=True)
        of_target[here] = below.gather(1, target[here, None])[:, 0]
        for k, temperature in enumerate(temperatures):
            sums[here, k] = (below / temperature).exp_().sum(1).log_()
    return sums, of_target


def _in_range(below: Tensor) -> tuple[Tensor, bool]:
    """Numbers of at most 0 that float32 can hold, and whether some were lower; a class that is ruled out stays so."""
    low = (below < LOWEST) & below.isfinite()
    return below.masked_fill(low, LOWEST), bool(low.any())


def _bytes(array: Tensor, kind: str = "") -> bytes:
    kind = kind or ("<f4" if array.is_floating_point() else "<u4")
    if array.dtype in (torch.float16, torch.bfloat16):
        array = array.float()
    return np.ascontiguousarray(array.cpu().numpy().astype(kind)).tobytes()
