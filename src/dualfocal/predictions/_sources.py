"""The interface of every prediction format: names, arrays or columns, and errors that name the file."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
    """Turn any error of a library that reads a damaged file into a PredictionsError of one line."""
    try:
        yield
    except PredictionsError:
        raise
    except Exception as error:  # a damaged file makes the libraries raise nearly anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise PredictionsError(f"{path}: {what}cannot be read: {reason}") from error


class Source(ABC):
    """A file of predictions. A format is a subclass that sets ``names`` and has ``read``."""

    noun = "array"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: list[str] = []

    @abstractmethod
    def read(self, values: list[str], others: list[str]) -> tuple[list[Array], list[Column]]:
        """Return the arrays of the values, and the other columns as arrays or stripped texts."""

    def class_names(self, num_classes: int) -> tuple[str, ...] | None:
        """Return the class names that the file states beside its arrays, if there is one for each class."""
        return None

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

    noun = "column"

    @abstractmethod
    def carried(self, names: list[str]) -> dict[str, Any]:
        """Return columns unchanged, to be written again: lists of texts, or columns of pyarrow."""


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
