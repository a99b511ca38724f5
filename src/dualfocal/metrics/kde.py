"""The canonical calibration error by kernel density: Popordanoska et al., NeurIPS 2022."""

import torch

from dualfocal.losses.kde import BANDWIDTHS, check_kernel, kde_rows, log_dirichlet_kernels, log_floor
from dualfocal.metrics.rows import Array, as_rows
from dualfocal.metrics.scan import scan

ELEMENTS = 1 << 23  # of the kernel matrix held at a time


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
