"""Images of digits: scikit-learn's, which need no download, and SVHN (Netzer et al., 2011) from its ``.mat`` files."""

import math
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from dualfocal_lab.data._cache import Samples, decoded
from dualfocal_lab.data.dataset import DataSet, Size, random_split
from dualfocal_lab.data.paths import Root, find
from dualfocal_lab.data.transforms import Normalize

NUM_TRAIN = 800
MAX_PIXEL = 16
MAX_IMAGES = 1_000_000  # the largest of the official files has 531,131
MEAN, STD = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)


def digits(
    root: object = None, *, noise: float = 0.0, val_size: Size = 200, val2_size: Size = 0, split_seed: int = 0
) -> DataSet:
    """Load scikit-learn's digits: 1,797 images of 8 x 8 pixels, 800 for training and validation, 997 for testing.

    There is no official split: it is drawn at random with ``split_seed``.

    Args:
        root: unused, the images come with scikit-learn.
        noise: std of gaussian noise, added once to pixels from 0 to 1. With 0.3 the task is hard enough for a small
            network to make errors. The pixels are then floats, and not clipped.
        val_size: size of the validation split, from the 800 images.
        val2_size: size of a second validation split.
        split_seed: seed of split and noise.
    """
    if not isinstance(noise, int | float) or not 0 <= noise < float("inf"):
        raise ValueError(f"noise must be a standard deviation of at least 0, got {noise!r}")
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images, target = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels)
    parts = random_split(NUM_TRAIN, val_size=val_size, val2_size=val2_size, seed=split_seed)
    if "val" not in parts:
        parts = {"train": torch.arange(NUM_TRAIN)}
    rng = torch.Generator().manual_seed(split_seed)
    drawn = torch.randn(images.shape, generator=rng)  # also without noise, so that the split does not depend on it
    if noise:
        images = images / MAX_PIXEL + noise * drawn
        encoder: torch.nn.Module = torch.nn.Identity()
    else:
        images = images.to(torch.uint8)
        encoder = Normalize(mean=(0.0,), std=(MAX_PIXEL / 255,))
    development, test = torch.randperm(len(images), generator=rng).tensor_split([NUM_TRAIN])
    return DataSet(
        name="digits",
        class_names=tuple(map(str, range(10))),
        inputs=images,
        target=target,
        splits={**{part: development[index] for part, index in parts.items()}, "test": test},
        encoder=encoder,
    )


def svhn(
    root: Root = None, *, val_size: Size = 5_000, val2_size: Size = 0, split_seed: int = 1, only_test: bool = False
) -> DataSet:
    """Load SVHN: 73,257 training and 26,032 test images of house numbers, 32 x 32 pixels.

    Its test split is out-of-distribution for a model of CIFAR-10; encode it with that data set's ``encoder``.

    Args:
        root: see :func:`~dualfocal_lab.data.cifar.cifar10`.
        val_size: see :func:`~dualfocal_lab.data.cifar.cifar10`; there is no published split.
        val2_size: see :func:`~dualfocal_lab.data.cifar.cifar10`.
        split_seed: see :func:`~dualfocal_lab.data.cifar.cifar10`.
        only_test: read only the test file.
    """
    files = [find("svhn", root, file) for file in ("train_32x32.mat", "test_32x32.mat")[only_test:]]
    samples = decoded("svhn", root, files, partial(_read, files), options={"only_test": only_test})
    splits = {}
    if not only_test:
        splits = random_split(samples.num_train, val_size=val_size, val2_size=val2_size, seed=split_seed)
    return samples.as_images("svhn", splits, MEAN, STD, flip=False)  # a mirrored 2 is not a 2


def _read(files: list[Path]) -> Samples:
    """Read the files; the last one is the test split."""
    images, labels = zip(*map(_read_part, files), strict=True)
    return Samples(
        inputs=torch.from_numpy(np.concatenate(images)),
        target=torch.from_numpy(np.concatenate(labels)),
        class_names=tuple(map(str, range(10))),
        num_train=sum(map(len, labels[:-1])),
    )


def _read_part(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    import scipy.io

    try:
        forms = {name: (shape, kind) for name, shape, kind in scipy.io.whosmat(path)}
        (shape, kind), count = forms["X"], math.prod(forms["y"][0])
        # Checked before the arrays are unpacked: a small file can hold any number of zeros.
        if shape != (32, 32, 3, count) or count > MAX_IMAGES or kind != "uint8":
            rule = f"X must be uint8, 32 x 32 x 3 x N, N at most {MAX_IMAGES:,}, and y N labels"
            raise ValueError(f"{rule}, got {shape} {kind} and {forms['y'][0]}")
        arrays = scipy.io.loadmat(path, variable_names=("X", "y"))
        images, labels = arrays["X"], arrays["y"].reshape(-1)
    except Exception as error:  # a damaged file can make scipy raise anything
        if isinstance(error, OSError) and error.filename is not None:  # the file could not be opened
            raise
        raise ValueError(f"{path}: is damaged, or not a .mat file of SVHN: {error}") from error
    if not np.isin(labels, np.arange(1, 11)).all():
        raise ValueError(f"{path}: y must be from 1 to 10 (10 means digit 0)")
    return np.ascontiguousarray(images.transpose(3, 2, 0, 1)), labels.astype(np.int64) % 10
