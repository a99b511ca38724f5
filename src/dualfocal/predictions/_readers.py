"""The file formats of predictions: what a file holds, and the arrays or columns asked for. Never a pickle."""

import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from torch import Tensor

from dualfocal.predictions._sources import Array, Column, PredictionsError, Source, form, reading
from dualfocal.predictions._tables import ParquetFile, TextTable


class ArrayFile(Source):
    noun = "array"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with reading(path), self._open() as file:
            self.names = list(file.keys())

    @contextmanager
    def _open(self) -> Iterator[Any]:
        if self.path.suffix.lower() == ".safetensors":
            with safe_open(self.path, framework="pt") as file:  # torch: numpy has no bfloat16
                yield file
            return
        if not zipfile.is_zipfile(self.path):  # what np.load says then is how to unpickle it
            raise self.error("is not a .npz archive, or a damaged one")
        with self.path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            yield file

    def describe(self, name: str) -> str:
        try:
            return f"{name!r} {form(self._array(name))}"
        except PredictionsError:
            return f"{name!r} (unreadable)"

    def read(self, values: list[str], others: list[str]) -> tuple[Array, list[Column]]:
        return self._array(values[0]), [self._array(name) for name in others]

    def class_names(self, num_classes: int) -> tuple[str, ...] | None:
        with reading(self.path, "class names "), self._open() as file:
            try:
                in_arrays = not hasattr(file, "metadata")
                stated = file["class_names"].tolist() if in_arrays else json.loads(file.metadata()["class_names"])
            except (KeyError, TypeError, ValueError):  # not there, or of another kind: a pickle, no json
                return None
        # A file may have names for something else, or for the two classes of one score per sample.
        fits = isinstance(stated, list) and len(stated) == num_classes and all(isinstance(text, str) for text in stated)
        return tuple(stated) if fits else None

    def _array(self, name: str) -> Array:
        with reading(self.path, f"array {name!r} "), self._open() as file:
            array: Array = file.get_tensor(name) if hasattr(file, "get_tensor") else file[name]
            # torch reads the machine's own byte order only
            return array if isinstance(array, Tensor) else array.astype(array.dtype.newbyteorder("="), copy=False)


READERS: dict[str, Callable[[Path], Source]] = {
    ".npz": ArrayFile,
    ".safetensors": ArrayFile,
    ".csv": TextTable,
    ".tsv": TextTable,
    ".csv.gz": TextTable,
    ".tsv.gz": TextTable,
    ".parquet": ParquetFile,
}


def open_source(path: Path) -> Source:
    """The file, or that of a run folder, by its suffix."""
    if path.is_dir():
        inside = path / "predictions.safetensors"
        if not inside.exists() and (path / "recipe.json").is_file():
            raise PredictionsError(f"{path}: this run is not finished, it has no predictions yet")
        if not inside.exists():
            raise PredictionsError(f"{path}: is no run folder, there is no {inside.name} in it")
        path = inside
    if not path.is_file():
        raise PredictionsError(f"{path}: there is no such file")
    suffix = path.suffix.lower()
    if suffix == ".gz":
        suffix = Path(path.stem).suffix.lower() + suffix
    if suffix not in READERS:
        raise PredictionsError(f"{path}: must be {', '.join(READERS)} or a run folder, got {suffix!r}")
    source = READERS[suffix](path)
    if twice := [name for i, name in enumerate(source.names) if name in source.names[:i]]:
        raise source.error(f"has more than one {source.noun} {twice[0]!r}")
    return source
