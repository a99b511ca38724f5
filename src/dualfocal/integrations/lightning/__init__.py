"""A callback for Lightning that logs the calibration of each epoch (``pip install "dualfocal[lightning]"``).

It works with ``lightning`` and with ``pytorch_lightning``. The torchmetrics classes of :mod:`dualfocal.metrics` can be
logged by ``self.log`` without it; see ``docs/frameworks.md`` for complete scripts.
"""

from dualfocal.integrations.lightning.callback import CalibrationCallback, checkpoint_calibrator

__all__ = ["CalibrationCallback", "checkpoint_calibrator"]
