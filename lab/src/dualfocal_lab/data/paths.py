"""Paths of data sets on disk, and the error for a missing data set."""

import os
import shlex
from itertools import chain
from pathlib import Path

from dualfocal_lab.data.sources import OFFICIAL, get_official

VARIABLE = "DUALFOCAL_DATA"
Root = str | os.PathLike[str] | None


class DataNotFoundError(FileNotFoundError):
    """A data set is not on disk; the message says which command downloads it."""


def data_root(root: Root = None) -> Path:
    """Return the folder of all data sets: ``root``, or ``$DUALFOCAL_DATA``, or the user's cache folder.

    Args:
        root: the folder (None: the environment variable or the cache folder).

    Raises:
        ValueError: the path is a file.
    """
    if path := root or os.environ.get(VARIABLE):
        folder = Path(path).expanduser()
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"the data root must be a folder, but {folder} is a file")
        return folder
    return cache_folder()


def cache_folder() -> Path:
    """Return the user's cache folder for this package, as the operating system defines it."""
    import platformdirs  # imported late to keep `import dualfocal` fast

    return platformdirs.user_cache_path("dualfocal")


def look_for(name: str, root: Root, *files: str) -> Path | None:
    """Return the first of some files or folders that exists, in the root, its folder ``name``, or the root itself."""
    top = data_root(root)
    paths = ((top / file, top / name / file, *([top] if top.absolute().name == file else [])) for file in files)
    return next((path for path in chain.from_iterable(paths) if path.exists()), None)


def on_disk(name: str, root: Root = None) -> Path | None:
    """Return the path of a data set, or None if it is not completely on disk. Digits come with scikit-learn."""
    official = get_official(name)
    if not official.layouts:
        return data_root(root)
    paths = [look_for(name, root, layout) for layout in official.layouts]
    if official.parts and not all(paths):
        return None
    return next((path for path in paths if path is not None), None)


def find(name: str, root: Root, *files: str) -> Path:
    """Return the first of some files or folders that exists, by default of the official layouts of a data set.

    Raises:
        DataNotFoundError: none of them exists; the message says what to do.
    """
    files = files or OFFICIAL[name].layouts
    path = look_for(name, root, *files)
    if path is None:
        official = OFFICIAL[name]
        option = "" if root is None else f" --data-root {shlex.quote(os.fspath(root))}"
        remedy = f"run `dualfocal data fetch {name}{option}`" if official.sources else official.by_hand
        raise DataNotFoundError(
            f"{name}: no {' or '.join(files)} in {data_root(root)}: {remedy}, or set {VARIABLE} (or --data-root) to "
            "the folder that has it"
        )
    return path
