"""Where the paper says that the minimiser is over- or under-confident: Lemma 1 and Figure 1."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from scipy.optimize import brentq
from torch import Tensor

from dualfocal._tensors import check_number

FIGURE_1 = (1.0, 0.3)
"""gamma and q_j of the paper's Figure 1."""


@dataclass(frozen=True)
class Regions:
    """The points of Figure 1 for one gamma and one C = q_j."""

    gamma: float
    c: float
    v_m: float
    """Where phi of dual focal loss is largest; claimed: over-confident for q_m in (0, v^m]."""
    v_prime: float
    """phi(v') = (1 + C)^gamma = phi(0)."""
    v_uc: float
    """phi(v^uc) = 1; claimed: under-confident for q_m in [v^uc, 1)."""
    focal_v_m: float
    focal_v_prime: float
    """For focal loss; claimed: under-confident for q_m in [v', 1)."""

    @property
    def reduction(self) -> float:
        """phi^-1(1) - phi^-1((1 + C)^gamma), by which the under-confident region is said to shrink."""
        return self.v_uc - self.v_prime

    @property
    def reduction_from_focal(self) -> float:
        """The same from focal loss's own v', which the paper takes to be close to that of dual focal loss."""
        return self.v_uc - self.focal_v_prime

    @property
    def possible(self) -> tuple[float, float]:
        """Where q_m can lie at all: above its rival C, and q_m + C <= 1. Empty for C >= 1/2."""
        return self.c, 1 - self.c

    def to_dict(self) -> dict[str, Any]:
        """For JSON: fields and derived values."""
        return asdict(self) | {
            "reduction": self.reduction,
            "reduction_from_focal": self.reduction_from_focal,
            "possible": list(self.possible),
        }


def regions(gamma: float, c: float) -> Regions:
    """The points of Figure 1, for any gamma > 0 and 0 <= C < 1.

    >>> found = regions(*FIGURE_1)
    >>> f"{found.v_m:.4f} {found.v_prime:.4f} {found.v_uc:.4f} {found.focal_v_prime:.4f} {found.reduction:.4f}"
    '0.1353 0.3679 0.6044 0.3679 0.2365'
    """
    return Regions(
        gamma=gamma,
        c=c,
        v_m=phi_peak(gamma, c),
        v_prime=phi_inverse((1 + c) ** gamma, gamma, c),
        v_uc=phi_inverse(1.0, gamma, c),
        focal_v_m=phi_peak(gamma, 0.0),
        focal_v_prime=phi_inverse(1.0, gamma, 0.0),
    )


def phi_peak(gamma: float, c: float) -> float:
    """v^m of Lemma 1: the only root of s in (0, 1)."""
    if not (0 < gamma < math.inf and 0 <= c < 1):
        raise ValueError(f"gamma must be above 0 and finite, C in [0, 1), got gamma = {gamma!r}, C = {c!r}")

    def s(log_v: float) -> float:  # in log v, as the root may be tiny
        v = math.exp(log_v)
        return 2 * (v - 1 - c) + (gamma * v - 1 - c) * log_v

    # s is convex and at most 0 at v = 1, which for C = 0 is a root of its own: the one meant lies before the minimum.
    lowest = brentq(lambda v: 2 + gamma * math.log(v) + gamma - (1 + c) / v, 1e-9, 1.0, xtol=1e-15)
    return math.exp(brentq(s, -700.0, math.log(lowest), xtol=1e-15))


def phi_inverse(value: float, gamma: float, c: float) -> float:
    """phi^-1 on (v^m, 1], where phi falls from its peak to C^gamma."""
    peak = phi_peak(gamma, c)
    low, high = _phi(1.0, gamma, c), _phi(peak, gamma, c)
    if not low <= value <= high:
        raise ValueError(f"phi takes values from {low:.6g} to {high:.6g} on (v^m, 1], not {value:g}")
    return float(brentq(lambda v: _phi(v, gamma, c) - value, peak, 1.0, xtol=1e-15))


def _phi(v: float, gamma: float, c: float) -> float:
    """As `curves.phi`, for one number: a solver calls it many times."""
    a = max(1 - v + c, 1e-100)
    return float(a**gamma - gamma * a ** (gamma - 1) * v * math.log(v))


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
