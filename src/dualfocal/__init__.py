"""Classifiers whose confidence can be trusted: dual focal loss, the losses it is compared with, and their metrics."""

from dualfocal.losses import (
    LOSSES,
    AdaDualFocalLoss,
    AdaFocalLoss,
    BrierLoss,
    CrossEntropyLoss,
    DualFocalLoss,
    FLSDLoss,
    FocalLoss,
    InverseFocalLoss,
    KDEXELoss,
    LabelSmoothingLoss,
    MMCELoss,
    dual_focal_loss,
)
from dualfocal.metrics import Evaluation, compare, evaluate

__version__ = "0.1.0"

__all__ = [
    "LOSSES",
    "AdaDualFocalLoss",
    "AdaFocalLoss",
    "BrierLoss",
    "CrossEntropyLoss",
    "DualFocalLoss",
    "Evaluation",
    "FLSDLoss",
    "FocalLoss",
    "InverseFocalLoss",
    "KDEXELoss",
    "LabelSmoothingLoss",
    "MMCELoss",
    "__version__",
    "compare",
    "dual_focal_loss",
    "evaluate",
]
