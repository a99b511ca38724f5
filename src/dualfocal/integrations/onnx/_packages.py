"""Import of the packages of the extra ``onnx``."""

import importlib
from typing import Any


def require(name: str) -> Any:
    """Import a package of the extra, or raise an ImportError that says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f'{name} is not installed: pip install "dualfocal[onnx]"') from error
