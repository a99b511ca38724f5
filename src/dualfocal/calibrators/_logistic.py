"""Multinomial logistic regression under a Gaussian prior, by which vector, matrix and Dirichlet calibration are fitted.

How wide the prior is, the data say (empirical Bayes; MacKay, 1992): weights that are not needed shrink to the prior's
mean, temperature scaling, and many weights for few data do no harm.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from dualfocal.calibrators._newton import Minimum

TOLERANCE = 1e-11  # nats that one more step promises
SETTLED = 1e-6  # nats: when steps promise less, the prior is left alone
MOST_UPDATES, MOST_ITERATIONS, MOST_PRODUCTS, MOST_HALVINGS = 25, 100, 200, 40
WIDEST, NARROWEST = 0.04, 1e9  # precisions that the data may choose
KEPT = 1 << 23  # numbers that may be kept between passes; beyond, they are computed again

Tiles = Callable[[], Iterable[tuple[slice, Tensor]]]  # rows, and their features (C, n) in float64


class Seen(NamedTuple):
    """Mean NLL at a point, its gradient and the diagonal of its Hessian, without the prior."""

    nll: float
    gradient: Tensor
    curvature: Tensor


class Problem:
    """Minimise the mean NLL of softmax(A x + b), plus the penalty of a Gaussian prior around a start.

    The penalty makes the problem strictly convex: it has one minimum, finite for any data, and Newton steps with a
    line search always get there.

    Args:
        tiles: the features.
        target: class indices, (N,).
        start: A and b side by side: (C, C + 1), or (C, 2) for a diagonal A.
        group: to which group each of these belongs, int64.
        precision: of the prior of each group.
        learn: whether the data choose the precisions.
    """

    def __init__(
        self, tiles: Tiles, target: Tensor, start: Tensor, group: Tensor, precision: Tensor, *, learn: bool
    ) -> None:
        self.tiles, self.target, self.start, self.group = tiles, target, start, group
        self.precision, self.learn = precision, learn
        self.n, self.diagonal = len(target), start.shape[1] == 2
        self.keep = self.n * len(start) <= KEPT
        self.kept: list[Tensor] = []  # softmax of each tile where one has looked last
        if self.keep:
            held = [(part, x.clone()) for part, x in tiles()]
            self.tiles = lambda: held

    def solve(self) -> Minimum:
        """Newton steps, each by preconditioned conjugate gradients as exactly as it pays, with a line search."""
        theta, seen, learn = self.start, self.look(self.start), self.learn
        for iteration in range(1, MOST_ITERATIONS + 1):
            if learn:
                self.update_precision(theta, seen)
            gradient = seen.gradient + self.pull(theta - self.start)
            step = self.newton_step(theta, gradient, seen.curvature)
            promised = -float((gradient * step).sum()) / 2
            learn = learn and promised > SETTLED and iteration < MOST_UPDATES
            if promised <= TOLERANCE:
                break
            found = self.line_search(theta, seen, step, promised)
            if found is None:
                break
            theta, seen = found
        return Minimum(theta, iteration, float(gradient.abs().max()), promised <= 10 * TOLERANCE)

    def line_search(self, theta: Tensor, seen: Seen, step: Tensor, promised: float) -> tuple[Tensor, Seen] | None:
        """The step, halved until the objective decreases; None where rounding hides what there is to gain."""
        value, length = seen.nll + self.penalty(theta), 1.0
        for _ in range(MOST_HALVINGS):
            trial = theta + length * step
            there = self.look(trial)
            if there.nll + self.penalty(trial) <= value - 1e-4 * length * promised:
                return trial, there
            length /= 2
        return None

    def look(self, theta: Tensor) -> Seen:
        total, gradient, curvature = theta.new_zeros(()), torch.zeros_like(theta), torch.zeros_like(theta)
        self.kept = []
        for part, x in self.tiles():
            target = self.target[part].unsqueeze(0)
            z = self.logits(x, theta)
            z -= z.amax(0)
            total -= z.gather(0, target).sum()
            z.exp_()
            mass = z.sum(0)
            total += mass.log().sum()
            p = z.div_(mass)
            if self.keep:
                self.kept.append(p)
            curvature += self.collect(p * (1 - p), x * x)
            miss = p.scatter_add(0, target, p.new_full((1, 1), -1.0).expand(target.shape))
            gradient += self.collect(miss, x)
        return Seen(float(total) / self.n, gradient / self.n, curvature / self.n)

    def newton_step(self, theta: Tensor, gradient: Tensor, curvature: Tensor) -> Tensor:
        """Solve H step = -gradient by conjugate gradients, preconditioned by the diagonal of H."""
        diagonal = curvature + self.pull(torch.ones_like(theta))
        step, residual = torch.zeros_like(theta), -gradient
        ready = residual / diagonal
        direction, size = ready, float((residual * ready).sum())
        enough = size * min(0.25, size**0.5) ** 2
        for _ in range(MOST_PRODUCTS):
            if size <= enough:
                break
            product = self.product(theta, direction)
            length = size / float((direction * product).sum())
            step = step + length * direction
            residual = residual - length * product
            ready = residual / diagonal
            before, size = size, float((residual * ready).sum())
            direction = ready + (size / before) * direction
        return step

    def product(self, theta: Tensor, direction: Tensor) -> Tensor:
        """The Hessian times a direction, at the theta one has looked at last."""
        result = torch.zeros_like(theta)
        for i, (_, x) in enumerate(self.tiles()):
            p = self.kept[i] if self.keep else self.logits(x, theta).softmax(0)
            u = self.logits(x, direction)
            u -= (p * u).sum(0)
            result += self.collect(u.mul_(p), x)
        return result / self.n + self.pull(direction)

    def update_precision(self, theta: Tensor, seen: Seen) -> None:
        """Number of parameters that the data determine, over their sum of squares; the Hessian taken as diagonal."""
        away = theta - self.start
        known = 1 - self.precision[self.group] / (self.n * seen.curvature + self.precision[self.group])
        for g in range(len(self.precision)):
            mine = self.group == g
            squares = away[mine].square().sum()
            if squares > 0:  # nothing has moved before the first step
                self.precision[g] = (known[mine].sum() / squares).clamp(WIDEST, NARROWEST)

    def penalty(self, theta: Tensor) -> float:
        """Of the prior, per sample."""
        away = theta - self.start
        return float((self.pull(away) * away).sum()) / 2

    def pull(self, away: Tensor) -> Tensor:
        """The gradient of the penalty so far from the start."""
        return self.precision[self.group] * away / self.n

    def logits(self, x: Tensor, theta: Tensor) -> Tensor:
        """A x + b, (C, n)."""
        if self.diagonal:
            return torch.addcmul(theta[:, 1:], x, theta[:, :1])
        return torch.addmm(theta[:, -1:], theta[:, :-1], x)

    def collect(self, r: Tensor, x: Tensor) -> Tensor:
        """Sums over rows of r x^T and of r: what the gradient by A and b is made of."""
        slope = (r * x).sum(1, keepdim=True) if self.diagonal else r @ x.T
        return torch.cat([slope, r.sum(1, keepdim=True)], dim=1)
