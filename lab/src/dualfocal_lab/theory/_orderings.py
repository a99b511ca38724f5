"""Minimise the conditional risk within an ordering of the classes, and over all orderings; used by `minimiser`.

An ordering sorts the classes into groups of equal probability, x_1 > x_2 > ... > x_G, of sizes n_1 ... n_G; without
ties every size is 1. With E_m the posterior of a group, the risk within an ordering is smooth,

    F(x) = sum_m E_m (1 - x_m + x_(m+1))^gamma (-log x_m),    x_(G+1) = 0,    sum_m n_m x_m = 1.

The ordered x form a simplex with corners u_l, where the first l groups are equal and the others 0: x = sum_l w_l u_l.
On the face w_l = 0, groups l and l + 1 are equal. F need not be convex, so Newton's method starts from several points
of a grid, although one start was nearly always enough in practice.
"""

import itertools
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

Array = NDArray[np.float64]

STEPS = 200
GRID = {1: 1, 2: 160, 3: 28, 4: 14, 5: 9}  # groups -> grid points along an edge of the simplex
NEAR = 1e-3  # neighbours with a smaller relative difference are also tried as equal


def minimise_ordering(weights: Array, sizes: tuple[int, ...], gamma: float) -> tuple[Array, Array]:
    """Minimise F for each row of ``weights``, over the ordering including its boundary.

    Args:
        weights: E, (B, G), positive.
        sizes: n, the number of classes in each group.
        gamma: at least 0.

    Returns:
        x, (B, G), and F at x, (B,). Neighbours in x are equal if the infimum is only approached towards a tie.
    """
    rows, groups = weights.shape
    corners = np.tril(np.ones((groups, groups))) / np.cumsum(sizes)[:, None]  # (G, G), u_l in row l
    repeated = weights.repeat(groups, 0)  # one row per start
    w = softmax(_newton(_starts(weights, corners, gamma), repeated, corners, gamma), -1)
    best = _value(w @ corners, repeated, gamma).reshape(rows, groups).argmin(1)
    w = w.reshape(rows, groups, groups)[np.arange(rows), best]
    # Newton's method only approaches a face, so neighbours are set equal where that lowers F.
    value = _value(w @ corners, weights, gamma)
    for face in range(groups - 1):
        moved = w.copy()
        moved[:, face] = 0
        moved /= moved.sum(1, keepdims=True)
        new, x = _value(moved @ corners, weights, gamma), w @ corners
        better = (x[:, face] < (1 + NEAR) * x[:, face + 1]) & (new <= value)
        w, value = np.where(better[:, None], moved, w), np.where(better, new, value)
    return w @ corners, value


def _margin(x: Array) -> Array:
    return 1 - x + np.pad(x[:, 1:], ((0, 0), (0, 1)))


def _costs(x: Array, gamma: float) -> Array:
    """Loss (1 - x_m + x_(m+1))^gamma (-log x_m) of a label in group m, for x in descending order."""
    return np.asarray(_margin(x) ** np.full_like(x, gamma) * -np.log(x))  # array exponent: same rounding for 2 and 1/2


def _value(x: Array, weights: Array, gamma: float) -> Array:
    return np.asarray((weights * _costs(x, gamma)).sum(-1))


@cache
def _grid(groups: int) -> Array:
    parts = GRID[groups]
    cuts = np.array([cut for cut in itertools.product(range(parts), repeat=groups - 1) if sum(cut) < parts])
    w = np.concatenate([cuts, parts - 1 - cuts.sum(1, keepdims=True)], 1) + 0.25
    return np.asarray(w / w.sum(1, keepdims=True))


def _starts(weights: Array, corners: Array, gamma: float) -> Array:
    """Best grid point near each corner for each row, as log w, so that every basin has a start."""
    w = _grid(len(corners))
    values = weights @ _costs(w @ corners, gamma).T  # (B, P)
    near = [np.flatnonzero(w.argmax(1) == corner) for corner in range(len(corners))]
    best = np.stack([points[values[:, points].argmin(1)] for points in near], 1)  # (B, G)
    return np.asarray(np.log(w[best]).reshape(-1, len(corners)))


def _newton(theta: Array, weights: Array, corners: Array, gamma: float) -> Array:
    """Newton's method in theta, w = softmax(theta), with step halving; it descends also where F is not convex.

    Towards a face, where w_l -> 0, each step divides w_l by e.
    """
    value = _value(softmax(theta, -1) @ corners, weights, gamma)
    moving = np.arange(len(theta))
    for _ in range(STEPS):
        start, step = value[moving], _step(softmax(theta[moving], -1), weights[moving], corners, gamma)
        rest = moving  # rows still without a decreasing step
        for share in 0.5 ** np.arange(20):
            trial = theta[rest] + share * step
            new = _value(softmax(trial, -1) @ corners, weights[rest], gamma)
            good = new < value[rest]
            theta[rest[good]], value[rest[good]] = trial[good], new[good]
            rest, step = rest[~good], step[~good]
            if not len(rest):
                break
        moving = moving[start - value[moving] > 1e-13 * start]
        if not len(moving):
            break
    # Two more steps improve the last digits of x, although rounding hides their gain in F.
    for _ in range(2):
        step = _step(softmax(theta, -1), weights, corners, gamma)
        theta += np.where(np.linalg.norm(step, axis=1, keepdims=True) < 1e-4, step, 0.0)
    return theta


def _step(w: Array, weights: Array, corners: Array, gamma: float) -> Array:
    """Newton step of bounded length, with negative eigenvalues of the Hessian replaced by their absolute value."""
    slope, curvature = _derivatives(w, weights, corners, gamma)
    bends, along = np.linalg.eigh(curvature)
    downhill = (along.swapaxes(1, 2) @ slope[..., None])[..., 0] / np.maximum(np.abs(bends), 1e-14)
    step = -(along @ downhill[..., None])[..., 0]
    step -= step.mean(1, keepdims=True)  # a constant added to theta does not change w
    return np.asarray(step * np.minimum(1, 3 / np.maximum(np.linalg.norm(step, axis=1, keepdims=True), 1e-300)))


def _derivatives(w: Array, weights: Array, corners: Array, gamma: float) -> tuple[Array, Array]:
    """Gradient (B, G) and Hessian (B, G, G) of F with respect to theta."""
    x = w @ corners
    g, a, log = np.full_like(x, gamma), _margin(x), -np.log(x)
    # The m-th term of F, divided by E_m, has gradient (-by_own, by_next) in (x_m, x_(m+1)), and this Hessian.
    by_next = g * a ** (g - 1) * log
    by_own = a**g / x + by_next
    both = g * (g - 1) * a ** (g - 2) * log
    mixed = both + g * a ** (g - 1) / x
    own = both + 2 * g * a ** (g - 1) / x + a**g / x**2
    slope = -weights * by_own
    slope[:, 1:] += (weights * by_next)[:, :-1]
    bend = np.zeros((*x.shape, x.shape[1]))
    place = np.arange(x.shape[1])
    bend[:, place, place] = weights * own
    bend[:, place[1:], place[1:]] += (weights * both)[:, :-1]
    bend[:, place[:-1], place[1:]] = bend[:, place[1:], place[:-1]] = -(weights * mixed)[:, :-1]
    # Chain rule from x to w, which is linear, and to theta.
    slope, bend = slope @ corners.T, corners @ bend @ corners.T
    jacobian = w[:, :, None] * (np.eye(w.shape[1]) - w[:, None, :])
    pull = w * (slope - (w * slope).sum(1, keepdims=True))
    second = pull[:, :, None] * np.eye(w.shape[1]) - pull[:, :, None] * w[:, None, :] - w[:, :, None] * pull[:, None, :]
    return pull, jacobian.swapaxes(1, 2) @ bend @ jacobian + second


MOST_CLASSES = 5  # with positive posterior: all K! orders are solved, 541 with ties

Ranking = tuple[tuple[int, ...], ...]


def minimise_over_rankings(
    eta: Array, gamma: float, rankings: Sequence[Ranking] | None = None
) -> tuple[list[Ranking], Array, Array]:
    """Minimise the risk over rankings of the classes, for each row of ``eta``, (B, K), all positive.

    ``rankings`` defaults to all orders without ties.

    Returns:
        The best ranking of each row, q, (B, K), and the risk, (B,).
    """
    rows, classes = eta.shape
    if classes > MOST_CLASSES:
        raise ValueError(f"at most {MOST_CLASSES} classes with positive posterior can be solved exactly, got {classes}")
    rankings = list(all_rankings(classes, False)) if rankings is None else rankings
    best, risk, q = [rankings[0]] * rows, np.full(rows, np.inf), np.zeros_like(eta)
    by_sizes: dict[tuple[int, ...], list[Ranking]] = {}
    for ranking in rankings:
        by_sizes.setdefault(tuple(map(len, ranking)), []).append(ranking)
    for sizes, same_sizes in by_sizes.items():
        weights = np.stack([[eta[:, list(group)].sum(1) for group in ranking] for ranking in same_sizes])  # (R, G, B)
        weights = weights.transpose(2, 0, 1).reshape(rows * len(same_sizes), len(sizes))
        x, values = minimise_ordering(weights, sizes, gamma)
        x, values = x.reshape(rows, len(same_sizes), -1), values.reshape(rows, -1)
        # Of rankings that are equal within rounding, take the first.
        first = (values <= values.min(1, keepdims=True) * (1 + 1e-12)).argmax(1)
        for row, place in enumerate(first):
            if values[row, place] < risk[row] * (1 - 1e-12):
                best[row], risk[row] = same_sizes[place], values[row, place]
                for group, height in zip(same_sizes[place], x[row, place], strict=True):
                    q[row, list(group)] = height
    return best, q, risk


def all_rankings(classes: int, ties: bool) -> Iterator[Ranking]:
    """All orders of the classes, with ``ties`` also those with groups of equal probability."""
    if not ties:
        yield from (tuple((k,) for k in order) for order in itertools.permutations(range(classes)))
        return
    for heights in itertools.product(range(classes), repeat=classes):
        if set(heights) == set(range(max(heights) + 1)):
            yield tuple(tuple(k for k in range(classes) if heights[k] == level) for level in range(max(heights) + 1))
