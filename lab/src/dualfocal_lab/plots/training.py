"""ECE over the epochs of training, and the figure of a study."""

import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dualfocal.plots.style import (
    BLUE,
    GREY,
    VERMILION,
    Look,
    NotebookFigure,
    axes_or_new,
    check_named,
    look_of,
    plain,
    styled,
    tidy,
)

if TYPE_CHECKING:
    from dualfocal_lab.study import Summary


Floats = NDArray[np.float64]
Epochs = Sequence[float]

MARKS = 6  # markers per line
LONGEST_LABEL = 26  # characters of a line in the legend


def per_seed(values: Epochs | Sequence[Epochs]) -> Floats:
    """Return the values of each seed and epoch, (S, T).

    Args:
        values: values per epoch, or one such sequence per seed.

    Raises:
        ValueError: there are no values, or seeds have different numbers of epochs.

    >>> per_seed([0.1, 0.2]).shape, per_seed([[0.1, 0.2], [0.1, 0.3], [0.1, 0.4]]).shape
    ((1, 2), (3, 2))
    """
    seeds: Sequence[Epochs] = [values] if len(values) and np.ndim(values[0]) == 0 else values  # type: ignore
    if not len(seeds) or not all(map(len, seeds)):
        raise ValueError("a curve needs at least one seed, and at least one epoch per seed")
    if len(lengths := {len(seed) for seed in seeds}) > 1:
        raise ValueError(f"seeds must have the same number of epochs, got {', '.join(map(str, sorted(lengths)))}")
    return np.array(seeds, dtype=np.float64)


def exponential_average(values: Iterable[float]) -> Floats:
    """Return the average s_1 = x_1, s_t = (s_(t-1) + x_t) / 2, as in the paper.

    >>> exponential_average([1.0, 0.0, 0.0])
    array([1.  , 0.5 , 0.25])
    """
    return np.array([*accumulate(values, lambda average, value: 0.5 * average + 0.5 * value)], dtype=np.float64)


def ece_over_training(
    curves: Mapping[str, Epochs | Sequence[Epochs]],
    *,
    looks: Mapping[str, Look] | None = None,
    part: str = "test",
    floors: Sequence[float] = (),
    ax: Axes | None = None,
) -> Axes:
    """Draw the ECE of each method over the epochs: smoothed per seed, then averaged, with the range of the seeds.

    Args:
        curves: method -> ECE per epoch, as fractions; or one such sequence per seed.
        looks: method -> line and marker; by default those of the loss of this name, see ``LOOKS``.
        part: name of the split in the label.
        floors: noise floors of the last epoch, drawn as a grey band from the lowest to the highest.
        ax: axes to draw on; None: those of a new figure.

    Returns:
        The axes.

    >>> from matplotlib.figure import Figure
    >>> curves = {"focal": [0.09, 0.05, 0.04], "cross_entropy": [[0.2, 0.1, 0.1], [0.2, 0.2, 0.1]]}
    >>> ax = ece_over_training(curves, part="validation", ax=Figure().subplots())
    >>> ax.get_ylabel(), ax.lines[0].get_ydata().round(2).tolist()
    ('validation ECE [%]', [9.0, 7.0, 5.5])
    """
    check_named(curves, Collection, "method -> ECE per epoch")
    if not curves:
        raise ValueError("curves must hold the values of at least one method")
    seeds = {name: per_seed(curve) for name, curve in curves.items()}
    with axes_or_new(ax, (6.2, 3.4), right=True) as axis:
        if floors:
            low, high = 100 * min(floors), 100 * max(floors)
            axis.axhspan(low, high, color=GREY, alpha=0.5, linewidth=2, label="noise floor, last epoch")
        for place, (name, curve) in enumerate(seeds.items()):
            look = look_of(name, place, looks)
            smooth = 100 * np.array([exponential_average(seed) for seed in curve])  # (seeds, epochs)
            epochs = np.arange(1, smooth.shape[1] + 1)
            every = max(1, len(epochs) // MARKS)
            if len(smooth) > 1:
                axis.fill_between(epochs, smooth.min(0), smooth.max(0), color=look.colour, alpha=0.15, linewidth=0)
            axis.plot(
                epochs,
                smooth.mean(0),
                color=look.colour,
                linestyle=look.line,
                marker=look.marker,
                markersize=4.5,
                markevery=(place * every // len(seeds), every),  # shifted, so that markers do not overlap
                linewidth=1.3,
                label=plain("\n".join(textwrap.wrap(name, LONGEST_LABEL))),
            )
        axis.set(xlabel="epoch", ylabel=f"{part} ECE [%]", ylim=(0, None))
        axis.margins(x=0.01)
        return tidy(axis, grid="y")


@styled()
def study_figure(summary: "Summary") -> Figure:
    """Draw the ECE and NLL of each entry of a study, before and after temperature scaling.

    Dots are seeds, strokes are means, and the grey mark is the noise floor of the ECE.
    """
    entries = summary.study.entries
    figure = NotebookFigure(figsize=(9.5, 0.45 * len(entries) + 1.9), layout="constrained")
    ece_axis, nll_axis = figure.subplots(1, 2, sharey=True)
    places = np.arange(len(entries))[::-1]
    stages = (("", VERMILION, 0.16, "before temperature scaling"), ("_t", BLUE, -0.16, "after temperature scaling"))
    for axis, metric, factor in ((ece_axis, "ece", 100), (nll_axis, "nll", 1)):
        for suffix, colour, shift, text in stages:
            name = f"{metric}{suffix}"
            for place, entry in zip(places, entries, strict=True):
                values = factor * np.array(summary.scores[entry][name])
                axis.plot(values, np.full(len(values), place + shift), "o", color=colour, markersize=3.5, alpha=0.5)
            means = [factor * summary.mean(entry, name) for entry in entries]
            axis.plot(means, places + shift, "|", color=colour, markersize=13, markeredgewidth=2.5, label=text)
        axis.set_yticks(places, [plain(entry) for entry in entries])
        tidy(axis, grid="x")
    floors = [100 * summary.floors.get("ece", {}).get(entry, np.nan) for entry in entries]
    ece_axis.plot(
        floors, places + 0.16, "|", color=GREY, markersize=20, markeredgewidth=4, label="noise floor", zorder=0
    )
    ece_axis.set(xlabel="test ECE [%]", xlim=(0, None))
    nll_axis.set_xlabel("test NLL [nats]")
    figure.legend(*ece_axis.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(plain(summary.study.title), fontsize=10)
    return figure
