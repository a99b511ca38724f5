"""Custom data sets: a folder with images by class."""

import os
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dualfocal_lab.data._cache import Samples, decoded
from dualfocal_lab.data._images import FORMATS, MODES, DecodedShare, decode_images
from dualfocal_lab.data._tree import list_files
from dualfocal_lab.data.dataset import DataSet, Size, as_count, random_split, shuffled, without_empty
from dualfocal_lab.data.paths import Root
from dualfocal_lab.data.transforms import CropFlip, Normalize

LIMIT = 2**40
MAX_SIDE = 8_192
QUICK_LOOK = 20_000  # files and folders
PART_FOLDERS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
PART_ARRAYS = ("train", "val", "test")


def image_folder(
    path: str | os.PathLike[str],
    root: Root = None,
    *,
    size: int | None = None,
    channels: int = 3,
    val_size: Size = 0.1,
    val2_size: Size = 0,
    test_size: Size = 0.2,
    split_seed: int = 1,
    padding: int = 0,
    flip: bool = False,
    progress: DecodedShare | None = None,
) -> DataSet:
    """Load images from one folder per class: ``PATH/CLASS/...``, or ``PATH/train/CLASS/...``, ``val`` and ``test``.

    Transparency is dropped. Images with more than 8 bits per channel are refused.

    Args:
        path: the folder.
        root: folder of the cache of decoded images, see :func:`~dualfocal_lab.data.paths.data_root`.
        size: scale each image to cover a square with this side, and crop its centre (None: all images must have the
            same size).
        channels: 3 for colour, 1 for grey.
        val_size: size of the validation split, if there is no folder ``val``.
        val2_size: size of a second validation split.
        test_size: size of the test split, if there is no folder ``test``.
        split_seed: seed of the split.
        padding: augment training images by padding and random cropping, see
            :class:`~dualfocal_lab.data.transforms.CropFlip`.
        flip: augment training images by mirroring them with probability 1/2.
        progress: called with the share of the images that are decoded, unless they are cached.

    Raises:
        ValueError: the folder has another layout, an image cannot be read, or an option is invalid.
    """
    folder = Path(path)
    if channels not in MODES:
        raise ValueError(f"channels must be 1 or 3, got {channels!r}")
    if size is not None and not (isinstance(size, int) and 0 < size <= MAX_SIDE):
        raise ValueError(f"size must be an integer from 1 to {MAX_SIDE}, got {size!r}")
    part_of, names, labels, class_names = _sort(folder)

    def decode() -> Samples:
        inputs = decode_images(
            folder,
            names,
            channels=channels,
            size=None if size is None else (size, size),
            limit=LIMIT,
            resize=size is not None,
            progress=progress,
        )
        return Samples(inputs, torch.tensor(labels), class_names, num_train=0)

    samples = decoded(
        "folder",
        root,
        [folder],
        decode,
        options={"path": str(folder.absolute()), "size": size, "channels": channels},
    )
    splits = split_parts(part_of, val_size=val_size, val2_size=val2_size, test_size=test_size, seed=split_seed)
    return DataSet(
        name=folder.absolute().name,
        class_names=samples.class_names,
        inputs=samples.inputs,
        target=samples.target,
        splits=splits,
        encoder=normalize_by(samples.inputs, splits["train"]),
        augment=CropFlip(padding, flip=flip) if padding or flip else None,
    )


def has_images(folder: Path) -> bool:
    """Return whether a folder has images by class, as far as a quick look shows: ``/`` must not be searched."""
    entries = islice(chain(folder.glob("*/*"), folder.glob("*/*/*")), QUICK_LOOK)
    try:
        return any(path.suffix.lower() in FORMATS for path in entries)
    except OSError:
        return False


def _sort(folder: Path) -> tuple[list[str], list[str], list[int], tuple[str, ...]]:
    """Return split, name and label of each image, and the class names. Without splits, all images are "train"."""
    files = [name.split("/")[1:] for name in list_files(folder, limit=LIMIT) if name.lower().endswith(tuple(FORMATS))]
    files = [parts for parts in files if not parts[-1].startswith(".")]  # hidden files, which some systems add
    deep = {parts[0] for parts in files if len(parts) > 2}
    by_part = "train" in deep or (bool(files) and {parts[0] for parts in files} <= deep & PART_FOLDERS.keys())
    for parts in files:
        if len(parts) < 2 + by_part or (by_part and parts[0] not in PART_FOLDERS):
            where = "train/CLASS, val/CLASS or test/CLASS" if by_part else "the folder of a class"
            raise ValueError(f"{folder}: images must lie in {where}, but {'/'.join(parts)} does not")
    images = [(PART_FOLDERS[parts[0]] if by_part else "train", parts[by_part], parts) for parts in files]
    class_names = sorted({label for _, label, _ in images})
    if len(class_names) < 2:
        raise ValueError(
            f"{folder}: must have folders of images for at least two classes, got {len(class_names)}; images end in "
            f"{', '.join(FORMATS)}"
        )
    if by_part and (missing := set(class_names) - {label for part, label, _ in images if part == "train"}):
        raise ValueError(f"{folder}: train must have every class, but it has no {', '.join(sorted(missing)[:5])}")
    number_of = {label: number for number, label in enumerate(class_names)}
    names = ["/".join([folder.absolute().name, *parts]) for _, _, parts in images]
    return [part for part, _, _ in images], names, [number_of[label] for _, label, _ in images], tuple(class_names)


def split_parts(
    part_of: Sequence[str], *, val_size: Size, val2_size: Size, test_size: Size, seed: int
) -> dict[str, Tensor]:
    """Return the splits of the files; a missing test split, then a missing validation split, is drawn at random."""
    train, val, test = (torch.from_numpy(np.flatnonzero(np.array(part_of) == part)) for part in PART_ARRAYS)
    if not len(test):
        count = as_count(test_size, len(train), "test_size")
        if count >= len(train):
            raise ValueError(f"test_size must leave some of the {len(train)} samples for training, got {test_size}")
        order = train[shuffled(len(train), seed)]
        train, test = order[count:].sort().values, order[:count]
    if len(val) and val2_size:
        raise ValueError("val2_size cannot be used with data that have their own validation split")
    drawn = {} if len(val) else random_split(len(train), val_size=val_size, val2_size=val2_size, seed=seed)
    if "val" not in drawn:
        return without_empty(train=train, val=val, test=test)
    return {part: train[index] for part, index in drawn.items()} | without_empty(test=test)


def normalize_by(images: Tensor, train: Tensor) -> Normalize:
    """Normalise by the mean and std of each channel of the training images, computed exactly from a histogram."""
    values = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in images.unbind(1):
        chunks = [channel[chunk].flatten().bincount(minlength=256) for chunk in torch.split(train, 4096)]
        counts = torch.stack(chunks).sum(0).double()
        share = counts / counts.sum()
        mean = (share * values).sum()
        means.append(float(mean))
        stds.append(float((share * (values - mean) ** 2).sum().sqrt()) or 1.0)  # a constant channel
    return Normalize(means, stds)
