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
from typing import Any

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


def embed(
    rows: Rows, seen: Scan, predicted: Tensor, limit: float, *, fitted: float | None = None, seed: int = 0
) -> tuple[dict[str, Any], str]:
    """Put as many samples as ``limit`` bytes of base64 hold into text, all if they fit.

    Args:
        rows: the samples.
        seen: their confidence and NLL.
        predicted: class of each.
        limit: bytes.
        fitted: a temperature that the slider shall have, too.
        seed: of the choice of samples.

    Returns:
        How to read the text, and base64 of little-endian arrays, one after the other.
    """
    assert seen.nll is not None
    n = len(rows)
    temperatures = sorted({*GRID} if fitted is None else {*GRID, fitted})
    whole, reduced = _whole(rows), len(temperatures) + 3 + EXACT  # numbers for a sample
    few = n * whole * BYTES > limit and reduced < whole and not rows.positive
    count = min(n, max(1, int(limit / BYTES / (reduced if few else whole))))
    chosen: slice | Tensor = slice(None)
    if count < n:
        chosen = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:count].sort().values
    values, target = rows.values[chosen], rows.target[chosen]
    exact = few or rows.values.dtype == torch.float64
    zeros = zero_values(rows) if rows.input == "probs" else ()
    clipped, arrays = False, [values]
    if few:
        logits = values if rows.input == "logits" else log_probs(values, zeros)
        of_target = logits.gather(1, target[:, None])[:, 0].double() - logits.amax(1)
        of_target, clipped = _in_range(of_target)
        arrays = [_log_sums(logits, temperatures), of_target]
    elif rows.input == "logits" and exact:
        values, clipped = _in_range(values - values.amax(1, keepdim=True))
        arrays = [values]
    at_one = [seen.confidence[chosen], seen.nll[chosen]] if exact else []
    content = [
        *(_bytes(array, "<f8") for array in at_one),  # first: eight bytes must lie at a multiple of eight
        *(_bytes(array, "<f4") for array in arrays),
        *(_bytes(array, "<u4") for array in (target, predicted[chosen])),
    ]
    description = {
        "kind": "log_sums" if few else rows.input,
        "input": rows.input,  # what they were made from
        "count": count,
        "total": n,  # of which they are a random part, if it is larger
        "numClasses": rows.num_classes,
        "positive": rows.positive,  # whether the confidence is that of class 1
        "exact": exact,  # whether confidence and NLL at T = 1 come along
        "edgeBits": SIGNIFICANT[rows.dtype],  # to which edges of bins are rounded at T = 1
        "clipped": clipped,  # whether logits lie further below the largest than float32 can say
        "zeros": list(zeros),  # what a probability of 0 counts as at other temperatures, of two classes for each
        "temperatures": temperatures if few else [],  # of log_sums
    }
    return description, base64.b64encode(b"".join(content)).decode()


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


def _log_sums(logits: Tensor, temperatures: list[float]) -> Tensor:
    """log sum exp((z - max z) / T), (N, T)."""
    sums = []
    for block in torch.split(logits, max(1, BLOCK // logits.shape[1])):
        below = block.double() - block.amax(1, keepdim=True)
        sums.append(torch.stack([(below / temperature).exp_().sum(1).log_() for temperature in temperatures], dim=1))
    return torch.cat(sums)


def _in_range(below: Tensor) -> tuple[Tensor, bool]:
    """Numbers of at most 0 that float32 can hold, and whether some were lower; a class that is ruled out stays so."""
    low = (below < LOWEST) & below.isfinite()
    return below.masked_fill(low, LOWEST), bool(low.any())


def _bytes(array: Tensor, kind: str) -> bytes:
    """The numbers as numpy writes that kind; it has no bfloat16."""
    return (array.float() if array.dtype == torch.bfloat16 else array).cpu().numpy().astype(kind).tobytes()
