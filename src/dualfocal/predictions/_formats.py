"""The interface of all prediction formats, and the formats with named arrays: npz and safetensors."""

import json
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from dualfocal._sealed import DamagedFileError, check_sealed

Array = NDArray[Any] | Tensor
Column = Array | list[str]

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


class PredictionsError(ValueError):
    """A predictions file cannot be used; the message names the file, the value and the rule."""


@contextmanager
def one_line_errors(path: Path, text: str = "cannot be read") -> Iterator[None]:
    """Turn any exception into a PredictionsError with a one-line message: a damaged file can raise anything."""
    try:
        yield
    except PredictionsError:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise PredictionsError(f"{path}: {text}: {reason}") from error


class PredictionFile(ABC):
    """A file of predictions. Each format is a subclass that sets ``names`` and implements ``read``."""

    noun = "array"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: list[str] = []

    @abstractmethod
    def read(self, values: list[str], others: list[str]) -> tuple[list[Array], list[Column]]:
        """Return the values as arrays, and the other columns as arrays or stripped texts."""

    def class_names(self, num_classes: int) -> tuple[str, ...] | None:
        """Return the class names stored in the file, if there is one per class."""
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


class Table(PredictionFile):
    """A file with columns and one row per sample."""

    noun = "column"

    @abstractmethod
    def carried(self, names: list[str]) -> dict[str, Any]:
        """Return columns unchanged, to be written again: lists of texts, or pyarrow columns."""


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


def check_values(what: str, values: Array) -> None:
    """Raise a PredictionsError if an array cannot hold logits or probabilities."""
    if dtype_name(values) not in FLOATS or values.ndim == 0 or 0 in values.shape:
        raise PredictionsError(f"{what} must be {', '.join(FLOATS)} and have at least one row, got {form(values)}")


def without_axis_of_one(values: Tensor) -> Tensor:
    """Squeeze one score per sample from (N, 1), the layout of Keras, to (N,)."""
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


class ArrayFile(PredictionFile):
    """A file of named arrays. Each format is a subclass that opens the file as a mapping from names to arrays."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with one_line_errors(path), self.open() as file:
            self.names = list(file.keys())

    @abstractmethod
    def open(self) -> AbstractContextManager[Any]:
        """Return a context manager of the mapping, which reads each array on access."""

    def get(self, file: Any, name: str) -> Array:
        array: NDArray[Any] = file[name]
        return array.astype(array.dtype.newbyteorder("="), copy=False)  # torch only reads native byte order

    def stated_names(self, file: Any) -> Any:
        """Return the stored class names, or raise a KeyError, TypeError or ValueError."""
        return file["class_names"].tolist()

    def read(self, values: list[str], others: list[str]) -> tuple[list[Array], list[Column]]:
        return [self._array(name) for name in values], [self._array(name) for name in others]

    def describe(self, name: str) -> str:
        try:
            return f"{name!r} {form(self._array(name))}"
        except PredictionsError:
            return f"{name!r} (unreadable)"

    def class_names(self, num_classes: int) -> tuple[str, ...] | None:
        with one_line_errors(self.path, "class names cannot be read"), self.open() as file:
            try:
                stated = self.stated_names(file)
            except (KeyError, TypeError, ValueError):  # missing, a pickle, or not JSON
                return None
        # The names may be of something else, or of the two classes of one score per sample.
        fits = isinstance(stated, list) and len(stated) == num_classes and all(isinstance(text, str) for text in stated)
        return tuple(stated) if fits else None

    def _array(self, name: str) -> Array:
        with one_line_errors(self.path, f"array {name!r} cannot be read"), self.open() as file:
            return self.get(file, name)


class NpzFile(ArrayFile):
    @contextmanager
    def open(self) -> Iterator[Any]:
        if not zipfile.is_zipfile(self.path):  # np.load would suggest to unpickle it
            raise self.error("is not an .npz archive, or is damaged")
        with self.path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            yield file


class SafetensorsFile(ArrayFile):
    def __init__(self, path: Path) -> None:
        try:
            check_sealed(path)
        except DamagedFileError as error:
            raise PredictionsError(str(error)) from error
        super().__init__(path)

    def open(self) -> AbstractContextManager[Any]:
        return safe_open(self.path, framework="pt")  # torch: numpy has no bfloat16

    def get(self, file: Any, name: str) -> Array:
        tensor: Array = file.get_tensor(name)
        return tensor

    def stated_names(self, file: Any) -> Any:
        return json.loads(file.metadata()["class_names"])
