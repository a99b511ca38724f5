"""Figures of runs, studies and the paper, in the style of :mod:`dualfocal.plots`."""

from dualfocal_lab.plots.distributions import max_logit_histogram, rival_boxplot
from dualfocal_lab.plots.metric_bars import MetricBar, metric_bars, metric_figure
from dualfocal_lab.plots.training import ece_over_training, study_figure

__all__ = [
    "MetricBar",
    "ece_over_training",
    "max_logit_histogram",
    "metric_bars",
    "metric_figure",
    "rival_boxplot",
    "study_figure",
]
