"""Arrays of any library, lists and data frames as tensors, and labels that are texts as class indices."""

import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.checks import listed


class SupportsArray(Protocol):
    """What can be converted to a numpy array: data frames and series of pandas and polars, arrays of JAX, ..."""

    def __array__(self) -> NDArray[Any]: ...


Array = Tensor | np.ndarray | SupportsArray | Sequence[Any]


def as_tensor(name: str, array: Array) -> Tensor:
    """Return the array as a tensor that shares its memory, if that is possible; nothing writes to it.

    >>> as_tensor("logits", [[1, 2], [3, 4]])
    tensor([[1., 2.],
            [3., 4.]], dtype=torch.float64)
    """
    if isinstance(array, Tensor):
        return array
    is_list = isinstance(array, list | tuple)
    array = as_numpy(name, array)
    if is_list and array.dtype.kind in "iu" and name in ("logits", "probabilities"):
        array = array.astype(np.float64)  # a list has no dtype
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.from_numpy(array if all(step > 0 for step in array.strides) else array.copy())
    except TypeError:
        nested = array.size and isinstance(array.flat[0], np.ndarray | list | tuple)
        hint = "; of a column of arrays, pass np.stack(column)" if nested else ""
        raise ValueError(f"{name} must hold plain numbers, got {array.dtype}{hint}") from None


def class_targets(values: Array, target: Array, class_names: Sequence[str] | None = None) -> Array:
    """Return labels that are texts as class indices; other labels do not change.

    Args:
        values: the predictions; the columns of a data frame name the classes.
        target: the labels.
        class_names: names of the classes, in the order of the columns of the predictions.

    Raises:
        ValueError: a label is none of the classes, or the names of the classes are unknown or invalid.

    >>> class_targets([[0.9, 0.1], [0.2, 0.8]], ["no", "yes"], class_names=["no", "yes"])
    array([0, 1])
    """
    names = names_of_classes(values, class_names)
    if isinstance(target, Tensor):
        return target
    labels = as_numpy("target", target)
    texts = labels.ravel().tolist() if labels.dtype.kind in "UTO" else []
    if not texts or not all(isinstance(text, str) for text in texts):
        return target
    if names is None:
        raise ValueError(
            f"target holds texts, such as {texts[0]!r}: pass class_names=[...], in the order of the columns of the "
            "predictions, or class indices"
        )
    index = {name: i for i, name in enumerate(names)}
    if len(index) < len(names):
        raise ValueError(f"the columns of the predictions must have distinct names, got {listed(names)}")
    for i, text in enumerate(texts):
        if text not in index:
            raise ValueError(f"target {text!r} at {i} is none of the classes ({listed(names)})")
    return np.array([index[text] for text in texts], np.int64).reshape(labels.shape)


def names_of_classes(
    values: Array, class_names: Sequence[str] | None, *, number: int | None = None, kind: str = "class"
) -> tuple[str, ...] | None:
    """Return the names of the classes: those that are given, or else the columns of a data frame; None: unknown.

    Args:
        values: the predictions.
        class_names: names of the classes, in the order of the columns of the predictions.
        number: number of classes (None: see :func:`num_classes_of`).
        kind: what a column is, for errors.

    Raises:
        ValueError: ``class_names`` are not one distinct name per class, or contradict the columns of a data frame.
    """
    columns = column_names(values)
    if class_names is None and not columns:
        return None
    number = num_classes_of(values) if number is None else number
    if class_names is None:
        return columns if len(columns) == number else None
    names = tuple(map(str, class_names))
    if len(names) != number or len(set(names)) < number:
        raise ValueError(f"class_names must be {number} distinct names, one per {kind}, got {listed(names)}")
    moved = [name for i, name in enumerate(names) if name in columns and columns.index(name) != i]
    if moved and not are_numbered(columns):
        raise ValueError(
            f"class_names are {listed(names)}, but the columns of the predictions are {listed(columns)}: leave out "
            "class_names, or name the classes in the order of the columns"
        )
    return names


def in_column_order(name: str, frame: Array, columns: tuple[str, ...], owner: str) -> Array:
    """Put the columns of a data frame into the order of others; arrays, and columns without names, stay as they are.

    Args:
        name: name of the frame, for errors.
        frame: a data frame, or any array.
        columns: the names in the required order; empty if they are unknown.
        owner: what has these columns, for errors.

    Raises:
        ValueError: the frame has other columns.
    """
    own = column_names(frame)
    if own == columns or are_numbered(own) or are_numbered(columns):
        return frame
    if sorted(own) != sorted(columns) or len(set(own)) < len(own):
        raise ValueError(
            f"{name} has the columns {listed(own)}, not {listed(columns)} as {owner}: rename the columns, or pass "
            "arrays if they are in the same order"
        )
    return as_numpy(name, frame)[:, [own.index(column) for column in columns]]


def column_names(values: Array) -> tuple[str, ...]:
    """Return the names of the columns of a data frame; empty for other arrays."""
    return tuple(map(str, getattr(values, "columns", ())))


def num_classes_of(values: Array) -> int:
    """Return the number of classes of predictions: that of their columns, or two for one score per sample."""
    shape = tuple(values.shape) if hasattr(values, "shape") else np.shape(as_numpy("logits", values))
    return shape[1] if len(shape) > 1 and shape[1] > 1 else 2


def are_numbered(columns: tuple[str, ...]) -> bool:
    """Whether columns have no names, or the numbers 0, 1, ... that pandas gives to columns without names."""
    return columns == tuple(map(str, range(len(columns))))


def as_numpy(name: str, array: Array) -> NDArray[Any]:
    """Return an array of any library, a list or a data frame as a numpy array."""
    if isinstance(array, np.ndarray):
        return array
    if isinstance(array, list | tuple):
        try:
            return np.asarray(array)
        except ValueError:
            raise ValueError(f"{name} must be a list of numbers, or of lists of the same length") from None
    if hasattr(array, "to_numpy"):  # pandas and polars
        converted: NDArray[Any] = array.to_numpy()
        return converted
    if hasattr(array, "__array__"):
        return np.asarray(array)
    raise TypeError(f"{name} must be a tensor, an array, a list or a data frame, got {type(array).__name__}")
