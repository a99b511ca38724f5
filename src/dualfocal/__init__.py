"""Calibrated classifiers: dual focal loss and related losses, calibration metrics with noise floors, calibrators."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

__version__ = "1.0.0"

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

_SUBPACKAGES = (
    "calibrators",
    "integrations",
    "kernels",
    "losses",
    "metrics",
    "plots",
    "predictions",
    "report",
)
_HOMES = {
    "calibrators": ("CALIBRATORS", "TemperatureScaling", "compare_calibrators", "load_calibrator"),
    "metrics": ("Evaluation", "compare", "evaluate"),
}  # all other names are those of losses


def __getattr__(name: str) -> Any:
    """Import public names when they are used: ``dualfocal --help`` needs no torch, a training script no metrics."""
    if name in __all__:
        home = next((home for home, names in _HOMES.items() if name in names), "losses")
        return getattr(import_module(f"dualfocal.{home}"), name)
    if name in _SUBPACKAGES:
        return import_module(f"dualfocal.{name}")
    raise AttributeError(f"module 'dualfocal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
