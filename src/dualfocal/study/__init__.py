"""Compare losses on one data set: train each with several seeds, and summarize the runs in one table."""

from dualfocal.study.plan import PAPER_LOSSES, Study, make_study
from dualfocal.study.runner import run_study
from dualfocal.study.summary import Summary, summarize

__all__ = ["PAPER_LOSSES", "Study", "Summary", "make_study", "run_study", "summarize"]
