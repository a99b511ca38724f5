"""One logistic regression per class or label, with a weak Gaussian prior, used by Platt and beta calibration."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from dualfocal.calibrators._newton import Minimum, minimise

PRIOR = 0.03  # precision of the Gaussian prior on the coefficients of standardised features
MOST_START = 4.0  # largest initial coefficient of a standardised feature, so that the sigmoid is not saturated

# Of some rows: 1 where a class is the true one, 1 where the entry counts (None: all count), and D features; (n, C) each
Tiles = Callable[[], Iterable[tuple[Tensor, Tensor | None, list[Tensor]]]]


def fit_classes(tiles: Tiles, count: Tensor, x: Tensor, lower: Tensor | None = None) -> Minimum:
    """Minimise the mean NLL of each class plus the penalty of the prior, over the coefficients of its features.

    Args:
        tiles: function that iterates over the data.
        count: number of entries of each class, (C,).
        x: initial coefficients, (C, D).
        lower: lower bounds of the coefficients, (C, D).
    """
    ridge = PRIOR / count

    def objective(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value, gradient, hessian = x.new_zeros(len(x)), torch.zeros_like(x), x.new_zeros(*x.shape, x.shape[1])
        for hit, counted, features in tiles():
            eta = sum((f * c for f, c in zip(features, x.T, strict=True)), start=torch.zeros_like(hit))
            q = eta.sigmoid()
            nll, residual, curvature = F.softplus(eta) - hit * eta, q - hit, q * (1 - q)
            if counted is not None:
                nll, residual, curvature = counted * nll, counted * residual, counted * curvature
            value += nll.sum(0)
            for i, f in enumerate(features):
                gradient[:, i] += (residual * f).sum(0)
                weighted = curvature * f
                for j, g in enumerate(features[: i + 1]):
                    hessian[:, i, j] += (weighted * g).sum(0)
        hessian = (hessian + hessian.tril(-1).mT) / count[:, None, None]
        hessian = hessian + ridge[:, None, None] * torch.eye(x.shape[1]).to(x)
        gradient = gradient / count[:, None] + ridge[:, None] * x
        return value / count + ridge / 2 * (x * x).sum(1), gradient, hessian

    return minimise(objective, x, lower=lower)
