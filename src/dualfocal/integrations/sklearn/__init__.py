"""scikit-learn: calibrators for pipelines, and reliability diagrams.

:class:`ProbabilityCalibrator` puts a calibrator behind any classifier, and :class:`ReliabilityDisplay` draws
reliability diagrams.
"""

# ruff: noqa: E402
from dualfocal._extras import import_extra

import_extra("sklearn")  # an error that says what to install, before the first import of it

from dualfocal.integrations.sklearn.calibrator import ProbabilityCalibrator
from dualfocal.integrations.sklearn.display import ReliabilityDisplay

__all__ = ["ProbabilityCalibrator", "ReliabilityDisplay"]
