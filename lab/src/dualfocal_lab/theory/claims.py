"""Numerical checks of Lemma 1, Theorem 1 and the paper's conclusions from them, for one gamma."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dualfocal.losses import dual_focal_loss, focal_loss
from dualfocal_lab.theory.curves import phi, phi_slope, t, u
from dualfocal_lab.theory.minimiser import (
    Minimiser,
    dual_focal_minimiser,
    dual_focal_minimisers,
    focal_minimisers,
    uniform_threshold,
)
from dualfocal_lab.theory.regions import dual_entropy_bound, entropy_bound, phi_peak, regions
from dualfocal_lab.theory.stationarity import exact_eta, published_eta

GRID = {2: 40, 3: 40, 4: 20}  # number of classes -> number of steps of the posterior grid
HOLDS, FAILS, EMPTY = "holds", "fails", "empty"
C_GRID = torch.linspace(0, 0.99, 100, dtype=torch.float64)

Outcome = tuple[str, str, dict[str, Any]]  # verdict, finding and numbers of a claim


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, with the result of its numerical check.

    Attributes:
        where: place in the paper.
        says: the statement.
        verdict: ``"holds"`` in all cases of the grid, ``"fails"``, or ``"empty"`` if it applies to no case.
        finding: the result in words.
        numbers: the numbers of the finding.
    """

    where: str
    says: str
    verdict: str
    finding: str
    numbers: dict[str, Any]


@dataclass(frozen=True)
class Minimisers:
    """Exact minimisers for a grid of posteriors and one gamma."""

    gamma: float
    dual: list[Minimiser]  # without exact ties
    focal: list[Minimiser]
    tied: list[Minimiser]  # of dual focal loss, exact ties allowed


def posterior_grid(num_classes: int, parts: int) -> list[tuple[float, ...]]:
    """All posteriors with eta_1 > eta_2 > ... > 0 that are multiples of 1 / parts.

    >>> posterior_grid(3, 8)
    [(0.5, 0.375, 0.125), (0.625, 0.25, 0.125)]
    """
    counts = itertools.combinations(range(parts, 0, -1), num_classes)
    return sorted(tuple(n / parts for n in count) for count in counts if sum(count) == parts)


def check_claims(gamma: float) -> list[Claim]:
    """Check each claim of the paper numerically.

    Functions of v are checked for C from 0 to 0.99, minimisers for a grid of posteriors of 2 to 4 classes. A check on a
    grid is not a proof; `docs/theory.md` says what is proved.

    Args:
        gamma: focusing parameter, above 0 and at most 20.
    """
    grids = [posterior_grid(num_classes, parts) for num_classes, parts in GRID.items()]
    etas = list(itertools.chain.from_iterable(grids))
    minimisers = Minimisers(
        gamma,
        dual=dual_focal_minimisers(etas, gamma),
        focal=[minimiser for grid in grids for minimiser in focal_minimisers(grid, gamma)],
        tied=dual_focal_minimisers(etas, gamma, ties=True),
    )
    return [Claim(where, says, *check(minimisers)) for where, says, check in CLAIMS]


def _ends(grid: Minimisers) -> Outcome:
    ends = ((0.0, (1 + C_GRID) ** grid.gamma), (1.0, C_GRID**grid.gamma))
    off = max(float((phi(v, grid.gamma, C_GRID) - claimed).abs().max()) for v, claimed in ends)
    return _verdict(off < 1e-9), f"largest difference {off:.1g}", {"difference": off}


def _one_peak(grid: Minimisers) -> Outcome:
    v = torch.linspace(0, 1, 5_001, dtype=torch.float64)[1:-1]
    rises = phi_slope(v, grid.gamma, C_GRID[:, None]) > 0
    changes = (rises[:, 1:] != rises[:, :-1]).sum(1)
    good, number = int(((changes == 1) & rises[:, 0] & ~rises[:, -1]).sum()), len(C_GRID)
    return _verdict(good == number), f"for {good} of {number} values of C", {"good": good, "of": number}


def _h_rises(grid: Minimisers) -> Outcome:
    v = torch.linspace(0, 1, 2_001, dtype=torch.float64)[1:-1]
    lowest = {"t": float(t(v, grid.gamma, C_GRID[:, None]).min())}
    if grid.gamma < 1:  # the proof needs it only there
        lowest["u"] = float(u(v, grid.gamma, C_GRID[:, None]).min())
    text = ", ".join(f"minimum of {name} {value:.2g}" for name, value in lowest.items())
    return _verdict(min(lowest.values()) > 0), text, lowest


def _entropy(grid: Minimisers) -> Outcome:
    """Check random predictions, and the worst case of the proof: all remaining probability in one class."""
    gamma = grid.gamma
    draws = torch.distributions.Dirichlet(torch.full((4,), 0.5, dtype=torch.float64))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        p = draws.sample(torch.Size([20_000])).clamp_min(1e-12)
    p_k = torch.linspace(1e-4, 1 - 1e-4, 1_000, dtype=torch.float64)
    p = torch.cat([p, torch.stack([p_k, (1 - p_k) * (1 - 2e-9), *[(1 - p_k) * 1e-9] * 2], 1)])
    p = p / p.sum(1, keepdim=True)
    target = torch.zeros(len(p), dtype=torch.long)
    bound, logits = entropy_bound(p, target, gamma), p.log()
    focal, dual = (loss(logits, target, gamma, reduction="none") for loss in (focal_loss, dual_focal_loss))
    slack = {"focal": float((focal - bound).min()), "dual_focal": float((dual - bound).min())}
    text = f"loss - bound is at least {slack['focal']:.1g} for focal, {slack['dual_focal']:.1g} for dual focal loss"
    if gamma >= 1:
        slack["dual_focal_sharper"] = float((dual - dual_entropy_bound(p, target, gamma)).min())
        text += f", {slack['dual_focal_sharper']:.1g} above + gamma p_j |log p_k p_j|"
    return _verdict(min(slack.values()) > -1e-9), text, slack


def _rival_phi(grid: Minimisers) -> Outcome:
    """phi of the second class by the exact condition: lambda q_2 / eta_2, with lambda = eta_1 phi_1 / q_1."""

    def rival_phi(m: Minimiser) -> float:
        first, second = m.order[:2]
        top = float(phi(m.q[first], grid.gamma, m.q[second]))
        return m.eta[first] * top / m.q[first] * m.q[second] / m.eta[second]

    values = [rival_phi(m) for m in grid.dual if m.attained]
    low, high = min(values), max(values)
    text = f"phi = lambda q_j / eta_j lies between {low:.3f} and {high:.3f}"
    return _verdict(max(abs(low - 1), abs(high - 1)) < _tolerance(grid.gamma)), text, {"low": low, "high": high}


def _equation_9(grid: Minimisers) -> Outcome:
    attained = [torch.tensor([m.q, m.eta], dtype=torch.float64) for m in grid.dual if m.attained]
    published, exact = (
        max(float((estimate(q, grid.gamma) - eta).abs().max()) for q, eta in attained)
        for estimate in (published_eta, exact_eta)
    )
    text = f"error up to {published:.3f}; up to {exact:.1g} with the cross terms"
    return _verdict(published < _tolerance(grid.gamma)), text, {"published": published, "exact": exact}


def _order(grid: Minimisers) -> Outcome:
    wrong = [m for m in grid.dual if not m.keeps_order]
    counts = {"wrong": len(wrong), "of": len(grid.dual)}
    if not wrong:
        return HOLDS, f"for all {len(grid.dual)} posteriors of the grid", counts
    ordered = [dual_focal_minimiser(m.eta, grid.gamma, order=range(len(m.eta))) for m in wrong]
    worst, kept = max(zip(wrong, ordered, strict=True), key=lambda pair: pair[1].risk - pair[0].risk)
    text = (
        f"violated for {len(wrong)} of {len(grid.dual)} posteriors, most for eta = {_shown(worst.eta, 3)}: "
        f"risk {worst.risk:.5f} at q = {_shown(worst.q)}{'' if worst.attained else ' (approached)'}, "
        f"{kept.risk:.5f} in the order of eta"
    )
    example = {"eta": list(worst.eta), "q": list(worst.q), "risk": worst.risk, "risk_in_order": kept.risk}
    return FAILS, text, counts | example


def _top(grid: Minimisers) -> Outcome:
    wrong = [m for m in grid.dual if not m.keeps_top]
    text = f"without exact ties: wrong for {len(wrong)} of {len(grid.dual)} posteriors"
    if wrong:
        text += f", such as eta = {_shown(wrong[0].eta, 3)}, q = {_shown(wrong[0].q)}"
    return _verdict(not wrong), text, {"wrong": len(wrong), "of": len(grid.dual)}


def _top_with_ties(grid: Minimisers) -> Outcome:
    wrong = sum(not m.keeps_top for m in grid.tied)
    uniform = sum(len(m.ranking) == 1 for m in grid.tied)
    threshold = uniform_threshold(grid.gamma)
    text = (
        f"with exact ties: other classes tie with it for {wrong} of {len(grid.tied)} posteriors, all classes for "
        f"{uniform}; with two classes, both tie up to a posterior of {threshold:.5g}"
    )
    numbers = {"wrong": wrong, "uniform": uniform, "of": len(grid.tied), "two_class_threshold": threshold}
    return _verdict(not wrong), text, numbers


def _over_confident(grid: Minimisers) -> Outcome:
    """Check minimisers, and count stationary predictions of many classes, for which q_m can be below v^m.

    With up to four classes q_m is at least 1/4, above v^m. Stationary predictions need not be minimisers, so they do
    not decide the verdict, in particular those that lose the top class of the posterior, which no minimiser of few
    classes does (`_top`).
    """
    inside = [m for m in grid.dual if max(m.q) <= regions(m.gamma, sorted(m.q)[-2]).v_m]
    right, over = (sum(m.verdict == "over-confident" for m in group) for group in (inside, grid.dual))
    stationary = {"keep": 0, "keep_over": 0, "lose": 0, "lose_over": 0}  # the top class of the posterior
    generator = np.random.default_rng(0)
    for num_classes, evenness in itertools.product((10, 30, 100), (2, 10, 50)):
        q = torch.from_numpy(generator.dirichlet(np.full(num_classes, evenness), 100))
        eta = exact_eta(q, grid.gamma)
        top = q.topk(2).values
        below_peak = top[:, 0] <= torch.tensor([phi_peak(grid.gamma, c) for c in top[:, 1].tolist()])
        over_confident = top[:, 0] > eta.amax(-1)
        keeps = eta.argmax(-1) == q.argmax(-1)
        for name, cases in (("keep", below_peak & keeps), ("lose", below_peak & ~keeps)):
            stationary[name] += int(cases.sum())
            stationary[f"{name}_over"] += int((cases & over_confident).sum())
    text = (
        f"{len(inside)} of {len(grid.dual)} minimisers have q_m <= v^m, and {over} are over-confident. Of stationary "
        "predictions with 10 to 100 classes and q_m <= v^m, which need not be minimisers, "
        f"{stationary['keep_over']} of {stationary['keep']} that keep the top class are over-confident, and "
        f"{stationary['lose_over']} of {stationary['lose']} that lose it"
    )
    numbers = {"inside": len(inside), "right": right, "over_confident": over, "of": len(grid.dual), **stationary}
    return _verdict(right == len(inside), empty=not inside), text, numbers


def _under_confident(grid: Minimisers) -> Outcome:
    inside = [m for m in grid.dual if max(m.q) >= regions(m.gamma, sorted(m.q)[-2]).v_uc]
    right, under = (sum(m.verdict == "under-confident" for m in group) for group in (inside, grid.dual))
    text = (
        f"{len(inside)} of {len(grid.dual)} minimisers have q_m >= v^uc, {right} of them under-confident; "
        f"{under} of all minimisers are under-confident"
    )
    numbers = {"inside": len(inside), "right": right, "under_confident": under, "of": len(grid.dual)}
    return _verdict(right == len(inside), empty=not inside), text, numbers


def _less_under_confident(grid: Minimisers) -> Outcome:
    focal, dual = ([m.verdict == "under-confident" for m in group] for group in (grid.focal, grid.dual))
    newly = sum(now and not before for before, now in zip(focal, dual, strict=True))
    higher = sum(max(d.q) > max(f.q) for d, f in zip(grid.dual, grid.focal, strict=True))
    text = (
        f"{sum(dual)} of {len(dual)} minimisers are under-confident, {sum(focal)} with focal loss, {newly} only with "
        f"dual focal loss; max q is higher than with focal loss for {higher}"
    )
    numbers = {"dual_focal": sum(dual), "focal": sum(focal), "newly": newly, "higher": higher, "of": len(dual)}
    return _verdict(sum(dual) < sum(focal) and not newly, empty=not any(focal + dual)), text, numbers


def _verdict(holds: bool, empty: bool = False) -> str:
    if empty:
        return EMPTY
    return HOLDS if holds else FAILS


def _tolerance(gamma: float) -> float:
    """Tolerance, which shrinks for gamma near 0, where every loss is nearly cross-entropy."""
    return 1e-6 * min(1.0, gamma)


def _shown(values: tuple[float, ...], digits: int = 4) -> str:
    return f"({', '.join(f'{value:.{digits}f}' for value in values)})"


CLAIMS: tuple[tuple[str, str, Callable[[Minimisers], Outcome]], ...] = (
    ("Lemma 1", "phi(0) = (1 + C)^gamma, phi(1) = C^gamma (i != j)", _ends),
    ("Lemma 1", "one v^m in (0, 1): phi rises before it, falls after it (i != j)", _one_peak),
    ("Proof of Theorem 1", "h increases in v while C is fixed: t > 0, and u > 0 for gamma < 1", _h_rises),
    ("Section 3.2", "focal loss >= KL(y || p) - gamma H(p)", _entropy),
    (
        "Lemma 1",
        "phi = 1 for i = j, the rival of the most probable class (the appendix has 1 - gamma v log v)",
        _rival_phi,
    ),
    ("Eq. 9", "eta_i = h(q_i) / sum_k h(q_k) at the minimiser", _equation_9),
    ("Theorem 1", "the minimiser keeps the order of the posterior strictly", _order),
    ("Theorem 1", "the most probable class is that of the largest posterior", _top),
    ("Theorem 1 and Eq. 3", "the most probable class is that of the largest posterior", _top_with_ties),
    ("Section 4.2", "over-confident for q_m in (0, v^m]", _over_confident),
    ("Section 4.2", "under-confident for q_m in [v^uc, 1)", _under_confident),
    (
        "Section 4.2",
        "dual focal loss is under-confident less often than focal loss with the same gamma",
        _less_under_confident,
    ),
)
