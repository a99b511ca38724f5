"""The common style of all figures: colours, lines and hatches that are readable in grey, too; and saving.

The settings in :data:`STYLE` apply while a figure is drawn or saved, and are restored afterwards.
"""

import io
import logging
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from dualfocal.files import atomic_path

__all__ = [
    "BLACK",
    "BLUE",
    "DARK_GREY",
    "GREEN",
    "GREY",
    "LOOKS",
    "ORANGE",
    "PURPLE",
    "SKY",
    "VERMILION",
    "Look",
    "NotebookFigure",
    "axes_or_new",
    "check_named",
    "legend_below",
    "legend_right",
    "look_of",
    "one_axis",
    "plain",
    "save",
    "styled",
    "tidy",
    "varied",
]

# Okabe and Ito's palette, which is safe for colour-blind readers.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#BBBBBB"
DARK_GREY = "#555555"

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # included in matplotlib, so figures are the same everywhere
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "axes.linewidth": 0.8,
    "hatch.linewidth": 0.7,
    "pdf.fonttype": 42,  # embed TrueType fonts, as journals require
    "svg.fonttype": "path",
    "svg.hashsalt": "dualfocal",  # otherwise ids are random
}
DPI = 200
NOTEBOOK_DPI = 100
# Without date and version, so that the same figure has the same bytes.
METADATA: dict[str, dict[str, None]] = {
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    ".svg": {"Date": None, "Creator": None},
}


@dataclass(frozen=True)
class Look:
    """Colour, line style, marker and hatch of a method."""

    colour: str
    line: str | tuple[int, tuple[float, ...]]
    marker: str
    hatch: str


# Losses of a family share a colour, and differ in lines, markers and hatches.
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
    """Return the look of a method: from ``looks``, else of the loss of this name, else by its place in the figure.

    >>> look_of("dual_focal").colour, look_of("mine", 3).marker
    ('#D55E00', '^')
    """
    by_place = list(LOOKS.values())[place % len(LOOKS)]
    return (looks or {}).get(name) or LOOKS.get(name, by_place)


def varied(look: Look, place: int) -> Look:
    """Return the look with another line, marker and hatch, for the second, third, ... method of a colour.

    >>> first, second = varied(look_of("dual_focal"), 0), varied(look_of("dual_focal"), 1)
    >>> first == look_of("dual_focal"), second.colour == first.colour, second.line == first.line
    (True, True, False)
    """
    others = [other for other in LOOKS.values() if other.line != look.line]
    return replace(others[(place - 1) % len(others)], colour=look.colour) if place else look


def check_named(values: object, kind: type, what: str) -> None:
    """Raise a TypeError unless the values are a dict whose values are of this kind; ``what`` describes the dict.

    >>> check_named([1.0], float, "method -> value")
    Traceback (most recent call last):
    TypeError: expected a dict, method -> value, got list
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"expected a dict, {what}, got {type(values).__name__}")
    for name, value in values.items():
        if not isinstance(value, kind):
            raise TypeError(f"expected a dict, {what}, but the value of {name!r} is of type {type(value).__name__}")


@contextmanager
def styled() -> Iterator[None]:
    """Draw in our style; previous settings are restored afterwards, except for the interactive mode.

    The first pyplot figure loads the backend; the backend of notebooks switches the interactive mode on. If the mode
    were restored, notebooks would not display later figures.

    >>> with styled():
    ...     matplotlib.rcParams["font.family"]
    ['sans-serif']
    """
    interactive = matplotlib.is_interactive()
    try:
        with matplotlib.rc_context(STYLE):
            try:
                yield
            finally:
                interactive = matplotlib.is_interactive()
    finally:
        matplotlib.interactive(interactive)


class NotebookFigure(Figure):
    """A figure that notebooks display, although pyplot does not know it."""

    def _repr_png_(self) -> bytes:
        drawn = io.BytesIO()
        with styled():
            self.savefig(drawn, format="png", dpi=NOTEBOOK_DPI)
        return drawn.getvalue()


def plain(name: str) -> str:
    """Escape dollar signs, so that matplotlib does not treat a name as a formula.

    >>> print(plain("$a_b$"))
    \\$a_b\\$
    """
    return name.replace("$", r"\$")


def tidy(axis: Axes, *, grid: str | None = None, rows: bool = False) -> Axes:
    """Apply the common frame: no top and right spines, small ticks, and a grid along ``"x"`` or ``"y"``.

    ``rows`` removes the ticks of the y axis, which has names.
    """
    axis.spines[["top", "right"]].set_visible(False)
    # Also set here, since matplotlib creates ticks only when it draws, after the style is restored.
    axis.tick_params(labelsize=STYLE["xtick.labelsize"], width=STYLE["axes.linewidth"])
    if grid in ("x", "y"):
        axis.grid(axis=grid, color=GREY, alpha=0.4, linewidth=0.6)  # type: ignore[arg-type]
        axis.set_axisbelow(True)
    if rows:
        axis.tick_params(axis="y", length=0)
    return axis


@contextmanager
def axes_or_new(ax: Axes | None, size: tuple[float, float], *, legend: int = 0, right: bool = False) -> Iterator[Axes]:
    """Yield the axes to draw on: ``ax``, or those of a new pyplot figure in our style.

    Args:
        ax: axes of the caller, whose figure and style are not changed.
        size: width and height of a new figure, in inches.
        legend: number of columns of the legend of a new figure; 0: no legend.
        right: whether the legend stands at the right, not below.
    """
    if ax is not None:
        yield ax
        return
    from matplotlib import pyplot  # so that plt.show() and notebooks display the figure

    with styled():
        figure, axis = pyplot.subplots(figsize=size, layout="constrained")
        yield axis
        if right:
            legend_right(figure, axis)
        elif legend:
            legend_below(figure, *axis.get_legend_handles_labels(), columns=legend)


@contextmanager
def one_axis(
    title: str, remark: str, *, rows: int | None = None, legend: bool = False
) -> Iterator[tuple[Figure, Axes]]:
    """Yield a figure with one axis to draw on; title, remark and legend are added afterwards.

    Args:
        title: title of the axis.
        remark: text below the axis.
        rows: number of rows of the diagram, which decides its height.
        legend: whether to add a legend at the right.
    """
    with styled():
        height = 3.4 if rows is None else 0.42 * rows + 1.2
        figure = NotebookFigure(figsize=(6.2 if legend else 5.2, height), layout="constrained")
        axis = figure.subplots()
        yield figure, axis
        axis.set_title(plain(title))
        figure.supxlabel(wrapped(remark, figure), fontsize=7.5, color=DARK_GREY)
        if legend:
            legend_right(figure, axis)


def legend_right(figure: Figure, axis: Axes) -> None:
    """Add the legend of an axis at the right of the figure."""
    figure.legend(*axis.get_legend_handles_labels(), loc="outside right upper", frameon=False, handlelength=3.2)


def legend_below(
    figure: Figure, handles: Sequence[Any], labels: Sequence[str], *, columns: int, remark: str = ""
) -> None:
    """Add one legend for all axes below a figure, with a remark as its title.

    The number of columns is reduced until the legend fits.
    """
    look: dict[str, Any] = {"loc": "outside lower center", "frameon": False, "columnspacing": 1.6, "handlelength": 2.4}
    legend = figure.legend(handles, labels, ncols=columns, **look)
    while columns > 1 and legend.get_window_extent().width > figure.bbox.width:
        columns -= 1
        legend.remove()
        legend = figure.legend(handles, labels, ncols=columns, **look)
    if remark:
        # As title of the legend, since the layout reserves no space for a separate text.
        legend.set_title(wrapped(remark, figure), FontProperties(size=7.5))
        legend.get_title().set_color(DARK_GREY)


def wrapped(remark: str, figure: Figure) -> str:
    """Wrap a remark to the width of the figure; line breaks in the remark are kept."""
    width = max(20, int(15.5 * figure.get_figwidth()))
    return plain("\n".join(textwrap.fill(line, width) for line in remark.splitlines()))


def save(figure: Figure | Axes, path: str | Path, *, dpi: float = DPI) -> None:
    """Write a figure as PNG, PDF or SVG; the same figure gives the same bytes.

    Args:
        figure: the figure, or axes of it.
        path: the file, whose suffix decides the format.
        dpi: dots per inch of a PNG.

    Raises:
        TypeError: ``figure`` is neither a figure nor axes of one.
        ValueError: the suffix is unknown, or the file cannot be written.
        OSError: the disk is full.

    >>> save(Figure(), "figure.bmp")
    Traceback (most recent call last):
    ValueError: the file of a figure must end in .png, .pdf, .svg; got 'figure.bmp'
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in METADATA:
        raise ValueError(f"the file of a figure must end in {', '.join(METADATA)}; got {str(path)!r}")
    owner = figure.get_figure(root=True) if isinstance(figure, Axes) else figure
    if not isinstance(owner, Figure):
        raise TypeError(f"save needs a figure, or axes of one, got {type(owner).__name__}")
    fonts = logging.getLogger("fontTools")  # it warns of details of embedded fonts, which users cannot change
    level = fonts.level
    drawn = io.BytesIO()  # not the file: on a full disk, matplotlib hides the error behind one of its own
    with styled():
        fonts.setLevel(logging.ERROR)
        try:
            owner.savefig(drawn, format=suffix[1:], dpi=dpi, metadata=METADATA[suffix])
        finally:
            fonts.setLevel(level)
    with atomic_path(path) as temporary:
        temporary.write_bytes(drawn.getvalue())  # a view of the buffer would outlive it if writing fails
