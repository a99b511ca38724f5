"""Newton's iteration for many small convex problems at once: one for each class, or one in all."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

TOLERANCE = 1e-13  # decrease of the objective that one more step promises
MOST_ITERATIONS, MOST_HALVINGS = 200, 40

# (B, D) points to values (B,), gradients (B, D) and Hessians (B, D, D)
Objective = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


class Minimum(NamedTuple):
    """Where B problems have their minima, and how that was found."""

    x: Tensor  # (B, D)
    iterations: int
    gradient: float  # the largest entry of any gradient, of those the bounds leave free
    converged: bool


def minimise(objective: Objective, x: Tensor, *, lower: Tensor | None = None) -> Minimum:
    """Minimise B convex functions of D variables, subject to x >= lower, by projected Newton steps.

    A variable at its bound that wants to go below stays there (Bertsekas, 1982); the others take Newton's step, halved
    until the function decreases enough. Each problem stops by itself.

    Args:
        objective: values, gradients and Hessians of all B.
        x: where to start, (B, D), inside the bounds.
        lower: the bounds, (B, D); -inf for none.
    """
    lower = torch.full_like(x, -torch.inf) if lower is None else lower
    value, gradient, hessian = objective(x)
    identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    iteration = 0
    while iteration < MOST_ITERATIONS:
        iteration += 1
        held = (x <= lower) & (gradient > 0)
        free = (~held).to(x.dtype)
        slope = gradient * free
        # Rows and columns of what is held become those of the identity; a trace of it keeps singular ones solvable.
        scale = hessian.diagonal(dim1=1, dim2=2).amax(1).clamp_min(torch.finfo(x.dtype).tiny)
        matrix = hessian * free[:, :, None] * free[:, None, :]
        matrix = matrix + identity * ((1 - free) + 1e-12 * free)[:, None, :] * scale[:, None, None]
        step = -torch.linalg.solve(matrix, slope[:, :, None])[:, :, 0] * free
        promised = -(slope * step).sum(1) / 2
        moving = promised > TOLERANCE
        if not bool(moving.any()):
            break
        length = moving.to(x.dtype)
        for _ in range(MOST_HALVINGS):
            trial = torch.maximum(x + length[:, None] * step, lower)
            of_trial = objective(trial)
            wanted = value + 1e-4 * (gradient * (trial - x)).sum(1)
            # Below the rounding of the value, its decrease cannot be seen: a step that promises so little is taken.
            good = (of_trial[0] <= wanted) | (promised < 1e-14 * value.abs())
            if bool(good.all()):
                break
            length = torch.where(good, length, length / 2)
        x = torch.where(good[:, None], trial, x)
        if not bool((good & moving).any()):
            break
        value, gradient, hessian = of_trial if bool(good.all()) else objective(x)
    largest = float(slope.abs().amax())
    return Minimum(x, iteration, largest, not bool(moving.any()))
