"""A user's own data: a folder of images by class, or an ``.npz`` file."""

import os
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dualfocal._checks import check_choice
from dualfocal.data._cache import Samples, decoded
from dualfocal.data._images import MODES, DecodedShare, decode_images
from dualfocal.data._tree import list_files
from dualfocal.data.dataset import DataSet, Size, as_count, random_split, shuffled, without_empty
from dualfocal.data.paths import Root
from dualfocal.data.transforms import CropFlip, Normalize

LIMIT = 2**40
MAX_CLASSES = 100_000
MAX_SIDE = 8_192
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
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
    """Images in folders by class: ``PATH/CLASS/...``, or ``PATH/train/CLASS/...`` and the like for val and test.

    Transparency is dropped; images of more than 8 bits a channel are refused.

    Args:
        path: the folder.
        root: where the decoded images are kept, see :func:`~dualfocal.data.paths.data_root`.
        size: side of a square to which each image is scaled, its middle kept. None: all must be of one size.
        channels: 3 for colours, 1 for grey.
        val_size: how many of the training images validate, where there is no folder ``val``.
        val2_size: how many more make a second validation part.
        test_size: how many images test, where there is no folder ``test``.
        split_seed: of the split.
        padding: to vary training images, pad by this and crop; see :class:`~dualfocal.data.transforms.CropFlip`.
        flip: and mirror with probability 1/2.
        progress: called with the share that has been decoded, the first time.
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
    splits = _split(part_of, val_size=val_size, val2_size=val2_size, test_size=test_size, seed=split_seed)
    return DataSet(
        name=folder.absolute().name,
        class_names=samples.class_names,
        inputs=samples.inputs,
        target=samples.target,
        splits=splits,
        encoder=_normalize_by(samples.inputs, splits["train"]),
        augment=CropFlip(padding, flip=flip) if padding or flip else None,
    )


def npz(
    path: str | os.PathLike[str],
    root: object = None,
    *,
    layout: str | None = None,
    val_size: Size = 0.1,
    val2_size: Size = 0,
    test_size: Size = 0.2,
    split_seed: int = 1,
    padding: int = 0,
    flip: bool = False,
) -> DataSet:
    """Arrays ``x_train, y_train, x_test, y_test`` (and ``x_val, y_val``), or only ``x, y``, in an ``.npz`` file.

    Bytes are taken for images, which are normalised by the mean and std of the training part; other numbers are handed
    on as float32. ``class_names`` may be there, too.

    Args:
        path: the file.
        root: not looked at.
        layout: of images, ``"NHWC"``, ``"NCHW"``, or ``"NHW"`` for grey ones, as bytes of three dimensions are.
        val_size: see :func:`image_folder`, where there is no ``x_val``.
        val2_size: see :func:`image_folder`.
        test_size: see :func:`image_folder`, where there is no ``x_test``.
        split_seed: see :func:`image_folder`.
        padding: see :func:`image_folder`.
        flip: see :func:`image_folder`.
    """
    file = Path(path)
    arrays = _load(file)
    if layout is not None:
        check_choice("layout", layout, ("NHWC", "NCHW", "NHW"))
    found = [name for name in ("x", *(f"x_{part}" for part in PART_ARRAYS)) if name in arrays]
    if found != ["x"] and found[:1] != ["x_train"]:
        raise ValueError(
            f"{file}: must have arrays x_train and y_train, and the like for val and test, or only x and y; "
            f"has {', '.join(found) or 'none of them'}"
        )
    inputs, target, part_of = [], [], []
    for name in found:
        inputs.append(_as_inputs(file, name, arrays[name], layout))
        target.append(_as_target(file, f"y{name[1:]}", arrays.get(f"y{name[1:]}"), len(inputs[-1])))
        part_of += [name[2:] or "train"] * len(inputs[-1])
        if inputs[-1].shape[1:] != inputs[0].shape[1:] or inputs[-1].dtype != inputs[0].dtype:
            raise ValueError(f"{file}: {name} must be as {found[0]}: {tuple(inputs[0].shape[1:])} {inputs[0].dtype}")
    samples, labels = torch.cat(inputs), torch.cat(target)
    names = arrays.get("class_names", np.arange(int(labels.max()) + 1))
    splits = _split(part_of, val_size=val_size, val2_size=val2_size, test_size=test_size, seed=split_seed)
    if (padding or flip) and samples.ndim != 4:
        raise ValueError(f"padding and flip are for images, {file} has {samples.ndim - 1} dimensions for each sample")
    return DataSet(
        name=file.stem,
        class_names=tuple(names.reshape(-1).astype(str).tolist()),
        inputs=samples,
        target=labels,
        splits=splits,
        encoder=_normalize_by(samples, splits["train"]) if samples.dtype == torch.uint8 else nn.Identity(),
        augment=CropFlip(padding, flip=flip) if padding or flip else None,
    )


def _sort(folder: Path) -> tuple[list[str], list[str], list[int], tuple[str, ...]]:
    """Part ("train" if there are no parts), name and label of each image, and the names of classes."""
    files = [name.split("/")[1:] for name in list_files(folder, limit=LIMIT) if name.lower().endswith(SUFFIXES)]
    files = [parts for parts in files if not parts[-1].startswith(".")]  # which some systems put beside each file
    deep = {parts[0] for parts in files if len(parts) > 2}
    by_part = "train" in deep or (bool(files) and {parts[0] for parts in files} <= deep & PART_FOLDERS.keys())
    for parts in files:
        if len(parts) < 2 + by_part or (by_part and parts[0] not in PART_FOLDERS):
            where = "train/CLASS, val/CLASS or test/CLASS" if by_part else "the folder of a class"
            raise ValueError(f"{folder}: images must lie in {where}, {'/'.join(parts)} does not")
    images = [(PART_FOLDERS[parts[0]] if by_part else "train", parts[by_part], parts) for parts in files]
    class_names = sorted({label for _, label, _ in images})
    if len(class_names) < 2:
        raise ValueError(
            f"{folder}: there must be folders of images for two classes or more, found {len(class_names)}; images end "
            f"in {', '.join(SUFFIXES)}"
        )
    if by_part and (foreign := set(class_names) - {label for part, label, _ in images if part == "train"}):
        raise ValueError(f"{folder}: train must have every class, it has no {', '.join(sorted(foreign)[:5])}")
    number_of = {label: number for number, label in enumerate(class_names)}
    names = ["/".join([folder.absolute().name, *parts]) for _, _, parts in images]
    return [part for part, _, _ in images], names, [number_of[label] for _, label, _ in images], tuple(class_names)


def _split(part_of: Sequence[str], *, val_size: Size, val2_size: Size, test_size: Size, seed: int) -> dict[str, Tensor]:
    """As the files say; what they leave open is drawn: first who tests, then who of the others validates."""
    train, val, test = (torch.from_numpy(np.flatnonzero(np.array(part_of) == part)) for part in PART_ARRAYS)
    if not len(test):
        count = as_count(test_size, len(train), "test_size")
        if count >= len(train):
            raise ValueError(f"test_size must leave something of the {len(train)} samples, got {test_size}")
        order = train[shuffled(len(train), seed)]
        train, test = order[count:].sort().values, order[:count]
    if len(val) and val2_size:
        raise ValueError("val2_size is for data without a validation part of its own")
    drawn = {} if len(val) else random_split(len(train), val_size=val_size, val2_size=val2_size, seed=seed)
    if "val" not in drawn:
        return without_empty(train=train, val=val, test=test)
    return {part: train[of] for part, of in drawn.items()} | without_empty(test=test)


def _normalize_by(images: Tensor, train: Tensor) -> Normalize:
    """Mean and std of the training images, channel by channel, from counts of the 256 values: exact and small."""
    values = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in images.unbind(1):
        chunks = [channel[chunk].flatten().bincount(minlength=256) for chunk in torch.split(train, 4096)]
        counts = torch.stack(chunks).sum(0).double()
        share = counts / counts.sum()
        mean = (share * values).sum()
        means.append(float(mean))
        stds.append(float((share * (values - mean) ** 2).sum().sqrt()) or 1.0)  # a channel that never changes
    return Normalize(means, stds)


def _load(file: Path) -> dict[str, npt.NDArray[Any]]:
    if not file.is_file():
        raise ValueError(f"{file}: there is no such file")
    try:
        with file.open("rb") as opened:  # by us: numpy leaves a damaged file open
            found = np.load(opened, allow_pickle=False)
            if isinstance(found, np.ndarray):
                raise ValueError("it is a single array, not an .npz file")
            wanted = ("x", "y", "class_names", *(f"{of}_{part}" for of in "xy" for part in PART_ARRAYS))
            return {name: found[name] for name in found.files if name in wanted}
    except (ValueError, OSError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{file}: cannot be read: {error}") from error


def _as_inputs(file: Path, name: str, array: npt.NDArray[Any], layout: str | None) -> Tensor:
    if not array.size or array.ndim < 2 or array.dtype.kind not in "biuf":
        raise ValueError(f"{file}: {name} must be numbers, (N, ...), got {array.dtype} {array.shape}")
    images = array.dtype == np.uint8
    if images and array.ndim not in (3, 4):
        raise ValueError(
            f"{file}: {name} has bytes, so must be images, (N, H, W) or of four dimensions; got {array.shape}"
        )
    if len(layout) != array.ndim if layout is not None else array.ndim == 4:
        raise ValueError(
            f"{file}: {name} is {array.shape}: say whether its layout is NHWC or NCHW (or NHW), it is not guessed; "
            f"got {layout}"
        )
    if not images:
        array = array.astype(np.float32)
        if not np.isfinite(array).all():
            raise ValueError(f"{file}: {name} has values that are not finite")
    if layout == "NHW" or (array.ndim == 3 and images):
        array = array[:, None]
    elif layout == "NHWC":
        array = array.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(array))


def _as_target(file: Path, name: str, array: npt.NDArray[Any] | None, count: int) -> Tensor:
    if array is None or array.dtype.kind not in "iu" or array.size != count:
        got = "none" if array is None else f"{array.dtype} {array.shape}"
        raise ValueError(f"{file}: {name} must be {count} class numbers from 0, got {got}")
    if not 0 <= array.min() <= array.max() < MAX_CLASSES:
        raise ValueError(
            f"{file}: {name} must be class numbers from 0 to {MAX_CLASSES - 1}, got {array.min()} to {array.max()}"
        )
    return torch.from_numpy(array.reshape(-1).astype(np.int64))
