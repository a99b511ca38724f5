"""scikit-learn: an estimator, calibrators for pipelines, and a display.

:class:`DualFocalClassifier` is a multilayer perceptron with any loss of this package, :class:`ProbabilityCalibrator`
puts a calibrator behind any classifier, and :class:`ReliabilityDisplay` draws reliability diagrams.
"""

from dualfocal.integrations.sklearn.calibrator import ProbabilityCalibrator
from dualfocal.integrations.sklearn.classifier import DualFocalClassifier
from dualfocal.integrations.sklearn.display import ReliabilityDisplay

__all__ = ["DualFocalClassifier", "ProbabilityCalibrator", "ReliabilityDisplay"]
