"""The picture of a study."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from dualfocal.plots.style import BLUE, GREY, VERMILION, plain, styled, tidy

if TYPE_CHECKING:
    from dualfocal.study import Summary


@styled()
def study_figure(summary: "Summary") -> Figure:
    """ECE and NLL of each entry of a study, as trained and after temperature scaling: a small dot is a seed.

    The grey mark is the floor of the ECE: what a perfectly calibrated model with such confidences would show by chance.
    """
    entries = summary.study.entries
    figure = Figure(figsize=(9.5, 0.45 * len(entries) + 1.9), layout="constrained")
    places = np.arange(len(entries))[::-1]
    for axis, (column, label, factor) in zip(
        figure.subplots(1, 2, sharey=True), (("ece", "test ECE [%]", 100), ("nll", "test NLL [nats]", 1)), strict=True
    ):
        for name, colour, shift, text in (
            (column, VERMILION, 0.16, "as trained"),
            (f"{column}_t", BLUE, -0.16, "after temperature scaling"),
        ):
            for place, entry in zip(places, entries, strict=True):
                values = factor * np.array(summary.scores[entry][name])
                axis.plot(values, np.full(len(values), place + shift), "o", color=colour, markersize=3.5, alpha=0.5)
            means = [factor * summary.mean(entry, name) for entry in entries]
            axis.plot(means, places + shift, "|", color=colour, markersize=13, markeredgewidth=2.5, label=text)
        if column == "ece":
            floors = [100 * summary.floors.get("ece", {}).get(entry, np.nan) for entry in entries]
            tick = {"color": GREY, "markersize": 20, "markeredgewidth": 4}
            axis.plot(floors, places + 0.16, "|", **tick, label="its floor", zorder=0)
            axis.set_xlim(left=0)
        axis.set_yticks(places, [plain(entry) for entry in entries])
        axis.set_xlabel(label)
        tidy(axis, grid="x")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(plain(summary.study.title), fontsize=10)
    return figure
