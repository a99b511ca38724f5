"""Optional packages: ``pip install dualfocal`` brings torch, numpy and scipy, everything else is an extra."""

from importlib import import_module
from typing import Any

EXTRAS = {  # extra -> the packages that it brings, by the name of their import
    "cli": ("typer", "rich", "pyarrow", "safetensors", "PIL", "matplotlib", "filelock"),
    "hf": ("transformers", "accelerate"),
    "lightning": ("lightning", "pytorch_lightning"),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "ray": ("ray",),
    "sklearn": ("sklearn",),
    "sql": ("duckdb", "psycopg"),  # and pyarrow
    "torchmetrics": ("torchmetrics",),
}


def import_extra(name: str) -> Any:
    """Import a module of an optional package.

    Raises:
        ImportError: it is not installed; the message says how to install it.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(how_to_install(error) or str(error), name=error.name) from error


def how_to_install(error: ImportError) -> str | None:
    """Return what to install after a failed import, or None if it is not of an optional package.

    >>> how_to_install(ImportError(name="pyarrow.parquet"))
    'pyarrow is not installed: pip install "dualfocal[cli]"'
    """
    package = (error.name or "").partition(".")[0]
    extra = next((extra for extra, packages in EXTRAS.items() if package in packages), None)
    return f'{package} is not installed: pip install "dualfocal[{extra}]"' if extra else None
