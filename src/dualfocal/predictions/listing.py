"""Find the prediction files that a folder or a pattern names."""

from collections.abc import Sequence
from glob import glob
from pathlib import Path

from dualfocal.predictions._formats.interface import PredictionsError
from dualfocal.predictions._formats.readers import READERS, suffix_of


def list_prediction_files(place: str) -> list[Path]:
    """Return the files that a path names: the path itself, or those that match a pattern such as ``noise-*.npz``.

    Raises:
        PredictionsError: nothing matches the pattern.
    """
    if Path(place).exists() or not any(character in place for character in "*?["):
        return [Path(place)]
    files = sorted(map(Path, glob(place)))
    if not files:
        raise PredictionsError(f"{place}: no file matches this pattern")
    return files


def list_folder(folder: Path) -> list[Path]:
    """Return the prediction files of a folder, by their suffixes.

    Raises:
        PredictionsError: there are none.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file() and suffix_of(path) in READERS)
    if not files:
        raise PredictionsError(f"{folder}: has no prediction files ({', '.join(READERS)})")
    return files


def short_names(paths: Sequence[Path], taken: str = "") -> list[str]:
    """Return file names without folder and suffix; the whole paths if those would not be distinct, or are ``taken``.

    >>> short_names([Path("c/noise-1.csv.gz"), Path("c/noise-2.npz")])
    ['noise-1', 'noise-2']
    """
    suffixes = [suffix_of(path) for path in paths]
    names = [
        path.name[: -len(suffix)] if suffix in READERS else path.name
        for path, suffix in zip(paths, suffixes, strict=True)
    ]
    return names if len({*names, taken}) == len(names) + 1 else [str(path) for path in paths]
