"""Data that a page embeds to compute confidences softmax(z / T) at every temperature T of its slider.

With few classes, the page gets the logits as float32. With many classes, it gets s = log sum exp((z - max z) / T) of
each sample for every position of the slider: the confidence is exp(-s), and the NLL is s - (z_target - max z) / T, so
nothing is approximated. If even that would make the page too large, it gets a random subset of the samples, and says
so.

Where float32 is not exact (float64 input, or probabilities that do not quite sum to 1), the page also gets confidence
and NLL at T = 1 in float64, as in the tables. The predicted class is always included.
"""

import base64
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dualfocal.calibrators.inputs import log_probs, zero_values
from dualfocal.metrics.samples import Samples
from dualfocal.metrics.scan import Scan

OCTAVES, STEPS = 2.5, 8  # slider: T from 2^-2.5 to 2^2.5, eight steps per doubling
GRID = tuple(2.0 ** (k / STEPS) for k in range(-int(OCTAVES * STEPS), int(OCTAVES * STEPS) + 1))
BYTES = 4 / 3 * 4  # of base64 per 32-bit number
PADDING = 8
ONE = 1 << 32  # a confidence of 1, as the page counts it
BLOCK = 1 << 22  # logits converted to float64 at a time
EXACT = 4  # 32-bit numbers for confidence and NLL in float64
SIGNIFICANT = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}  # bits of a dtype
LOWEST = float(torch.finfo(torch.float32).min)


def embed(
    samples: Samples,
    scanned: Scan,
    predicted: Tensor,
    limit: float,
    *,
    fitted: float | None = None,
    effect: float = 1.0,
    seed: int = 0,
) -> tuple[dict[str, Any], str]:
    """Encode the samples, or a random subset that fits into ``limit`` bytes of base64.

    Args:
        samples: the samples.
        scanned: their confidence and NLL.
        predicted: predicted class of each sample.
        limit: maximum number of bytes.
        fitted: a temperature to add to the slider.
        effect: design effect of the clusters of the samples, for noise floors and ranges.
        seed: seed of the random subset.

    Returns:
        A description of the arrays, and the base64 of the little-endian arrays, one after the other.
    """
    n = len(samples)
    temperatures = sorted({*GRID} if fitted is None else {*GRID, fitted})
    whole, reduced = _whole(samples), len(temperatures) + 3 + EXACT + _weights(samples)  # 32-bit numbers per sample
    log_sums = n * whole * BYTES > limit and reduced < whole and not samples.positive
    count = min(n, max(1, int(limit / BYTES / (reduced if log_sums else whole))))
    chosen: slice | Tensor = slice(None)
    if count < n:
        chosen = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:count].sort().values
    values, target = samples.values[chosen], samples.target[chosen]
    exact = log_sums or samples.values.dtype == torch.float64
    zeros = zero_values(samples) if samples.input == "probs" else ()
    clipped, arrays = False, [values]
    if log_sums:
        logits = values if samples.input == "logits" else log_probs(values, zeros)
        of_target = logits.gather(1, target[:, None])[:, 0].double() - logits.amax(1)
        of_target, clipped = _in_range(of_target)
        arrays = [_log_sums(logits, temperatures), of_target]
    elif samples.input == "logits" and exact:
        values, clipped = _in_range(values - values.amax(1, keepdim=True))
        arrays = [values]
    numbers = (scanned.confidence * ONE).round(), scanned.nll  # the page rounds confidences to multiples of 2^-32
    wide = [torch.from_numpy(column)[chosen] for column in (numbers if exact else ())]
    wide += [] if samples.weight is None else [samples.weight[chosen]]
    content = [
        *(_bytes(array, "<f8") for array in wide),  # first, since float64 arrays must be aligned to 8 bytes
        *(_bytes(array, "<f4") for array in arrays),
        *(_bytes(array, "<u4") for array in (target, predicted[chosen])),
    ]
    description = {
        "kind": "log_sums" if log_sums else samples.input,
        "input": samples.input,  # kind of the predictions
        "count": count,
        "total": n,  # number of all samples
        "numClasses": samples.num_classes,
        "positive": samples.positive,  # whether the confidence is the probability of class 1
        "exact": exact,  # whether confidence and NLL at T = 1 are included
        "weighted": samples.weight is not None,  # whether the weights of the samples are included
        "designEffect": effect,  # of the clusters of the samples; 1: the samples are independent
        "edgeBits": SIGNIFICANT[samples.dtype],  # precision of the bin edges at T = 1
        "clipped": clipped,  # whether logit differences exceed the range of float32
        "zeros": list(zeros),  # replacements of a probability of 0 at other temperatures: one, or one per class
        "temperatures": temperatures if log_sums else [],  # of log_sums
    }
    return description, base64.b64encode(b"".join(content)).decode()


def deal(samples: Sequence[Samples], room: float) -> list[float]:
    """Return the bytes of base64 for each set of samples: enough for all logits if they fit, else fair shares."""
    whole = [len(own) * _whole(own) * BYTES + PADDING for own in samples]
    if sum(whole) <= room:
        return whole
    reduced = [len(own) * (len(GRID) + 4 + EXACT + _weights(own)) * BYTES + PADDING for own in samples]
    least = [w if own.positive else min(w, r) for own, w, r in zip(samples, whole, reduced, strict=True)]
    return shares(least, room)


def shares(needs: list[float], total: float) -> list[float]:
    """Split ``total`` fairly: no share exceeds its need, and what is left goes to the others.

    >>> shares([10, 100, 100], 90)
    [10, 40.0, 40.0]
    """
    split = [0.0] * len(needs)
    order = sorted(range(len(needs)), key=needs.__getitem__)
    for place, i in enumerate(order):
        split[i] = min(needs[i], total / (len(order) - place))
        total -= split[i]
    return split


def _whole(samples: Samples) -> int:
    """Return the 32-bit numbers per sample if all classes are embedded."""
    return samples.num_classes + 2 + (EXACT if samples.values.dtype == torch.float64 else 0) + _weights(samples)


def _weights(samples: Samples) -> int:
    """Return the 32-bit numbers per sample for its weight in float64."""
    return 0 if samples.weight is None else 2


def _log_sums(logits: Tensor, temperatures: list[float]) -> Tensor:
    """Return log sum exp((z - max z) / T), of shape (N, T)."""
    sums = []
    for block in torch.split(logits, max(1, BLOCK // logits.shape[1])):
        below = block.double() - block.amax(1, keepdim=True)
        sums.append(torch.stack([(below / temperature).exp_().sum(1).log_() for temperature in temperatures], dim=1))
    return torch.cat(sums)


def _in_range(below: Tensor) -> tuple[Tensor, bool]:
    """Clip finite values to the range of float32; return them, and whether any was clipped."""
    low = (below < LOWEST) & below.isfinite()
    return below.masked_fill(low, LOWEST), bool(low.any())


def _bytes(array: Tensor, kind: str) -> bytes:
    """Return the bytes of a tensor as a numpy dtype; numpy has no bfloat16."""
    return (array.float() if array.dtype == torch.bfloat16 else array).cpu().numpy().astype(kind).tobytes()
