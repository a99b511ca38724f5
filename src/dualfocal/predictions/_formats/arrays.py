"""Files of named arrays: npy, npz and safetensors."""

import json
import zipfile
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dualfocal._extras import import_extra
from dualfocal._npz import NpzArchive, npy_num_bytes, read_npy, read_npy_header
from dualfocal.predictions._formats.interface import (
    STREAMED,
    Array,
    Content,
    Look,
    PredictionFile,
    PredictionsError,
    TooLargeError,
    dtype_name,
    form_text,
    look_kind,
    one_line_errors,
    shortened,
)

MOST_LOOKED_AT = 1000  # arrays of a file, for suggestions


def unnamed(index: int) -> str:
    """Return the name that ``numpy.savez`` gives to an array without a name; we give it to those of a tuple."""
    return f"arr_{index}"


class ArrayFile(PredictionFile):
    """A file of named arrays. Each format is a subclass that opens the file as a mapping from names to arrays."""

    def __init__(self, path: Path, max_memory: int | str | None = None) -> None:
        super().__init__(path, max_memory)
        with one_line_errors(path), self.open() as file:
            self.names = list(file.keys())

    @abstractmethod
    def open(self) -> AbstractContextManager[Any]:
        """Return a context manager of the mapping, which reads each array on access."""

    @abstractmethod
    def get(self, file: Any, name: str) -> Array:
        """Return an array of the opened file."""

    @abstractmethod
    def stated_names(self, file: Any) -> Any:
        """Return the stored class names, or raise a KeyError, TypeError or ValueError."""

    def num_bytes(self, file: Any, names: list[str]) -> int:
        """Return the memory that arrays need, or an upper bound: without compression, the size of the file."""
        return self.path.stat().st_size

    def header(self, file: Any, name: str) -> tuple[tuple[int, ...], str]:
        """Return shape and dtype of an array."""
        array = self.get(file, name)
        return tuple(array.shape), dtype_name(array)

    def read(self, values: list[str], others: list[str]) -> Content:
        names, arrays = [*values, *others], {}
        with one_line_errors(self.path), self.open() as file:
            self.check_memory(self.num_bytes(file, names))
            for name in names:
                with self.errors_of(name):
                    arrays[name] = self.get(file, name)
        return Content({name: arrays[name] for name in values}, {name: arrays[name] for name in others})

    def looks(self) -> dict[str, Look]:
        looks = {}
        with one_line_errors(self.path), self.open() as file:
            for name in self.names[:MOST_LOOKED_AT]:
                with suppress(PredictionsError), one_line_errors(self.path):
                    shape, dtype = self.header(file, name)
                    looks[name] = Look(look_kind(dtype), len(shape), shape[0] if shape else None)
        return looks

    def errors_of(self, name: str) -> AbstractContextManager[None]:
        return one_line_errors(self.path, f"array {name!r} cannot be read")

    def describe(self, names: list[str]) -> list[str]:
        texts = []
        with one_line_errors(self.path), self.open() as file:
            for name in names:
                try:
                    with one_line_errors(self.path):
                        texts.append(f"{shortened(repr(name))} {form_text(*self.header(file, name))}")
                except PredictionsError:
                    texts.append(f"{shortened(repr(name))} (unreadable)")
        return texts

    def class_names(self, num_classes: int) -> tuple[str, ...] | None:
        with one_line_errors(self.path, "class names cannot be read"), self.open() as file:
            try:
                stated = self.stated_names(file)
            except TooLargeError:
                raise
            except (KeyError, TypeError, ValueError):  # missing, a pickle, or not JSON
                return None
        # The names may be of something else, or of the two classes of one score per sample.
        fits = isinstance(stated, list) and len(stated) == num_classes and all(isinstance(text, str) for text in stated)
        return tuple(stated) if fits else None


class SlicedFile(ArrayFile):
    """A file of arrays whose rows can be read without the others."""

    @abstractmethod
    def part(self, file: Any, name: str, start: int, stop: int) -> Array:
        """Return some rows of an array of the opened file."""

    def chunks(self, values: list[str], others: list[str], num_rows: int) -> Iterator[Content]:
        total = self._num_rows(values + others)
        for start in range(0, total, num_rows):
            stop = min(start + num_rows, total)
            self.first_row, self.fraction = start, stop / total
            # Open the file for each chunk: the pages of a mapped file count as memory until it is closed.
            with one_line_errors(self.path), self.open() as file:
                yield Content(
                    {name: self.part(file, name, start, stop) for name in values},
                    {name: self.part(file, name, start, stop) for name in others},
                )

    def bytes_per_row(self, values: list[str], others: list[str]) -> int:
        self._num_rows(values + others)
        with one_line_errors(self.path), self.open() as file:
            return sum(int(self.part(file, name, 0, 1).nbytes) for name in values + others)

    def _num_rows(self, names: list[str]) -> int:
        """Return the number of rows, or raise an error if arrays have different numbers."""
        with one_line_errors(self.path), self.open() as file:
            forms = {name: self.header(file, name) for name in names}
        first, *rest = names
        for name in rest:
            if forms[name][0][:1] != forms[first][0][:1]:
                texts = " and ".join(f"{each!r} {form_text(*forms[each])}" for each in (first, name))
                raise self.error(f"each row needs one label, got {texts}")
        if not forms[first][0]:
            raise self.error(f"{first!r} must have one row per sample, got {form_text(*forms[first])}")
        return forms[first][0][0]


class NpyFile(SlicedFile):
    """One array, which has the name of the file: ``logits.npy`` holds logits."""

    def open(self) -> AbstractContextManager[Any]:
        return nullcontext({self.path.stem: self.path})

    def header(self, file: Any, name: str) -> tuple[tuple[int, ...], str]:
        shape, dtype = self._header()
        return shape, str(dtype)

    def get(self, file: Any, name: str) -> Array:
        self._header()
        with self.path.open("rb") as opened:
            return read_npy(opened)

    def part(self, file: Any, name: str, start: int, stop: int) -> Array:
        self._header()
        rows = np.load(self.path, mmap_mode="r", allow_pickle=False)[start:stop]
        return np.array(rows, rows.dtype.newbyteorder("="))  # a copy in memory

    def num_bytes(self, file: Any, names: list[str]) -> int:
        return npy_num_bytes(*self._header())

    def stated_names(self, file: Any) -> Any:
        raise KeyError("class_names")

    def _header(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        with self.path.open("rb") as opened:
            return read_npy_header(opened, self.path.stat().st_size)


class NpzFile(ArrayFile):
    """A zip archive of arrays."""

    how_to_stream = (
        f"dualfocal evaluate reads {STREAMED} in one pass, so save each array with numpy.save('logits.npy', logits), "
        "and give --target labels.npy"
    )

    def open(self) -> AbstractContextManager[Any]:
        if not zipfile.is_zipfile(self.path):
            raise self.error("is not an .npz archive, or is damaged")
        return NpzArchive(self.path)

    def get(self, file: NpzArchive, name: str) -> Array:
        return file[name]

    def stated_names(self, file: NpzArchive) -> Any:
        self.check_memory(file.num_bytes("class_names"))
        return file["class_names"].tolist()

    def num_bytes(self, file: NpzArchive, names: list[str]) -> int:
        total = 0
        for name in names:
            with self.errors_of(name):
                total += file.num_bytes(name)
        return total

    def header(self, file: NpzArchive, name: str) -> tuple[tuple[int, ...], str]:
        shape, dtype = file.header(name)
        return shape, str(dtype)


class SafetensorsFile(SlicedFile):
    """Tensors; class names may be in the metadata, as JSON."""

    def open(self) -> AbstractContextManager[Any]:
        import_extra("safetensors")
        from safetensors import safe_open

        return safe_open(self.path, framework="pt")  # torch: numpy has no bfloat16

    def get(self, file: Any, name: str) -> Array:
        tensor: Array = file.get_tensor(name)
        return tensor

    def part(self, file: Any, name: str, start: int, stop: int) -> Array:
        tensor: Tensor = file.get_slice(name)[start:stop]
        return tensor

    def header(self, file: Any, name: str) -> tuple[tuple[int, ...], str]:
        tensor = file.get_slice(name)
        shape = tuple(tensor.get_shape())
        return shape, dtype_name(tensor[:0] if shape else file.get_tensor(name))

    def stated_names(self, file: Any) -> Any:
        return json.loads(file.metadata()["class_names"])
