"""Calibration errors of predicted probabilities. All return fractions, 0 for perfect."""

import torch

from dualfocal._checks import check_choice, check_count
from dualfocal.losses.kde import BANDWIDTHS, check_kernel, kde_rows, log_dirichlet_kernels, log_floor
from dualfocal.metrics._ranked import Ranked
from dualfocal.metrics.bins import CONVENTIONS, BinStats, equal_edges, to_units
from dualfocal.metrics.rows import Array, Rows, as_rows
from dualfocal.metrics.scan import Scan, scan

ELEMENTS = 1 << 23  # of the kernel matrix held at a time


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
    return float(_bins(logits, target, input, num_bins, ignore_index, binary, sample_weight, convention).ece())


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
    return float(_bins(logits, target, input, num_bins, ignore_index, binary, sample_weight, convention).mce())


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
    rows = as_rows(logits, target, input=input, ignore_index=ignore_index, sample_weight=sample_weight)
    return float(scan(rows, num_bins=num_bins, classwise=True).classes.ece().mean())


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
    check_choice("convention", convention, (None, "published"))
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
    bins = _bins(logits, target, input, num_bins, ignore_index, binary)
    return float(bins.squared_error().clamp_min(0).sqrt())


def kde_ece(
    logits: Array,
    target: Array,
    *,
    input: str = "logits",
    bandwidth: float | str = 0.001,
    norm: float = 1.0,
    ignore_index: int = -100,
) -> float:
    """ECE_KDE: mean_j || sum_i k_ji y_i / sum_i k_ji - p_j ||_n^n, with Dirichlet kernels k and i != j.

    Unlike the ECE it looks at the whole distribution, not at the predicted class alone, and has no bins; it is as
    biased by small samples. The paper's call is the default: h = .001, n = 1. Time grows with N^2, memory with N.

    Args:
        logits: as :func:`~dualfocal.metrics.ece`.
        target: likewise.
        input: likewise.
        bandwidth: h > 0; ``"likelihood"``: the one of twenty with the largest leave-one-out likelihood.
        norm: n, at least 1.
        ignore_index: likewise.

    Returns:
        A fraction for n = 1 (of 2, the largest value there is).

    >>> import torch
    >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    >>> round(kde_ece(probs, torch.tensor([0, 0, 1]), input="probs", bandwidth=0.1), 4)
    0.4381
    """
    check_kernel(bandwidth, norm)
    rows = as_rows(logits, target, input=input, ignore_index=ignore_index)
    scan(rows)  # for its checks of every row, before anything quadratic starts
    n = len(rows)
    if n < 2:
        raise ValueError("kde_ece needs at least two samples, got 1")
    values = rows.values.double()
    log_p = log_floor(values.log_softmax(1) if input == "logits" else values.log())
    step = max(1, ELEMENTS // n)
    parts = [slice(start, start + step) for start in range(0, n, step)]
    if isinstance(bandwidth, str):
        likelihood = [
            sum(float(log_dirichlet_kernels(log_p, h, rows=part).logsumexp(1).sum()) for part in parts)
            for h in BANDWIDTHS
        ]
        bandwidth = BANDWIDTHS[max(range(len(BANDWIDTHS)), key=likelihood.__getitem__)]
    one_hot = torch.nn.functional.one_hot(rows.target, rows.num_classes).to(log_p.dtype)
    total = sum(float(kde_rows(log_p, one_hot, bandwidth, norm, rows=part).sum()) for part in parts)
    return total / n


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
    if convention != "torchmetrics":
        return BinStats.from_units(seen.confidence, seen.correct, edges, rows.weight)
    index = torch.bucketize(seen.confidence, to_units(edges), right=True) - 1  # [lo, hi), and one more for 1
    return BinStats.from_index(index, seen.confidence, seen.correct, torch.cat([edges, edges[-1:]]), rows.weight)


def _bins(
    logits: Array,
    target: Array,
    input: str,
    num_bins: int,
    ignore_index: int,
    binary: str | None,
    sample_weight: Array | None = None,
    convention: str | None = None,
) -> BinStats:
    check_choice("convention", convention, CONVENTIONS)
    rows = as_rows(logits, target, input=input, ignore_index=ignore_index, binary=binary, sample_weight=sample_weight)
    return top_bins(scan(rows, as_given=convention is not None), rows, num_bins, convention)
