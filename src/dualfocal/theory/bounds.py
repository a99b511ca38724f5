"""The entropy bound: focal loss is at least KL(y || p) - gamma H(p), and what becomes of it for dual focal loss."""

import torch
from torch import Tensor

from dualfocal._tensors import check_number


def entropy_bound(p: Tensor, target: Tensor, gamma: float) -> Tensor:
    """KL(y || p) - gamma H(p) for one-hot y: a lower bound of focal and of dual focal loss, for every gamma >= 0.

    Section 3.2 cites it for focal loss. gamma >= 1: (1 - p_k)^gamma >= 1 - gamma p_k (Bernoulli), and
    -p_k log p_k <= H(p). gamma < 1, where Bernoulli turns around: 1 - (1 - p_k)^gamma <= -gamma log(1 - p_k), and
    log p_k log(1 - p_k) <= H(p_k, 1 - p_k) <= H(p), by -log x <= 1/x - 1. Dual focal loss is at least focal loss.

    Args:
        p: probabilities, (..., K).
        target: class indices, (...).
        gamma: at least 0.

    >>> p = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    >>> entropy_bound(p, torch.tensor(0), 2.0)
    tensor(-1.2851, dtype=torch.float64)
    """
    check_number("gamma", gamma)
    if not bool(((p >= 0) & (p <= 1)).all()):
        raise ValueError(f"p must be probabilities, from 0 to 1, got {float(p.min()):g} to {float(p.max()):g}")
    entropy = -torch.xlogy(p, p).sum(-1)
    return -_of_target(p, target).log() - gamma * entropy


def dual_entropy_bound(p: Tensor, target: Tensor, gamma: float) -> Tensor:
    """KL(y || p) - gamma H(p) + gamma p_j (|log p_k| + |log p_j|): of dual focal loss alone, for gamma >= 1.

    Bernoulli's inequality for (1 - p_k + p_j)^gamma gives the term with log p_k, and -p_k log p_k <= H(p) + p_j log p_j
    the other. A strong rival takes from the pull towards high entropy; focal loss can be below this bound. Arguments
    as of :func:`entropy_bound`; p_j is the largest probability strictly below p_k, 0 if there is none.
    """
    check_number("gamma", gamma, 1.0)
    p_k = _of_target(p, target)
    p_j = torch.where(p < p_k[..., None], p, 0.0).amax(-1)
    return entropy_bound(p, target, gamma) - gamma * (torch.xlogy(p_j, p_j) + torch.xlogy(p_j, p_k))


def _of_target(p: Tensor, target: Tensor) -> Tensor:
    return p.gather(-1, target[..., None])[..., 0]
