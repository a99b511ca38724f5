"""Where data sets lie on disk, and what to say when they do not."""

import os
import shlex
from itertools import chain
from pathlib import Path

from dualfocal.data.sources import OFFICIAL, get_official

VARIABLE = "DUALFOCAL_DATA"
Root = str | os.PathLike[str] | None


class DataNotFoundError(FileNotFoundError):
    """A data set is not on disk; the message says what to run."""


def data_root(root: Root = None) -> Path:
    """The folder of all data: ``root``, or the variable ``DUALFOCAL_DATA``, or the user's cache folder."""
    if given := root or os.environ.get(VARIABLE):
        folder = Path(given).expanduser()
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"the data's root must be a folder, {folder} is a file")
        return folder
    return cache_folder()


def cache_folder() -> Path:
    """Return the user's cache folder, by the customs of the system."""
    import platformdirs  # late: torch and numpy are all that importing us needs

    return platformdirs.user_cache_path("dualfocal")


def look_for(name: str, root: Root, *files: str) -> Path | None:
    """The first of some files and folders that is there: in the root, in its folder ``name``, or the root itself."""
    top = data_root(root)
    places = ((top / file, top / name / file, *([top] if top.absolute().name == file else [])) for file in files)
    return next((place for place in chain.from_iterable(places) if place.exists()), None)


def on_disk(name: str, root: Root = None) -> Path | None:
    """Return where a data set lies, if all of it is there; scikit-learn's is always."""
    official = get_official(name)
    if not official.layouts:
        return data_root(root)
    places = [look_for(name, root, layout) for layout in official.layouts]
    if official.parts and not all(places):
        return None
    return next((place for place in places if place is not None), None)


def find(name: str, root: Root, *files: str) -> Path:
    """:func:`look_for`, by default for the official layouts, and an error that says what to do.

    Raises:
        DataNotFoundError: none of them is there.
    """
    files = files or OFFICIAL[name].layouts
    found = look_for(name, root, *files)
    if found is None:
        official = OFFICIAL[name]
        place = "" if root is None else f" --data-root {shlex.quote(os.fspath(root))}"
        get = f"run `dualfocal data fetch {name}{place}`" if official.sources else official.by_hand
        raise DataNotFoundError(
            f"{name}: no {' or '.join(files)} in {data_root(root)}: {get}, or set {VARIABLE} (or --data-root) to the "
            "folder that has it"
        )
    return found
