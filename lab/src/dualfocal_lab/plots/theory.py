"""The paper's Figure 1: phi of focal and dual focal loss."""

import numpy as np
import torch
from matplotlib.figure import Figure

from dualfocal.plots.style import BLUE, GREY, VERMILION, NotebookFigure, styled, tidy
from dualfocal_lab.theory import FIGURE_1, phi, regions


@styled()
def phi_figure(gamma: float = FIGURE_1[0], c: float = FIGURE_1[1]) -> Figure:
    """Draw Figure 1 of the paper: phi of both losses, and the regions that the paper derives.

    Args:
        gamma: above 0.
        c: probability of the rival, 0 <= c < 1.
    """
    figure = NotebookFigure(figsize=(6.4, 4.4), layout="constrained")
    axis = figure.subplots()
    region = regions(gamma, c)
    v = torch.linspace(0, 1, 1001, dtype=torch.float64)
    focal, dual = phi(v, gamma).numpy(), phi(v, gamma, c).numpy()
    low, high = region.possible  # q_m lies above C, and q_m + C <= 1
    bands = [(0.0, low), (high, 1.0)] if low < high else [(0.0, 1.0)]
    for place, band in enumerate(bands):
        axis.axvspan(*band, color=GREY, alpha=0.3, linewidth=0, label="" if place else "not possible for $q_m$")
    axis.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axis.axhline((1 + c) ** gamma, color="black", linewidth=0.8, linestyle=":")
    axis.plot(v, focal, "--", color=BLUE, label="focal loss")
    axis.plot(v, dual, "-", color=VERMILION, label=f"dual focal loss, $q_j = {c:g}$")
    marks = (
        (region.focal_v_m, focal, BLUE, "$v^m$", (0, 6)),
        (region.focal_v_prime, focal, BLUE, "$v'$", (6, 5)),
        (region.v_m, dual, VERMILION, "$v^m$", (0, 6)),
        (region.v_prime, dual, VERMILION, "$v'$", (6, 5)),
        (region.v_uc, dual, VERMILION, "$v^{uc}$", (6, 5)),
    )
    for at, curve, colour, text, shift in marks:
        height = float(np.interp(at, v, curve))
        axis.plot([at], [height], "o", color=colour, markersize=5)
        axis.annotate(text, (at, height), shift, textcoords="offset points", color=colour)
    top = max(focal.max(), dual.max())
    # Bars below the curves show the regions that the paper derives.
    ends = (
        (region.focal_v_m, region.focal_v_prime, BLUE, "focal loss"),
        (region.v_m, region.v_uc, VERMILION, "dual focal loss"),
    )
    for row, (v_m, start, colour, name) in enumerate(ends):
        height = (-0.08 - 0.11 * row) * top
        label = "" if row else "claimed over-confident"
        axis.barh(height, v_m, 0.085 * top, facecolor="none", edgecolor=colour, hatch="////", label=label)
        axis.barh(height, 1 - start, 0.085 * top, left=start, color=colour, alpha=0.35)
        end = 0.99 if start < 0.5 else start - 0.01  # inside the bar if it is long enough, else before it
        axis.text(end, height, f"{name}: claimed under-confident", ha="right", va="center", fontsize=8)
    axis.set(
        xlim=(0, 1), ylim=(-0.26 * top, 1.12 * top), xlabel="$q_m$, the largest probability", ylabel=r"$\phi(q_m)$"
    )
    axis.set_yticks([tick for tick in axis.get_yticks() if 0 <= tick <= 1.12 * top])  # phi is positive
    axis.set_title(rf"$\gamma = {gamma:g}$, $q_j = {c:g}$: region smaller by $v^{{uc}} - v' = {region.reduction:.3f}$")
    tidy(axis)
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure
