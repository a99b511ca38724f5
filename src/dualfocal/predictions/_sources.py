"""What every file of predictions offers its reader: names, arrays or columns, and errors that name the file."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any] | Tensor
Column = Array | list[str]

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


class PredictionsError(ValueError):
    """A predictions file that cannot be used; the message names the file, the value and the rule."""


@contextmanager
def reading(path: Path, what: str = "") -> Iterator[None]:
    """Whatever a library says of a damaged file becomes one line."""
    try:
        yield
    except PredictionsError:
        raise
    except Exception as error:  # a damaged file makes the libraries raise nearly anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise PredictionsError(f"{path}: {what}cannot be read: {reason}") from error


class Source(ABC):
    """A file of predictions."""

    noun = "column"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: list[str] = []

    def class_names(self, num_classes: int) -> tuple[str, ...] | None:
        """The names of the classes where the file states them apart from its arrays or columns."""
        return None

    @abstractmethod
    def read(self, values: list[str], others: list[str]) -> tuple[Array, list[Column]]:
        """The values as one array, and the other columns."""

    def describe(self, name: str) -> str:
        return repr(name)

    def place(self, row: int) -> str:
        return f"row {row}"

    def error(self, text: str) -> PredictionsError:
        return PredictionsError(f"{self.path}: {text}")

    def holds(self) -> str:
        more = f" and {len(self.names) - 12} more" if len(self.names) > 12 else ""
        return f"(it holds: {', '.join(map(self.describe, self.names[:12]))}{more})"


class Table(Source):
    """A file with columns, one row per sample."""

    @abstractmethod
    def carried(self, names: list[str]) -> dict[str, Any]:
        """Columns as they are, to be written again: lists of texts, or what pyarrow has."""


def side_by_side(columns: list[NDArray[Any]]) -> NDArray[Any]:
    """One column as it is, several as (N, K); of none, none."""
    if not columns:
        return np.empty((0, 0))
    return columns[0].copy() if len(columns) == 1 else np.stack(columns, axis=1)


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # Python reads 1_0 as 10


def dtype_name(array: Array) -> str:
    return str(array.dtype).removeprefix("torch.")


def form(array: Array) -> str:
    return f"({' x '.join(map(str, array.shape)) or 'scalar'}, {dtype_name(array)})"
