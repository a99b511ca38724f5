"""Folders of dense predictions: for each image an array of logits or probabilities, and a mask of its labels."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dualfocal._extras import import_extra
from dualfocal.metrics.inputs import are_probabilities
from dualfocal.predictions._formats.arrays import NpyFile, NpzFile
from dualfocal.predictions._formats.interface import PredictionsError, check_values, form, one_line_errors
from dualfocal.predictions._names import KINDS, LABELS
from dualfocal.tables import quantity

MASKS = ("masks", "mask", *LABELS)
ARRAYS = (".npy", ".npz")
GREY_MODES = ("1", "L", "P", "I;16", "I")  # of PNG files with one number per pixel


@dataclass(frozen=True)
class DenseImage:
    """Predictions ``(C, H, W)`` and labels ``(H, W)`` of one image."""

    name: str
    values: NDArray[Any]
    target: NDArray[Any]


@dataclass(frozen=True)
class DenseFolder:
    """Dense predictions in files, which are read image by image.

    Args:
        path: the folder.
        input: ``"logits"`` or ``"probs"``.
        files: for each image its name, the file of the predictions and the file of the labels, which can be the same.
        arrays: names of the arrays of predictions and of labels in ``.npz`` files, if they are given.
        taken: which folders or arrays hold predictions and labels, in words.
        max_memory: limit of the memory that an image may take.
    """

    path: Path
    input: str
    files: tuple[tuple[str, Path, Path], ...]
    arrays: tuple[str | None, str | None]
    taken: str
    max_memory: int | str | None = None
    class_names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[DenseImage]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: int) -> DenseImage:
        """Read an image.

        Raises:
            PredictionsError: a file is damaged, too large or does not hold the values or labels of an image.
        """
        name, file, mask = self.files[index]
        values = self._array(file, KINDS[self.input], self.arrays[0])
        check_values(f"{file}: predictions", values)
        if values.ndim == 4 and values.shape[0] == 1:
            values = values[0]
        if values.ndim != 3 or values.shape[0] < 2:
            raise PredictionsError(
                f"{file}: predictions of an image must have shape (C, H, W) with at least two classes, got "
                f"{form(values)}"
            )
        if index == 0 and self.input == "logits" and are_probabilities(torch.from_numpy(values).flatten(1).T):
            raise PredictionsError(
                f"{file}: logits are expected, but all pixels lie in [0, 1] and sum to 1: if they are probabilities, "
                "name the folder or array probs, or give --probs NAME"
            )
        if mask.suffix.lower() == ".png":
            return DenseImage(name, values, _read_png(mask, values.shape))
        target = self._array(mask, MASKS, self.arrays[1])
        if target.ndim == 3 and target.shape[0] == 1:
            target = target[0]
        if target.dtype.kind not in "iu":
            raise PredictionsError(
                f"{mask}: labels must be integers, the class index of each pixel, got {form(target)}"
            )
        _check_size(mask, target.shape, values.shape)
        return DenseImage(name, values, target)

    def _array(self, path: Path, names: tuple[str, ...], given: str | None) -> NDArray[Any]:
        """Read the array with one of the usual names, or with the given one."""
        if path.suffix.lower() == ".npy":
            source: NpyFile | NpzFile = NpyFile(path, self.max_memory)
            return np.asarray(source.read(source.names, []).values[source.names[0]])
        source = NpzFile(path, self.max_memory)
        wanted = [name for name in source.names if name == given]
        wanted = wanted or [name for name in source.names if name.lower() in names]
        if not wanted and len(source.names) == 1 and names != MASKS:
            wanted = source.names
        if len(wanted) != 1:
            raise source.error(f"must hold one array named {', '.join(names[:4])} or similar {source.holds()}")
        return np.asarray(source.read(wanted, []).values[wanted[0]])


def is_dense_folder(path: Path, logits: str | None = None, probs: str | None = None) -> bool:
    """Whether a folder holds arrays, or sub-folders with the usual or given names of predictions."""
    if not path.is_dir():
        return False
    values_folder = _find_folder(path, logits, probs) or _find_folder(path, None, None)
    return values_folder is not None or any(_files(path, ARRAYS))


def open_dense_folder(
    path: str | Path,
    *,
    logits: str | None = None,
    probs: str | None = None,
    target: str | None = None,
    max_memory: int | str | None = None,
) -> DenseFolder:
    """Open a folder of dense predictions. Arrays are ``(C, H, W)``; images may have different sizes.

    Two layouts are read:

    - sub-folders, such as ``logits/NAME.npy`` and ``masks/NAME.png``. Predictions are ``.npy`` or ``.npz`` files in a
      folder named ``logits`` or ``probs``; labels are ``.png``, ``.npy`` or ``.npz`` files in a folder named ``masks``
      or ``target``. Grey levels or palette indices of a PNG file are the class indices.
    - ``NAME.npz`` files with arrays named ``logits`` or ``probs``, and ``target`` or ``mask``.

    Args:
        path: the folder.
        logits: name of the sub-folder or array of the logits, if it is not a usual one.
        probs: the same, for probabilities.
        target: name of the sub-folder or array of the labels.
        max_memory: limit of the memory that an image may take (None: half of the free memory).

    Raises:
        PredictionsError: there are no predictions, a mask is missing, or two files have the same name.
    """
    path = Path(path)
    if logits is not None and probs is not None:
        raise PredictionsError(f"{path}: give --logits or --probs, not both (got {logits!r} and {probs!r})")
    values_folder = _find_folder(path, logits, probs)
    if values_folder is None:
        return _open_archives(path, logits, probs, target, max_memory)
    kind, folder = values_folder
    masks = _find_masks(path, target, folder)
    images, labels = _by_stem(folder, ARRAYS), _by_stem(masks, (".png", *ARRAYS))
    if not images:
        raise PredictionsError(f"{folder}: there is no .npy or .npz file in it")
    missing = [name for name in images if name not in labels]
    if missing:
        others = quantity(len(missing) - 1, "other image")
        more = f" (and {others})" if len(missing) > 1 else ""
        raise PredictionsError(
            f"{masks}: the mask of {images[missing[0]].name} is missing{more}: expected {missing[0]}.png or "
            f"{missing[0]}.npy; --target names another folder"
        )
    files = tuple((name, images[name], labels[name]) for name in sorted(images))
    unused = len(labels) - len(images)
    taken = f"{kind} from '{folder.name}' ({quantity(len(files), 'image')}), labels from '{masks.name}'"
    if unused:
        verbs = "has no predictions and is" if unused == 1 else "have no predictions and are"
        taken += f" ({quantity(unused, 'mask')} {verbs} not used)"
    return DenseFolder(path, kind, files, (None, None), taken, max_memory)


def _open_archives(
    path: Path, logits: str | None, probs: str | None, target: str | None, max_memory: int | str | None
) -> DenseFolder:
    """Open a folder of ``.npz`` files with predictions and labels."""
    files = _by_stem(path, (".npz",))
    if not files:
        raise PredictionsError(
            f"{path}: there are no dense predictions: expected logits/NAME.npy and masks/NAME.png, or NAME.npz files "
            "with arrays 'logits' and 'target'; --logits or --probs, and --target, give other names"
        )
    first = NpzFile(next(iter(files.values())), max_memory)
    kinds = [kind for kind, names in KINDS.items() if any(name.lower() in names for name in first.names)]
    if logits is not None or probs is not None:
        kinds = ["probs" if logits is None else "logits"]
    if len(kinds) != 1:
        raise first.error(f"give the array of the predictions with --logits or --probs {first.holds()}")
    named = tuple((name, file, file) for name, file in sorted(files.items()))
    taken = f"{kinds[0]} and labels from {quantity(len(named), '.npz file')}"
    return DenseFolder(path, kinds[0], named, (logits or probs, target), taken, max_memory)


def _find_folder(path: Path, logits: str | None, probs: str | None) -> tuple[str, Path] | None:
    """Return the kind and the folder of the predictions; None if there is no such sub-folder."""
    for kind, given in (("logits", logits), ("probs", probs)):
        if given is not None:
            return (kind, path / given) if (path / given).is_dir() else None
    candidates = [(kind, path / name) for kind, names in KINDS.items() for name in names if (path / name).is_dir()]
    if len(candidates) > 1:
        raise PredictionsError(
            f"{path}: '{candidates[0][1].name}' and '{candidates[1][1].name}' are both there; choose one with --logits "
            "or --probs"
        )
    return candidates[0] if candidates else None


def _find_masks(path: Path, target: str | None, folder: Path) -> Path:
    names = MASKS if target is None else (target,)
    candidates = [path / name for name in names if (path / name).is_dir() and path / name != folder]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise PredictionsError(
            f"{path}: '{candidates[0].name}' and '{candidates[1].name}' are both there; choose with --target"
        )
    expected = f"'{target}'" if target is not None else "'masks' or 'target'"
    raise PredictionsError(f"{path}: there is no folder {expected} with the labels; --target names it")


def _files(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Yield regular files, or links to them, with these suffixes; hidden files are left out."""
    for file in folder.iterdir():
        if file.suffix.lower() in suffixes and not file.name.startswith(".") and file.is_file():
            yield file


def _by_stem(folder: Path, suffixes: tuple[str, ...]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for file in _files(folder, suffixes):
        if file.stem in files:
            raise PredictionsError(f"{folder}: {files[file.stem].name} and {file.name} name the same image")
        files[file.stem] = file
    return files


def _check_size(mask: Path, size: tuple[int, ...], predictions: tuple[int, ...]) -> None:
    """Raise a PredictionsError unless the size of a mask is that of predictions ``(C, H, W)``."""
    if tuple(size) != predictions[1:]:
        remedy = "resize the predictions to the mask (interpolate the logits), or the mask by nearest neighbour"
        if tuple(size) == predictions[:2]:
            remedy = f"if their shape {predictions} is (H, W, C), save array.transpose(2, 0, 1)"
        pixels = f"the mask has shape {tuple(size)}, but the predictions have {predictions[1:]} pixels"
        raise PredictionsError(f"{mask}: {pixels}: {remedy}")


def _read_png(path: Path, predictions: tuple[int, ...]) -> NDArray[Any]:
    """Read the grey levels or palette indices of a mask; its size is checked before it is unpacked."""
    pil = import_extra("PIL.Image")
    with one_line_errors(path), warnings.catch_warnings():
        warnings.simplefilter("ignore", pil.DecompressionBombWarning)  # the size is checked here
        with pil.open(path, formats=["PNG"]) as image:
            _check_size(path, image.size[::-1], predictions)
            if image.mode not in GREY_MODES:
                raise PredictionsError(
                    f"{path}: a mask must hold one class index per pixel, as grey levels or palette indices, but this "
                    f"is an image of mode {image.mode}: save PIL.Image.fromarray(class_indices.astype('uint8'))"
                )
            return np.asarray(image).astype(np.int64)
