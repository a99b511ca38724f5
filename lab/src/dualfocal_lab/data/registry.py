"""Data sets by name."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dualfocal.checks import did_you_mean
from dualfocal_lab.data.arrays import check_known, custom_data, from_arrays, load_npz, options_of, options_of_arrays
from dualfocal_lab.data.cifar import cifar10, cifar10c, cifar100
from dualfocal_lab.data.custom import image_folder
from dualfocal_lab.data.dataset import DataSet
from dualfocal_lab.data.digits import digits, svhn
from dualfocal_lab.data.newsgroups import newsgroups, newsgroups_by_date
from dualfocal_lab.data.paths import Root
from dualfocal_lab.data.tiny_imagenet import tiny_imagenet
from dualfocal_lab.objects import is_object_name

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
    """Load a data set: one of ``DATASETS`` by name, or a custom data set from images, an ``.npz`` file or a function.

    Args:
        name: name of a data set; a path (for a folder with the name of a data set, write ``./cifar10``);
            or ``package.module:function``. The function returns a :class:`DataSet`, or arrays, see
            :func:`~dualfocal_lab.data.arrays.custom_data`.
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
        check_known(name, options, options_of(DATASETS[name]))
        return DATASETS[name](root=root, **options)
    if path.suffix.lower() == ".npz":
        check_known(name, options, options_of_arrays())
        return from_arrays(load_npz(path), str(path), path.stem, **options)
    if name and path.is_dir():
        check_known(name, options, options_of(image_folder, "path"))
        return image_folder(path, root, **options)
    if (function := custom_function(name)) is not None:
        return custom_data(function, root, options)
    missing = ", but there is no such folder" if "/" in name else ""
    raise ValueError(
        f"data must be one of {', '.join(DATASETS)}, a folder of images by class, an .npz file, or "
        f"package.module:function, got {name!r}{missing}{did_you_mean(name, DATASETS)}"
    )


def custom_function(name: str) -> str | None:
    """Return the name if it stands for a custom function, ``package.module:function``, else None.

    Nothing is imported.
    """
    path = Path(name).expanduser()
    if name in DATASETS or path.suffix.lower() == ".npz" or path.is_dir():
        return None
    return name if is_object_name(name) else None
