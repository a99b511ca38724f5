"""Decoded once: what a data set's files hold, kept as one safetensors file in ``ROOT/decoded/``."""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dualfocal._files import atomic_path
from dualfocal.data._tree import walk
from dualfocal.data.places import Root, cache_folder, data_root

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
    """What ``decode`` gives, from the cache if that was made of the same files, unchanged, with the same options.

    The cache is in the root, or, where that cannot be written to, in the user's cache folder. Of several processes one
    decodes, the others wait for it.
    """
    key = hashlib.sha256(json.dumps([name, options]).encode()).hexdigest()[:8]
    made_of = {"schema": SCHEMA, "options": options, "files": _signature(files, but=data_root(root) / FOLDER)}
    problems = []
    for place in _places(root):
        path = place() / FOLDER / f"{name}-{key}.safetensors"
        if (samples := _read(path, made_of)) is not None:
            return samples
        try:
            with _locked(path):
                samples = _read(path, made_of)  # another process may have been quicker
                if samples is None:
                    samples = decode()
                    _write(path, samples, made_of)
                return samples
        except _CannotKeepError as error:
            problems.append(str(error))
    warnings.warn(f"{problems[0]}, the data will be decoded each time", stacklevel=3)
    return decode()


def cached_files(name: str, root: Root) -> list[Path]:
    """What :func:`decoded` has kept of a data set, in its root or else in the user's cache folder."""
    kept = (sorted((place() / FOLDER).glob(f"{name}-????????.safetensors")) for place in _places(root))
    return next((files for files in kept if files), [])


def is_whole(path: Path) -> bool:
    """Whether the tensors in a file of the cache are those that were written."""
    found = _open(path)
    return found is not None and found[0].get("sha256") == _digest(*found[1:])


def _places(root: Root) -> tuple[Callable[[], Path], ...]:
    """Where the cache may be; functions, because the second is seldom asked for, and asking it loads a library."""
    return partial(data_root, root), cache_folder


class _CannotKeepError(Exception):
    """A place where nothing can be written."""


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    from filelock import FileLock

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        place = path.with_name(f".{path.stem}.lock")
        lock = FileLock(place)
        lock.acquire()
    except OSError as error:
        raise _CannotKeepError(f"{path}: cannot be written: {error}") from error
    try:
        yield
    finally:
        with suppress(OSError):
            place.unlink()  # whoever comes at this moment decodes once more, that is all
        lock.release()


def _digest(*tensors: Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.numpy().data)
    return digest.hexdigest()


def _signature(paths: Iterable[Path], *, but: Path) -> list[list[object]]:
    """Name, size and time of every file: a change of any of them shows. The cache itself may lie among them."""
    found: list[list[object]] = []
    for path in paths:
        digest = hashlib.sha256()
        for file in walk(path) if path.is_dir() else [path]:
            if file.parent != but:
                of = file.stat() if file.exists() else file.lstat()  # a link may lead nowhere
                text = f"{file.relative_to(path)}\0{of.st_size}\0{of.st_mtime_ns}\0"
                digest.update(text.encode(errors="surrogateescape"))
        found.append([str(path.absolute()), digest.hexdigest()])
    return found


def _read(path: Path, made_of: dict[str, object]) -> Samples | None:
    """None if there is no such file, of these sources, that makes sense."""
    found = _open(path)
    if found is None or found[0].pop("made_of", None) != json.loads(json.dumps(made_of)):
        return None
    about, inputs, target = found
    about.pop("sha256", None)  # to check it takes longer than to read; `dualfocal data verify` does
    try:
        about["class_names"], about["words"] = tuple(about["class_names"]), tuple(about["words"])
        samples = Samples(inputs=inputs, target=target, **about)
        return samples if 0 <= samples.num_train <= len(inputs) == len(target) else None
    except (KeyError, TypeError):
        return None


def _open(path: Path) -> tuple[dict[str, Any], Tensor, Tensor] | None:
    """What is said of the tensors, and they, from the disk when they are used; None if it is no such file."""
    from safetensors import SafetensorError, safe_open  # late: torch and numpy are all that importing us needs

    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})[KEY])
            return (about, file.get_tensor("inputs"), file.get_tensor("target")) if isinstance(about, dict) else None
    except (OSError, SafetensorError, ValueError, KeyError):
        return None


def _write(path: Path, samples: Samples, made_of: dict[str, object]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    about = {of.name: getattr(samples, of.name) for of in fields(samples) if of.name not in ("inputs", "target")}
    tensors = {"inputs": samples.inputs.contiguous(), "target": samples.target.to(torch.int64).contiguous()}
    about |= {"made_of": made_of, "sha256": _digest(*tensors.values())}
    try:
        with atomic_path(path) as temporary:
            save_file(tensors, temporary, metadata={KEY: json.dumps(about)})
    except (OSError, ValueError, SafetensorError) as error:
        warnings.warn(f"{path}: cannot be written, the data will be decoded each time: {error}", stacklevel=4)
