"""Calibrators: maps from logits to calibrated logits, learned after training from held-out predictions.

``TemperatureScaling().fit(val_logits, val_target)(test_logits)``. Which one helps, :func:`cross_fit` tells.
"""

from dualfocal.calibrators._base import Calibrator, FitReport
from dualfocal.calibrators._inputs import log_probs
from dualfocal.calibrators.binning import BayesianBinning, HistogramBinning, IsotonicCalibration
from dualfocal.calibrators.chain import Chain
from dualfocal.calibrators.cross_fitting import CrossFit, cross_fit
from dualfocal.calibrators.files import load_calibrator, save_calibrator
from dualfocal.calibrators.one_vs_rest import BetaCalibration, PlattScaling
from dualfocal.calibrators.registry import CALIBRATORS, make_calibrator
from dualfocal.calibrators.scaling import DirichletCalibration, MatrixScaling, VectorScaling
from dualfocal.calibrators.temperature import EnsembleTemperatureScaling, TemperatureScaling

__all__ = [
    "CALIBRATORS",
    "BayesianBinning",
    "BetaCalibration",
    "Calibrator",
    "Chain",
    "CrossFit",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "FitReport",
    "HistogramBinning",
    "IsotonicCalibration",
    "MatrixScaling",
    "PlattScaling",
    "TemperatureScaling",
    "VectorScaling",
    "cross_fit",
    "load_calibrator",
    "log_probs",
    "make_calibrator",
    "save_calibrator",
]
