"""Functions of Section 4 and the appendix of the paper, with the names used there.

v is the probability of a class and C (here ``c``) that of the class below it, which the paper keeps fixed; c = 0 is
focal loss. All functions take numbers or tensors and return float64 tensors.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dualfocal_lab.checks import check_number
from dualfocal_lab.theory._orderings import Array

Values = Tensor | float


def phi(v: Values, gamma: float, c: Values = 0.0) -> Tensor:
    """phi(v) = (1 - v + C)^gamma - gamma (1 - v + C)^(gamma-1) v log v, below Eq. 7 with df/dv = 0 (i != j).

    The gradient of the loss is dL/dp_k = -phi(p_k) / p_k; cross-entropy has phi = 1. At v = 1, C = 0 the value is the
    limit from below.

    >>> phi(0.0, 2.0, 0.3), phi(1.0, 2.0, 0.3)  # (1 + C)^gamma and C^gamma
    (tensor(1.6900, dtype=torch.float64), tensor(0.0900, dtype=torch.float64))
    """
    v, c = _checked(v, gamma, c)
    a = 1 - v + c
    return a**gamma - gamma * _power(a, gamma - 1) * torch.xlogy(v, v)


def phi_slope(v: Values, gamma: float, c: Values = 0.0) -> Tensor:
    """dphi/dv = gamma (1 - v + C)^(gamma-2) s(v): the last equation before s in the proof of Lemma 1.

    It is not defined at v = 1, C = 0, where it is a product of 0 and infinity.
    """
    v, c = _checked(v, gamma, c)
    return gamma * _power(1 - v + c, gamma - 2) * s(v, gamma, c)


def s(v: Values, gamma: float, c: Values = 0.0) -> Tensor:
    """s(v) = 2 (v - 1 - C) + gamma v log v - (1 + C) log v: convex, has the sign of dphi/dv, proof of Lemma 1."""
    v, c = _checked(v, gamma, c)
    return 2 * (v - 1 - c) + gamma * torch.xlogy(v, v) - (1 + c) * v.log()


def h(v: Values, gamma: float, c: Values = 0.0) -> Tensor:
    """h(v) = v / phi(v), proof of Theorem 1, where eta_i = h(q_i) / sum_k h(q_k). Infinite at v = 1, C = 0."""
    v, c = _checked(v, gamma, c)
    return v / phi(v, gamma, c)


def t(v: Values, gamma: float, c: Values = 0.0) -> Tensor:
    """t(v), the numerator of dh/dv = t / phi^2, proof of Theorem 1 (there called the denominator).

    t(v) = (1 - v + C)^gamma + 2 gamma v (1 - v + C)^(gamma-1) - (gamma-1) gamma v^2 (1 - v + C)^(gamma-2) log v.
    """
    v, c = _checked(v, gamma, c)
    a = 1 - v + c
    curved = (gamma - 1) * gamma * v * torch.xlogy(v, v) * _power(a, gamma - 2)
    return a**gamma + 2 * gamma * v * _power(a, gamma - 1) - curved


def u(v: Values, gamma: float, c: Values = 0.0) -> Tensor:
    """u(v) = (1 - v + C)^2 + 2 gamma v (1 - v + C) + gamma v^2 log v, proof of Theorem 1.

    t >= (1 - v + C)^(gamma-2) u, so u > 0 implies t > 0; the paper uses this for gamma < 1.
    """
    v, c = _checked(v, gamma, c)
    a = 1 - v + c
    return a**2 + 2 * gamma * v * a + gamma * v * torch.xlogy(v, v)


class GradientRatios(NamedTuple):
    """Gradient with respect to each logit, divided by that of cross-entropy; the three are equal for focal loss.

    Attributes:
        target: ratio for the logit of the target.
        rival: ratio for the logit of the rival; NaN for p_j = 0, where the gradient of cross-entropy is 0.
        others: ratio for all other logits.
    """

    target: Tensor
    rival: Tensor
    others: Tensor


def gradient_ratios(p_k: Values, p_j: Values, gamma: float) -> GradientRatios:
    """Function g of the appendix "Gamma Value Selection", extended to dual focal loss.

    For focal loss (Mukhoti et al., 2020) the gradient is g(p_k) = phi(p_k; C = 0) times that of cross-entropy. For
    dual focal loss it also flows through p_j: with w = gamma (1 - p_k + p_j)^(gamma-1) |log p_k| p_j the factor is
    phi + w p_k / (1 - p_k) on the target's logit, phi + w (1 - p_j) / p_j on its rival's, phi - w on all others.

    Args:
        p_k: probability of the target, in (0, 1).
        p_j: probability of its rival; 0 if there is none, which gives the ratios of focal loss.
        gamma: focusing parameter, at least 0.

    >>> [round(float(ratio), 3) for ratio in gradient_ratios(0.6, 0.3, 2.0)]
    [1.241, 1.42, 0.705]
    >>> round(float(phi(0.6, 2.0)), 3)  # focal loss, every logit
    0.405
    """
    v, c = _checked(p_k, gamma, p_j)
    if bool(((v + c > 1 + 1e-12) | (v <= 0) | (v >= 1) | (c >= v)).any()):
        raise ValueError(f"p_k must lie in (0, 1), p_j below p_k, and p_k + p_j must be at most 1, got {p_k} and {p_j}")
    own = phi(v, gamma, c)
    flow = gamma * _power(1 - v + c, gamma - 1) * -v.log()  # dL/dp_j
    rival = torch.where(c > 0, own + flow * (1 - c), torch.nan)
    return GradientRatios(own + flow * c * v / (1 - v), rival, own - flow * c)


def gradient_table(gamma: float, c: float) -> list[dict[str, float | None]]:
    """Table of `gradient_ratios` and of focal loss, for each p_k in 0.1, ..., 0.9 that is possible with a rival C.

    The ratio of the rival is None for C = 0.
    """

    def row(p_k: float) -> dict[str, float | None]:
        ratios = gradient_ratios(p_k, c, gamma)._asdict()
        dual = {name: None if value.isnan() else float(value) for name, value in ratios.items()}
        return {"p_k": p_k, "focal": float(phi(p_k, gamma)), **dual}

    return [row(k / 10) for k in range(1, 10) if c < k / 10 <= 1 - c]


def _power(base: Tensor, exponent: float) -> Tensor:
    """base^exponent, large but finite at base 0, where the other factor of the product vanishes faster."""
    return base.clamp_min(1e-100) ** exponent


def _checked(v: Values, gamma: float, c: Values) -> tuple[Tensor, Tensor]:
    check_number("gamma", gamma)
    v, c = (torch.as_tensor(value, dtype=torch.float64) for value in (v, c))
    for name, values in (("v", v), ("C", c)):
        bad = ~((values >= 0) & (values <= 1))
        if bool(bad.any()):
            raise ValueError(f"{name} must be a probability between 0 and 1, got {float(values[bad][0]):g}")
    return v, c


STEPS = 56  # bisection steps, from an interval of 160 or 780 to about 1e-14


def minimise_focal(eta: Array, gamma: float) -> Array:
    """Minimiser of the focal risk for each row of ``eta``, (B, K)."""
    with np.errstate(divide="ignore"):
        log_eta = np.log(eta)

    def inverse_h(log_scale: Array) -> Array:
        """h^-1(scale * eta), by bisection in the logit."""
        low, high = np.full_like(eta, -80.0), np.full_like(eta, 80.0)
        for _ in range(STEPS):
            z = (low + high) / 2
            q, rest = 1 / (1 + np.exp(-z)), 1 / (1 + np.exp(z))
            log_q = -np.logaddexp(0, -z)
            log_h = log_q - (gamma - 1) * -np.logaddexp(0, z) - np.log(rest - gamma * q * log_q)
            above = log_h > log_eta + log_scale[:, None]
            low, high = np.where(above, low, z), np.where(above, z, high)
        return np.asarray(np.where(eta > 0, 1 / (1 + np.exp(-(low + high) / 2)), 0.0))

    low, high = np.full(len(eta), -80.0), np.full(len(eta), 700.0)
    for _ in range(STEPS):
        middle = (low + high) / 2
        above = inverse_h(middle).sum(1) > 1
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    certain = (eta > 0).sum(1, keepdims=True) == 1  # the infimum is at q = 1, where h is infinite
    return np.where(certain, np.sign(eta), inverse_h((low + high) / 2))
