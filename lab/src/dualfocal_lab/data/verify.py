"""Compare the files and the content of a data set with the official checksums and numbers."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dualfocal_lab.data._cache import cached_files, is_whole
from dualfocal_lab.data._images import DecodedShare
from dualfocal_lab.data.dataset import DataSet
from dualfocal_lab.data.download import checksum_of
from dualfocal_lab.data.paths import Root, find, look_for
from dualfocal_lab.data.registry import DATASETS, load_data
from dualfocal_lab.data.sources import get_official

MAX_ROWS, COLUMNS = 20, 8  # of the sheet of samples: classes, and images per class


@dataclass(frozen=True)
class Check:
    """Result of one check."""

    what: str  # file, or "content"
    right: bool | None  # None: there is no official value to compare with
    detail: str


def verify(
    name: str,
    root: Root = None,
    *,
    reading: Callable[[str], object] = str,
    decoding: DecodedShare | None = None,
) -> tuple[list[Check], DataSet | None]:
    """Check the files of a data set and, if they are right, their content.

    Args:
        name: a key of ``OFFICIAL``.
        root: see :func:`~dualfocal_lab.data.paths.data_root`.
        reading: called with the name of each file before it is read.
        decoding: called with the share of the images that are decoded.

    Returns:
        The checks, and the data set (None: a file is wrong, or it is not a data set, such as word vectors).

    Raises:
        DataNotFoundError: no file of the data set is on disk.
    """
    checks = list(verify_files(name, root, reading=reading))
    if name not in DATASETS or any(check.right is False for check in checks):
        return checks, None
    try:
        data = load_official(name, root, progress=decoding)
    except ValueError as error:
        return [*checks, Check("content", False, str(error))], None
    return [*checks, verify_content(data, name)], data


def load_official(name: str, root: Root = None, *, progress: DecodedShare | None = None) -> DataSet:
    """Load a data set by name; texts are loaded without word vectors, which are a separate download."""
    parameters = inspect.signature(DATASETS[name]).parameters
    options = {"vectors": "none", "progress": progress}
    return load_data(name, root, **{option: value for option, value in options.items() if option in parameters})


def verify_files(name: str, root: Root = None, *, reading: Callable[[str], object] = str) -> Iterator[Check]:
    """Compare every file of a data set on disk with its official checksum, and cache files with their own.

    Args and Raises: see :func:`verify`.
    """
    official = get_official(name)
    checksums = {source.file: source.checksum for source in official.sources} | dict(official.checksums)
    paths = {layout: look_for(name, root, layout) for layout in official.layouts}
    if official.layouts and not any(paths.values()):
        find(name, root)  # raises the error
    for layout, path in paths.items():
        if path is None:
            if official.parts:
                yield Check(layout, False, "is missing")
            continue
        files = [path]
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.name in checksums and file.is_file())
            binary = "bin" in path.name  # the binary and the Python version have different files
            version = {
                file for file in official.checksums if not file.endswith("gz") and file.endswith(".bin") == binary
            }
            if missing := sorted(version - {file.name for file in files}):
                yield Check(str(path), False, f"{', '.join(missing)} missing")
            elif not files:
                yield Check(str(path), None, "no checksums of single files are published")
        for file in files:
            reading(file.name)
            if checksum := checksums.get(file.name):
                right, kind = checksum_of(file, like=checksum) == checksum, checksum.split(":")[0]
                yield Check(str(file), right, kind if right else f"{kind} differs from the official one")
            else:
                yield Check(str(file), None, "no checksum is published")
    for file in cached_files(name, root):
        reading(file.name)
        whole = is_whole(file)
        yield Check(str(file), whole, "decoded earlier" if whole else "is damaged; delete it to decode the data again")


def verify_content(data: DataSet, name: str) -> Check:
    """Compare the numbers of samples and classes, and the class names if they are published, with the official ones."""
    official = get_official(name)
    num_test = len(data.splits["test"])
    num_train = sum(map(len, data.splits.values())) - num_test
    detail = f"{num_train:,} + {num_test:,} samples in {data.num_classes} classes"
    right = (num_train, num_test, data.num_classes) == (official.num_train, official.num_test, official.num_classes)
    if not right:
        detail += f", officially {official.num_train:,} + {official.num_test:,} in {official.num_classes}"
    elif official.class_names and data.class_names != official.class_names:
        right, detail = False, f"classes are named {', '.join(data.class_names)}"
    return Check("content", right, detail)


def sample_images(data: DataSet) -> tuple[dict[str, list[Tensor]], list[str]]:
    """Return some images of some classes, as stored and as augmented in training, and the names of those classes."""
    part = data.splits.get("train", data.splits["test"])
    classes = torch.linspace(0, data.num_classes - 1, min(data.num_classes, MAX_ROWS)).long().tolist()
    chosen = [part[data.target[part] == label][:COLUMNS] for label in classes]
    blocks = {"as stored": [data.inputs[index] for index in chosen]}
    draws = data.draw(seed=0, epoch=0)
    if data.augment is not None and draws is not None:
        blocks["augmented, as in training"] = [data.augment(data.inputs[index], draws[index]) for index in chosen]
    return blocks, [data.class_names[label] for label in classes]
