"""Post-hoc calibration: maps from logits to calibrated logits, fitted to held-out predictions after training.

``TemperatureScaling().fit(val_logits, val_target)(test_logits)`` calibrates test logits.
:func:`compare_calibrators` scores all methods on held-out data and recommends one.
"""

from dualfocal.calibrators._base import Calibrator
from dualfocal.calibrators._scoring import MethodScore
from dualfocal.calibrators.application import apply_calibrator
from dualfocal.calibrators.binning import BayesianBinning, HistogramBinning, IsotonicCalibration
from dualfocal.calibrators.calibrated_model import CalibratedModel
from dualfocal.calibrators.comparison import CalibratorComparison
from dualfocal.calibrators.files import load_calibrator, save_calibrator
from dualfocal.calibrators.inputs import log_probs
from dualfocal.calibrators.multilabel import (
    MULTILABEL_CALIBRATORS,
    MultilabelCalibrator,
    MultilabelIsotonic,
    MultilabelPlatt,
    MultilabelTemperature,
    make_multilabel_calibrator,
)
from dualfocal.calibrators.multilabel_selection import MultilabelComparison, compare_multilabel_calibrators
from dualfocal.calibrators.notes import Note
from dualfocal.calibrators.one_vs_rest import BetaCalibration, PlattScaling
from dualfocal.calibrators.registry import CALIBRATORS, Chain, make_calibrator, parse_methods
from dualfocal.calibrators.scaling import DirichletCalibration, MatrixScaling, VectorScaling
from dualfocal.calibrators.selection import compare_calibrators
from dualfocal.calibrators.shift import ShiftCalibration, calibrate_shift
from dualfocal.calibrators.temperature import EnsembleTemperatureScaling, TemperatureScaling

__all__ = [
    "CALIBRATORS",
    "MULTILABEL_CALIBRATORS",
    "BayesianBinning",
    "BetaCalibration",
    "CalibratedModel",
    "Calibrator",
    "CalibratorComparison",
    "Chain",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "HistogramBinning",
    "IsotonicCalibration",
    "MatrixScaling",
    "MethodScore",
    "MultilabelCalibrator",
    "MultilabelComparison",
    "MultilabelIsotonic",
    "MultilabelPlatt",
    "MultilabelTemperature",
    "Note",
    "PlattScaling",
    "ShiftCalibration",
    "TemperatureScaling",
    "VectorScaling",
    "apply_calibrator",
    "calibrate_shift",
    "compare_calibrators",
    "compare_multilabel_calibrators",
    "load_calibrator",
    "log_probs",
    "make_calibrator",
    "make_multilabel_calibrator",
    "parse_methods",
    "save_calibrator",
]
