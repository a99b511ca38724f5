"""Multinomial logistic regression with a Gaussian prior, used to fit vector, matrix and Dirichlet calibration.

The width of the prior is learned from the data (empirical Bayes; MacKay, 1992). Parameters that the data do not
determine shrink to the prior mean, which is temperature scaling, so many parameters and few samples do no harm.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from dualfocal.calibrators._newton import Minimum

TOLERANCE = 1e-11  # nats; stop when a step is expected to gain less
SETTLED = 1e-6  # nats; stop updating the prior when a step is expected to gain less
MOST_UPDATES, MOST_ITERATIONS, MOST_PRODUCTS, MOST_HALVINGS = 25, 100, 200, 40
WIDEST, NARROWEST = 0.04, 1e9  # range of the learned precisions
MOST_BLOCKS = 10  # classes whose block of the Hessian is computed for an update of the prior
MAX_CACHED = 1 << 23  # features and probabilities are cached up to this many elements, else recomputed in each pass

Tiles = Callable[[], Iterable[tuple[slice, Tensor]]]  # row slices with their features (C, n) in float64


class Point(NamedTuple):
    """Mean NLL at a point, with its gradient and the diagonal of its Hessian; without the prior."""

    nll: float
    gradient: Tensor
    curvature: Tensor


class Problem:
    """Minimise the mean NLL of softmax(A x + b) plus the penalty of a Gaussian prior with mean ``start``.

    The penalty makes the problem strictly convex, so it has one finite minimum for any data, which Newton steps with
    a line search always reach.

    Args:
        tiles: function that iterates over the features.
        target: class indices, (N,).
        start: initial parameters and prior mean, A and b side by side: (C, C + 1), or (C, 2) for a diagonal A.
        group: index of the prior of each parameter, int64, in the shape of ``start``.
        precision: precision of each prior.
        learn: whether to learn the precisions from the data.
    """

    def __init__(
        self, tiles: Tiles, target: Tensor, start: Tensor, group: Tensor, precision: Tensor, *, learn: bool
    ) -> None:
        self.tiles, self.target, self.start, self.group = tiles, target, start, group
        self.precision, self.learn = precision, learn
        self.n, self.diagonal = len(target), start.shape[1] == 2
        self.caches = self.n * len(start) <= MAX_CACHED
        self.cached_probs: list[Tensor] = []  # softmax of each tile at the last evaluated point
        if self.caches:
            cached_tiles = [(part, x.clone()) for part, x in tiles()]
            self.tiles = lambda: cached_tiles

    def solve(self) -> Minimum:
        """Newton's method with a line search; each step is solved inexactly by conjugate gradients."""
        theta, point, learn = self.start, self.evaluate(self.start), self.learn
        for iteration in range(1, MOST_ITERATIONS + 1):
            if learn and iteration > 1:  # the first point is the prior mean
                self.update_precision(theta, point)
            gradient = point.gradient + self.prior_gradient(theta - self.start)
            step = self.newton_step(theta, gradient, point.curvature)
            promised = -float((gradient * step).sum()) / 2
            learn = learn and promised > SETTLED and iteration < MOST_UPDATES
            if promised <= TOLERANCE:
                break
            accepted = self.line_search(theta, point, step, promised)
            if accepted is None:
                break
            theta, point = accepted
        return Minimum(theta, iteration, float(gradient.abs().max()), promised <= 10 * TOLERANCE)

    def line_search(self, theta: Tensor, point: Point, step: Tensor, promised: float) -> tuple[Tensor, Point] | None:
        """Halve the step until the objective decreases; None if the decrease is below the rounding error."""
        value, length = point.nll + self.penalty(theta), 1.0
        for _ in range(MOST_HALVINGS):
            trial = theta + length * step
            trial_point = self.evaluate(trial)
            if trial_point.nll + self.penalty(trial) <= value - 1e-4 * length * promised:
                return trial, trial_point
            length /= 2
        return None

    def evaluate(self, theta: Tensor) -> Point:
        total, gradient, curvature = theta.new_zeros(()), torch.zeros_like(theta), torch.zeros_like(theta)
        self.cached_probs = []
        for part, x in self.tiles():
            target = self.target[part].unsqueeze(0)
            z = self.logits(x, theta)
            z -= z.amax(0)
            total -= z.gather(0, target).sum()
            z.exp_()
            mass = z.sum(0)
            total += mass.log().sum()
            p = z.div_(mass)
            if self.caches:
                self.cached_probs.append(p)
            curvature += self.sum_over_rows(p * (1 - p), x * x)
            miss = p.scatter_add(0, target, p.new_full((1, 1), -1.0).expand(target.shape))
            gradient += self.sum_over_rows(miss, x)
        return Point(float(total) / self.n, gradient / self.n, curvature / self.n)

    def newton_step(self, theta: Tensor, gradient: Tensor, curvature: Tensor) -> Tensor:
        """Solve H step = -gradient by conjugate gradients, preconditioned by the diagonal of H."""
        diagonal = curvature + self.prior_gradient(torch.ones_like(theta))
        step, residual = torch.zeros_like(theta), -gradient
        preconditioned = residual / diagonal
        direction, size = preconditioned, float((residual * preconditioned).sum())
        tolerance = size * min(0.25, size**0.5) ** 2
        for _ in range(MOST_PRODUCTS):
            if size <= tolerance:
                break
            product = self.product(theta, direction)
            length = size / float((direction * product).sum())
            step = step + length * direction
            residual = residual - length * product
            preconditioned = residual / diagonal
            before, size = size, float((residual * preconditioned).sum())
            direction = preconditioned + (size / before) * direction
        return step

    def product(self, theta: Tensor, direction: Tensor) -> Tensor:
        """Product of the Hessian with a direction, at the last evaluated point."""
        result = torch.zeros_like(theta)
        for i, (_, x) in enumerate(self.tiles()):
            p = self.cached_probs[i] if self.caches else self.logits(x, theta).softmax(0)
            u = self.logits(x, direction)
            u -= (p * u).sum(0)
            result += self.sum_over_rows(u.mul_(p), x)
        return result / self.n + self.prior_gradient(direction)

    def update_precision(self, theta: Tensor, point: Point) -> None:
        """Move each precision towards (effective number of parameters) / (sum of squares), MacKay's fixed point."""
        deviation, determined = theta - self.start, self.determined(theta, point)
        for g in range(len(self.precision)):
            members = self.group == g
            effective, squares = determined[members].sum(), deviation[members].square().sum()
            if squares > 0:
                # An update removes about the share effective / size of the error of ln precision: take a longer step
                # if that is little, but at most twice as long, for stability.
                longer = (members.sum() / effective).clamp(1, 2)
                precision = self.precision[g] * (effective / squares / self.precision[g]) ** longer
                self.precision[g] = precision.clamp(WIDEST, NARROWEST)

    def determined(self, theta: Tensor, point: Point) -> Tensor:
        """Share of each parameter that the data determine, 1 - precision * posterior variance.

        The Hessian is approximated by one block per class. Its diagonal alone would ignore that features are
        correlated, count too many parameters as determined, and make the prior too narrow. Only a few classes have
        their blocks computed; the other classes get the shares of the diagonal, times the ratio of the two in the
        same group. A constant added to all classes has no effect, so C - 1 of C parameters share the curvature of C.
        """
        effective, step = 1 - 1 / len(theta), -(-len(theta) // MOST_BLOCKS)
        classes = range(0, len(theta), step)
        precision = self.precision[self.group]
        blocks = theta.new_zeros(len(classes), theta.shape[1], theta.shape[1])
        for i, (_, x) in enumerate(self.tiles()):
            p = self.cached_probs[i] if self.caches else self.logits(x, theta).softmax(0)
            for block, c in zip(blocks, classes, strict=True):
                features = x[c : c + 1] if self.diagonal else x
                features = torch.cat([features, torch.ones_like(x[:1])])
                block += (features * (p[c] * (1 - p[c]))) @ features.T
        blocks /= effective
        exact = torch.linalg.solve(blocks + torch.diag_embed(precision[::step]), blocks).diagonal(dim1=1, dim2=2)
        curvature = self.n * point.curvature / effective
        shares = curvature / (curvature + precision)
        tiny = torch.finfo(shares.dtype).tiny
        for g in range(len(self.precision)):
            members = self.group == g
            ratio = exact[members[::step]].sum() / shares[::step][members[::step]].sum().clamp_min(tiny)
            shares = torch.where(members, ratio * shares, shares)
        return effective * shares

    def penalty(self, theta: Tensor) -> float:
        """Penalty of the prior per sample."""
        deviation = theta - self.start
        return float((self.prior_gradient(deviation) * deviation).sum()) / 2

    def prior_gradient(self, deviation: Tensor) -> Tensor:
        """Gradient of the penalty at this deviation from the prior mean."""
        return self.precision[self.group] * deviation / self.n

    def logits(self, x: Tensor, theta: Tensor) -> Tensor:
        """A x + b, (C, n)."""
        if self.diagonal:
            return torch.addcmul(theta[:, 1:], x, theta[:, :1])
        return torch.addmm(theta[:, -1:], theta[:, :-1], x)

    def sum_over_rows(self, r: Tensor, x: Tensor) -> Tensor:
        """Sums over rows of r x^T and of r, side by side: the gradients with respect to A and b."""
        slope = (r * x).sum(1, keepdim=True) if self.diagonal else r @ x.T
        return torch.cat([slope, r.sum(1, keepdim=True)], dim=1)
