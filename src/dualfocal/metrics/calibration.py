"""Calibration errors of predicted probabilities, as fractions: 0 is perfect."""

import math
from typing import Unpack

import torch

from dualfocal.checks import check_choice, check_count
from dualfocal.metrics.arrays import Array
from dualfocal.metrics.cells import CONVENTIONS, BinStats
from dualfocal.metrics.published import conventional_bins
from dualfocal.metrics.ranking import adaptive_bins
from dualfocal.metrics.samples import SampleOptions, Samples, as_samples
from dualfocal.metrics.scan import scan

ELEMENTS = 1 << 23  # elements of the kernel matrix in memory at a time


def ece(
    logits: Array | Samples,
    target: Array | None = None,
    *,
    num_bins: int = 15,
    convention: str | None = None,
    **options: Unpack[SampleOptions],
) -> float:
    r"""Expected calibration error: the mean gap between accuracy and confidence over bins of the confidence.

    $$\text{ECE} = \sum_b \frac{|B_b|}{N} \, |\text{acc}(B_b) - \text{conf}(B_b)|$$

    Bins are ``(lo, hi]`` of equal width over the confidence of the predicted class. Every sample is counted, in
    float64.

    The ECE of a perfectly calibrated model is above 0 on a finite sample, by chance:
    :func:`~dualfocal.metrics.evaluate` with ``inference=True`` estimates this noise floor.

    Args:
        logits: predictions, ``(N, C)`` or ``(N, C, d1, ...)``; or :class:`~dualfocal.metrics.Samples`.
        target: class indices, ``(N,)`` or ``(N, d1, ...)``; None with samples.
        num_bins: number of bins.
        convention: ``"published"`` computes it like the code of Mukhoti et al. and Tao et al.: confidences are rounded
            to the dtype of the input. ``"torchmetrics"`` also rounds, and has bins ``[lo, hi)`` and one more bin for
            confidence 1. None does not round.
        **options: what predictions and targets mean: ``input``, ``ignore_index``, ``binary``, ``class_names``,
            ``clusters`` and ``sample_weight``, see :meth:`~dualfocal.metrics.Samples.from_arrays`.

    Returns:
        The error, a fraction from 0 to 1.

    Raises:
        TypeError: an argument is not an array.
        ValueError: a shape, dtype, probability or option is invalid, or no sample is left.
        IndexError: a target is not a class index.

    >>> import torch
    >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> round(ece(probs, torch.tensor([0, 0, 0]), input="probs"), 4)
    0.4333
    """
    return float(_bins(as_samples(logits, target, options), num_bins, convention).ece())


def mce(
    logits: Array | Samples,
    target: Array | None = None,
    *,
    num_bins: int = 15,
    convention: str | None = None,
    **options: Unpack[SampleOptions],
) -> float:
    r"""Maximum calibration error: the largest gap between accuracy and confidence of a bin that is not empty.

    $$\text{MCE} = \max_b |\text{acc}(B_b) - \text{conf}(B_b)|$$

    It is very noisy, because a bin with one sample counts as much as a bin with a thousand. Takes the same arguments as
    :func:`ece`.

    >>> import torch
    >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> round(mce(probs, torch.tensor([0, 0, 0]), input="probs"), 4)
    0.8
    """
    return float(_bins(as_samples(logits, target, options), num_bins, convention).mce())


def classwise_ece(
    logits: Array | Samples,
    target: Array | None = None,
    *,
    num_bins: int = 15,
    **options: Unpack[SampleOptions],
) -> float:
    r"""Classwise ECE: the ECE of the probabilities of each class over all samples, averaged over the classes.

    $$\frac{1}{K} \sum_k \sum_b \frac{|B_{bk}|}{N} \, |\text{freq}_k(B_{bk}) - \text{mean } p_k(B_{bk})|$$

    Takes the same arguments as :func:`ece`, except ``convention``.

    >>> import torch
    >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> round(classwise_ece(probs, torch.tensor([0, 0, 0]), input="probs"), 4)
    0.4333
    """
    samples = as_samples(logits, target, options)
    samples.check_classes("classwise_ece")
    classes = scan(samples, num_bins=num_bins, classwise=True).classes
    assert classes is not None
    return float(classes.sum(1).ece().mean())


def adaptive_ece(
    logits: Array | Samples,
    target: Array | None = None,
    *,
    num_bins: int = 15,
    convention: str | None = None,
    **options: Unpack[SampleOptions],
) -> float:
    """Adaptive ECE: the ECE over bins of equal mass, whose edges are interpolated quantiles of the confidence.

    With ``sample_weight``, bins have equal sums of weights. ``convention="published"`` leaves out the samples with the
    lowest confidence, like the published code; the result differs by at most their share. The other arguments are those
    of :func:`ece`.

    >>> import torch
    >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> round(adaptive_ece(probs, torch.tensor([0, 0, 0]), input="probs", num_bins=3), 4)
    0.1667
    >>> round(adaptive_ece(probs, torch.tensor([0, 0, 0]), input="probs", num_bins=3, convention="published"), 4)
    0.3
    """
    check_count("num_bins", num_bins)
    check_choice("convention", convention, (None, "published"))
    samples = as_samples(logits, target, options)
    stats, published = scan(samples, as_given=convention is not None), convention is not None
    bins = adaptive_bins(stats.confidence, stats.correct, num_bins, weight=stats.weight, drop_lowest=published)
    return float(abs(bins.gap).sum()) / len(samples)


def debiased_ece(
    logits: Array | Samples,
    target: Array | None = None,
    *,
    num_bins: int = 15,
    **options: Unpack[SampleOptions],
) -> float:
    r"""Root of the debiased squared calibration error.

    $$\sqrt{\sum_b \frac{|B_b|}{N} \left[ (\text{acc} - \text{conf})^2
    - \frac{\text{acc} (1 - \text{acc})}{|B_b| - 1} \right]}$$

    The expected sampling noise of each bin is subtracted (Kumar et al., NeurIPS 2019), so unlike the ECE it does not
    grow when there are fewer samples. A negative estimate is returned as 0. With ``sample_weight``, the noise is that
    of the weighted sums, which grows with the spread of the weights: a sample of weight 2 does not count as two
    independent ones. Takes the same arguments as :func:`ece`.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> probs = torch.rand(1000, 1, generator=generator) * torch.tensor([[0.5, -0.5]]) + torch.tensor([[0.5, 0.5]])
    >>> target = torch.multinomial(probs, 1, generator=generator)[:, 0]  # calibrated
    >>> round(ece(probs, target, input="probs"), 3), round(debiased_ece(probs, target, input="probs"), 3)
    (0.032, 0.009)
    """
    bins = _bins(as_samples(logits, target, options), num_bins)
    return math.sqrt(max(bins.squared_error(), 0.0))


def kde_ece(
    logits: Array | Samples,
    target: Array | None = None,
    *,
    bandwidth: float | str = 0.001,
    norm: float = 1.0,
    as_published: bool = False,
    **options: Unpack[SampleOptions],
) -> float:
    r"""ECE_KDE: the calibration error of the whole distribution, by Dirichlet kernels k instead of bins.

    $$\text{ECE}_\text{KDE} = \operatorname{mean}_j
    \left\| \frac{\sum_{i \ne j} k_{ji} y_i}{\max(\sum_{i \ne j} k_{ji}, 10^{-10})} - p_j \right\|_n^n$$

    It has no bins and scores the whole distribution, not only the predicted class; like the ECE it is biased upwards by
    small samples. The defaults are the paper's, h = 0.001 and n = 1. Time grows with N^2, memory with N.

    Args:
        logits: see :func:`ece`.
        target: see :func:`ece`.
        bandwidth: h > 0, or ``"likelihood"`` for the one of twenty values with the largest leave-one-out likelihood.
        norm: n, at least 1.
        as_published: compute it as the public code does: above 60 classes, without the lower limit of 1e-10.
            ``"likelihood"`` then means that of :func:`~dualfocal.losses.kde_bandwidth` with ``as_published=True``.
        **options: see :func:`ece`; without ``sample_weight``.

    Returns:
        The error; for n = 1 it is between 0 and 2.

    >>> import torch
    >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    >>> round(kde_ece(probs, torch.tensor([0, 0, 1]), input="probs", bandwidth=0.1), 4)
    0.4381
    """
    # The only metric that needs a loss: all others work without importing one.
    from dualfocal.losses.kde import BANDWIDTHS, check_kernel, kde_rows, log_dirichlet_kernels, log_floor

    check_kernel(bandwidth, norm)
    samples = as_samples(logits, target, options)
    samples.check_classes("kde_ece")
    if samples.weight is not None:
        raise ValueError("kde_ece does not apply to weighted samples: leave out sample_weight")
    scan(samples)  # checks every row before the quadratic work starts
    n = len(samples)
    if n < 2:
        raise ValueError("kde_ece needs at least two samples, got 1")
    values = samples.values.double()
    log_p = log_floor(values.log_softmax(1) if samples.input == "logits" else values.log())
    step = max(1, ELEMENTS // n)
    parts = [slice(start, start + step) for start in range(0, n, step)]
    if isinstance(bandwidth, str):
        likelihood = [
            sum(float(log_dirichlet_kernels(log_p, h, rows=part).logsumexp(1).sum()) for part in parts)
            - as_published * n * math.log(h)
            for h in BANDWIDTHS
        ]
        bandwidth = BANDWIDTHS[max(range(len(BANDWIDTHS)), key=likelihood.__getitem__)]
    one_hot = torch.nn.functional.one_hot(samples.target, samples.num_classes).to(log_p.dtype)
    errors = (kde_rows(log_p, one_hot, bandwidth, norm, as_published=as_published, rows=part) for part in parts)
    total = sum(float(error.sum()) for error in errors)
    return total / n


def _bins(samples: Samples, num_bins: int, convention: str | None = None) -> BinStats:
    check_choice("convention", convention, CONVENTIONS)
    return scan(samples).bins(num_bins) if convention is None else conventional_bins(samples, num_bins, convention)
