"""Losses x seeds on one data set: trained, put in one table, and read."""

from dualfocal.study.plan import PAPER_LOSSES, Study, make_study
from dualfocal.study.runner import run_study
from dualfocal.study.summary import Summary, summarize

__all__ = ["PAPER_LOSSES", "Study", "Summary", "make_study", "run_study", "summarize"]
