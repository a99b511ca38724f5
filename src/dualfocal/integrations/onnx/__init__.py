"""Export of calibrated models to ONNX, verified with onnxruntime (``pip install "dualfocal[onnx]"``)."""

from dualfocal.integrations.onnx._verification import BOUNDS
from dualfocal.integrations.onnx.export import export_onnx

__all__ = ["BOUNDS", "export_onnx"]
