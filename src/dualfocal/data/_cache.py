"""Decoded once: what a data set's files hold, kept as one safetensors file in ``ROOT/decoded/``."""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dualfocal._files import atomic_path
from dualfocal.data.places import Root, data_root

SCHEMA = 1
KEY = "dualfocal_decoded"
FOLDER = "decoded"


@dataclass(frozen=True, eq=False)
class Samples:
    """What the files hold: those for training first."""

    inputs: Tensor
    target: Tensor
    class_names: tuple[str, ...]
    num_train: int
    words: tuple[str, ...] = ()
    """Of texts: the words that the numbers from 1 stand for."""


def decoded(
    name: str, root: Root, files: Iterable[Path], decode: Callable[[], Samples], *, options: object = None
) -> Samples:
    """What ``decode`` gives, from the cache if that was made of the same files, unchanged, with the same options."""
    key = hashlib.sha256(json.dumps([name, options]).encode()).hexdigest()[:8]
    path = data_root(root) / FOLDER / f"{name}-{key}.safetensors"
    made_of = {"schema": SCHEMA, "options": options, "files": _signature(files, but=path.parent)}
    samples = _read(path, made_of)
    if samples is None:
        samples = decode()
        _write(path, samples, made_of)
    return samples


def _signature(paths: Iterable[Path], *, but: Path) -> list[list[object]]:
    """Name, size and time of every file: a change of any of them shows. The cache itself may lie among them."""
    found: list[list[object]] = []
    for path in paths:
        if path.is_dir():
            digest = hashlib.sha256()
            for folder, folders, files in os.walk(path, followlinks=True):
                folders[:] = sorted(name for name in folders if Path(folder, name) != but)
                for file in sorted(files):
                    of = os.stat(full := os.path.join(folder, file))
                    relative = os.path.relpath(full, path)
                    digest.update(f"{relative}\0{of.st_size}\0{of.st_mtime_ns}\0".encode(errors="surrogateescape"))
            found.append([str(path.absolute()), digest.hexdigest()])
        else:
            of = path.stat()
            found.append([str(path.absolute()), of.st_size, of.st_mtime_ns])
    return found


def _read(path: Path, made_of: dict[str, object]) -> Samples | None:
    """None if there is no such file, of these sources, whole."""
    from safetensors import SafetensorError, safe_open  # late: torch and numpy are all that importing us needs

    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, Any] = json.loads((file.metadata() or {})[KEY])
            if about.pop("made_of") != json.loads(json.dumps(made_of)):
                return None
            inputs, target = file.get_tensor("inputs"), file.get_tensor("target")
        about["class_names"], about["words"] = tuple(about["class_names"]), tuple(about["words"])
        return Samples(inputs=inputs, target=target, **about)
    except (OSError, SafetensorError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _write(path: Path, samples: Samples, made_of: dict[str, object]) -> None:
    """Or go without: the data can be decoded again."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    about = {of.name: getattr(samples, of.name) for of in fields(samples) if of.name not in ("inputs", "target")}
    tensors = {"inputs": samples.inputs.contiguous(), "target": samples.target.to(torch.int64).contiguous()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary:
            save_file(tensors, temporary, metadata={KEY: json.dumps(about | {"made_of": made_of})})
    except (OSError, ValueError, SafetensorError) as error:
        warnings.warn(f"{path}: cannot be written, the data will be decoded each time: {error}", stacklevel=3)
