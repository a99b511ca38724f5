"""Are the files on disk the official ones, and is in them what should be?"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dualfocal.data._cache import cached_files, is_whole
from dualfocal.data.dataset import DataSet
from dualfocal.data.download import checksum_of
from dualfocal.data.places import Root, find, look_for
from dualfocal.data.sources import OFFICIAL


@dataclass(frozen=True)
class Check:
    """What was looked at, and whether it is right; None: nothing is published to compare it with."""

    what: str
    right: bool | None
    detail: str


def verify_files(name: str, root: Root = None, *, progress: Callable[[str], None] | None = None) -> Iterator[Check]:
    """Compare every file of a data set that is on disk with its official checksum, what is decoded with its own.

    Args:
        name: a key of ``OFFICIAL``.
        root: see :func:`~dualfocal.data.places.data_root`.
        progress: called with the name of each file before it is read.

    Raises:
        DataNotFoundError: nothing of it is there.
    """
    official = OFFICIAL[name]
    known = {source.file: source.checksum for source in official.sources} | dict(official.checksums)
    places = {layout: look_for(name, root, layout) for layout in official.layouts}
    if official.layouts and not any(places.values()):
        find(name, root, *official.layouts)
    for layout, place in places.items():
        if place is None:
            if official.parts:
                yield Check(layout, False, "is missing")
            continue
        files = [place]
        if place.is_dir():
            files = sorted(file for file in place.rglob("*") if file.name in known and file.is_file())
            if missing := _missing(name, place, files):
                yield Check(str(place), False, f"{', '.join(missing)} missing")
            elif not files:
                yield Check(str(place), None, "no checksums of single files are published")
        for file in files:
            if progress is not None:
                progress(file.name)
            yield _check(file, known.get(file.name))
    for file in cached_files(name, root):
        if progress is not None:
            progress(file.name)
        whole = is_whole(file)
        yield Check(str(file), whole, "decoded earlier" if whole else "is damaged; delete it, it will be made again")


def verify_content(data: DataSet, name: str) -> Check:
    """Compare the numbers of samples and classes, and the names of classes if there are, with the official ones."""
    official = OFFICIAL[name]
    num_test = len(data.splits["test"])
    num_train = sum(map(len, data.splits.values())) - num_test
    found, wanted = (
        (num_train, num_test, data.num_classes),
        (official.num_train, official.num_test, official.num_classes),
    )
    detail = f"{num_train:,} + {num_test:,} samples in {data.num_classes} classes"
    if found != wanted:
        detail += f", officially {wanted[0]:,} + {wanted[1]:,} in {wanted[2]}"
    elif official.class_names and data.class_names != official.class_names:
        return Check("content", False, f"classes are named {', '.join(data.class_names)}")
    return Check("content", found == wanted, detail)


def _missing(name: str, folder: Path, files: list[Path]) -> list[str]:
    """Which files with a checksum should be in this folder, of all that belong to its version, and are not."""
    there = {file.name for file in files}
    version = {file for file in OFFICIAL[name].checksums if not file.endswith("gz")}
    version = {file for file in version if file.endswith(".bin") == ("bin" in folder.name)}
    return sorted(version - there)


def _check(file: Path, checksum: str | None) -> Check:
    if checksum is None:
        return Check(str(file), None, "no checksum is published")
    kind = checksum.split(":")[0]
    right = checksum_of(file, like=checksum) == checksum
    return Check(str(file), right, kind if right else f"{kind} differs from the official one")
