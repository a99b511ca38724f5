"""Class labels of scikit-learn, in the order of the columns of probabilities."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, column_or_1d

from dualfocal.checks import listed


def classes_and_target(
    name: str, labels: Any, predictions: Any, y: Any, num_columns: int
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the label of each column of the predictions, and the column of each label of y.

    Args:
        name: name of the argument with the labels, for messages.
        labels: label of each column. None: the columns of a data frame that is named by class, or the sorted labels
            of y.
        predictions: the predictions, one for each sample of y.
        y: class label of each sample.
        num_columns: number of columns of the predictions; 1 or 2 for two classes.

    Raises:
        ValueError: y does not hold classes, or has another length than the predictions; the number of labels is not
            that of the columns; or a label of y is none of them.

    >>> classes, target = classes_and_target("classes", None, [[0.1, 0.9], [0.8, 0.2]], ["dog", "cat"], 2)
    >>> classes.tolist(), target.tolist()
    (['cat', 'dog'], [1, 0])
    """
    check_classification_targets(y)
    y = column_or_1d(y)
    check_consistent_length(predictions, y)
    classes = _classes(name, labels, list(getattr(predictions, "columns", ())), y, max(num_columns, 2))
    columns = {label: column for column, label in enumerate(classes.tolist())}
    for row, label in enumerate(y.tolist()):
        if label not in columns:
            raise ValueError(f"y has the label {label!r} at {row}, which is none of {_shown(classes)}")
    return classes, np.array([columns[label] for label in y.tolist()], np.int64)


def _classes(name: str, labels: Any, columns: list[Any], y: NDArray[Any], num_classes: int) -> NDArray[Any]:
    if labels is not None:
        classes: NDArray[Any] = column_or_1d(labels)
        if len(classes) != num_classes or len(np.unique(classes)) != num_classes:
            raise ValueError(
                f"{name} must be {num_classes} different labels, one for each column of the values, "
                f"got {_shown(classes)}"
            )
        return classes
    classes = np.unique(y)
    if len(columns) == num_classes and set(classes.tolist()) <= set(columns):
        return np.array(columns, dtype=classes.dtype if classes.dtype.kind == "O" else None)
    if len(classes) != num_classes:
        raise ValueError(
            f"the predictions are for {num_classes} classes, but y has the {len(classes)} labels {_shown(classes)}: "
            f"pass {name}=..., the label of each column, such as model.classes_"
        )
    return classes


def _shown(labels: NDArray[Any]) -> str:
    return listed([repr(label) for label in labels.tolist()])
