"""Tiny-ImageNet (Stanford, CS231n), from the official zip or folder."""

import re
from functools import partial
from pathlib import Path

import torch

from dualfocal_lab.data._cache import Samples, decoded
from dualfocal_lab.data._images import DecodedShare, decode_images
from dualfocal_lab.data._tree import list_files, read_files
from dualfocal_lab.data.dataset import DataSet, Size, last_of_each_class
from dualfocal_lab.data.paths import Root, find
from dualfocal_lab.data.transforms import IMAGENET_MEAN, IMAGENET_STD

LIMIT = 2_000_000_000  # bytes; the zip has 0.25 GB
# Groups: split, class, file, number. Hidden files, which some systems add, do not match.
IMAGE = re.compile(r"[^/]+/(train|val)/([^/]+)/(?:.+/)?((?!\.)[^/]*_(\d+)\.JPEG)")


def tiny_imagenet(
    root: Root = None, *, val_size: Size = 10_000, val2_size: Size = 0, progress: DecodedShare | None = None
) -> DataSet:
    """Load Tiny-ImageNet: 100,000 images of 64 x 64 pixels in 200 classes, and 10,000 test images.

    The official validation images are the test split. As in the paper's code, images 0 to 449 of each class are the
    training split, 450 to 499 the validation split. Classes are in the order of their WordNet IDs.

    Args:
        root: see :func:`~dualfocal_lab.data.cifar.cifar10`.
        val_size: size of the validation split, with equally many images of each class.
        val2_size: size of a second validation split.
        progress: called with the share of the images that are decoded, unless they are cached.
    """
    path = find("tiny_imagenet", root)
    samples = decoded("tiny_imagenet", root, [path], partial(_read, path, progress))
    splits = last_of_each_class(samples.target[: samples.num_train], val_size=val_size, val2_size=val2_size)
    return samples.as_images("tiny_imagenet", splits, IMAGENET_MEAN, IMAGENET_STD)


def _read(path: Path, progress: DecodedShare | None) -> Samples:
    """Read ``train/CLASS/images/CLASS_17.JPEG``, and ``val/images/val_17.JPEG`` with a table or ``val/CLASS/...``."""
    table = "tiny-imagenet-200/val/val_annotations.txt"
    texts = {name: content.decode() for name, content in read_files(path, lambda name: name == table, limit=LIMIT)}
    annotated = dict(line.split("\t")[:2] for line in texts.get(table, "").splitlines() if "\t" in line)
    train: list[tuple[str, int, str]] = []  # class, number, name
    test: list[tuple[str, int, str]] = []
    for name in list_files(path, limit=LIMIT):
        if (match := IMAGE.fullmatch(name)) is None:
            continue
        part, label, file, number = match.groups()
        if part == "val" and label == "images":
            if file not in annotated:
                raise ValueError(f"{path}: {table} does not name the class of {file}")
            label = annotated[file]
        (train if part == "train" else test).append((label, int(number), name))
    if not train or not test:
        raise ValueError(f"{path}: must hold train/CLASS/images/*.JPEG and val/images/*.JPEG")
    if len({number for _, number, _ in test}) < len(test):
        raise ValueError(f"{path}: val has several images with the same number, such as {test[0][2]}")
    train.sort()
    test.sort(key=lambda image: image[1])
    classes = sorted({label for label, _, _ in train})
    if unknown := {label for label, _, _ in test} - set(classes):
        raise ValueError(f"{path}: val has classes that train does not have: {', '.join(sorted(unknown)[:5])}")
    number_of = {label: i for i, label in enumerate(classes)}
    images = [*train, *test]
    return Samples(
        inputs=decode_images(
            path, [name for _, _, name in images], channels=3, size=(64, 64), limit=LIMIT, progress=progress
        ),
        target=torch.tensor([number_of[label] for label, _, _ in images]),
        class_names=tuple(classes),
        num_train=len(train),
    )
