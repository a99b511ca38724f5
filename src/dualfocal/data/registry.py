"""Data sets by name."""

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dualfocal._checks import did_you_mean
from dualfocal.data.cifar import cifar10, cifar10c, cifar100
from dualfocal.data.custom import image_folder, npz
from dualfocal.data.dataset import DataSet
from dualfocal.data.digits import digits, svhn
from dualfocal.data.newsgroups import newsgroups, newsgroups_by_date
from dualfocal.data.paths import Root
from dualfocal.data.tiny_imagenet import tiny_imagenet

DATASETS: dict[str, Callable[..., DataSet]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "tiny_imagenet": tiny_imagenet,
    "20newsgroups": newsgroups,
    "20newsgroups_bydate": newsgroups_by_date,
    "svhn": svhn,
    "cifar10c": cifar10c,
    "digits": digits,
}


def load_data(name: str | os.PathLike[str], root: Root = None, **options: Any) -> DataSet:
    """Load a data set: one of ``DATASETS`` by name, or a custom data set from a folder of images or an ``.npz`` file.

    Args:
        name: name of a data set, or a path. For a folder with the name of a data set, write ``./cifar10``.
        root: folder of the data (None: ``$DUALFOCAL_DATA``, or the user's cache folder).
        options: options of the data set's function, such as ``val_size``.

    Returns:
        The data set, with its splits.

    Raises:
        ValueError: the data set or an option is unknown; the message lists the known ones.
        DataNotFoundError: the data set is not on disk; the message says which command downloads it.

    >>> print(load_data("digits"))
    digits: 600 train, 200 val, 997 test; 10 classes; 1 x 8 x 8 uint8
    """
    name = os.fspath(name)
    path = Path(name).expanduser()
    if name in DATASETS:
        load, arguments = DATASETS[name], options
    elif path.suffix.lower() == ".npz":
        load, arguments = npz, {"path": path, **options}
    elif name and path.is_dir():
        load, arguments = image_folder, {"path": path, **options}
    else:
        raise ValueError(
            f"data must be one of {', '.join(DATASETS)}, a folder of images by class, or an .npz file, "
            f"got {name!r}{did_you_mean(name, DATASETS)}"
        )
    known = [option for option in inspect.signature(load).parameters if option not in ("root", "path")]
    if unknown := [option for option in options if option not in known]:
        raise ValueError(
            f"{name} has the options {', '.join(known)}; got {', '.join(unknown)}{did_you_mean(unknown[0], known)}"
        )
    return load(root=root, **arguments)
