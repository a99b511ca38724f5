"""Lemma 1, Theorem 1 and what the paper draws from them, each put to the test for one gamma."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from dualfocal.losses import dual_focal_loss, focal_loss
from dualfocal.theory.bounds import dual_entropy_bound, entropy_bound
from dualfocal.theory.curves import phi, phi_slope, t, u
from dualfocal.theory.minimiser import (
    Minimiser,
    dual_focal_minimiser,
    dual_focal_minimisers,
    focal_minimisers,
    uniform_threshold,
)
from dualfocal.theory.regions import Regions, phi_peak, regions
from dualfocal.theory.stationarity import exact_eta, published_eta

GRID = {2: 40, 3: 40, 4: 20}  # number of classes: posteriors in steps of 1 over this
HOLDS, FAILS, EMPTY = "holds", "fails", "empty"


@dataclass(frozen=True)
class Claim:
    """One statement of the paper, and what the computation says to it."""

    where: str
    says: str
    verdict: str
    """``"holds"`` (on the grid, in all cases), ``"fails"``, or ``"empty"``: it speaks of no case at all."""
    found: str
    numbers: dict[str, float | list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Minimisers:
    """The exact minimisers for a grid of posteriors, for one gamma."""

    gamma: float
    dual: list[Minimiser]
    """Without exact ties."""
    focal: list[Minimiser]
    tied: list[Minimiser]
    """Of dual focal loss, exact ties allowed."""


def posterior_grid(num_classes: int, parts: int) -> list[tuple[float, ...]]:
    """All posteriors with eta_1 > eta_2 > ... > 0 in steps of 1 / parts.

    >>> posterior_grid(3, 8)
    [(0.5, 0.375, 0.125), (0.625, 0.25, 0.125)]
    """
    counts = itertools.combinations(range(parts, 0, -1), num_classes)
    return sorted(tuple(n / parts for n in count) for count in counts if sum(count) == parts)


def minimisers_on_grid(gamma: float) -> Minimisers:
    """The minimisers that `check_claims` judges by."""
    grids = [posterior_grid(classes, parts) for classes, parts in GRID.items()]
    etas = list(itertools.chain.from_iterable(grids))
    focal = itertools.chain.from_iterable(focal_minimisers(some, gamma) for some in grids)
    dual, tied = (dual_focal_minimisers(etas, gamma, ties=ties) for ties in (False, True))
    return Minimisers(gamma, dual, list(focal), tied)


def check_claims(gamma: float) -> list[Claim]:
    """Each claim on a grid: C from 0 to 0.99 for functions of v, and posteriors of 2 to 4 classes for minimisers.

    What holds on a grid is not proved by it; `docs/theory.md` says what is proved.
    """
    found = minimisers_on_grid(gamma)
    return [check(gamma) for check in OF_FUNCTIONS] + [check(found) for check in OF_MINIMISERS]


def _ends(gamma: float) -> Claim:
    c = torch.linspace(0, 0.99, 100, dtype=torch.float64)
    off = max(
        float((phi(0.0, gamma, c) - (1 + c) ** gamma).abs().max()),
        float((phi(1.0, gamma, c) - c**gamma).abs().max()),
    )
    says = "phi(0) = (1 + C)^gamma, phi(1) = C^gamma (i != j)"
    return Claim("Lemma 1", says, HOLDS if off < 1e-9 else FAILS, f"largest difference {off:.1g}", {"difference": off})


def _one_peak(gamma: float) -> Claim:
    v = torch.linspace(0, 1, 5_001, dtype=torch.float64)[1:-1]
    c = torch.linspace(0, 0.99, 100, dtype=torch.float64)[:, None]
    rises = phi_slope(v, gamma, c) > 0
    changes = (rises[:, 1:] != rises[:, :-1]).sum(1)
    good = int(((changes == 1) & rises[:, 0] & ~rises[:, -1]).sum())
    says = "one v^m in (0, 1): phi rises before it, falls after it (i != j)"
    text = f"for {good} of {len(c)} values of C"
    return Claim("Lemma 1", says, HOLDS if good == len(c) else FAILS, text, {"good": good, "of": len(c)})


def _h_rises(gamma: float) -> Claim:
    v = torch.linspace(0, 1, 2_001, dtype=torch.float64)[1:-1]
    c = torch.linspace(0, 0.99, 100, dtype=torch.float64)[:, None]
    lowest = {"t": float(t(v, gamma, c).min())}
    if gamma < 1:  # only there the proof needs it
        lowest["u"] = float(u(v, gamma, c).min())
    text = ", ".join(f"least {name} {value:.2g}" for name, value in lowest.items())
    says = "h increases in v while C is fixed: t > 0, and u > 0 for gamma < 1"
    return Claim("Proof of Theorem 1", says, HOLDS if min(lowest.values()) > 0 else FAILS, text, dict(lowest))


def _entropy(gamma: float) -> Claim:
    """Over random predictions, and over the worst the proof knows: all the rest in one class."""
    draws = torch.distributions.Dirichlet(torch.full((4,), 0.5, dtype=torch.float64))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        p = draws.sample(torch.Size([20_000])).clamp_min(1e-12)
    one = torch.linspace(1e-4, 1 - 1e-4, 1_000, dtype=torch.float64)
    p = torch.cat([p, torch.stack([one, (1 - one) * (1 - 2e-9), *[(1 - one) * 1e-9] * 2], 1)])
    p = p / p.sum(1, keepdim=True)
    target = torch.zeros(len(p), dtype=torch.long)
    bound, logits = entropy_bound(p, target, gamma), p.log()
    dual = dual_focal_loss(logits, target, gamma, reduction="none")
    slack = {"focal": float((focal_loss(logits, target, gamma, reduction="none") - bound).min())}
    slack["dual_focal"] = float((dual - bound).min())
    if gamma >= 1:
        slack["dual_focal_sharper"] = float((dual - dual_entropy_bound(p, target, gamma)).min())
    text = f"loss - bound is at least {slack['focal']:.1g} for focal, {slack['dual_focal']:.1g} for dual focal loss"
    if gamma >= 1:
        text += f", {slack['dual_focal_sharper']:.1g} above + gamma p_j |log p_k p_j|"
    says = "focal loss >= KL(y || p) - gamma H(p)"
    return Claim("Section 3.2", says, HOLDS if min(slack.values()) > -1e-9 else FAILS, text, dict(slack))


def _rival_phi(found: Minimisers) -> Claim:
    """phi of the second class as the exact condition has it: lambda q_2 / eta_2, with lambda = eta_1 phi_1 / q_1."""
    values = []
    for one in found.dual:
        if one.attained:
            first, second = one.order[:2]
            top = float(phi(one.q[first], found.gamma, one.q[second]))
            values.append(one.eta[first] * top / one.q[first] * one.q[second] / one.eta[second])
    low, high = min(values), max(values)
    says = "phi = 1 for i = j, the rival of the most probable class (the appendix has 1 - gamma v log v)"
    holds = max(abs(low - 1), abs(high - 1)) < _tolerance(found.gamma)
    text = f"lambda q_j / eta_j, which phi stands for, is {low:.3f} to {high:.3f}"
    return Claim("Lemma 1", says, HOLDS if holds else FAILS, text, {"low": low, "high": high})


def _equation_9(found: Minimisers) -> Claim:
    published, exact = 0.0, 0.0
    for one in found.dual:
        if one.attained:
            q, eta = torch.tensor(one.q, dtype=torch.float64), torch.tensor(one.eta, dtype=torch.float64)
            published = max(published, float((published_eta(q, found.gamma) - eta).abs().max()))
            exact = max(exact, float((exact_eta(q, found.gamma) - eta).abs().max()))
    says = "eta_i = h(q_i) / sum_k h(q_k) at the minimiser"
    text = f"wrong by up to {published:.3f}; with the cross terms by {exact:.1g}"
    verdict = HOLDS if published < _tolerance(found.gamma) else FAILS
    return Claim("Eq. 9", says, verdict, text, {"published": published, "exact": exact})


def _order(found: Minimisers) -> Claim:
    says = "the minimiser keeps the order of the posterior strictly"
    wrong = [one for one in found.dual if not one.keeps_order]
    counts: dict[str, float | list[float]] = {"wrong": len(wrong), "of": len(found.dual)}
    text = f"not for {len(wrong)} of {len(found.dual)} posteriors"
    if not wrong:
        return Claim("Theorem 1", says, HOLDS, f"for all {len(found.dual)} posteriors of the grid", counts)
    ordered = [dual_focal_minimiser(one.eta, found.gamma, order=range(len(one.eta))) for one in wrong]
    lost = [kept.risk - one.risk for kept, one in zip(ordered, wrong, strict=True)]
    worst = int(np.argmax(lost))
    one, kept = wrong[worst], ordered[worst]
    text += (
        f", most for eta = {_shown(one.eta, 3)}: risk {one.risk:.5f} at q = {_shown(one.q)}"
        f"{'' if one.attained else ' (approached)'}, {kept.risk:.5f} in the order of eta"
    )
    example: dict[str, float | list[float]] = {
        "eta": list(one.eta),
        "q": list(one.q),
        "risk": one.risk,
        "risk_in_order": kept.risk,
    }
    return Claim("Theorem 1", says, FAILS, text, counts | example)


def _top(found: Minimisers) -> Claim:
    wrong = [one for one in found.dual if not one.keeps_top]
    text = f"without exact ties: wrong for {len(wrong)} of {len(found.dual)} posteriors"
    if wrong:
        text += f", such as eta = {_shown(wrong[0].eta, 3)}, q = {_shown(wrong[0].q)}"
    says = "the most probable class is that of the largest posterior"
    verdict = FAILS if wrong else HOLDS
    return Claim("Theorem 1", says, verdict, text, {"wrong": len(wrong), "of": len(found.dual)})


def _top_with_ties(found: Minimisers) -> Claim:
    wrong = [one for one in found.tied if not one.keeps_top]
    uniform = sum(len(one.ranking) == 1 for one in found.tied)
    threshold = uniform_threshold(found.gamma)
    text = (
        f"with exact ties: other classes tie with it for {len(wrong)} of {len(found.tied)} posteriors, all do for "
        f"{uniform}; with two classes up to a posterior of {threshold:.5g}"
    )
    numbers = {"wrong": len(wrong), "uniform": uniform, "of": len(found.tied), "two_class_threshold": threshold}
    says = "the most probable class is that of the largest posterior"
    return Claim("Theorem 1 and Eq. 3", says, FAILS if wrong else HOLDS, text, dict(numbers))


def _over_confident(found: Minimisers) -> Claim:
    """Of up to four classes q_m is at least 1/4, above v^m: stationary predictions of many classes are counted, too.

    Those are not known to be minimisers, so that they decide nothing; least so where another class has the larger
    posterior, as no minimiser of few classes has it (`_top`), and there exceptions are found.
    """
    gamma = found.gamma
    of_grid = [one for one in found.dual if max(one.q) <= _regions_of(one).v_m]
    right = sum(one.verdict == "over-confident" for one in of_grid)
    stationary = {"keep": 0, "keep_over": 0, "lose": 0, "lose_over": 0}  # the top class of the posterior
    for q in predictions_of_many_classes():
        eta = exact_eta(q, gamma)
        top = q.topk(2).values
        inside = top[:, 0] <= torch.tensor([phi_peak(gamma, c) for c in top[:, 1].tolist()])
        over_confident = top[:, 0] > eta.amax(-1)
        keeps = eta.argmax(-1) == q.argmax(-1)
        for name, some in (("keep", inside & keeps), ("lose", inside & ~keeps)):
            stationary[name] += int(some.sum())
            stationary[f"{name}_over"] += int((some & over_confident).sum())
    over = sum(one.verdict == "over-confident" for one in found.dual)
    verdict = EMPTY if not of_grid else HOLDS if right == len(of_grid) else FAILS
    text = (
        f"{len(of_grid)} of {len(found.dual)} minimisers have q_m <= v^m, and {over} are over-confident. Of stationary "
        f"predictions with 10 to 100 classes, which need not be minimisers, {stationary['keep_over']} of "
        f"{stationary['keep']} there are if they keep the top class, {stationary['lose_over']} of {stationary['lose']} "
        "if not"
    )
    says = "over-confident for q_m in (0, v^m]"
    numbers = {"inside": len(of_grid), "right": right, "over_confident": over, "of": len(found.dual)}
    return Claim("Section 4.2", says, verdict, text, {**numbers, **stationary})


def predictions_of_many_classes() -> list[torch.Tensor]:
    """Random predictions of 10, 30 and 100 classes, from uneven to nearly uniform; the same each time."""
    generator = np.random.default_rng(0)
    rows = [generator.dirichlet(np.full(k, evenness), 100) for k in (10, 30, 100) for evenness in (2, 10, 50)]
    return [torch.from_numpy(some) for some in rows]


def _under_confident(found: Minimisers) -> Claim:
    inside = [one for one in found.dual if max(one.q) >= _regions_of(one).v_uc]
    under = sum(one.verdict == "under-confident" for one in found.dual)
    right = sum(one.verdict == "under-confident" for one in inside)
    verdict = EMPTY if not inside else HOLDS if right == len(inside) else FAILS
    text = (
        f"{len(inside)} of {len(found.dual)} minimisers have q_m >= v^uc, {right} of them under-confident; "
        f"{under} of all are"
    )
    says = "under-confident for q_m in [v^uc, 1)"
    numbers = {"inside": len(inside), "right": right, "under_confident": under, "of": len(found.dual)}
    return Claim("Section 4.2", says, verdict, text, dict(numbers))


def _less_under_confident(found: Minimisers) -> Claim:
    focal, dual = ([one.verdict == "under-confident" for one in some] for some in (found.focal, found.dual))
    newly = sum(now and not before for before, now in zip(focal, dual, strict=True))
    higher = sum(max(d.q) > max(f.q) for d, f in zip(found.dual, found.focal, strict=True))
    text = (
        f"{sum(dual)} of {len(dual)} minimisers under-confident, {sum(focal)} with focal loss, {newly} newly; "
        f"max q is higher than focal loss's for {higher}"
    )
    numbers = {"dual_focal": sum(dual), "focal": sum(focal), "newly": newly, "higher": higher, "of": len(dual)}
    says = "dual focal loss is under-confident less often than focal loss with the same gamma"
    verdict = EMPTY if not any(focal) and not any(dual) else HOLDS if sum(dual) < sum(focal) and not newly else FAILS
    return Claim("Section 4.2", says, verdict, text, dict(numbers))


def _tolerance(gamma: float) -> float:
    """For gamma near 0 every loss is nearly cross-entropy, and every error small."""
    return 1e-6 * min(1.0, gamma)


def _regions_of(one: Minimiser) -> Regions:
    """With C the probability of the second class."""
    return regions(one.gamma, sorted(one.q)[-2])


def _shown(values: tuple[float, ...], digits: int = 4) -> str:
    return f"({', '.join(f'{value:.{digits}f}' for value in values)})"


OF_FUNCTIONS: tuple[Callable[[float], Claim], ...] = (_ends, _one_peak, _h_rises, _entropy)
OF_MINIMISERS: tuple[Callable[[Minimisers], Claim], ...] = (
    _rival_phi,
    _equation_9,
    _order,
    _top,
    _top_with_ties,
    _over_confident,
    _under_confident,
    _less_under_confident,
)
