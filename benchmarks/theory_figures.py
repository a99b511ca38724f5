"""Draw the pictures of docs/theory.md: the minimisers' confidence over the posterior, and the jumps of the loss.

python benchmarks/theory_figures.py            # docs/theory-minimiser.png, docs/theory-jump.png
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from dualfocal.plots import save
from dualfocal.plots.style import BLUE, VERMILION, styled
from dualfocal_lab.theory import conditional_risk, dual_focal_minimisers, focal_minimisers

DOCS = Path(__file__).parents[1] / "docs"
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))  # of as many gammas at most
Array = NDArray[np.float64]


@dataclass(frozen=True)
class MinimiserCurves:
    """max q of the exact minimisers over max eta, for one loss."""

    posterior: Array
    """max eta, (P,)."""
    confidence: dict[float, Array]
    """gamma: max q, (P,); NaN at a point where the order of the classes has just changed, and the confidence jumps."""


def minimiser_curves(
    loss: str, gammas: Sequence[float], others: Sequence[float] = (0.6, 0.4), points: int = 300
) -> MinimiserCurves:
    """For eta = (e, (1 - e) * others), e from where it is the largest to nearly 1; without exact ties."""
    rivals = np.asarray(others) / sum(others)
    least = rivals.max() / (1 + rivals.max())
    posterior = 1 - (1 - least - 1e-3) * np.linspace(1, 0.04, points) ** 2  # denser towards 1, where curves turn
    etas = [(e, *((1 - e) * rivals)) for e in posterior]
    solve = {"focal": focal_minimisers, "dual_focal": dual_focal_minimisers}[loss]
    confidence = {}
    for gamma in gammas:
        found = solve(etas, gamma)
        changed = [False, *(before.order != after.order for before, after in itertools.pairwise(found))]
        confidence[gamma] = np.where(changed, np.nan, [max(one.q) for one in found])
    return MinimiserCurves(posterior, confidence)


@styled()
def minimiser_figure(gammas: Sequence[float] = (1.0, 2.0, 5.0), others: Sequence[float] = (0.6, 0.4)) -> Figure:
    """What confidence each loss rewards at a true posterior: cross-entropy, focal and dual focal loss over gamma."""
    figure = Figure(figsize=(8.6, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    draw_minimisers(left, minimiser_curves("focal", gammas, others), "focal loss", BLUE)
    draw_minimisers(right, minimiser_curves("dual_focal", gammas, others), "dual focal loss", VERMILION)
    left.set_ylabel("confidence of the minimiser, max $q^*$")
    shares = " : ".join(f"{share:g}" for share in others)
    text = (
        f"{len(others) + 1} classes, the others share the rest {shares}; exact ties left out; "
        "gaps: the order of the classes changes"
    )
    figure.supxlabel(text, fontsize=8, color="0.35")
    return figure


def draw_minimisers(axis: Axes, curves: MinimiserCurves, name: str, colour: str) -> Axes:
    """Confidence over posterior: above the diagonal, which is cross-entropy's, over-confident."""
    if len(curves.confidence) > len(LINES):
        raise ValueError(f"at most {len(LINES)} gammas can be told apart, got {len(curves.confidence)}")
    start = curves.posterior[0]
    axis.plot([start, 1], [start, 1], color="black", linewidth=1, label="cross-entropy: the posterior itself")
    for line, (gamma, confidence) in zip(LINES, curves.confidence.items(), strict=False):
        axis.plot(curves.posterior, confidence, linestyle=line, color=colour, label=rf"$\gamma = {gamma:g}$")
    axis.text(0.04, 0.64, "over-confident", transform=axis.transAxes, color="0.35")
    axis.text(0.96, 0.08, "under-confident", transform=axis.transAxes, color="0.35", ha="right")
    axis.set(title=name, xlabel=r"largest true posterior, max $\eta$", xlim=(start, 1))
    axis.legend(loc="upper left", frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    return axis


@styled()
def jump_figure(gamma: float = 5.0, others: Sequence[float] = (0.7, 0.3)) -> Figure:
    """The loss of a target over its probability, the rest split as ``others``: it jumps at each class it passes."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    draw_jump(figure.subplots(), gamma, others)
    return figure


def draw_jump(axis: Axes, gamma: float, others: Sequence[float]) -> Axes:
    """Dual focal loss with its jumps, between focal loss and cross-entropy; the filled end is the value at the tie."""
    rivals = np.sort(np.asarray(others, dtype=np.float64) / sum(others))
    passed = rivals / (1 + rivals)  # p_k where it equals (1 - p_k) r
    p_k = np.linspace(1e-3, 1 - 1e-9, 1000)
    axis.plot(p_k, target_loss("cross_entropy", p_k, rivals, gamma), "-", color="black", linewidth=1)
    axis.plot(p_k, target_loss("focal", p_k, rivals, gamma), "--", color=BLUE)
    edges = [1e-3, *passed, 1.0]
    for low, high in itertools.pairwise(edges):
        inside = np.linspace(low + 1e-9, high - 1e-9, 300)
        axis.plot(inside, target_loss("dual_focal", inside, rivals, gamma), "-", color=VERMILION)
    for place, at in enumerate(passed):
        before, after = target_loss("dual_focal", np.array([at - 1e-9, at + 1e-9]), rivals, gamma)
        axis.plot([at, at], [before, after], ":", color=VERMILION, linewidth=1)
        axis.plot([at], [before], "o", color=VERMILION, markersize=5)
        axis.plot([at], [after], "o", color=VERMILION, markerfacecolor="white", markersize=5)
        which = "its rival" if len(passed) == 1 else f"rival {place + 1} of {len(passed)}"
        text = f"passes {which}:\n{before:.3f} to {after:.3f}"
        axis.annotate(text, (at, after), (8, 2), textcoords="offset points", fontsize=8, color=VERMILION)
    shares = " : ".join(f"{share:g}" for share in others)
    rest = "two classes" if len(others) == 1 else f"the others share the rest {shares}"
    axis.set(xlim=(0, 1), ylim=(0, 2.5), xlabel=f"$p_k$, probability of the target; {rest}", ylabel="loss [nats]")
    handles = [
        Line2D([], [], color="black", linewidth=1, label="cross-entropy"),
        Line2D([], [], color=VERMILION, label=rf"dual focal loss, $\gamma = {gamma:g}$"),
        Line2D([], [], color=BLUE, linestyle="--", label=rf"focal loss, $\gamma = {gamma:g}$"),
    ]
    axis.legend(handles=handles, loc="upper right", frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    return axis


def target_loss(loss: str, p_k: Array, rivals: Array, gamma: float) -> Array:
    """The loss of a target with probability ``p_k``, (P,), where the other classes share the rest as ``rivals``."""
    p = torch.from_numpy(np.concatenate([p_k[:, None], (1 - p_k[:, None]) * rivals], 1))
    target = torch.eye(p.shape[1], dtype=torch.float64)[0]
    return np.asarray(conditional_risk(p, target, gamma, loss).numpy())


if __name__ == "__main__":
    save(minimiser_figure(), DOCS / "theory-minimiser.png", dpi=150)
    save(jump_figure(), DOCS / "theory-jump.png", dpi=150)
