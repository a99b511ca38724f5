"""One look for all figures: colours, lines and hatches that read in grey, too, and how figures are saved.

Figures are matplotlib's own, made without pyplot. What :data:`STYLE` sets holds while a figure is drawn or saved, and
is undone then.
"""

import logging
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from dualfocal._files import atomic_path

# Okabe and Ito's colours: told apart with any colour vision.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#BBBBBB"
DARK_GREY = "#555555"

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # it comes with matplotlib: the same everywhere
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "axes.linewidth": 0.8,
    "hatch.linewidth": 0.7,
    "pdf.fonttype": 42,  # TrueType inside, which journals ask for
    "svg.fonttype": "path",
    "svg.hashsalt": "dualfocal",  # otherwise its ids are drawn anew each time
}
DPI = 200
# No date, and no version of matplotlib: the same figure has the same bytes.
METADATA: dict[str, dict[str, None]] = {
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    ".svg": {"Date": None, "Creator": None},
}


@dataclass(frozen=True)
class Look:
    """How a method is drawn wherever it appears."""

    colour: str
    line: str | tuple[int, tuple[float, ...]]
    marker: str
    hatch: str


# Of one family one colour, and lines, markers and hatches that differ.
LOOKS: dict[str, Look] = {
    "cross_entropy": Look(BLACK, "-", "o", ""),
    "brier": Look(SKY, (0, (5, 1.5)), "s", "//"),
    "mmce": Look(ORANGE, (0, (1, 1)), "D", "\\\\"),
    "label_smoothing": Look(GREEN, (0, (5, 1.5, 1, 1.5)), "^", "xx"),
    "inverse_focal": Look(PURPLE, (0, (2, 1)), "v", ".."),
    "flsd": Look(BLUE, (0, (7, 2)), "P", "--"),
    "dual_focal": Look(VERMILION, "-", "X", ""),
    "focal": Look(BLUE, "-", "h", "||"),
    "ada_focal": Look(BLUE, (0, (1, 1)), "p", "++"),
    "ada_dual_focal": Look(VERMILION, (0, (3, 1)), "*", "oo"),
    "kde_xe": Look(DARK_GREY, (0, (3, 1, 1, 1, 1, 1)), "d", "**"),
}


def look_of(name: str, place: int = 0, looks: Mapping[str, Look] | None = None) -> Look:
    """The look in ``looks`` of this name, else of the loss of this name, else one chosen by its place in the figure.

    >>> look_of("dual_focal").colour, look_of("mine", 3).marker
    ('#D55E00', '^')
    """
    by_place = list(LOOKS.values())[place % len(LOOKS)]
    return (looks or {}).get(name) or LOOKS.get(name, by_place)


def varied(look: Look, place: int) -> Look:
    """The same colour with another line, marker and hatch, for the second, third ... of its kind.

    >>> first, second = varied(look_of("dual_focal"), 0), varied(look_of("dual_focal"), 1)
    >>> first == look_of("dual_focal"), second.colour == first.colour, second.line == first.line
    (True, True, False)
    """
    others = [other for other in LOOKS.values() if other.line != look.line]
    return replace(others[(place - 1) % len(others)], colour=look.colour) if place else look


styled = partial(matplotlib.rc_context, STYLE)  # draw in this style; previous settings are restored afterwards


def plain(name: str) -> str:
    """A name from data for matplotlib to draw as it is: dollars in it do not begin a formula.

    >>> print(plain("$a_b$"))
    \\$a_b\\$
    """
    return name.replace("$", r"\$")


def tidy(axis: Axes, *, grid: str | None = None, rows: bool = False) -> Axes:
    """The frame of every axis: open at the top and the right, small ticks, a faint grid along ``"x"`` or ``"y"``.

    ``rows`` have names at the left, and no ticks.
    """
    axis.spines[["top", "right"]].set_visible(False)
    # Said here and not by the style alone: matplotlib makes ticks as late as when it draws.
    axis.tick_params(labelsize=STYLE["xtick.labelsize"], width=STYLE["axes.linewidth"])
    if grid in ("x", "y"):
        axis.grid(axis=grid, color=GREY, alpha=0.4, linewidth=0.6)  # type: ignore[arg-type]
        axis.set_axisbelow(True)
    if rows:
        axis.tick_params(axis="y", length=0)
    return axis


@contextmanager
def one_axis(
    title: str, remark: str, *, rows: int | None = None, legend: bool = False
) -> Iterator[tuple[Figure, Axes]]:
    """A figure with one axis to draw on, in this style; titles, remark and legend are put around it afterwards.

    Args:
        title: above it.
        remark: below it.
        rows: what it will have above each other, which decides its height.
        legend: of what is labelled, to the right.
    """
    with styled():
        height = 3.4 if rows is None else 0.42 * rows + 1.2
        figure = Figure(figsize=(6.2 if legend else 5.2, height), layout="constrained")
        axis = figure.subplots()
        yield figure, axis
        axis.set_title(plain(title))
        figure.supxlabel(wrapped(remark, figure), fontsize=7.5, color=DARK_GREY)
        if legend:
            figure.legend(*axis.get_legend_handles_labels(), loc="outside right upper", frameon=False, handlelength=3.2)


def legend_below(
    figure: Figure, handles: Sequence[Any], labels: Sequence[str], *, columns: int, remark: str = ""
) -> None:
    """One legend for all axes of a figure, under a line that says what cannot be seen in it.

    It has at most as many columns as asked for, and as fit.
    """
    look: dict[str, Any] = {"loc": "outside lower center", "frameon": False, "columnspacing": 1.6, "handlelength": 2.4}
    legend = figure.legend(handles, labels, ncols=columns, **look)
    while columns > 1 and legend.get_window_extent().width > figure.bbox.width:
        columns -= 1
        legend.remove()
        legend = figure.legend(handles, labels, ncols=columns, **look)
    if remark:
        # As its title: beside a legend outside the axes the layout makes no room for a text of its own.
        legend.set_title(wrapped(remark, figure), FontProperties(size=7.5))
        legend.get_title().set_color(DARK_GREY)


def wrapped(remark: str, figure: Figure) -> str:
    """A remark in small print, wrapped to the width of the figure; line breaks in the remark stay."""
    width = max(20, int(15.5 * figure.get_figwidth()))
    return plain("\n".join(textwrap.fill(line, width) for line in remark.splitlines()))


def save(figure: Figure, path: Path, *, dpi: float = DPI) -> None:
    """Write a figure as PNG, PDF or SVG, by the suffix: all of it or nothing, and the same bytes each time.

    ``dpi`` is for PNG.

    Raises:
        ValueError: another suffix, or no file can be made there.
    """
    suffix = path.suffix.lower()
    if suffix not in METADATA:
        raise ValueError(f"a figure's file must end in {', '.join(METADATA)}; got {str(path)!r}")
    fonts = logging.getLogger(
        "fontTools"
    )  # it warns of oddities of a font that goes into a PDF: nobody can act on them
    level = fonts.level
    with atomic_path(path) as temporary, styled():
        fonts.setLevel(logging.ERROR)
        try:
            figure.savefig(temporary, format=suffix[1:], dpi=dpi, metadata=METADATA[suffix])
        finally:
            fonts.setLevel(level)
