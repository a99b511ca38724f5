"""Classifiers whose confidence can be trusted: dual focal loss and the losses it is compared with, for PyTorch."""

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

__version__ = "0.1.0"

__all__ = [
    "LOSSES",
    "AdaDualFocalLoss",
    "AdaFocalLoss",
    "BrierLoss",
    "CrossEntropyLoss",
    "DualFocalLoss",
    "FLSDLoss",
    "FocalLoss",
    "InverseFocalLoss",
    "KDEXELoss",
    "LabelSmoothingLoss",
    "MMCELoss",
    "__version__",
    "dual_focal_loss",
]
