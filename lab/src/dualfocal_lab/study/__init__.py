"""Compare losses on one data set: train each with several seeds, and summarize the runs in one table."""

from dualfocal_lab.study.gammas import GammaChoice, choose_gamma
from dualfocal_lab.study.local import LocalEngine
from dualfocal_lab.study.plan import PAPER_LOSSES, Study, make_study
from dualfocal_lab.study.ray_engine import RayEngine
from dualfocal_lab.study.runner import RunStatus, run_study
from dualfocal_lab.study.shards import Shard
from dualfocal_lab.study.summary import Summary, summarize

__all__ = [
    "PAPER_LOSSES",
    "GammaChoice",
    "LocalEngine",
    "RayEngine",
    "RunStatus",
    "Shard",
    "Study",
    "Summary",
    "choose_gamma",
    "make_study",
    "run_study",
    "summarize",
]
