"""Class labels of scikit-learn, in the order of the columns of probabilities."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from dualfocal._checks import listed


def class_labels(name: str, labels: Any, predictions: Any, y: NDArray[Any], num_columns: int) -> NDArray[Any]:
    """Return the label of each column: the given ones, the columns of a data frame, or the sorted labels of y.

    Args:
        name: name of the argument with the labels, for messages.
        labels: label of each column, or None.
        predictions: the predictions; the columns of a data frame count if they are named like the labels of y.
        y: class label of each sample.
        num_columns: number of columns of the predictions; 1 or 2 for two classes.

    Raises:
        ValueError: the number of labels is not that of the columns.

    >>> class_labels("classes", None, [[0.1, 0.9]], np.array(["dog", "cat", "dog"]), 2).tolist()
    ['cat', 'dog']
    """
    num_classes = max(num_columns, 2)
    if labels is not None:
        known = np.asarray(column_or_1d(labels))
        if len(known) != num_classes or len(np.unique(known)) != num_classes:
            raise ValueError(
                f"{name} must be {num_classes} different labels, one for each column of the values, got {_shown(known)}"
            )
        return known
    known = np.unique(y)
    columns = list(getattr(predictions, "columns", ()))
    if len(columns) == num_classes and set(known.tolist()) <= set(columns):
        return np.array(columns, dtype=known.dtype if known.dtype.kind == "O" else None)
    if len(known) != num_classes:
        raise ValueError(
            f"the predictions are for {num_classes} classes, but y has the {len(known)} labels {_shown(known)}: "
            f"pass {name}=..., the label of each column, such as model.classes_"
        )
    return known


def class_numbers(y: Any, known: NDArray[Any]) -> NDArray[np.int64]:
    """Return the column of each label of y.

    Raises:
        ValueError: a label is not known.

    >>> class_numbers(["dog", "cat"], np.array(["cat", "dog", "emu"])).tolist()
    [1, 0]
    """
    places = {label: place for place, label in enumerate(known.tolist())}
    labels = y_labels(y).tolist()
    numbers = [places.get(label, -1) for label in labels]
    if -1 in numbers:
        row = numbers.index(-1)
        raise ValueError(f"y has the label {labels[row]!r} at {row}, which is none of {_shown(known)}")
    return np.array(numbers, np.int64)


def y_labels(y: Any) -> NDArray[Any]:
    """Return class labels as a one-dimensional array.

    Raises:
        ValueError: y is continuous, or not one-dimensional.
    """
    check_classification_targets(y)
    labels: NDArray[Any] = column_or_1d(y)
    return labels


def _shown(labels: NDArray[Any]) -> str:
    return listed([repr(label) for label in labels.tolist()])
