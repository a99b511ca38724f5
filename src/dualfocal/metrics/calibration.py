"""Calibration errors of predicted probabilities. All return fractions, 0 for perfect."""

import torch
from torch import Tensor

from dualfocal._checks import check_count
from dualfocal.metrics._ranked import Ranked
from dualfocal.metrics.bins import BinStats, check_convention, equal_edges, from_units, scatter_sum, to_units
from dualfocal.metrics.rows import Array, Rows, as_rows
from dualfocal.metrics.scan import Scan, scan


def ece(
    logits: Array,
    target: Array,
    *,
    input: str = "logits",
    num_bins: int = 15,
    ignore_index: int = -100,
    binary: str | None = None,
    sample_weight: Array | None = None,
    convention: str | None = None,
) -> float:
    """Expected calibration error: sum over bins of |B|/N times |accuracy - mean confidence|.

    Bins ``(lo, hi]`` of equal width over the confidence of the predicted class; every sample is counted, in float64
    and without rounding in the sums.

    A finite sample of a perfectly calibrated model does not score 0: :func:`evaluate` with ``inference=True`` says
    what it scores.

    Args:
        logits: ``(N, C)`` or ``(N, C, d1, ...)``, a tensor or a numpy array; or ``(N,)``, the score of class 1, with
            ``binary``. GPU tensors stay where they are.
        target: class indices, ``(N,)`` or ``(N, d1, ...)``.
        input: what ``logits`` holds, ``"logits"`` or ``"probs"``; never guessed.
        num_bins: number of bins.
        ignore_index: samples of this target are left out.
        binary: for two classes: ``"top_label"``, the confidence of the predicted class (as with more classes), or
            ``"positive"``, that of class 1 against its frequency.
        sample_weight: ``(N,)`` or ``(N, d1, ...)``, not negative.
        convention: ``"published"``, as Mukhoti et al. and Tao et al. compute it: the confidence is rounded to the
            dtype of the input, all else is the same. ``"torchmetrics"``: likewise rounded, bins ``[lo, hi)`` and a bin
            of its own for confidence 1.

    Returns:
        A fraction.

    >>> import torch
    >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> round(ece(probs, torch.tensor([0, 0, 0]), input="probs"), 4)
    0.4333
    """
    bins = _bins(logits, target, input, num_bins, ignore_index, binary, sample_weight, convention, "ECE")
    return float(bins.ece())


def mce(
    logits: Array,
    target: Array,
    *,
    input: str = "logits",
    num_bins: int = 15,
    ignore_index: int = -100,
    binary: str | None = None,
    sample_weight: Array | None = None,
    convention: str | None = None,
) -> float:
    """Maximum calibration error: the largest |accuracy - mean confidence| of any bin that is not empty.

    A bin of one sample counts as much as one of a thousand: very noisy. Arguments as :func:`ece`.

    >>> import torch
    >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> round(mce(probs, torch.tensor([0, 0, 0]), input="probs"), 4)
    0.8
    """
    bins = _bins(logits, target, input, num_bins, ignore_index, binary, sample_weight, convention, "MCE")
    return float(bins.mce())


def classwise_ece(
    logits: Array,
    target: Array,
    *,
    input: str = "logits",
    num_bins: int = 15,
    ignore_index: int = -100,
    sample_weight: Array | None = None,
) -> float:
    """Classwise ECE: for each class all samples, binned by the probability of that class; mean over the classes.

    Arguments as :func:`ece`.

    >>> import torch
    >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> round(classwise_ece(probs, torch.tensor([0, 0, 0]), input="probs"), 4)
    0.4333
    """
    check_count("num_bins", num_bins)
    rows = as_rows(logits, target, input=input, ignore_index=ignore_index, sample_weight=sample_weight)
    bins = scan(rows, num_bins=num_bins, classwise=True).classes
    assert bins is not None
    return float(bins.ece().mean())


def adaptive_ece(
    logits: Array,
    target: Array,
    *,
    input: str = "logits",
    num_bins: int = 15,
    ignore_index: int = -100,
    binary: str | None = None,
    convention: str | None = None,
) -> float:
    """Adaptive ECE: as :func:`ece`, in bins of equal mass between interpolated quantiles of the confidence.

    ``convention="published"`` leaves out the samples of the lowest confidence, as the published code does; the
    result differs by at most their share. Arguments as :func:`ece`.

    >>> import torch
    >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> round(adaptive_ece(probs, torch.tensor([0, 0, 0]), input="probs", num_bins=3), 4)
    0.1667
    >>> round(adaptive_ece(probs, torch.tensor([0, 0, 0]), input="probs", num_bins=3, convention="published"), 4)
    0.3
    """
    check_count("num_bins", num_bins)
    check_convention(convention, of="adaptive ECE", allowed=("published",))
    rows = as_rows(logits, target, input=input, ignore_index=ignore_index, binary=binary)
    seen = scan(rows, as_given=convention is not None)
    return adaptive_error(Ranked.of(seen.confidence, seen.correct), num_bins, convention)[0]


def debiased_ece(
    logits: Array,
    target: Array,
    *,
    input: str = "logits",
    num_bins: int = 15,
    ignore_index: int = -100,
    binary: str | None = None,
) -> float:
    """Root of the debiased squared calibration error, sum_b |B|/N [(acc - conf)^2 - acc (1 - acc) / (|B| - 1)].

    Unlike the ECE its expectation does not grow as samples get fewer: sampling noise is taken out bin by bin (Kumar et
    al., NeurIPS 2019). An estimate below 0 is given as 0. Arguments as :func:`ece`.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> probs = torch.rand(1000, 1, generator=generator) * torch.tensor([[0.5, -0.5]]) + torch.tensor([[0.5, 0.5]])
    >>> target = torch.multinomial(probs, 1, generator=generator)[:, 0]  # calibrated
    >>> round(ece(probs, target, input="probs"), 3), round(debiased_ece(probs, target, input="probs"), 3)
    (0.032, 0.009)
    """
    bins = _bins(logits, target, input, num_bins, ignore_index, binary, None, None, "debiased ECE")
    return float(bins.squared_error().clamp_min(0).sqrt())


def adaptive_error(ranked: Ranked, num_bins: int, convention: str | None) -> tuple[float, BinStats]:
    """The adaptive ECE over all samples, and its bins."""
    bins = ranked.adaptive_bins(num_bins, drop_lowest=convention == "published")
    return float(bins.gap.abs().sum()) / len(ranked), bins


def top_bins(seen: Scan, rows: Rows, num_bins: int, convention: str | None) -> BinStats:
    """The bins of equal width, as the convention has them."""
    edges = equal_edges(num_bins, rows.dtype, rows.values.device)
    if convention is not None:  # both have the edges of linspace, some of which are an ulp off
        theirs = torch.linspace(0, 1, num_bins + 1, dtype=rows.values.dtype, device=rows.values.device)
        edges = theirs.to(edges.dtype)
    if convention == "torchmetrics":
        return _left_closed(seen, rows, edges)
    return BinStats.from_units(seen.confidence, seen.correct, edges, rows.weight)


def _bins(
    logits: Array,
    target: Array,
    input: str,
    num_bins: int,
    ignore_index: int,
    binary: str | None,
    sample_weight: Array | None,
    convention: str | None,
    name: str,
) -> BinStats:
    check_count("num_bins", num_bins)
    check_convention(convention, of=name)
    rows = as_rows(logits, target, input=input, ignore_index=ignore_index, binary=binary, sample_weight=sample_weight)
    return top_bins(scan(rows, as_given=convention is not None), rows, num_bins, convention)


def _left_closed(seen: Scan, rows: Rows, edges: Tensor) -> BinStats:
    """Bins ``[lo, hi)`` and one more for confidence 1: torchmetrics'."""
    index = torch.bucketize(seen.confidence, to_units(edges), right=True) - 1
    once = torch.ones_like(index) if rows.weight is None else rows.weight
    confidence = seen.confidence if rows.weight is None else from_units(seen.confidence) * once
    return BinStats(
        count=scatter_sum(index, once, len(edges)),
        confidence=scatter_sum(index, confidence, len(edges)),
        correct=scatter_sum(index, seen.correct * once, len(edges)),
        edges=torch.cat([edges, edges[-1:]]),
    )
