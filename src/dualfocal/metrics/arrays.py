"""Arrays of any library, lists and data frames as tensors, and labels that are texts as class indices."""

import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


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
    listed = isinstance(array, list | tuple)
    array = as_numpy(name, array)
    if listed and array.dtype.kind in "iu" and name in ("logits", "probabilities"):
        array = array.astype(np.float64)  # a list has no dtype
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.from_numpy(array if all(step > 0 for step in array.strides) else array.copy())
    except TypeError:
        raise ValueError(f"{name} must hold plain numbers, got {array.dtype}") from None


def class_targets(values: Array, target: Array, class_names: Sequence[str] | None = None) -> Array:
    """Return labels that are texts as class indices; other labels do not change.

    Args:
        values: the predictions; the columns of a data frame name the classes.
        target: the labels.
        class_names: names of the classes, in the order of the columns of the predictions.

    Raises:
        ValueError: a label is none of the classes, or the classes are unknown.

    >>> class_targets([[0.9, 0.1], [0.2, 0.8]], ["no", "yes"], class_names=["no", "yes"])
    array([0, 1])
    """
    if isinstance(target, Tensor):
        return target
    labels = as_numpy("target", target)
    texts = labels.ravel().tolist() if labels.dtype.kind in "UTO" else []
    if not texts or not all(isinstance(text, str) for text in texts):
        return target
    names = [str(name) for name in getattr(values, "columns", ())] if class_names is None else list(class_names)
    if not names:
        raise ValueError(
            f"target holds texts, such as {texts[0]!r}: pass class_names=[...], in the order of the columns of the "
            "predictions, or class indices"
        )
    index = {name: i for i, name in enumerate(names)}
    for i, text in enumerate(texts):
        if text not in index:
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise ValueError(f"target {text!r} at {i} is none of the classes ({shown})")
    return np.array([index[text] for text in texts], np.int64).reshape(labels.shape)


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
