"""CIFAR-10, CIFAR-100 (Krizhevsky, 2009) and CIFAR-10-C (Hendrycks and Dietterich, 2019).

CIFAR is read from the binary or the Python version, as folder or archive. CIFAR-10-C is read from the official files;
its gaussian noise can also be generated.
"""

import io
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dualfocal_lab.data._cache import Samples, decoded
from dualfocal_lab.data._tree import list_files, read_files
from dualfocal_lab.data._unpickle import read_batch
from dualfocal_lab.data.dataset import DataSet, Size, random_split
from dualfocal_lab.data.paths import Root, find
from dualfocal_lab.data.sources import OFFICIAL
from dualfocal_lab.data.transforms import CIFAR_MEAN, CIFAR_STD, IMAGENET_MEAN, IMAGENET_STD, Normalize

PIXELS = 3 * 32 * 32
LIMIT = 400_000_000  # bytes; each version has 190 MB
CORRUPTED_LIMIT = 4_000_000_000  # bytes; the archive has 19 files of 154 MB
NOISE_STD = (0.04, 0.06, 0.08, 0.09, 0.10)
NUM_SEVERITIES = 5
Batch = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]  # images (N, 3072), labels (N,)


def cifar10(root: Root = None, *, val_size: Size = 5_000, val2_size: Size = 0, split_seed: int = 1) -> DataSet:
    """Load CIFAR-10: 50,000 training and 10,000 test images of 32 x 32 pixels in 10 classes.

    The default validation split is the published one: the first 5,000 training images after a shuffle with seed 1.

    Args:
        root: folder of the data, see :func:`~dualfocal_lab.data.paths.data_root`.
        val_size: size of the validation split, as a number of training images or a fraction.
        val2_size: size of a second validation split.
        split_seed: seed of the shuffle.

    Raises:
        DataNotFoundError: the files are not on disk; the message says what to run.
        ValueError: a file is damaged.
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
    """Load CIFAR-100: 50,000 training and 10,000 test images of 32 x 32 pixels in 100 (fine) classes.

    Args:
        root: see :func:`cifar10`.
        val_size: see :func:`cifar10`.
        val2_size: see :func:`cifar10`.
        split_seed: see :func:`cifar10`.
        published_test_mismatch: normalise the test images with ImageNet's mean and std, and the others with CIFAR's.
            The published code does so, and with it all published CIFAR-100 results: use it only to compare with them.
    """
    data = _cifar("cifar100", root, ["train", "test"], "meta", val_size, val2_size, split_seed)
    if published_test_mismatch:
        note = "test images are normalised with ImageNet's mean and std, unlike training images, as in published tables"
        data = replace(data, test_encoder=Normalize(IMAGENET_MEAN, IMAGENET_STD), notes=(*data.notes, note))
    return data


def _cifar(
    name: str, root: Root, batches: list[str], meta: str, val_size: Size, val2_size: Size, split_seed: int
) -> DataSet:
    path = find(name, root)
    samples = decoded(name, root, [path], partial(_read, path, OFFICIAL[name].num_classes, batches, meta))
    splits = random_split(samples.num_train, val_size=val_size, val2_size=val2_size, seed=split_seed)
    return samples.as_images(name, splits, CIFAR_MEAN, CIFAR_STD)


def _read(path: Path, num_classes: int, batches: list[str], meta: str) -> Samples:
    """Read all batches, the last of which is the test set, and the class names."""
    fine = "" if num_classes == 10 else "fine_"
    binary = "py" not in path.name
    if binary:
        batches = [f"{batch}.bin" for batch in batches]
        meta = f"{meta}.txt" if num_classes == 10 else "fine_label_names.txt"
    contents: dict[str, Batch] = {}
    class_names: Any = None
    for name, content in read_files(path, lambda name: name.split("/")[-1] in (*batches, meta), limit=LIMIT):
        file = name.split("/")[-1]
        try:
            if file == meta:
                class_names = (
                    content.decode("ascii", "replace").split()
                    if binary
                    else read_batch(content).get(f"{fine}label_names")
                )
            else:
                contents[file] = _binary_batch(content, fine) if binary else _python_batch(content, fine)
                labels = contents[file][1]
                if len(labels) and not 0 <= labels.min() <= labels.max() < num_classes:
                    raise ValueError(
                        f"labels must be from 0 to {num_classes - 1}, got {labels.min()} to {labels.max()}"
                    )
        except (ValueError, OverflowError) as error:  # a pickled label can be larger than int64
            raise ValueError(f"{path}: {file}: {error}") from error
    if missing := [batch for batch in batches if batch not in contents]:
        raise ValueError(f"{path}: {', '.join(missing)} is missing")
    if not isinstance(class_names, list) or list(map(type, class_names)) != [str] * num_classes:
        class_names = [str(label) for label in range(num_classes)]  # names are optional
    images, targets = zip(*(contents[batch] for batch in batches), strict=True)
    return Samples(
        inputs=torch.from_numpy(np.concatenate(images).reshape(-1, 3, 32, 32)),
        target=torch.from_numpy(np.concatenate(targets)),
        class_names=tuple(class_names),
        num_train=sum(map(len, targets[:-1])),
    )


def _binary_batch(content: bytes, fine: str) -> Batch:
    """Read records of one label (CIFAR-100: a coarse one first) and 3,072 pixels: red, green and blue plane."""
    record = PIXELS + (2 if fine else 1)
    if not content or len(content) % record:
        raise ValueError(f"must consist of records of {record} bytes, but has {len(content)} bytes")
    rows = np.frombuffer(content, np.uint8).reshape(-1, record)
    return rows[:, -PIXELS:], rows[:, -PIXELS - 1].astype(np.int64)


def _python_batch(content: bytes, fine: str) -> Batch:
    batch = read_batch(content)
    images, labels = batch.get("data"), batch.get(f"{fine}labels")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise ValueError(f"must have '{fine}labels', a list of integers")
    if not isinstance(images, np.ndarray) or images.shape != (len(labels), PIXELS):
        shape = getattr(images, "shape", None)
        raise ValueError(f"must have 'data', {PIXELS} pixels for each of {len(labels)} labels, got shape {shape}")
    return images, np.array(labels, dtype=np.int64)


def gaussian_noise(images: Tensor, severity: int = 5, *, seed: int = 0) -> Tensor:
    """Add gaussian noise to uint8 images, like CIFAR-10-C: std .04, .06, .08, .09 or .10, clipped, truncated to bytes.

    A seed gives the same noise on any machine. It is not the noise of the official files, whose seed is unknown.

    Args:
        images: uint8, of any shape.
        severity: from 1 to 5.
        seed: seed of the noise.

    Returns:
        The noisy images, uint8.

    >>> gaussian_noise(torch.full((1, 1, 2, 3), 128, dtype=torch.uint8), seed=1).flatten().tolist()
    [136, 148, 136, 94, 151, 139]
    """
    _check_severity(severity)
    if images.dtype != torch.uint8:
        raise ValueError(f"images must be uint8, got {images.dtype}")
    rng = np.random.Generator(np.random.PCG64(seed))
    noisy = images.cpu().numpy().copy()
    for chunk in np.split(noisy, range(1_000, len(noisy), 1_000)):  # float64 images need much memory
        chunk[:] = np.clip(chunk / 255 + NOISE_STD[severity - 1] * rng.standard_normal(chunk.shape), 0, 1) * 255
    return torch.from_numpy(noisy).to(images.device)


def cifar10c(
    root: Root = None,
    *,
    corruption: str = "gaussian_noise",
    severity: int = 5,
    generate: bool = False,
    seed: int = 0,
) -> DataSet:
    """Load CIFAR-10-C: the 10,000 test images of CIFAR-10 with a corruption. There is only a test split.

    Args:
        root: see :func:`~dualfocal_lab.data.cifar.cifar10`.
        corruption: name of an official file, without ``.npy``.
        severity: from 1 to 5.
        generate: generate the images from CIFAR-10 instead of reading official files; gaussian noise only.
        seed: seed of the generated noise.
    """
    _check_severity(severity)
    if generate:
        if corruption != "gaussian_noise":
            raise ValueError(f"only gaussian_noise can be generated, got {corruption!r}")
        clean, target = (data := cifar10(root, val_size=0)).part("test")
        class_names, inputs = data.class_names, gaussian_noise(clean, severity, seed=seed)
        note = f"noise generated with seed {seed}, not that of the official files"
    else:
        if not corruption.isidentifier():  # it becomes part of a file name
            raise ValueError(f"corruption must be a name such as gaussian_noise, got {corruption!r}")
        path = find("cifar10c", root)
        samples = decoded("cifar10c", root, [path], partial(_read_corrupted, path, corruption), options=corruption)
        each = len(samples.target) // NUM_SEVERITIES
        block = slice(each * (severity - 1), each * severity)
        class_names, inputs, target = samples.class_names, samples.inputs[block], samples.target[block]
        note = ""
    return DataSet(
        name=f"cifar10c {corruption} {severity}",
        class_names=class_names,
        inputs=inputs,
        target=target,
        splits={"test": torch.arange(len(target))},
        encoder=Normalize(CIFAR_MEAN, CIFAR_STD),
        notes=(note,) if note else (),
    )


def _read_corrupted(path: Path, corruption: str) -> Samples:
    """Read all severities of one corruption, one after the other."""
    wanted = (f"{corruption}.npy", "labels.npy")
    files = read_files(path, lambda name: name.split("/")[-1] in wanted, limit=CORRUPTED_LIMIT)
    arrays = {name.split("/")[-1]: _array(path, name, content) for name, content in files}
    if missing := [name for name in wanted if name not in arrays]:
        files_there = {name.split("/")[-1] for name in list_files(path, limit=CORRUPTED_LIMIT) if name.endswith(".npy")}
        names = ", ".join(sorted(files_there - {"labels.npy"}))
        raise ValueError(f"{path}: {' and '.join(missing)} is missing; it holds {names or 'no corruptions'}")
    images, labels = (arrays[name] for name in wanted)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not np.isin(labels, np.arange(10)).all():
        raise ValueError(f"{path}: labels.npy must be a list of integers from 0 to 9")
    if images.dtype != np.uint8 or images.shape != (len(labels), 32, 32, 3) or len(labels) % NUM_SEVERITIES:
        raise ValueError(
            f"{path}: {wanted[0]} must be uint8, N x 32 x 32 x 3, with {NUM_SEVERITIES} severities of equal size and N "
            f"labels; got {images.dtype} {images.shape} and {labels.shape}"
        )
    return Samples(
        inputs=torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))),
        target=torch.from_numpy(labels.astype(np.int64)),
        class_names=OFFICIAL["cifar10"].class_names,
        num_train=0,
    )


def _array(path: Path, name: str, content: bytes) -> npt.NDArray[Any]:
    try:
        return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)  # unlike np.load, reads only .npy
    except (ValueError, EOFError, OSError, MemoryError, OverflowError) as error:
        raise ValueError(f"{path}: {name}: cannot be read as an array: {error}") from error


def _check_severity(severity: int) -> None:
    if type(severity) is not int or not 1 <= severity <= NUM_SEVERITIES:
        raise ValueError(f"severity must be an integer from 1 to {NUM_SEVERITIES}, got {severity!r}")
