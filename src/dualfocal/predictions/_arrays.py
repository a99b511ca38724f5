"""Files of named arrays: ``.npz`` and ``.safetensors``. Never a pickle."""

import json
import zipfile
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from dualfocal.predictions._sources import Array, Column, PredictionsError, Source, form, reading


class ArrayFile(Source):
    """A format is a subclass that opens the file as a mapping from names to arrays."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with reading(path), self.open() as file:
            self.names = list(file.keys())

    @abstractmethod
    def open(self) -> AbstractContextManager[Any]:
        """Return a context manager of the mapping, which reads an array when it is asked for."""

    def get(self, file: Any, name: str) -> Array:
        array: NDArray[Any] = file[name]
        return array.astype(array.dtype.newbyteorder("="), copy=False)  # torch reads native byte order only

    def stated_names(self, file: Any) -> Any:
        """Return what is stored as class names, or raise a KeyError, TypeError or ValueError."""
        return file["class_names"].tolist()

    def read(self, values: list[str], others: list[str]) -> tuple[list[Array], list[Column]]:
        return [self._array(name) for name in values], [self._array(name) for name in others]

    def describe(self, name: str) -> str:
        try:
            return f"{name!r} {form(self._array(name))}"
        except PredictionsError:
            return f"{name!r} (unreadable)"

    def class_names(self, num_classes: int) -> tuple[str, ...] | None:
        with reading(self.path, "class names "), self.open() as file:
            try:
                stated = self.stated_names(file)
            except (KeyError, TypeError, ValueError):  # not there, or of another kind: a pickle, no json
                return None
        # A file may have names for something else, or for the two classes of one score per sample.
        fits = isinstance(stated, list) and len(stated) == num_classes and all(isinstance(text, str) for text in stated)
        return tuple(stated) if fits else None

    def _array(self, name: str) -> Array:
        with reading(self.path, f"array {name!r} "), self.open() as file:
            return self.get(file, name)


class NpzFile(ArrayFile):
    @contextmanager
    def open(self) -> Iterator[Any]:
        if not zipfile.is_zipfile(self.path):  # np.load would advise to unpickle it
            raise self.error("is not a .npz archive, or a damaged one")
        with self.path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            yield file


class SafetensorsFile(ArrayFile):
    def open(self) -> AbstractContextManager[Any]:
        return safe_open(self.path, framework="pt")  # torch: numpy has no bfloat16

    def get(self, file: Any, name: str) -> Array:
        tensor: Array = file.get_tensor(name)
        return tensor

    def stated_names(self, file: Any) -> Any:
        return json.loads(file.metadata()["class_names"])
