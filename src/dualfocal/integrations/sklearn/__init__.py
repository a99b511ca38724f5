"""scikit-learn: calibrators for pipelines, and reliability diagrams.

:class:`ProbabilityCalibrator` puts a calibrator behind any classifier, and :class:`ReliabilityDisplay` draws
reliability diagrams.
"""

from dualfocal.integrations.sklearn.calibrator import ProbabilityCalibrator
from dualfocal.integrations.sklearn.display import ReliabilityDisplay

__all__ = ["ProbabilityCalibrator", "ReliabilityDisplay"]
