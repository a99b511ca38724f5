"""Figures of computed results, with matplotlib and without global state.

Each diagram is a function that takes an axis and returns it; separate functions compute what it draws. ``*_figure`` and
``*_panels`` make whole figures, :func:`save` writes them.
"""

from dualfocal.plots.distributions import (
    max_logit_histogram,
    maximum_logits,
    rival_boxplot,
    rival_probabilities,
    shared_histograms,
)
from dualfocal.plots.metric_bars import MetricBar, metric_bars, metric_figure, t_interval
from dualfocal.plots.reliability import (
    chance_range,
    corp_diagram,
    corp_panels,
    density_strip,
    reliability_diagram,
    reliability_figure,
)
from dualfocal.plots.samples import sample_sheet
from dualfocal.plots.style import LOOKS, STYLE, Look, look_of, save, styled
from dualfocal.plots.training import Curve, ece_over_training, exponential_average, study_figure

__all__ = [
    "LOOKS",
    "STYLE",
    "Curve",
    "Look",
    "MetricBar",
    "chance_range",
    "corp_diagram",
    "corp_panels",
    "density_strip",
    "ece_over_training",
    "exponential_average",
    "look_of",
    "max_logit_histogram",
    "maximum_logits",
    "metric_bars",
    "metric_figure",
    "reliability_diagram",
    "reliability_figure",
    "rival_boxplot",
    "rival_probabilities",
    "sample_sheet",
    "save",
    "shared_histograms",
    "study_figure",
    "styled",
    "t_interval",
]
