"""The style of all figures: legible in grey, names verbatim, and the same bytes each time."""

import io
import re

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from report_pages import png_size

from dualfocal.losses import LOSSES
from dualfocal.metrics import evaluate
from dualfocal.plots import LOOKS, reliability_figure, save, styled


def figure_of_one() -> Figure:
    """A figure with texts, bars and lines."""
    return reliability_figure({"brier": evaluate([[0.7, 0.3], [0.4, 0.6]], [0, 1], input="probs")})


def test_every_loss_has_its_own_look():
    assert LOOKS.keys() == LOSSES.keys()
    looks = LOOKS.values()
    assert len({(look.colour, look.line) for look in looks}) == len(LOOKS)
    assert len({look.marker for look in looks}) == len(LOOKS)
    assert len({(look.colour, look.hatch) for look in looks}) == len(LOOKS)


def test_lines_of_the_papers_losses_differ_in_grey():
    """They differ in lightness, or else in dashes."""
    names = ("cross_entropy", "brier", "mmce", "label_smoothing", "inverse_focal", "flsd", "dual_focal")
    lightness = {name: float(np.dot(to_rgb(LOOKS[name].colour), (0.299, 0.587, 0.114))) for name in names}
    for i, one in enumerate(names):
        for other in names[:i]:
            assert abs(lightness[one] - lightness[other]) > 0.1 or LOOKS[one].line != LOOKS[other].line


def test_names_are_drawn_verbatim():
    name = r"$a_b$ \x_{1"
    figure = reliability_figure({name: evaluate([[0.7, 0.3]], [0], input="probs")})
    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(file, format="svg")
    assert name in file.getvalue()


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_a_figure_has_the_same_bytes_each_time(tmp_path, suffix):
    import matplotlib.pyplot as plt

    before = dict(matplotlib.rcParams)
    for i in range(2):
        save(figure_of_one(), tmp_path / f"{i}.{suffix}", dpi=40)
    first, second = ((tmp_path / f"{i}.{suffix}").read_bytes() for i in range(2))
    assert first == second
    assert not re.search(rb"CreationDate|<dc:date>|Matplotlib v", first)
    assert dict(matplotlib.rcParams) == before
    assert plt.get_fignums() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"0.{suffix}", f"1.{suffix}"]


def test_fonts_are_embedded_in_a_pdf_as_truetype(tmp_path, caplog):
    save(figure_of_one(), tmp_path / "a.pdf")
    assert b"/CIDFontType2" in (tmp_path / "a.pdf").read_bytes()
    assert b"/Type3" not in (tmp_path / "a.pdf").read_bytes()
    assert caplog.messages == []  # fontTools has opinions on old fonts


def test_files_that_cannot_be_saved_are_refused(tmp_path):
    figure = Figure()
    with pytest.raises(ValueError, match=r"\.png.*a\.jpg"):
        save(figure, tmp_path / "a.jpg")
    with pytest.raises(ValueError, match="no folder"):
        save(figure, tmp_path / "nowhere" / "a.png")


def test_style_is_undone_after_an_error():
    before = dict(matplotlib.rcParams)
    with pytest.raises(RuntimeError), styled():
        raise RuntimeError
    assert dict(matplotlib.rcParams) == before


def test_interactive_mode_that_a_backend_switches_on_survives_the_style():
    before = matplotlib.is_interactive()
    try:
        matplotlib.interactive(False)
        with styled():
            matplotlib.interactive(True)
        assert matplotlib.is_interactive()
        with styled():
            pass
        assert matplotlib.is_interactive()
    finally:
        matplotlib.interactive(before)


def test_figures_display_themselves_in_notebooks():
    image = figure_of_one()
    width, height = np.array(image.get_size_inches() * 100, dtype=int)
    png = image._repr_png_()
    assert png.startswith(b"\x89PNG")
    assert png_size(png) == (width, height)
