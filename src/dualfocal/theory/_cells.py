"""The conditional risk inside one ordering of the classes, minimised: the numerics behind `minimiser`.

An ordering puts the classes into groups of equal probability, x_1 > x_2 > ... > x_G, of sizes n_1 ... n_G; without
ties every size is 1. With E_m the posterior of a group, the risk there is smooth,

    F(x) = sum_m E_m (1 - x_m + x_(m+1))^gamma (-log x_m),    x_(G+1) = 0,    sum_m n_m x_m = 1.

The ordered x are a simplex, with corners u_l = the first l groups equal and the others 0; x = sum_l w_l u_l, and
w_l = 0 is where groups l and l + 1 meet. F need not be convex, so Newton's method starts from several points of a grid;
in the cases tried one of them would nearly always have done.
"""

import itertools
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

Array = NDArray[np.float64]

STEPS = 200
GRID = {1: 1, 2: 160, 3: 28, 4: 14, 5: 9}  # parts that the grid of starts cuts an edge of the simplex into
NEAR = 1e-3  # neighbours that differ by less than this share are tried as equal


def minimise(weights: Array, sizes: tuple[int, ...], gamma: float) -> tuple[Array, Array]:
    """The least F for each row of ``weights``, over the closed ordering.

    Args:
        weights: E, (B, G), positive.
        sizes: n, the number of classes in each group.
        gamma: at least 0.

    Returns:
        x, (B, G), equal in neighbours where the least value is only approached towards a tie; and F there, (B,).
    """
    rows, groups = weights.shape
    corners = np.tril(np.ones((groups, groups))) / np.cumsum(sizes)[:, None]  # (G, G), u_l in row l
    each = weights.repeat(groups, 0)  # one for each start
    w = softmax(_newton(_starts(weights, corners, gamma), each, corners, gamma), -1)
    best = _value(w @ corners, each, gamma).reshape(rows, groups).argmin(1)
    w = w.reshape(rows, groups, groups)[np.arange(rows), best]
    # Neighbours are made equal where that lowers F: Newton's method only comes near to a face.
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
    """(1 - x_m + x_(m+1))^gamma (-log x_m): the loss if the label is in group m, for x in descending order."""
    return np.asarray(_margin(x) ** np.full_like(x, gamma) * -np.log(x))  # a full exponent: no shortcut for 2 or 1/2


def _value(x: Array, weights: Array, gamma: float) -> Array:
    return np.asarray((weights * _costs(x, gamma)).sum(-1))


@cache
def _grid(groups: int) -> Array:
    parts = GRID[groups]
    cuts = np.array([cut for cut in itertools.product(range(parts), repeat=groups - 1) if sum(cut) < parts])
    w = np.concatenate([cuts, parts - 1 - cuts.sum(1, keepdims=True)], 1) + 0.25
    return np.asarray(w / w.sum(1, keepdims=True))


def _starts(weights: Array, corners: Array, gamma: float) -> Array:
    """For each row the best point of the grid near each corner, as log w: basins do not hide behind one another."""
    w = _grid(len(corners))
    values = weights @ _costs(w @ corners, gamma).T  # (B, P)
    near = [np.flatnonzero(w.argmax(1) == corner) for corner in range(len(corners))]
    best = np.stack([points[values[:, points].argmin(1)] for points in near], 1)  # (B, G)
    return np.asarray(np.log(w[best]).reshape(-1, len(corners)))


def _newton(theta: Array, weights: Array, corners: Array, gamma: float) -> Array:
    """Newton's method on theta, w = softmax(theta): downhill also where F curves the wrong way, halving the step.

    Towards a face, where w_l goes to 0, each step divides it by e.
    """
    value = _value(softmax(theta, -1) @ corners, weights, gamma)
    moving = np.arange(len(theta))
    for _ in range(STEPS):
        start, step = value[moving], _step(softmax(theta[moving], -1), weights[moving], corners, gamma)
        rest = moving  # those still without a step that goes down
        for share in 0.5 ** np.arange(20):
            tried = theta[rest] + share * step
            new = _value(softmax(tried, -1) @ corners, weights[rest], gamma)
            good = new < value[rest]
            theta[rest[good]], value[rest[good]] = tried[good], new[good]
            rest, step = rest[~good], step[~good]
            if not len(rest):
                break
        moving = moving[start - value[moving] > 1e-13 * start]
        if not len(moving):
            break
    # Rounding hides the gain of the last steps, which bring the last digits of x.
    for _ in range(2):
        step = _step(softmax(theta, -1), weights, corners, gamma)
        theta += np.where(np.linalg.norm(step, axis=1, keepdims=True) < 1e-4, step, 0.0)
    return theta


def _step(w: Array, weights: Array, corners: Array, gamma: float) -> Array:
    """Newton's, with the curvature's sign turned where it is wrong, and never long."""
    slope, curvature = _derivatives(w, weights, corners, gamma)
    bends, along = np.linalg.eigh(curvature)
    downhill = (along.swapaxes(1, 2) @ slope[..., None])[..., 0] / np.maximum(np.abs(bends), 1e-14)
    step = -(along @ downhill[..., None])[..., 0]
    step -= step.mean(1, keepdims=True)  # adding one number to theta leaves w as it is, so F says nothing of it
    return np.asarray(step * np.minimum(1, 3 / np.maximum(np.linalg.norm(step, axis=1, keepdims=True), 1e-300)))


def _derivatives(w: Array, weights: Array, corners: Array, gamma: float) -> tuple[Array, Array]:
    """Gradient (B, G) and Hessian (B, G, G) of F with respect to theta."""
    x = w @ corners
    g, a, log = np.full_like(x, gamma), _margin(x), -np.log(x)
    # By (x_m, x_(m+1)) a term of F, over E_m, has the gradient (-by_own, by_next) and this Hessian.
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
    # From x to w, which is linear, and on to theta.
    slope, bend = slope @ corners.T, corners @ bend @ corners.T
    jacobian = w[:, :, None] * (np.eye(w.shape[1]) - w[:, None, :])
    pull = w * (slope - (w * slope).sum(1, keepdims=True))
    second = pull[:, :, None] * np.eye(w.shape[1]) - pull[:, :, None] * w[:, None, :] - w[:, :, None] * pull[:, None, :]
    return pull, jacobian.swapaxes(1, 2) @ bend @ jacobian + second


MOST_CLASSES = 5  # of positive posterior: all K! orders are solved, or 541 with ties

Ranking = tuple[tuple[int, ...], ...]


def least(eta: Array, gamma: float, rankings: Sequence[Ranking] | None = None) -> tuple[list[Ranking], Array, Array]:
    """Of each row of ``eta``, (B, K), all positive: its best ranking, q there, (B, K), and the risk, (B,).

    ``rankings`` are all orders without ties unless given.
    """
    rows, classes = eta.shape
    if classes > MOST_CLASSES:
        raise ValueError(f"at most {MOST_CLASSES} classes of positive posterior can be solved exactly, got {classes}")
    rankings = list(all_rankings(classes, False)) if rankings is None else rankings
    best, risk, q = [rankings[0]] * rows, np.full(rows, np.inf), np.zeros_like(eta)
    by_sizes: dict[tuple[int, ...], list[Ranking]] = {}
    for ranking in rankings:
        by_sizes.setdefault(tuple(map(len, ranking)), []).append(ranking)
    for sizes, some in by_sizes.items():
        weights = np.stack([[eta[:, list(group)].sum(1) for group in ranking] for ranking in some])  # (R, G, B)
        weights = weights.transpose(2, 0, 1).reshape(rows * len(some), len(sizes))
        x, values = minimise(weights, sizes, gamma)
        x, values = x.reshape(rows, len(some), -1), values.reshape(rows, len(some))
        # Rounding decides nothing: of rankings as good as one another the first is taken.
        first = (values <= values.min(1, keepdims=True) * (1 + 1e-12)).argmax(1)
        for row, place in enumerate(first):
            if values[row, place] < risk[row] * (1 - 1e-12):
                best[row], risk[row] = some[place], values[row, place]
                for group, height in zip(some[place], x[row, place], strict=True):
                    q[row, list(group)] = height
    return best, q, risk


def all_rankings(classes: int, ties: bool) -> Iterator[Ranking]:
    """All orders of the classes; with ``ties`` those with groups of equal probability, too."""
    if not ties:
        yield from (tuple((k,) for k in order) for order in itertools.permutations(range(classes)))
        return
    for heights in itertools.product(range(classes), repeat=classes):
        if set(heights) == set(range(max(heights) + 1)):
            yield tuple(tuple(k for k in range(classes) if heights[k] == level) for level in range(max(heights) + 1))
