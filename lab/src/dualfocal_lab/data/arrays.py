"""Custom data sets: arrays, from an ``.npz`` file or from a custom function."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dualfocal.checks import check_choice, did_you_mean
from dualfocal.files import check_readable
from dualfocal_lab.data.custom import PART_ARRAYS, normalize_by, split_parts
from dualfocal_lab.data.dataset import DataSet, Size
from dualfocal_lab.data.paths import Root
from dualfocal_lab.data.transforms import CropFlip
from dualfocal_lab.objects import current_folder_first, load_object, takes

MAX_CLASSES = 100_000
CONTRACT = (
    "a custom data set is a function that returns a DataSet; or arrays: (inputs, target), a dict with such a pair for "
    "each of train, val and test, or a dict with the names of an .npz file"
)


def from_arrays(
    arrays: Mapping[str, npt.NDArray[Any]],
    source: str,
    name: str,
    *,
    layout: str | None = None,
    val_size: Size = 0.1,
    val2_size: Size = 0,
    test_size: Size = 0.2,
    split_seed: int = 1,
    padding: int = 0,
    flip: bool = False,
) -> DataSet:
    """Make a data set of arrays: ``x_train, y_train, x_test, y_test`` (and ``x_val, y_val``), or ``x, y``.

    uint8 arrays are images, which are normalised with the mean and std of the training split. Other numbers are
    converted to float32. There can also be ``class_names``.

    Args:
        arrays: the arrays by name, such as those of :func:`load_npz`.
        source: where the arrays come from, for error messages.
        name: name of the data set.
        layout: layout of images: ``"NHWC"``, ``"NCHW"``, or ``"NHW"`` for grey images (the default for three
            dimensions).
        val_size: size of the validation split, if there is no ``x_val``.
        val2_size: size of a second validation split.
        test_size: size of the test split, if there is no ``x_test``.
        split_seed: see :func:`~dualfocal_lab.data.custom.image_folder`.
        padding: see :func:`~dualfocal_lab.data.custom.image_folder`.
        flip: see :func:`~dualfocal_lab.data.custom.image_folder`.

    Raises:
        ValueError: an array or an option is invalid.
    """
    if layout is not None:
        check_choice("layout", layout, ("NHWC", "NCHW", "NHW"))
    x_names = [name for name in ("x", *(f"x_{part}" for part in PART_ARRAYS)) if name in arrays]
    if x_names != ["x"] and x_names[:1] != ["x_train"]:
        raise ValueError(
            f"{source}: must have arrays x_train and y_train (also _val and _test), or only x and y; "
            f"got {', '.join(x_names) or 'none of them'}"
        )
    inputs, target, part_of = [], [], []
    for key in x_names:
        inputs.append(_as_inputs(source, key, arrays[key], layout))
        target.append(_as_target(source, f"y{key[1:]}", arrays.get(f"y{key[1:]}"), len(inputs[-1])))
        part_of += [key[2:] or "train"] * len(inputs[-1])
        if inputs[-1].shape[1:] != inputs[0].shape[1:] or inputs[-1].dtype != inputs[0].dtype:
            raise ValueError(
                f"{source}: {key} must be like {x_names[0]}: {tuple(inputs[0].shape[1:])} {inputs[0].dtype}"
            )
    samples, labels = torch.cat(inputs), torch.cat(target)
    names = arrays.get("class_names", np.arange(int(labels.max()) + 1))
    splits = split_parts(part_of, val_size=val_size, val2_size=val2_size, test_size=test_size, seed=split_seed)
    if (padding or flip) and samples.ndim != 4:
        raise ValueError(f"padding and flip need images, but samples of {source} have {samples.ndim - 1} dimensions")
    return DataSet(
        name=name,
        class_names=tuple(names.reshape(-1).astype(str).tolist()),
        inputs=samples,
        target=labels,
        splits=splits,
        encoder=normalize_by(samples, splits["train"]) if samples.dtype == torch.uint8 else nn.Identity(),
        augment=CropFlip(padding, flip=flip) if padding or flip else None,
    )


def load_npz(file: Path) -> dict[str, npt.NDArray[Any]]:
    """Read the arrays of an ``.npz`` file that :func:`from_arrays` knows.

    Raises:
        ValueError: the file cannot be read.
    """
    check_readable(file)
    known = ("x", "y", "class_names", *(f"{letter}_{part}" for letter in "xy" for part in PART_ARRAYS))
    try:
        with file.open("rb") as content:
            archive = np.load(content, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it is not an .npz file")
            return {name: archive[name] for name in known if name in archive}
    except Exception as error:  # a damaged archive can raise anything
        raise ValueError(f"{file}: cannot be read: {error}") from error


def _as_inputs(source: str, name: str, array: npt.NDArray[Any], layout: str | None) -> Tensor:
    if not array.size or array.ndim < 2 or array.dtype.kind not in "biuf":
        raise ValueError(f"{source}: {name} must hold numbers, (N, ...), got {array.dtype} {array.shape}")
    images = array.dtype == np.uint8
    if images and array.ndim not in (3, 4):
        raise ValueError(
            f"{source}: {name} is uint8, so it must hold images of three or four dimensions, got {array.shape}"
        )
    if len(layout) != array.ndim if layout is not None else array.ndim == 4:
        raise ValueError(
            f"{source}: {name} is {array.shape}: set layout to NHWC, NCHW or NHW, which is never guessed; got {layout}"
        )
    if not images:
        array = array.astype(np.float32)
        if not np.isfinite(array).all():
            raise ValueError(f"{source}: {name} has values that are not finite")
    if layout == "NHW" or (array.ndim == 3 and images):
        array = array[:, None]
    elif layout == "NHWC":
        array = array.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(array))


def _as_target(source: str, name: str, array: npt.NDArray[Any] | None, count: int) -> Tensor:
    if array is None or array.dtype.kind not in "iu" or array.size != count:
        got = "none" if array is None else f"{array.dtype} {array.shape}"
        raise ValueError(f"{source}: {name} must be {count} class numbers from 0, got {got}")
    if not 0 <= array.min() <= array.max() < MAX_CLASSES:
        raise ValueError(
            f"{source}: {name} must be class numbers from 0 to {MAX_CLASSES - 1}, got {array.min()} to {array.max()}"
        )
    return torch.from_numpy(array.reshape(-1).astype(np.int64))


def custom_data(name: str, root: Root, options: Mapping[str, Any]) -> DataSet:
    """Load the data set of a custom function, ``package.module:function``.

    Args:
        name: the function. It is called with the options and, if it has this argument, ``root``.
        root: folder of the data.
        options: options of the function. If it returns arrays, those of :func:`from_arrays` can be given, too.

    Raises:
        ValueError: the function cannot be imported, fails, or returns something else; or an option is unknown.
    """
    function = load_object("data", name)
    if not callable(function):
        raise ValueError(f"data {name}: is {type(function).__name__}, but {CONTRACT}")
    own = {option: value for option, value in options.items() if takes(function, option)}
    others = {option: value for option, value in options.items() if option not in own}
    check_known(name, others, [*options_of(function), *options_of_arrays()])
    try:
        with current_folder_first():  # the function may import more
            content = function(**own, **({"root": root} if takes(function, "root") else {}))
    except Exception as error:  # any code of the user
        raise ValueError(f"data {name} fails: {type(error).__name__}: {error}") from error
    if isinstance(content, DataSet):
        check_known(name, others, options_of(function))
        return content
    return from_arrays(_named(name, content), f"data {name}", name.rpartition(":")[2], **others)


def options_of(function: Any, *others: str) -> list[str]:
    """Return the names of the options of a function that loads data: its arguments, except ``root`` and the others."""
    return [name for name in inspect.signature(function).parameters if name not in ("root", *others)]


def options_of_arrays() -> list[str]:
    """Return the names of the options of :func:`from_arrays`."""
    return options_of(from_arrays, "arrays", "source", "name")


def check_known(name: str, options: Mapping[str, Any], known: list[str]) -> None:
    """Raise a ValueError if a data set has no such option."""
    if unknown := [option for option in options if option not in known]:
        has = f"has the options {', '.join(known)}" if known else "has no options"
        raise ValueError(f"data {name} {has}; got {', '.join(unknown)}{did_you_mean(unknown[0], known)}")


def _named(name: str, content: Any) -> dict[str, npt.NDArray[Any]]:
    """Return what a custom function returned as arrays with the names of an .npz file."""
    if isinstance(content, tuple | list) and len(content) == 2:
        content = dict(zip("xy", content, strict=True))
    if not isinstance(content, Mapping):
        raise ValueError(f"data {name}: returned {type(content).__name__}, but {CONTRACT}")
    arrays: dict[str, Any] = {}
    for key, value in content.items():
        if key not in PART_ARRAYS:
            arrays[key] = value
        elif isinstance(value, tuple | list) and len(value) == 2:
            arrays |= {f"x_{key}": value[0], f"y_{key}": value[1]}
        else:
            raise ValueError(f"data {name}: {key} must be a pair (inputs, target), got {type(value).__name__}")
    return {
        key: np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value) for key, value in arrays.items()
    }
