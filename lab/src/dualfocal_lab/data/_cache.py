"""Cache of decoded data sets: one safetensors file per data set in ``ROOT/decoded/``."""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from dualfocal.files import atomic_path
from dualfocal_lab._sealed import DamagedFileError, check_sealed, load_sealed, save_sealed
from dualfocal_lab.data._tree import walk
from dualfocal_lab.data.dataset import DataSet
from dualfocal_lab.data.paths import Root, cache_folder, data_root
from dualfocal_lab.data.sources import size_notes
from dualfocal_lab.data.transforms import CropFlip, Normalize

SCHEMA = 1  # of the cache files; those of another schema are decoded again
KEY = "dualfocal_decoded"
FOLDER = "decoded"


@dataclass(frozen=True, eq=False)
class Samples:
    """The decoded samples of a data set."""

    inputs: Tensor
    target: Tensor
    class_names: tuple[str, ...]
    num_train: int  # the first samples are the training samples
    words: tuple[str, ...] = ()  # vocabulary of texts: word i has the number i + 1

    @property
    def test(self) -> Tensor:
        """Indices of the test samples, which follow the training samples."""
        return torch.arange(self.num_train, len(self.target))

    def as_images(
        self, name: str, splits: Mapping[str, Tensor], mean: Sequence[float], std: Sequence[float], *, flip: bool = True
    ) -> DataSet:
        """Return a published data set of images, with a note if its numbers of images are not the published ones.

        Args:
            name: name of the data set.
            splits: splits of the training samples; empty: only the test split was read.
            mean: mean of each channel, see :class:`~dualfocal_lab.data.transforms.Normalize`.
            std: standard deviation of each channel.
            flip: whether to mirror training images; all are padded by 4 pixels and cropped.
        """
        return DataSet(
            name=name,
            class_names=self.class_names,
            inputs=self.inputs,
            target=self.target,
            splits={**splits, "test": self.test},
            encoder=Normalize(mean, std),
            augment=CropFlip(padding=4, flip=flip),
            notes=size_notes(name, self.num_train, len(self.test)) if splits else (),
        )


def decoded(
    name: str, root: Root, files: Iterable[Path], decode: Callable[[], Samples], *, options: object = None
) -> Samples:
    """Return the samples from the cache, or decode and cache them.

    The cache is used only if it was made with the same options from the same, unchanged files. It lies in the root or,
    if the root is not writable, in the user's cache folder. If several processes need the data set, one decodes it and
    the others wait.
    """
    from filelock import FileLock

    key = hashlib.sha256(json.dumps([name, options]).encode()).hexdigest()[:8]
    files_now = _signature(files, but=data_root(root) / FOLDER)
    made_of = json.loads(json.dumps({"schema": SCHEMA, "options": options, "files": files_now}))  # tuples become lists
    problems = []
    for folder in _folders(root):
        path = folder / f"{name}-{key}.safetensors"
        if (samples := _read(path, made_of)) is not None:
            return samples
        lock = FileLock(folder / f".{path.stem}.lock")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except OSError as error:
            problems.append(f"{path}: cannot be written: {error}")
            continue
        try:
            # Another process may have written the cache in the meantime.
            return _read(path, made_of, warn=False) or _write(path, decode(), made_of)
        finally:
            with suppress(OSError):
                os.unlink(lock.lock_file)  # at worst, another process decodes the data set again
            lock.release()
    warnings.warn(f"{problems[0]}; the data set will be decoded on every run", stacklevel=3)
    return decode()


def cached_files(name: str, root: Root) -> list[Path]:
    """Return the cache files of a data set, in its root or else in the user's cache folder."""
    caches = (sorted(folder.glob(f"{name}-????????.safetensors")) for folder in _folders(root))
    return next((files for files in caches if files), [])


def is_whole(path: Path) -> bool:
    """Return whether a cache file has a checksum and matches it."""
    try:
        return check_sealed(path) and KEY in load_sealed(path)[1]
    except (DamagedFileError, OSError):
        return False


def _folders(root: Root) -> tuple[Path, Path]:
    return data_root(root) / FOLDER, cache_folder() / FOLDER


def _signature(paths: Iterable[Path], *, but: Path) -> list[list[str]]:
    """Return a hash of the names, sizes and times of the files below each path, without the cache folder ``but``."""
    signatures = []
    for path in paths:
        digest = hashlib.sha256()
        for file in walk(path) if path.is_dir() else [path]:
            if file.parent != but:
                status = file.stat() if file.exists() else file.lstat()  # a link may be broken
                text = f"{file.relative_to(path)}\0{status.st_size}\0{status.st_mtime_ns}\0"
                digest.update(text.encode(errors="surrogateescape"))
        signatures.append([str(path.absolute()), digest.hexdigest()])
    return signatures


def _read(path: Path, made_of: dict[str, object], *, warn: bool = True) -> Samples | None:
    """Read a cached data set, memory-mapped, or return None if there is none, it is damaged, or made from other files.

    The whole file is checked first. For 184 MB, the size of CIFAR-10, that takes 0.07 to 0.15 s, which is little
    beside a training, which reads every byte anyway.
    """
    if not path.is_file():
        return None
    try:
        tensors, metadata = load_sealed(path)
        about = json.loads(metadata[KEY])
        if about.pop("made_of", None) != made_of:
            return None
        about["class_names"], about["words"] = tuple(about["class_names"]), tuple(about["words"])
        samples = Samples(inputs=tensors["inputs"], target=tensors["target"], **about)
        if 0 <= samples.num_train <= len(samples.inputs) == len(samples.target):
            return samples
        problem = f"{path}: is damaged: the numbers of samples differ"
    except (DamagedFileError, OSError) as error:
        problem = str(error)
    except (AttributeError, KeyError, TypeError, ValueError):
        problem = f"{path}: is damaged, or is no cache of a data set"
    if warn:
        warnings.warn(f"{problem}; the data set is decoded again", stacklevel=4)
    return None


def _write(path: Path, samples: Samples, made_of: dict[str, object]) -> Samples:
    from safetensors import SafetensorError  # imported late to keep `import dualfocal` fast

    about = {f.name: getattr(samples, f.name) for f in fields(samples) if f.name not in ("inputs", "target")}
    tensors = {"inputs": samples.inputs.contiguous(), "target": samples.target.to(torch.int64).contiguous()}
    about["made_of"] = made_of
    try:
        with atomic_path(path) as temporary:
            save_sealed(tensors, temporary, {KEY: json.dumps(about)})
    except (OSError, ValueError, SafetensorError) as error:
        warnings.warn(f"{path}: cannot be written; the data set will be decoded on every run: {error}", stacklevel=4)
    return samples
