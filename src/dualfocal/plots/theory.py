"""The paper's Figure 1, the minimisers' confidence over the posterior, and the jumps of the loss."""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from dualfocal.plots.style import BLUE, GREY, VERMILION, styled, tidy
from dualfocal.theory import FIGURE_1, conditional_risk, dual_focal_minimisers, focal_minimisers, phi, regions

GAMMAS = {1.0: "-", 2.0: "--", 5.0: "-."}  # of the figure of minimisers, and their lines
OTHERS = (0.6, 0.4)  # how the other classes share the rest of the posterior there
JUMP_GAMMA, JUMP_OTHERS = 5.0, (0.7, 0.3)  # of the figure of the jumps
Array = NDArray[np.float64]


@styled()
def phi_figure(gamma: float = FIGURE_1[0], c: float = FIGURE_1[1]) -> Figure:
    """Figure 1 of the paper, for any gamma > 0 and 0 <= C < 1: phi of both losses and the regions it derives."""
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axis = figure.subplots()
    found = regions(gamma, c)
    v = torch.linspace(0, 1, 1001, dtype=torch.float64)
    focal, dual = phi(v, gamma).numpy(), phi(v, gamma, c).numpy()
    low, high = found.possible  # q_m lies above C, and q_m + C <= 1
    bands = [(0.0, low), (high, 1.0)] if low < high else [(0.0, 1.0)]
    for place, band in enumerate(bands):
        axis.axvspan(*band, color=GREY, alpha=0.3, linewidth=0, label="" if place else "no $q_m$ lies here")
    axis.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axis.axhline((1 + c) ** gamma, color="black", linewidth=0.8, linestyle=":")
    axis.plot(v, focal, "--", color=BLUE, label="focal loss")
    axis.plot(v, dual, "-", color=VERMILION, label=f"dual focal loss, $q_j = {c:g}$")
    marks = (
        (found.focal_v_m, focal, BLUE, "$v^m$", (0, 6)),
        (found.focal_v_prime, focal, BLUE, "$v'$", (6, 5)),
        (found.v_m, dual, VERMILION, "$v^m$", (0, 6)),
        (found.v_prime, dual, VERMILION, "$v'$", (6, 5)),
        (found.v_uc, dual, VERMILION, "$v^{uc}$", (6, 5)),
    )
    for at, curve, colour, text, shift in marks:
        height = float(np.interp(at, v, curve))
        axis.plot([at], [height], "o", color=colour, markersize=5)
        axis.annotate(text, (at, height), shift, textcoords="offset points", color=colour)
    top = max(focal.max(), dual.max())
    # The regions that the paper derives, as bars below the curves.
    ends = (
        (found.focal_v_m, found.focal_v_prime, BLUE, "focal loss"),
        (found.v_m, found.v_uc, VERMILION, "dual focal loss"),
    )
    for row, (v_m, start, colour, name) in enumerate(ends):
        height = (-0.08 - 0.11 * row) * top
        label = "" if row else "claimed over-confident"
        axis.barh(height, v_m, 0.085 * top, facecolor="none", edgecolor=colour, hatch="////", label=label)
        axis.barh(height, 1 - start, 0.085 * top, left=start, color=colour, alpha=0.35)
        text = f"{name}: claimed under-confident"
        end = 0.99 if start < 0.5 else start - 0.01  # inside the bar if it is long enough, else before it
        axis.text(end, height, text, ha="right", va="center", fontsize=8)
    axis.set(xlim=(0, 1), ylim=(-0.26 * top, 1.12 * top), xlabel="$q_m$, the largest probability")
    axis.set_ylabel(r"$\phi(q_m)$")
    axis.set_yticks([tick for tick in axis.get_yticks() if 0 <= tick <= 1.12 * top])  # phi is positive
    axis.set_title(rf"$\gamma = {gamma:g}$, $q_j = {c:g}$: region smaller by $v^{{uc}} - v' = {found.reduction:.3f}$")
    tidy(axis)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def minimiser_curves(loss: str, gammas: Iterable[float], points: int = 300) -> tuple[Array, dict[float, Array]]:
    """Confidence of the exact minimisers over the true posterior, for eta = (e, (1 - e) * OTHERS), without exact ties.

    Returns:
        max eta, (P,), from where e is the largest to nearly 1; and for each gamma max q, (P,), which is NaN at a point
        where the order of the classes has just changed, and the confidence jumps.
    """
    rivals = np.asarray(OTHERS) / sum(OTHERS)
    least = rivals.max() / (1 + rivals.max())
    posterior = 1 - (1 - least - 1e-3) * np.linspace(1, 0.04, points) ** 2  # denser towards 1, where curves turn
    etas = [(e, *((1 - e) * rivals)) for e in posterior]
    solve = {"focal": focal_minimisers, "dual_focal": dual_focal_minimisers}[loss]
    confidence = {}
    for gamma in gammas:
        minimisers = solve(etas, gamma)
        changed = [False, *(before.order != after.order for before, after in itertools.pairwise(minimisers))]
        confidence[gamma] = np.where(changed, np.nan, [max(one.q) for one in minimisers])
    return posterior, confidence


@styled()
def minimiser_figure() -> Figure:
    """The confidence each loss rewards at a true posterior: above the diagonal, which is cross-entropy's, too high."""
    figure = Figure(figsize=(8.6, 4.4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, (loss, colour) in zip(axes, (("focal", BLUE), ("dual_focal", VERMILION)), strict=True):
        posterior, confidence = minimiser_curves(loss, GAMMAS)
        start = posterior[0]
        axis.plot([start, 1], [start, 1], color="black", linewidth=1, label="cross-entropy: the posterior itself")
        for gamma, line in GAMMAS.items():
            axis.plot(posterior, confidence[gamma], linestyle=line, color=colour, label=rf"$\gamma = {gamma:g}$")
        axis.text(0.04, 0.64, "over-confident", transform=axis.transAxes, color="0.35")
        axis.text(0.96, 0.08, "under-confident", transform=axis.transAxes, color="0.35", ha="right")
        title = f"{loss.replace('_', ' ')} loss"
        axis.set(title=title, xlabel=r"largest true posterior, max $\eta$", xlim=(start, 1))
        axis.legend(loc="upper left", frameon=False)
        tidy(axis)
    axes[0].set_ylabel("confidence of the minimiser, max $q^*$")
    text = (
        f"{len(OTHERS) + 1} classes, the others share the rest {_ratio(OTHERS)}; exact ties left out; "
        "gaps: the order of the classes changes"
    )
    figure.supxlabel(text, fontsize=8, color="0.35")
    return figure


@styled()
def jump_figure() -> Figure:
    """Dual focal loss of a target over its probability, between focal loss and cross-entropy.

    It jumps at each class that the target passes; the filled end is the value at the tie.
    """
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    gamma, rivals = JUMP_GAMMA, np.sort(np.asarray(JUMP_OTHERS) / sum(JUMP_OTHERS))
    passed = rivals / (1 + rivals)  # p_k where it equals (1 - p_k) r
    p_k = np.linspace(1e-3, 1 - 1e-9, 1000)
    axis.plot(p_k, target_loss("cross_entropy", p_k, rivals, gamma), "-", color="black", linewidth=1)
    axis.plot(p_k, target_loss("focal", p_k, rivals, gamma), "--", color=BLUE)
    for low, high in itertools.pairwise([1e-3, *passed, 1.0]):
        inside = np.linspace(low + 1e-9, high - 1e-9, 300)
        axis.plot(inside, target_loss("dual_focal", inside, rivals, gamma), "-", color=VERMILION)
    for number, at in enumerate(passed, start=1):
        before, after = target_loss("dual_focal", np.array([at - 1e-9, at + 1e-9]), rivals, gamma)
        axis.plot([at, at], [before, after], ":", color=VERMILION, linewidth=1)
        axis.plot([at], [before], "o", color=VERMILION, markersize=5)
        axis.plot([at], [after], "o", color=VERMILION, markerfacecolor="white", markersize=5)
        text = f"passes rival {number} of {len(passed)}:\n{before:.3f} to {after:.3f}"
        axis.annotate(text, (at, after), (8, 2), textcoords="offset points", fontsize=8, color=VERMILION)
    label = f"$p_k$, probability of the target; the others share the rest {_ratio(JUMP_OTHERS)}"
    axis.set(xlim=(0, 1), ylim=(0, 2.5), xlabel=label, ylabel="loss [nats]")
    handles = [
        Line2D([], [], color="black", linewidth=1, label="cross-entropy"),
        Line2D([], [], color=VERMILION, label=rf"dual focal loss, $\gamma = {gamma:g}$"),
        Line2D([], [], color=BLUE, linestyle="--", label=rf"focal loss, $\gamma = {gamma:g}$"),
    ]
    axis.legend(handles=handles, loc="upper right", frameon=False)
    tidy(axis)
    return figure


def target_loss(loss: str, p_k: Array, rivals: Array, gamma: float) -> Array:
    """The loss of a target with probability ``p_k``, (P,), where the other classes share the rest as ``rivals``."""
    p = torch.from_numpy(np.concatenate([p_k[:, None], (1 - p_k[:, None]) * rivals], 1))
    target = torch.eye(p.shape[1], dtype=torch.float64)[0]
    return np.asarray(conditional_risk(p, target, gamma, loss).numpy())


def _ratio(shares: Sequence[float]) -> str:
    return " : ".join(f"{share:g}" for share in shares)
