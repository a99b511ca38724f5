"""Classifiers whose confidence can be trusted: dual focal loss and its peers, metrics with their noise, calibrators."""

from dualfocal.calibrators import CALIBRATORS, TemperatureScaling, compare_calibrators, load_calibrator
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
    "CALIBRATORS",
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
    "TemperatureScaling",
    "__version__",
    "compare",
    "compare_calibrators",
    "dual_focal_loss",
    "evaluate",
    "load_calibrator",
]
