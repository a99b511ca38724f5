"""Regions in which the paper predicts over- or under-confidence: Lemma 1 and Figure 1."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from scipy.optimize import brentq
from torch import Tensor

from dualfocal_lab.checks import check_number

FIGURE_1 = (1.0, 0.3)
"""gamma and q_j of the paper's Figure 1."""


@dataclass(frozen=True)
class Regions:
    """Points of Figure 1 for one gamma and one C = q_j.

    Attributes:
        gamma: focusing parameter.
        c: probability C of the rival.
        v_m: position of the maximum of phi. The paper claims over-confidence for q_m in (0, v^m].
        v_prime: point with phi(v') = (1 + C)^gamma = phi(0).
        v_uc: point with phi(v^uc) = 1. The paper claims under-confidence for q_m in [v^uc, 1).
        focal_v_m: v_m of focal loss.
        focal_v_prime: v_prime of focal loss. The paper claims under-confidence for q_m in [v', 1).
    """

    gamma: float
    c: float
    v_m: float
    v_prime: float
    v_uc: float
    focal_v_m: float
    focal_v_prime: float

    @property
    def reduction(self) -> float:
        """Claimed reduction of the under-confident region: phi^-1(1) - phi^-1((1 + C)^gamma)."""
        return self.v_uc - self.v_prime

    @property
    def reduction_from_focal(self) -> float:
        """Reduction from the v' of focal loss, which the paper assumes to be close to that of dual focal loss."""
        return self.v_uc - self.focal_v_prime

    @property
    def possible(self) -> tuple[float, float]:
        """Range of q_m that is possible with a rival of C: C < q_m <= 1 - C. Empty for C >= 1/2."""
        return self.c, 1 - self.c

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable dictionary of the fields and derived values."""
        return asdict(self) | {
            "reduction": self.reduction,
            "reduction_from_focal": self.reduction_from_focal,
            "possible": list(self.possible),
        }


def regions(gamma: float, c: float) -> Regions:
    """Compute the points of Figure 1 for any gamma > 0 and 0 <= C < 1.

    >>> points = regions(*FIGURE_1)
    >>> f"{points.v_m:.4f} {points.v_prime:.4f} {points.v_uc:.4f} {points.focal_v_prime:.4f} {points.reduction:.4f}"
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
    """Position v^m of the maximum of phi, Lemma 1: the only root of s in (0, 1)."""
    if not (0 < gamma < math.inf and 0 <= c < 1):
        raise ValueError(f"gamma must be above 0 and finite, C in [0, 1), got gamma = {gamma!r}, C = {c!r}")

    def s(log_v: float) -> float:  # in log v, because the root may be tiny
        v = math.exp(log_v)
        return 2 * (v - 1 - c) + (gamma * v - 1 - c) * log_v

    # s is convex and s(1) <= 0, with equality for C = 0; v^m is the root to the left of the minimum.
    lowest = brentq(lambda v: 2 + gamma * math.log(v) + gamma - (1 + c) / v, 1e-9, 1.0, xtol=1e-15)
    return math.exp(brentq(s, -700.0, math.log(lowest), xtol=1e-15))


def phi_inverse(value: float, gamma: float, c: float) -> float:
    """Inverse of phi on (v^m, 1], where phi decreases from its maximum to C^gamma."""
    peak = phi_peak(gamma, c)
    low, high = _phi(1.0, gamma, c), _phi(peak, gamma, c)
    if not low <= value <= high:
        raise ValueError(f"value must be between {low:.6g} and {high:.6g}, the range of phi on (v^m, 1], got {value:g}")
    return float(brentq(lambda v: _phi(v, gamma, c) - value, peak, 1.0, xtol=1e-15))


def _phi(v: float, gamma: float, c: float) -> float:
    """Scalar version of `curves.phi`, fast enough to be called many times by a solver."""
    a = max(1 - v + c, 1e-100)
    return float(a**gamma - gamma * a ** (gamma - 1) * v * math.log(v))


def entropy_bound(p: Tensor, target: Tensor, gamma: float) -> Tensor:
    """Lower bound KL(y || p) - gamma H(p) of focal and dual focal loss, for one-hot y and every gamma >= 0.

    Section 3.2 cites it for focal loss. Proof for gamma >= 1: (1 - p_k)^gamma >= 1 - gamma p_k (Bernoulli), and
    -p_k log p_k <= H(p). For gamma < 1: 1 - (1 - p_k)^gamma <= -gamma log(1 - p_k), and
    log p_k log(1 - p_k) <= H(p_k, 1 - p_k) <= H(p), by -log x <= 1/x - 1. Dual focal loss is at least focal loss.

    Args:
        p: probabilities, (..., K).
        target: class indices, (...).
        gamma: focusing parameter, at least 0.

    >>> p = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    >>> entropy_bound(p, torch.tensor(0), 2.0)
    tensor(-1.2851, dtype=torch.float64)
    """
    check_number("gamma", gamma)
    if not bool(((p >= 0) & (p <= 1)).all()):
        raise ValueError(f"p must hold probabilities between 0 and 1, got {float(p.min()):g} to {float(p.max()):g}")
    entropy = -torch.xlogy(p, p).sum(-1)
    return -_target_probability(p, target).log() - gamma * entropy


def dual_entropy_bound(p: Tensor, target: Tensor, gamma: float) -> Tensor:
    """Lower bound KL(y || p) - gamma H(p) + gamma p_j (|log p_k| + |log p_j|) of dual focal loss, for gamma >= 1.

    p_j is the largest probability strictly below p_k, or 0 if there is none. Bernoulli's inequality for
    (1 - p_k + p_j)^gamma gives the term with log p_k, and -p_k log p_k <= H(p) + p_j log p_j the other. A strong rival
    weakens the preference for high entropy. Focal loss can be below this bound.

    Args:
        p: probabilities, (..., K).
        target: class indices, (...).
        gamma: focusing parameter, at least 1.
    """
    check_number("gamma", gamma, 1.0)
    p_k = _target_probability(p, target)
    p_j = torch.where(p < p_k[..., None], p, 0.0).amax(-1)
    return entropy_bound(p, target, gamma) - gamma * (torch.xlogy(p_j, p_j) + torch.xlogy(p_j, p_k))


def _target_probability(p: Tensor, target: Tensor) -> Tensor:
    return p.gather(-1, target[..., None])[..., 0]
