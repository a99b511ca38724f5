"""Newton's method for a batch of small convex problems, for example one per class."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

TOLERANCE = 1e-12  # stop when a step is expected to decrease the objective by less
MOST_ITERATIONS = 200
AT_BOUND = 1e-9  # variables closer to their bound count as at the bound
LEAST_DAMPING, LITTLE_DAMPING, MOST_DAMPING = 1e-12, 1e-4, 1e12

# Maps points (B, D) to values (B,), gradients (B, D) and Hessians (B, D, D)
Objective = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


class Minimum(NamedTuple):
    """Minimum of a function, and details of the iteration."""

    x: Tensor
    iterations: int
    gradient: float  # largest entry of the gradient, of variables not at a bound
    converged: bool


def minimise(objective: Objective, x: Tensor, *, lower: Tensor | None = None) -> Minimum:
    """Minimise B convex functions of D variables, subject to x >= lower, by projected and damped Newton steps.

    A variable at its bound stays there if its gradient points below the bound (Bertsekas, 1982); the others take a
    Newton step. A step that does not decrease the function enough is rejected, and the next one is damped more
    (Levenberg); otherwise it is damped less. A problem is solved when a nearly undamped step gains nothing.

    Args:
        objective: values, gradients and Hessians of all B functions.
        x: starting points, (B, D), within the bounds.
        lower: lower bounds, (B, D); -inf for none.
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
        # Scale variables so that the Hessian has a unit diagonal; variables at a bound get a row of the identity.
        diagonal = hessian.diagonal(dim1=1, dim2=2)
        least = (1e-16 * diagonal.amax(1, keepdim=True)).clamp_min(torch.finfo(x.dtype).tiny)
        unit = free * torch.maximum(diagonal, least).rsqrt()
        matrix = hessian * unit[:, :, None] * unit[:, None, :]
        matrix = matrix + identity * (1 - free + damping[:, None])[:, None, :]
        step = -unit * torch.linalg.solve(matrix, (unit * slope)[:, :, None])[:, :, 0]
        step = torch.where(free > 0, step, -AT_BOUND)
        promised = -(slope * step).sum(1) / 2  # expected decrease
        # A decrease below the rounding error of the value cannot be measured.
        done = (promised <= TOLERANCE + 1e-15 * value.abs()) & (damping <= LITTLE_DAMPING)
        stuck = damping > MOST_DAMPING
        if bool((done | stuck).all()) or iteration >= MOST_ITERATIONS:
            break
        trial = torch.where((done | stuck)[:, None], x, torch.maximum(x + step, lower))
        trial_value, trial_gradient, trial_hessian = objective(trial)
        good = trial_value <= value + 1e-4 * (gradient * (trial - x)).sum(1)
        x = torch.where(good[:, None], trial, x)
        value = torch.where(good, trial_value, value)
        gradient = torch.where(good[:, None], trial_gradient, gradient)
        hessian = torch.where(good[:, None, None], trial_hessian, hessian)
        damping = torch.where(good, (damping / 10).clamp_min(LEAST_DAMPING), (damping * 10).clamp_min(1e-8))
    return Minimum(x, iteration, float(slope.abs().amax()), bool(done.all()))
