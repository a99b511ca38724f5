"""Newton's iteration for many small convex problems at once: one for each class, or one in all."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

TOLERANCE = 1e-12  # decrease of the objective that one more step promises
MOST_ITERATIONS = 200
AT_BOUND = 1e-9  # distance from a bound that is none
LEAST_DAMPING, LITTLE_DAMPING, MOST_DAMPING = 1e-12, 1e-4, 1e12

# (B, D) points to values (B,), gradients (B, D) and Hessians (B, D, D)
Objective = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


class Minimum(NamedTuple):
    """Where a function has its minimum, and how that was found."""

    x: Tensor
    iterations: int
    gradient: float  # its largest entry, of those that bounds leave free
    converged: bool


def minimise(objective: Objective, x: Tensor, *, lower: Tensor | None = None) -> Minimum:
    """Minimise B convex functions of D variables, subject to x >= lower, by projected and damped Newton steps.

    A variable at its bound that wants to go below stays there (Bertsekas, 1982); the others take Newton's step. Where
    it does not lower the function enough, that problem stays and its next step is damped more (Levenberg), elsewhere
    less. A problem is done when an almost undamped step promises nothing.

    Args:
        objective: values, gradients and Hessians of all B.
        x: where to start, (B, D), inside the bounds.
        lower: the bounds, (B, D); -inf for none.
    """
    lower = torch.full_like(x, -torch.inf) if lower is None else lower
    value, gradient, hessian = objective(x)
    identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    damping = x.new_full((len(x),), LEAST_DAMPING)
    iteration = 0
    while True:
        iteration += 1
        free = ((x - lower > AT_BOUND) | (gradient <= 0)).to(x.dtype)
        slope = gradient * free
        # In units in which the Hessian has ones on its diagonal; what is held has a row of the identity.
        diagonal = hessian.diagonal(dim1=1, dim2=2)
        least = (1e-16 * diagonal.amax(1, keepdim=True)).clamp_min(torch.finfo(x.dtype).tiny)
        unit = free * torch.maximum(diagonal, least).rsqrt()
        matrix = hessian * unit[:, :, None] * unit[:, None, :]
        matrix = matrix + identity * (1 - free + damping[:, None])[:, None, :]
        step = -unit * torch.linalg.solve(matrix, (unit * slope)[:, :, None])[:, :, 0]
        step = torch.where(free > 0, step, -AT_BOUND)
        promised = -(slope * step).sum(1) / 2  # of what is free
        # Below the rounding of the value nothing can be gained.
        done = (promised <= TOLERANCE + 1e-15 * value.abs()) & (damping <= LITTLE_DAMPING)
        stuck = damping > MOST_DAMPING
        if bool((done | stuck).all()) or iteration >= MOST_ITERATIONS:
            break
        trial = torch.where((done | stuck)[:, None], x, torch.maximum(x + step, lower))
        there = objective(trial)
        good = there[0] <= value + 1e-4 * (gradient * (trial - x)).sum(1)
        x = torch.where(good[:, None], trial, x)
        value = torch.where(good, there[0], value)
        gradient = torch.where(good[:, None], there[1], gradient)
        hessian = torch.where(good[:, None, None], there[2], hessian)
        damping = torch.where(good, (damping / 10).clamp_min(LEAST_DAMPING), (damping * 10).clamp_min(1e-8))
    return Minimum(x, iteration, float(slope.abs().amax()), bool(done.all()))
