"""Figures of calibration, in one style.

Each diagram is a function ``diagram(data, *, ax=None)`` that draws on ``ax`` and returns it. Without ``ax`` it makes a
pyplot figure with a legend, so that ``plt.show()`` and notebooks display it, as in scikit-learn. The ``*_figure``
functions return a whole :class:`~matplotlib.figure.Figure` and do not use pyplot. :func:`save` writes both.
"""

# ruff: noqa: E402
from dualfocal._extras import import_extra

import_extra("matplotlib")  # an error that says what to install, before the first import of it

from dualfocal.plots.corp import corp_diagram, corp_figure
from dualfocal.plots.monitor import evidence_diagram, evidence_figure
from dualfocal.plots.multilabel import multilabel_figure
from dualfocal.plots.overconfidence import overconfidence_figure, overconfidence_map
from dualfocal.plots.reliability import reliability_diagram, reliability_figure
from dualfocal.plots.shift import shift_figure
from dualfocal.plots.style import LOOKS, Look, save, styled
from dualfocal.plots.tokens import token_figure, token_groups_diagram

__all__ = [
    "LOOKS",
    "Look",
    "corp_diagram",
    "corp_figure",
    "evidence_diagram",
    "evidence_figure",
    "multilabel_figure",
    "overconfidence_figure",
    "overconfidence_map",
    "reliability_diagram",
    "reliability_figure",
    "save",
    "shift_figure",
    "styled",
    "token_figure",
    "token_groups_diagram",
]
