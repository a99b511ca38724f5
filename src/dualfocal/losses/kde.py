"""Cross-entropy plus a kernel estimate of the canonical calibration error: Popordanoska et al., NeurIPS 2022."""

import math

import torch
from torch import Tensor

from dualfocal._tensors import Weight, check_number, wide_dtype
from dualfocal.losses._flat import Flat, compute_logits, flatten, reduce, weight_rows
from dualfocal.losses._module import ClassificationLoss
from dualfocal.losses.cross_entropy import cross_entropy_rows

# Search grid of the public code: logspace(-5, -1, 15) and five larger bandwidths.
BANDWIDTHS = (*(10 ** (-5 + 4 * i / 14) for i in range(15)), 0.2, 0.4, 0.6, 0.8, 1.0)


def kde_xe_loss(
    logits: Tensor,
    target: Tensor,
    strength: float = 0.3,
    *,
    bandwidth: float | str = 0.001,
    norm: float = 1.0,
    as_published: bool = False,
    weight: Weight | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    r"""Cross-entropy plus the batch's canonical calibration error, with weight ``strength``.

    $$L = -\log p_k + \text{strength} \cdot \text{ECE}_\text{KDE}, \quad
    \text{ECE}_\text{KDE} = \operatorname{mean}_j
    \left\| \frac{\sum_i k_{ji} y_i}{\max(\sum_i k_{ji}, 10^{-10})} - p_j \right\|_n^n$$

    $p_i$ are the predicted distributions, $k_{ji}$ Dirichlet kernels of parameters $p_i / h + 1$ evaluated at $p_j$.
    Sums are leave-one-out, over i != j (arXiv:2210.07810, Eq. 9).

    The penalty is a property of the batch and is added to each row, so the losses of split batches do not add up.
    Memory is quadratic in the number of rows. With fewer than two samples the penalty is 0.

    Args:
        logits: scores of shape ``(C,)``, ``(N, C)`` or ``(N, C, d1, ...)``, any floating dtype.
        target: class indices of shape ``()``, ``(N,)`` or ``(N, d1, ...)``, or class probabilities of the shape of
            ``logits``.
        strength: factor of the penalty, at least 0; the authors choose it by cross-validation.
        bandwidth: fixed bandwidth h > 0, or ``"likelihood"`` to maximise the leave-one-out likelihood of each batch,
            which takes about twenty times as long.
        norm: exponent n, at least 1.
        as_published: compute the error as the public code does: above 60 classes, without the lower limit of 1e-10.
            ``"likelihood"`` then means that of :func:`kde_bandwidth` with ``as_published=True``.
        weight: weight of each class, shape ``(C,)``: a tensor, a list or a numpy array.
        ignore_index: class index to ignore (class indices only).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``. The mean is weighted by the class weights of the targets; for
            class probabilities it divides by the number of rows.

    Returns:
        The loss in float32, or float64 for float64 logits: a scalar, or the shape of the class indices for
        ``reduction="none"``.

    >>> import torch
    >>> logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [1.5, 1.0, 0.0]])
    >>> kde_xe_loss(logits, torch.tensor([0, 1, 1]), bandwidth=0.1)
    tensor(0.8292)
    """
    _check(strength, bandwidth, norm)
    flat = flatten(logits, target, weight, ignore_index, reduction)
    z, keep = flat.z, flat.keep
    h = kde_bandwidth(z.detach(), keep=keep, as_published=as_published) if isinstance(bandwidth, str) else bandwidth
    penalty = _kde_error(flat, z, h, norm, as_published)
    rows = cross_entropy_rows(flat, z)
    return reduce(rows + weight_rows((strength * penalty).expand_as(rows), flat), flat, reduction)


def kde_bandwidth(logits: Tensor, *, keep: Tensor | None = None, as_published: bool = False) -> Tensor:
    """Bandwidth in ``BANDWIDTHS`` with the largest leave-one-out likelihood.

    The log-likelihood is sum_j [logsumexp_i log k_ji - log(n - 1)].

    Args:
        logits: scores of shape ``(N, C)``.
        keep: boolean mask of the rows to use, shape ``(N,)``. Default: all rows.
        as_published: subtract log h from each term, as the public code does although the kernel is normalised.

    Returns:
        The bandwidth as a scalar tensor.

    >>> import torch
    >>> rows = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    >>> float(kde_bandwidth(rows))
    0.0517...
    """
    log_p = _log_probabilities(compute_logits(logits, keep))

    def likelihood(bandwidth: float) -> Tensor:
        rows = log_dirichlet_kernels(log_p, bandwidth, keep=keep).logsumexp(1) - as_published * math.log(bandwidth)
        return (rows if keep is None else torch.where(keep, rows, 0.0)).sum()

    best = torch.stack([likelihood(bandwidth) for bandwidth in BANDWIDTHS]).argmax(0, keepdim=True)
    choices = torch.stack([log_p.new_full((), bandwidth) for bandwidth in BANDWIDTHS])  # a copy would wait for the GPU
    return choices.gather(0, best)[0]


def _kde_error(flat: Flat, z: Tensor, bandwidth: float | Tensor, norm: float, as_published: bool) -> Tensor:
    log_p = _log_probabilities(z)
    y, keep = flat.one_hot.to(log_p.dtype), flat.keep
    error = kde_rows(log_p, y, bandwidth, norm, as_published=as_published, keep=keep).to(z.dtype)
    if keep is None:
        return error.mean() if error.numel() > 1 else error.sum() * 0
    kept = keep.sum()
    return torch.where(kept > 1, torch.where(keep, error, 0.0).sum() / kept.clamp_min(1), 0.0)


def _log_probabilities(z: Tensor) -> Tensor:
    """Log softmax in float64. Log kernels are differences of numbers in the thousands, so low precision would fail."""
    return log_floor(z.to(wide_dtype(z)).log_softmax(1))


def log_floor(log_p: Tensor) -> Tensor:
    """Clamp log-probabilities at the smallest normal float32."""
    return log_p.clamp_min(math.log(torch.finfo(torch.float32).tiny))


def kde_rows(
    log_p: Tensor,
    one_hot: Tensor,
    bandwidth: float | Tensor,
    norm: float,
    *,
    as_published: bool = False,
    keep: Tensor | None = None,
    rows: slice = slice(None),
) -> Tensor:
    """Error || sum_i k_ji y_i / max(sum_i k_ji, 1e-10) - p_j ||_n^n of each row j in ``rows``.

    With ``as_published``, the limit of 1e-10 is left out above 60 classes. The public code takes the logarithm of the
    sum of each class there, whose gradient is NaN for a class without samples. Here, only the total is a logarithm.
    """
    log_k = log_dirichlet_kernels(log_p, bandwidth, keep=keep, rows=rows)
    log_sum = log_k.logsumexp(1, keepdim=True)
    if not (as_published and log_p.shape[1] > 60):
        log_sum = log_sum.clamp_min(math.log(1e-10))
    expected = (log_k - log_sum).exp() @ one_hot
    return (expected - log_p[rows].exp()).abs().pow(norm).sum(1)


def log_dirichlet_kernels(
    log_p: Tensor, bandwidth: float | Tensor, *, keep: Tensor | None = None, rows: slice = slice(None)
) -> Tensor:
    """Log kernels log k_ji, (rows, M): row j under the Dirichlet kernel of row i, with i = j excluded."""
    scaled = log_p.exp() / bandwidth  # alpha - 1
    log_beta = (scaled + 1).lgamma().sum(1) - (scaled + 1).sum(1).lgamma()
    log_k = log_p[rows] @ scaled.T - log_beta
    index = torch.arange(log_p.shape[0], device=log_p.device)
    excluded = index[rows, None] == index
    if keep is not None:
        excluded = excluded | ~keep
    return log_k.masked_fill(excluded, -1e30)  # about log 0, but finite, so that gradients are finite


class KDEXELoss(ClassificationLoss):
    """Cross-entropy plus a kernel estimate of the calibration error as a Module; see :func:`kde_xe_loss`.

    Args:
        strength: factor of the penalty, at least 0.
        bandwidth: fixed bandwidth of the kernels, or ``"likelihood"`` to choose it for each batch.
        norm: exponent of the calibration error, at least 1.
        as_published: compute the error as the public code does, which differs above 60 classes.
        weight: weight of each class, shape ``(C,)``: a tensor, a list or a numpy array.
        ignore_index: class index to ignore (class indices only).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    >>> KDEXELoss(strength=0.5)
    KDEXELoss(strength=0.5, bandwidth=0.001, norm=1.0, as_published=False)
    """

    function = staticmethod(kde_xe_loss)
    per_sample = False

    def __init__(
        self,
        strength: float = 0.3,
        *,
        bandwidth: float | str = 0.001,
        norm: float = 1.0,
        as_published: bool = False,
        weight: Weight | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
    ) -> None:
        super().__init__(weight=weight, ignore_index=ignore_index, reduction=reduction)
        _check(strength, bandwidth, norm)
        self.set_options(strength=strength, bandwidth=bandwidth, norm=norm, as_published=as_published)


def _check(strength: float, bandwidth: float | str, norm: float) -> None:
    check_number("strength", strength)
    check_kernel(bandwidth, norm)


def check_kernel(bandwidth: float | str, norm: float) -> None:
    """Raise an error unless ``bandwidth`` and ``norm`` are valid."""
    check_number("norm", norm, 1.0)
    if isinstance(bandwidth, str):
        if bandwidth != "likelihood":
            raise ValueError(f"bandwidth must be a number or 'likelihood', got {bandwidth!r}")
    else:
        check_number("bandwidth", bandwidth, 1e-6)
