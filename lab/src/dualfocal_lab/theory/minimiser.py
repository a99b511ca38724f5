"""Minimisers q of the conditional risk R(q) = sum_k eta_k L(q, k) for a posterior eta, Eq. 4."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from dualfocal.checks import check_choice
from dualfocal_lab.checks import check_number
from dualfocal_lab.theory._orderings import Array, Ranking, all_rankings, minimise_over_rankings
from dualfocal_lab.theory.curves import minimise_focal

MOST_GAMMA = 20.0  # for larger gamma, risks are too small to be compared in float64
LOSSES = ("cross_entropy", "focal", "dual_focal")
NEAR = 1e-6  # confidences closer to the posterior (times gamma if below 1) count as calibrated


@dataclass(frozen=True)
class Minimiser:
    """A prediction q that minimises the conditional risk for the posterior eta.

    Attributes:
        loss: name of the loss.
        gamma: focusing parameter.
        eta: posterior probabilities.
        q: predicted probabilities.
        risk: conditional risk at q.
        ranking: classes from most to least probable, grouped by exactly equal probability.
        attained: False if the risk is an infimum that is only approached, as neighbours in the ranking become equal.
    """

    loss: str
    gamma: float
    eta: tuple[float, ...]
    q: tuple[float, ...]
    risk: float
    ranking: tuple[tuple[int, ...], ...]
    attained: bool = True

    @property
    def order(self) -> tuple[int, ...]:
        """Classes from most to least probable."""
        return tuple(itertools.chain.from_iterable(self.ranking))

    @property
    def overconfidence(self) -> float:
        """Overconfidence max q - max eta, Eq. 10."""
        return max(self.q) - max(self.eta)

    @property
    def verdict(self) -> str:
        """``"over-confident"``, ``"under-confident"`` or ``"calibrated"``, by Eq. 10."""
        if abs(self.overconfidence) < NEAR * (min(1.0, self.gamma) or 1.0):  # gamma = 0: cross-entropy
            return "calibrated"
        return "over-confident" if self.overconfidence > 0 else "under-confident"

    @property
    def inversions(self) -> tuple[tuple[int, int], ...]:
        """Pairs (a, b) with eta_a > eta_b, but b ranked strictly above a."""
        place = {k: i for i, group in enumerate(self.ranking) for k in group}
        pairs = itertools.permutations(range(len(self.eta)), 2)
        return tuple((a, b) for a, b in pairs if self.eta[a] > self.eta[b] and place[a] > place[b])

    @property
    def keeps_order(self) -> bool:
        """Whether q ranks classes of different posterior strictly like the posterior, as Theorem 1 claims."""
        together = any(self.eta[a] != self.eta[b] for group in self.ranking for a, b in itertools.pairwise(group))
        return not self.inversions and not together

    @property
    def keeps_top(self) -> bool:
        """Whether the most probable classes have the largest posterior."""
        return all(self.eta[k] == max(self.eta) for k in self.ranking[0])

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable dictionary of the fields and derived values."""
        derived = ("overconfidence", "verdict", "keeps_order", "keeps_top")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}


def conditional_risk(q: Tensor, eta: Tensor, gamma: float, loss: str = "dual_focal") -> Tensor:
    """Conditional risk R(q) = -sum_k eta_k (1 - q_k + q_j)^gamma log q_k, Eq. 4.

    q_j is the largest probability strictly below q_k, or 0 if there is none.

    Args:
        q: predictions, (..., K).
        eta: posteriors, broadcastable with ``q``.
        gamma: focusing parameter, at least 0.
        loss: ``"dual_focal"``, ``"focal"`` (q_j = 0) or ``"cross_entropy"`` (gamma = 0).

    >>> conditional_risk(torch.tensor([0.5322, 0.2267, 0.2411]), torch.tensor([0.5, 0.3, 0.2]), 2.0)
    tensor(0.7011, dtype=torch.float64)
    """
    check_number("gamma", gamma)
    check_choice("loss", loss, LOSSES)
    q, eta = q.double(), eta.double()
    rival = torch.zeros_like(q)
    if loss == "dual_focal":
        rival = torch.where(q[..., None, :] < q[..., :, None], q[..., None, :], 0.0).amax(-1)
    modulation = (1 - q + rival) ** (0.0 if loss == "cross_entropy" else gamma)
    return -torch.xlogy(eta * modulation, q).sum(-1) + 0.0  # turns -0.0 into 0.0


def cross_entropy_minimiser(eta: Sequence[float]) -> Minimiser:
    """Minimiser of the cross-entropy risk: q = eta, because cross-entropy is a proper loss."""
    eta = _posterior(eta)
    return _with_risk("cross_entropy", 0.0, eta, eta)


def focal_minimiser(eta: Sequence[float], gamma: float) -> Minimiser:
    """Minimiser of the focal risk, which is convex. At the minimum h(q_k; C = 0) / eta_k is equal for all classes.

    Args:
        eta: posterior probabilities of the classes.
        gamma: focusing parameter, from 0 to 20.

    >>> minimiser = focal_minimiser([0.5, 0.3, 0.2], 2.0)
    >>> [round(q, 4) for q in minimiser.q], minimiser.verdict
    ([0.4265, 0.3253, 0.2482], 'under-confident')
    """
    return focal_minimisers([eta], gamma)[0]


def focal_minimisers(etas: Sequence[Sequence[float]], gamma: float) -> list[Minimiser]:
    """Minimisers of the focal risk for several posteriors of the same length, see :func:`focal_minimiser`."""
    check_number("gamma", gamma, 0.0, MOST_GAMMA)
    rows = [_posterior(eta) for eta in etas]
    predictions = minimise_focal(np.array(rows), gamma)
    return [_with_risk("focal", gamma, eta, q) for eta, q in zip(rows, predictions, strict=True)]


def dual_focal_minimiser(
    eta: Sequence[float], gamma: float, *, order: Sequence[int] | None = None, ties: bool = False
) -> Minimiser:
    """Exact minimiser of the dual focal risk.

    Within each order of the classes the risk is smooth; between orders it jumps. Each of the K! orders is solved
    separately, and the best solution is returned. A class with posterior 0 gets probability 0, because moving its
    mass to the most probable class lowers the risk.

    Args:
        eta: posterior probabilities of the classes, at most 5 of them positive.
        gamma: focusing parameter, from 0 to 20.
        order: minimise only over predictions that rank the classes in this order, most probable first; all classes
            must have a positive posterior.
        ties: also consider predictions with exactly equal probabilities. A class tied with the target is not strictly
            below it, so it is not a rival, and the risk at a tie is lower than around it.

    >>> minimiser = dual_focal_minimiser([0.5, 0.3, 0.2], 2.0)
    >>> [round(q, 4) for q in minimiser.q], round(minimiser.risk, 5), minimiser.inversions
    ([0.5322, 0.2267, 0.2411], 0.70111, ((1, 2),))
    >>> round(dual_focal_minimiser([0.5, 0.3, 0.2], 2.0, order=[0, 1, 2]).risk, 5)
    0.70298
    >>> dual_focal_minimiser([0.5, 0.3, 0.2], 2.0, ties=True).ranking
    ((0, 1, 2),)
    """
    if order is None:
        return dual_focal_minimisers([eta], gamma, ties=ties)[0]
    check_number("gamma", gamma, 0.0, MOST_GAMMA)
    eta = _posterior(eta)
    if ties or sorted(order) != list(range(len(eta))) or min(eta) == 0:
        raise ValueError(
            f"order must list each of the {len(eta)} classes once, all must have a positive posterior, and ties must "
            f"be False; got order {list(order)}, eta {list(eta)}, ties {ties}"
        )
    rankings, q, risk = minimise_over_rankings(np.array([eta]), gamma, [tuple((k,) for k in order)])
    return _all_classes(eta, gamma, rankings[0], q[0], risk[0])


def dual_focal_minimisers(etas: Sequence[Sequence[float]], gamma: float, *, ties: bool = False) -> list[Minimiser]:
    """Minimisers of the dual focal risk for several posteriors, see :func:`dual_focal_minimiser`."""
    check_number("gamma", gamma, 0.0, MOST_GAMMA)
    rows = [_posterior(eta) for eta in etas]
    positive = [[value for value in eta if value > 0] for eta in rows]
    minimisers: dict[int, Minimiser] = {}
    for count in set(map(len, positive)):
        indices = [i for i, values in enumerate(positive) if len(values) == count]
        posteriors, rankings = np.array([positive[i] for i in indices]), list(all_rankings(count, ties))
        for i, *best in zip(indices, *minimise_over_rankings(posteriors, gamma, rankings), strict=True):
            minimisers[i] = _all_classes(rows[i], gamma, *best)
    return [minimisers[i] for i in range(len(rows))]


def compare_minimisers(eta: Sequence[float], gamma: float) -> dict[str, Minimiser]:
    """Minimisers of cross-entropy, focal and dual focal loss by name.

    Dual focal loss also appears restricted to the order of eta (unless its minimiser has that order or a class has
    posterior 0), and with exact ties allowed.

    >>> list(compare_minimisers([0.5, 0.3, 0.2], 2.0))
    ['cross-entropy', 'focal', 'dual focal', "dual focal, eta's order", 'dual focal, with ties']
    """
    minimisers = {
        "cross-entropy": cross_entropy_minimiser(eta),
        "focal": focal_minimiser(eta, gamma),
        "dual focal": dual_focal_minimiser(eta, gamma),
    }
    if not minimisers["dual focal"].keeps_order and min(eta) > 0:
        order = sorted(range(len(eta)), key=lambda k: -eta[k])
        minimisers["dual focal, eta's order"] = dual_focal_minimiser(eta, gamma, order=order)
    minimisers["dual focal, with ties"] = dual_focal_minimiser(eta, gamma, ties=True)
    return minimisers


def uniform_threshold(gamma: float) -> float:
    """Largest posterior of two classes for which the exact tie q = (1/2, 1/2) minimises the dual focal risk.

    >>> [round(uniform_threshold(gamma), 3) for gamma in (0.5, 1.0, 2.0, 3.0, 5.0)]
    [0.707, 0.774, 0.855, 0.905, 0.958]
    """
    check_number("gamma", gamma, 0.0, MOST_GAMMA)
    if gamma == 0:
        raise ValueError("gamma must be above 0, got 0: cross-entropy has its minimum at the posterior")

    def excess(larger: float) -> float:
        _, _, risk = minimise_over_rankings(np.array([[larger, 1 - larger]]), gamma)
        return float(risk[0]) - float(0.5**gamma * math.log(2))

    return float(brentq(excess, 0.5, 1 - 1e-9, xtol=1e-9))


def _posterior(eta: Sequence[float]) -> tuple[float, ...]:
    values = tuple(float(value) for value in eta)
    if len(values) < 2 or not all(0 <= value <= 1 for value in values) or abs(sum(values) - 1) > 1e-6:
        raise ValueError(
            f"eta must hold at least two probabilities that sum to 1, got {list(values)} with sum {sum(values):g}"
        )
    return values


def _with_risk(loss: str, gamma: float, eta: tuple[float, ...], values: Iterable[float]) -> Minimiser:
    q = tuple(map(float, values))
    both = torch.tensor([q, eta], dtype=torch.float64)
    risk = float(conditional_risk(both[0], both[1], gamma, loss))
    heights = sorted(set(q), reverse=True)
    ranking = tuple(tuple(k for k, value in enumerate(q) if value == height) for height in heights)
    return Minimiser(loss, gamma, eta, q, risk, ranking)


def _all_classes(eta: tuple[float, ...], gamma: float, ranking: Ranking, q: Array, risk: float) -> Minimiser:
    """Minimiser over all classes from the one over classes of positive posterior; the others get probability 0."""
    kept = [k for k, value in enumerate(eta) if value > 0]
    every = np.zeros(len(eta))
    every[kept] = q
    groups = [tuple(kept[k] for k in group) for group in ranking]
    attained = all(every[above[0]] > every[below[0]] for above, below in itertools.pairwise(groups))
    if len(kept) < len(eta):  # equal at 0
        groups.append(tuple(k for k in range(len(eta)) if k not in kept))
    return Minimiser("dual_focal", gamma, eta, tuple(every.tolist()), float(risk) + 0.0, tuple(groups), attained)
