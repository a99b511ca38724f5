"""The formats with arrays: npy, npz, safetensors, and pt files of tensors."""

import json
import pickletools
import re
import zipfile
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from dualfocal._npz import NpzArchive, npy_num_bytes, read_npy, read_npy_header
from dualfocal._sealed import DamagedFileError, check_sealed
from dualfocal.predictions._formats.interface import (
    STREAMED,
    Array,
    ArrayFile,
    Content,
    PredictionsError,
    dtype_name,
    form_text,
    one_line_errors,
)

BYTES_PER_OPERATION = 200  # of a pickle: the largest objects that one byte can make
TENSOR_GLOBALS = {"collections OrderedDict", "torch Size"}
TENSOR_GLOBALS |= {f"torch._utils _rebuild_{name}" for name in ("tensor", "tensor_v2", "parameter")}
OTHER_IMPORTS = ("STACK_GLOBAL", "INST", "OBJ", "EXT1", "EXT2", "EXT4")  # instructions of pickles


def unnamed(index: int) -> str:
    """Return the name that ``numpy.savez`` gives to an array without a name; we give it to those of a tuple."""
    return f"arr_{index}"


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
                arrays = [self.part(file, name, start, stop) for name in values + others]
            yield Content(arrays[: len(values)], [*arrays[len(values) :]])

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

    def __init__(self, path: Path, max_memory: int | str | None = None) -> None:
        try:
            with one_line_errors(path, kinds=(OSError,)):
                check_sealed(path)
        except DamagedFileError as error:
            raise PredictionsError(str(error)) from error
        super().__init__(path, max_memory)

    def open(self) -> AbstractContextManager[Any]:
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


class TorchFile(ArrayFile):
    """A file of ``torch.save``: a dict of tensors, a tuple of tensors, or one tensor, which has the name of the file.

    Only the tensors that are read take memory: the file is mapped. Its pickle may only build tensors in lists, tuples
    and dicts, which is less than ``torch.load(weights_only=True)`` allows: a bytearray of any size, for example.
    """

    how_to_stream = (
        f"dualfocal evaluate reads {STREAMED} in one pass, so save the tensors with safetensors.torch.save_file(tensors"
        ", 'predictions.safetensors')"
    )

    @contextmanager
    def open(self) -> Iterator[dict[str, Any]]:
        self._check_archive()
        content = torch.load(self.path, map_location="cpu", mmap=True, weights_only=True)
        if isinstance(content, Tensor):
            content = {self.path.stem: content}
        if isinstance(content, list | tuple):
            content = {unnamed(k): item for k, item in enumerate(content)}
        if not isinstance(content, dict):
            raise self.error(f"must hold a dict or tuple of tensors, or one tensor, got {type(content).__name__}")
        # Lists of labels and of class names are common beside tensors; anything else is not read.
        yield {str(name): item for name, item in content.items() if isinstance(item, Tensor | list)}

    def get(self, file: dict[str, Any], name: str) -> Array:
        item = file[name]
        if isinstance(item, list):
            array = np.array(item)
            if array.ndim != 1 or array.dtype.kind not in "biufU" or len({*map(type, item)}) > 1:
                raise ValueError("it is a list, but not of numbers or of texts")
            return array
        if item.layout != torch.strided or item.is_quantized or item.is_meta:
            raise ValueError(f"it must be a plain dense tensor, got {item.layout} of {item.dtype}")
        tensor: Tensor = item.detach().contiguous().clone()
        return tensor

    def header(self, file: dict[str, Any], name: str) -> tuple[tuple[int, ...], str]:
        item = file[name]
        if isinstance(item, list):
            return super().header(file, name)
        return tuple(item.shape), str(item.dtype).removeprefix("torch.")

    def num_bytes(self, file: dict[str, Any], names: list[str]) -> int:
        return sum(
            item.numel() * item.element_size()
            if isinstance(item, Tensor)
            else len(item) * (100 + 4 * max((len(text) for text in item if isinstance(text, str)), default=0))
            for item in map(file.__getitem__, names)
        )

    def stated_names(self, file: dict[str, Any]) -> Any:
        return file["class_names"]

    def _check_archive(self) -> None:
        """Raise an error unless the file only builds tensors, and is as large as what it holds."""
        if not zipfile.is_zipfile(self.path):
            raise self.error("is not a file of torch.save (in its format since version 1.6), or is damaged")
        with zipfile.ZipFile(self.path) as archive:
            for member in archive.infolist():
                if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
                    raise self.error(f"member {member.filename!r} is compressed, which torch.save never does")
            pickles = [member for member in archive.infolist() if member.filename.endswith("/data.pkl")]
            if len(pickles) != 1:
                raise self.error("is not a file of torch.save, or is damaged")
            self.check_memory(pickles[0].file_size * BYTES_PER_OPERATION)
            program = archive.read(pickles[0])
        for operation, argument, _ in pickletools.genops(program):
            if operation.name == "GLOBAL":
                storage = re.fullmatch(r"torch [A-Za-z0-9]+Storage", str(argument))
                plain = argument in TENSOR_GLOBALS or storage is not None
            else:
                plain = operation.name not in OTHER_IMPORTS
            if not plain:
                raise self.error(
                    f"holds Python objects ({argument or operation.name}), which are pickles and never loaded: save "
                    "tensors only, torch.save({'logits': logits, 'target': target}, 'predictions.pt')"
                )
