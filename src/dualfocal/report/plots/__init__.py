"""Figures, drawn from what has been computed; matplotlib only, no global state."""

from dualfocal.report.plots.reliability import reliability_figure
from dualfocal.report.plots.samples import sample_sheet
from dualfocal.report.plots.study import study_figure

__all__ = ["reliability_figure", "sample_sheet", "study_figure"]
