"""Files of ``torch.save``, ``.pt`` and ``.pth``: only those that hold tensors, and nothing that a pickle could run."""

import pickletools
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dualfocal.predictions._formats.arrays import ArrayFile, unnamed
from dualfocal.predictions._formats.interface import STREAMED, Array

BYTES_PER_OPERATION = 200  # of a pickle: the largest objects that one byte can make
TENSOR_GLOBALS = {"collections OrderedDict", "torch Size"}
TENSOR_GLOBALS |= {f"torch._utils _rebuild_{name}" for name in ("tensor", "tensor_v2", "parameter")}
OTHER_IMPORTS = ("STACK_GLOBAL", "INST", "OBJ", "EXT1", "EXT2", "EXT4")  # instructions of pickles


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
