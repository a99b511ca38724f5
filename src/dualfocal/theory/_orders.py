"""The dual focal risk over all orders of the classes: each is a problem of its own for `_cells`."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from dualfocal.theory._cells import Array, minimise

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
        x, values = minimise(weights, sizes, np.full(len(weights), float(gamma)))
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
