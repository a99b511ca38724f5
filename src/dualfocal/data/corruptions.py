"""CIFAR-10-C (Hendrycks and Dietterich, 2019): from the official files, or made here (gaussian noise)."""

import io
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dualfocal.data._cache import Samples, decoded
from dualfocal.data._tree import list_files, read_files
from dualfocal.data.cifar import cifar10
from dualfocal.data.dataset import DataSet
from dualfocal.data.places import Root, find
from dualfocal.data.sources import OFFICIAL
from dualfocal.data.transforms import CIFAR_MEAN, CIFAR_STD, Normalize

NOISE_STD = (0.04, 0.06, 0.08, 0.09, 0.10)
LIMIT = 4_000_000_000  # the archive has 19 files of 154 MB
NUM_SEVERITIES = 5
CHUNK = 1_000


def gaussian_noise(images: Tensor, severity: int = 5, *, seed: int = 0) -> Tensor:
    """Images of bytes with gaussian noise, as CIFAR-10-C was made: std .04, .06, .08, .09, .10; clipped; cut to bytes.

    The noise of a seed is the same on any machine, but not that of the official files, whose seed is not known.

    >>> gaussian_noise(torch.full((1, 1, 2, 3), 128, dtype=torch.uint8), seed=1).flatten().tolist()
    [136, 148, 136, 94, 151, 139]
    """
    _check_severity(severity)
    if images.dtype != torch.uint8:
        raise ValueError(f"images must be bytes (uint8), got {images.dtype}")
    rng = np.random.Generator(np.random.PCG64(seed))
    noisy = images.cpu().numpy().copy()
    for some in np.split(noisy, range(CHUNK, len(noisy), CHUNK)):  # in float64, which is large
        some[:] = np.clip(some / 255 + NOISE_STD[severity - 1] * rng.standard_normal(some.shape), 0, 1) * 255
    return torch.from_numpy(noisy).to(images.device)


def cifar10c(
    root: Root = None,
    *,
    corruption: str = "gaussian_noise",
    severity: int = 5,
    generate: bool = False,
    seed: int = 0,
) -> DataSet:
    """The test images of CIFAR-10 with a corruption, 10,000 for each severity from 1 to 5; there is only a test part.

    Args:
        root: see :func:`~dualfocal.data.cifar.cifar10`.
        corruption: name of an official file, without ``.npy``.
        severity: from 1 to 5.
        generate: make it from CIFAR-10 instead of reading official files; gaussian noise only.
        seed: of the noise that is made.
    """
    _check_severity(severity)
    if generate:
        if corruption != "gaussian_noise":
            raise ValueError(f"only gaussian_noise can be generated, got {corruption!r}")
        clean, target = (data := cifar10(root, val_size=0)).part("test")
        class_names, inputs = data.class_names, gaussian_noise(clean, severity, seed=seed)
        note = f"noise made here with seed {seed}, not that of the official files"
    else:
        if not corruption.isidentifier():  # it becomes part of a file name
            raise ValueError(f"corruption must be a name such as gaussian_noise, got {corruption!r}")
        path = find("cifar10c", root, *OFFICIAL["cifar10c"].layouts)
        samples = decoded("cifar10c", root, [path], partial(_read, path, corruption), options=corruption)
        each = len(samples.target) // NUM_SEVERITIES
        of_severity = slice(each * (severity - 1), each * severity)
        class_names, inputs, target = samples.class_names, samples.inputs[of_severity], samples.target[of_severity]
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


def _read(path: Path, corruption: str) -> Samples:
    """All severities of one corruption, one after the other."""
    wanted = (f"{corruption}.npy", "labels.npy")
    files = read_files(path, lambda name: name.split("/")[-1] in wanted, limit=LIMIT)
    arrays = {name.split("/")[-1]: _array(path, name, content) for name, content in files}
    if missing := [name for name in wanted if name not in arrays]:
        there = {name.split("/")[-1] for name in list_files(path, limit=LIMIT)} - {"labels.npy"}
        names = ", ".join(sorted(name for name in there if name.endswith(".npy")))
        raise ValueError(f"{path}: there is no {' and no '.join(missing)} in it; there is {names or 'nothing'}")
    images, labels = (arrays[name] for name in wanted)
    if labels.dtype.kind not in "iu" or not np.isin(labels, np.arange(10)).all():
        raise ValueError(f"{path}: labels.npy must be integers from 0 to 9")
    if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3) or labels.shape != images.shape[:1]:
        raise ValueError(
            f"{path}: {wanted[0]} must be bytes, N x 32 x 32 x 3, with as many labels; "
            f"got {images.dtype} {images.shape} and {labels.shape}"
        )
    if len(labels) % NUM_SEVERITIES:
        raise ValueError(f"{path}: {wanted[0]} must be of {NUM_SEVERITIES} equal severities, has {len(labels)} images")
    return Samples(
        inputs=torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))),
        target=torch.from_numpy(labels.astype(np.int64)),
        class_names=OFFICIAL["cifar10"].class_names,
        num_train=0,
    )


def _array(path: Path, name: str, content: bytes) -> "np.ndarray[tuple[int, ...], np.dtype[np.generic]]":
    try:
        if not content.startswith(b"\x93NUMPY"):  # numpy would read other things, too
            raise ValueError("it does not begin as a .npy file does")
        array: np.ndarray[tuple[int, ...], np.dtype[np.generic]] = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, OSError, MemoryError, OverflowError) as error:
        raise ValueError(f"{path}: {name}: is no array that can be read: {error}") from error
    return array


def _check_severity(severity: int) -> None:
    if type(severity) is not int or not 1 <= severity <= NUM_SEVERITIES:
        raise ValueError(f"severity must be an integer from 1 to {NUM_SEVERITIES}, got {severity!r}")
