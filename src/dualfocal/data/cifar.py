"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009), from the binary or the python version, as folder or archive."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from dualfocal.data._cache import Samples, decoded
from dualfocal.data._tree import read_files
from dualfocal.data._unpickle import read_batch
from dualfocal.data.dataset import DataSet, Size, random_split
from dualfocal.data.places import Root, find
from dualfocal.data.sources import OFFICIAL
from dualfocal.data.transforms import CIFAR_MEAN, CIFAR_STD, IMAGENET_MEAN, IMAGENET_STD, CropFlip, Normalize

PIXELS = 3 * 32 * 32
LIMIT = 400_000_000  # each version has 190 MB
Batch = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]  # images (N, 3072), labels (N,)


def cifar10(root: Root = None, *, val_size: Size = 5_000, val2_size: Size = 0, split_seed: int = 1) -> DataSet:
    """50,000 + 10,000 photographs of 32 x 32 pixels in 10 classes.

    As published: of the training images, shuffled with seed 1, the first 5,000 validate, un-augmented.

    Args:
        root: folder of the data, see :func:`~dualfocal.data.places.data_root`.
        val_size: how many training images validate, as a number or a fraction.
        val2_size: how many more make a second validation part.
        split_seed: of the shuffle.
    """
    batches = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    return _cifar("cifar10", root, batches, "batches.meta", val_size, val2_size, split_seed)


def cifar100(
    root: Root = None,
    *,
    val_size: Size = 5_000,
    val2_size: Size = 0,
    split_seed: int = 1,
    published_test_mismatch: bool = False,
) -> DataSet:
    """The same numbers of images in 100 classes (the fine ones).

    Args:
        root: see :func:`cifar10`.
        val_size: see :func:`cifar10`.
        val2_size: see :func:`cifar10`.
        split_seed: see :func:`cifar10`.
        published_test_mismatch: normalise the test images with ImageNet's mean and std, the others with CIFAR's. The
            public code did, so every published CIFAR-100 row has it; nobody should want it but to compare with those.
    """
    data = _cifar("cifar100", root, ["train", "test"], "meta", val_size, val2_size, split_seed)
    if published_test_mismatch:
        note = "test images are normalised as ImageNet, unlike training images, as in the published tables"
        data = replace(data, test_encoder=Normalize(IMAGENET_MEAN, IMAGENET_STD), notes=(*data.notes, note))
    return data


def _cifar(
    name: str, root: Root, batches: list[str], meta: str, val_size: Size, val2_size: Size, split_seed: int
) -> DataSet:
    path = find(name, root, *OFFICIAL[name].layouts)
    samples = decoded(name, root, [path], partial(_read, path, OFFICIAL[name].num_classes, batches, meta))
    numbers = samples.num_train, len(samples.target) - samples.num_train
    official = OFFICIAL[name].num_train, OFFICIAL[name].num_test
    note = "{} has {:,} + {:,} images, not {:,} + {:,} as it should".format(name, *numbers, *official)
    return DataSet(
        name=name,
        class_names=samples.class_names,
        inputs=samples.inputs,
        target=samples.target,
        splits={
            **random_split(samples.num_train, val_size=val_size, val2_size=val2_size, seed=split_seed),
            "test": torch.arange(samples.num_train, len(samples.target)),
        },
        encoder=Normalize(CIFAR_MEAN, CIFAR_STD),
        augment=CropFlip(padding=4),
        notes=() if numbers == official else (note,),  # a file may end early, at the end of an image
    )


def _read(path: Path, num_classes: int, batches: list[str], meta: str) -> Samples:
    """Read all batches, of which the last one is the test part, and the names of the classes."""
    fine = "" if num_classes == 10 else "fine_"
    binary = "py" not in path.name
    if binary:
        batches = [f"{batch}.bin" for batch in batches]
        meta = f"{meta}.txt" if num_classes == 10 else "fine_label_names.txt"
    contents: dict[str, Batch] = {}
    class_names: list[str] = []
    for name, content in read_files(path, lambda name: name.split("/")[-1] in (*batches, meta), limit=LIMIT):
        file = name.split("/")[-1]
        try:
            if file == meta:
                class_names = content.decode("ascii", "replace").split() if binary else _python_names(content, fine)
            else:
                contents[file] = _binary_batch(content, fine) if binary else _python_batch(content, fine)
                labels = contents[file][1]
                if len(labels) and not 0 <= labels.min() <= labels.max() < num_classes:
                    raise ValueError(
                        f"labels must be from 0 to {num_classes - 1}, got {labels.min()} to {labels.max()}"
                    )
        except (ValueError, OverflowError) as error:  # a label may be larger than any machine word
            raise ValueError(f"{path}: {file}: {error}") from error
    if missing := [batch for batch in batches if batch not in contents]:
        raise ValueError(f"{path}: there is no {', '.join(missing)} in it")
    if len(class_names) != num_classes:  # names are a comfort, not needed
        class_names = [str(label) for label in range(num_classes)]
    images, targets = zip(*(contents[batch] for batch in batches), strict=True)
    return Samples(
        inputs=torch.from_numpy(np.concatenate(images).reshape(-1, 3, 32, 32)),
        target=torch.from_numpy(np.concatenate(targets)),
        class_names=tuple(class_names),
        num_train=sum(map(len, targets[:-1])),
    )


def _binary_batch(content: bytes, fine: str) -> Batch:
    """Records of one label (CIFAR-100: a coarse one first) and 3,072 pixels, red, green, blue plane by plane."""
    record = PIXELS + (2 if fine else 1)
    if not content or len(content) % record:
        raise ValueError(f"must consist of records of {record} bytes, has {len(content)} bytes")
    rows = np.frombuffer(content, np.uint8).reshape(-1, record)
    return rows[:, -PIXELS:], rows[:, -PIXELS - 1].astype(np.int64)


def _python_batch(content: bytes, fine: str) -> Batch:
    batch = read_batch(content)
    images, labels = batch.get("data"), batch.get(f"{fine}labels")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise ValueError(f"must have '{fine}labels', a list of integers")
    if not isinstance(images, np.ndarray) or images.shape != (len(labels), PIXELS):
        shape = getattr(images, "shape", None)
        raise ValueError(f"must have 'data', {PIXELS} pixels for each of {len(labels)} labels, has {shape}")
    return images, np.array(labels, dtype=np.int64)


def _python_names(content: bytes, fine: str) -> list[str]:
    names = read_batch(content).get(f"{fine}label_names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"must have '{fine}label_names', a list of names")
    return names
