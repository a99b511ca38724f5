"""Losses for calibrated classification, each as a function and a Module, with the semantics of ``F.cross_entropy``."""

from torch import nn

from dualfocal.losses.adaptive import AdaDualFocalLoss, AdaFocalLoss, ada_dual_focal_loss, ada_focal_loss
from dualfocal.losses.brier import BrierLoss, brier_loss
from dualfocal.losses.cross_entropy import CrossEntropyLoss, cross_entropy_loss
from dualfocal.losses.dual_focal import DualFocalLoss, dual_focal_loss
from dualfocal.losses.focal import (
    FLSDLoss,
    FocalLoss,
    InverseFocalLoss,
    flsd_loss,
    focal_loss,
    inverse_focal_loss,
)
from dualfocal.losses.kde import KDEXELoss, kde_bandwidth, kde_xe_loss
from dualfocal.losses.label_smoothing import LabelSmoothingLoss, label_smoothing_loss
from dualfocal.losses.linear import LinearDualFocalLoss, linear_dual_focal_loss
from dualfocal.losses.mmce import MMCELoss, mmce_loss
from dualfocal.losses.rival import true_and_rival

LOSSES: dict[str, type[nn.Module]] = {
    "cross_entropy": CrossEntropyLoss,
    "label_smoothing": LabelSmoothingLoss,
    "brier": BrierLoss,
    "mmce": MMCELoss,
    "focal": FocalLoss,
    "flsd": FLSDLoss,
    "inverse_focal": InverseFocalLoss,
    "dual_focal": DualFocalLoss,
    "ada_focal": AdaFocalLoss,
    "ada_dual_focal": AdaDualFocalLoss,
    "kde_xe": KDEXELoss,
}

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
    "LinearDualFocalLoss",
    "MMCELoss",
    "ada_dual_focal_loss",
    "ada_focal_loss",
    "brier_loss",
    "cross_entropy_loss",
    "dual_focal_loss",
    "flsd_loss",
    "focal_loss",
    "inverse_focal_loss",
    "kde_bandwidth",
    "kde_xe_loss",
    "label_smoothing_loss",
    "linear_dual_focal_loss",
    "mmce_loss",
    "true_and_rival",
]
