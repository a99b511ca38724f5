"""Posterior for which a prediction is stationary: the paper's Eq. 9, and the exact condition with the cross terms."""

import torch
from torch import Tensor

from dualfocal_lab.checks import check_number
from dualfocal_lab.theory.curves import h, phi


def published_eta(q: Tensor, gamma: float) -> Tensor:
    """Posterior eta_i = h(q_i) / sum_k h(q_k) of Eq. 9, where C of each class is the next smaller probability.

    The equation neglects that q_i is also the rival of the class above it.

    Args:
        q: predictions, (..., K), without ties.
        gamma: focusing parameter, at least 0.
    """
    order, q, below = _descending(q, gamma)
    return _in_place(h(q, gamma, below), order)


def exact_eta(q: Tensor, gamma: float) -> Tensor:
    """Posterior for which q is a stationary point of the dual focal risk; it is unique.

    With q in descending order, a_i = 1 - q_i + q_(i+1) and phi_i = a_i^g - g a_i^(g-1) q_i log q_i,

        eta_i = (q_i / phi_i) (lambda + g a_(i-1)^(g-1) |log q_(i-1)| eta_(i-1)),

    without the second term for i = 1; lambda normalises the sum to 1. A stationary point need not be a minimum.

    Args:
        q: predictions, (..., K), without ties.
        gamma: focusing parameter, at least 0.

    >>> exact_eta(torch.tensor([0.5322, 0.2267, 0.2411]), 2.0)
    tensor([0.5000, 0.3000, 0.2000], dtype=torch.float64)
    >>> published_eta(torch.tensor([0.5322, 0.2267, 0.2411]), 2.0)
    tensor([0.6091, 0.2270, 0.1639], dtype=torch.float64)
    """
    order, q, below = _descending(q, gamma)
    own = phi(q, gamma, below) / q
    # Cross term: q_i also enters the loss of the class above it.
    passed = gamma * (1 - q + below) ** (gamma - 1) * -q.log()
    eta = [1 / own[..., 0]]
    for i in range(1, q.shape[-1]):
        eta.append((1 + passed[..., i - 1] * eta[-1]) / own[..., i])
    return _in_place(torch.stack(eta, -1), order)


def _descending(q: Tensor, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
    """Descending order of the classes, q in that order, and the next smaller probability of each class."""
    check_number("gamma", gamma)
    q = torch.as_tensor(q, dtype=torch.float64)
    sums = q.sum(-1)
    q, order = q.sort(-1, descending=True)
    inside = ((q > 0) & (q < 1)).all() and not (sums - 1).abs().gt(1e-3).any()
    if q.ndim == 0 or q.shape[-1] < 2 or not inside or (q.diff(dim=-1) == 0).any():
        raise ValueError(
            "q must hold predictions of at least two classes in (0, 1) that sum to 1, without ties, where the risk has "
            f"no derivative; got {q.tolist()} with sum {sums.tolist()}"
        )
    return order, q, torch.cat([q[..., 1:], torch.zeros_like(q[..., :1])], -1)


def _in_place(values: Tensor, order: Tensor) -> Tensor:
    return (values / values.sum(-1, keepdim=True)).gather(-1, order.argsort(-1))
