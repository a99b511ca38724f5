"""Modulated cross-entropy as plain differentiable PyTorch, and the numerics shared with the closed form."""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dualfocal._tensors import constant_when_compiled
from dualfocal.losses._flat import Flat
from dualfocal.losses.rival import rival_of_each_class, rival_of_target

NLL_LIMIT = 1e30  # times a derivative, larger values could overflow


class GammaBins(NamedTuple):
    """One signed gamma per bin [lo, hi) of p_k, or of the margin p_k - p_j. It is never differentiated."""

    values: Tensor | tuple[float, ...]
    edges: Tensor | tuple[float, ...]  # inner edges, one fewer
    of_margin: bool = False

    def __call__(self, p_k: Tensor, p_j: Tensor) -> Tensor:
        """Gamma of these probabilities."""
        score = p_k - p_j if self.of_margin else p_k
        if isinstance(self.values, Tensor) or isinstance(self.edges, Tensor):
            assert isinstance(self.values, Tensor)
            assert isinstance(self.edges, Tensor)
            edges = self.edges.to(score.dtype).contiguous()
            return self.values.detach()[torch.bucketize(score.contiguous(), edges, right=True)]
        gamma = torch.full_like(score, self.values[-1])
        for value, edge in zip(self.values[-2::-1], self.edges[::-1], strict=True):
            gamma = torch.where(score < edge, value, gamma)
        return gamma

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Values and edges as tensors on a device."""
        if isinstance(self.values, Tensor) and isinstance(self.edges, Tensor):
            return self.values.detach().contiguous(), self.edges.contiguous()
        both = _tensor_of((*self.values, *self.edges), device)  # one call, as torch.compile names constants by it
        return both[: len(self.values)], both[len(self.values) :]


@constant_when_compiled
def _tensor_of(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    return _copy_once(numbers, device)


@functools.cache  # because copying to a device waits for it
def _copy_once(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32, device=device)


Gamma = float | Tensor | GammaBins  # a tensor has one value, or one per row


def resolve(gamma: Gamma, p_k: Any, p_j: Any) -> float | Tensor:
    """Gamma as a float, or as a tensor in the compute dtype; bins are looked up for these probabilities."""
    if isinstance(gamma, float):
        return gamma
    if isinstance(p_k, np.ndarray):
        p_k, p_j = torch.from_numpy(p_k), torch.from_numpy(p_j)
    value = gamma if isinstance(gamma, Tensor) else gamma(p_k, p_j)
    return value.to(p_k.dtype)


def _modulate(gamma: Gamma, p: Tensor, q: Tensor, p_j: Tensor, nll: Tensor) -> Tensor:
    """Modulated -log p, elementwise; q = 1 - p."""
    gamma = resolve(gamma, p.detach(), p_j.detach())
    # abs() has no derivative at 0, which may be the initial value of a learned gamma.
    exponent = torch.where(gamma.signbit(), -gamma, gamma) if isinstance(gamma, Tensor) else abs(gamma)
    base = modulating_base(torch, gamma, p, q, p_j)
    # The clamp keeps the second derivative from overflowing; it only matters for losses below 1e-19.
    factor = base.clamp_min(torch.finfo(base.dtype).tiny ** 0.5) ** exponent
    # For p = 0 the loss is huge or infinite, with the gradient of cross-entropy (that of the factor tends to 0).
    impossible = nll > NLL_LIMIT
    return torch.where(impossible, factor.detach() * nll, factor * nll.masked_fill(impossible, 0.0))


def modulating_base(xp: ModuleType, gamma: Any, p: Any, q: Any, p_j: Any) -> Any:
    """Modulating base 1 - s (p - p_j), with s = -1 for a negative gamma and for -0.0."""
    if isinstance(gamma, float):
        return 1 + p - p_j if gamma < 0 else q + p_j
    return xp.where(xp.signbit(gamma), 1 + p - p_j, q + p_j)


def differentiable(flat: Flat, gamma: Gamma, dual: bool) -> Callable[[Tensor], Tensor]:
    """Loss of each row as a function of the logits that can be differentiated any number of times."""
    return lambda logits: expression(flat._replace(logits=logits), gamma, "next" if dual else None)


def expression(flat: Flat, gamma: Gamma, rival: str | float | None) -> Tensor:
    """Loss of each row, (M,): that of the target, or those of all classes, weighted by their mass."""
    z = flat.z
    top = z.detach().max(1, keepdim=True)
    is_top = torch.arange(z.shape[1], device=z.device) == top.indices
    e = (z - top.values).exp()
    e_top = e.gather(1, top.indices)
    rest = e.masked_fill(is_top, 0.0).sum(1, keepdim=True)
    total = rest + e_top
    # Of the target, (M, 1), or of all classes, (M, C):
    target = None if flat.soft else flat.target[:, None]
    z_i, e_i, is_top = (x if target is None else x.gather(1, target) for x in (z, e, is_top))
    p = e_i / total
    q = torch.where(is_top, rest / total, 1 - p)
    nll = torch.log1p(rest + (e_top - 1)) + (top.values - z_i)
    if isinstance(gamma, Tensor) and gamma.ndim == 1:
        gamma = gamma[:, None]
    if target is None:
        mass = flat.mass
        nll = nll.masked_fill((mass == 0) & (nll == torch.inf), 0.0)  # inf * 0 counts as 0
        return (mass * _modulate(gamma, p, q, rival_of_each_class(z.detach(), p, rival), nll)).sum(1)
    p_j = rival_of_target(z, z_i, top.values, total, rival, flat.keep)
    return _modulate(gamma, p, q, p_j[:, None], nll)[:, 0]
