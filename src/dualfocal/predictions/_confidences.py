"""Files with only the confidence of the predicted class: whether each prediction is right."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dualfocal.predictions._class_columns import Values
from dualfocal.predictions._formats.interface import Column, PredictionFile, is_number
from dualfocal.predictions._labels import WHOLE, listing

TRUTH = {"1": 1, "true": 1, "yes": 1, "right": 1, "correct": 1, "0": 0, "false": 0, "no": 0, "wrong": 0, "incorrect": 0}


def correctness(
    source: PredictionFile, values: Values, confidence: Tensor, predicted: Column, label: str, labels: Column
) -> NDArray[np.int64]:
    """Return 1 where predicted class and label are the same, otherwise 0; negative labels, to be ignored, are kept.

    Raises:
        PredictionsError: the two have no value in common, such as numbers and names; or there are two classes, and
            confidences below 0.5, which are not those of the predicted class.
    """
    texts, true = ([_plain_number(str(item).strip()) for item in np.asarray(x).ravel()] for x in (predicted, labels))
    if not len(texts) == len(true) == confidence.numel():
        counts = f"{confidence.numel()} of {values.names[0]!r}, {len(texts)} of {values.prediction!r}, {len(true)} of"
        raise source.error(f"each row needs a confidence, a prediction and a label, got {counts} {label!r}")
    classes = {*texts, *true}
    if {*texts}.isdisjoint(true) and len({*true}) > 1:
        raise source.error(
            f"predictions in {values.prediction!r} ({listing(sorted({*texts}))}) and labels in {label!r} "
            f"({listing(sorted({*true}))}) have no value in common"
        )
    if len(classes) == 2 and not values.ordered and bool((confidence < 0.4999).any()):
        name = values.names[0]
        raise source.error(
            f"{name!r} must be the confidence of the predicted class, at least 0.5 for two classes, got "
            f"{float(confidence.min()):g}: if it is the probability of class 1, give --probs {name} --binary positive, "
            f"otherwise --prediction {values.prediction} --confidence {name}"
        )
    ignored = {text: int(text) for text in classes if WHOLE.fullmatch(text) and text.startswith("-")}
    return np.array([ignored.get(b, int(a == b)) for a, b in zip(texts, true, strict=True)], np.int64)


def right_or_wrong(source: PredictionFile, name: str, column: Column) -> NDArray[np.int64]:
    """Return 1 where a column says that the prediction is right, otherwise 0; negative numbers, to be ignored, stay.

    Raises:
        PredictionsError: an entry is no such word or number.
    """
    texts = [_plain_number(str(item).strip().lower()) for item in np.asarray(column).ravel()]
    known = TRUTH | {text: int(text) for text in {*texts} if WHOLE.fullmatch(text) and text.startswith("-")}
    for row, text in enumerate(texts):
        if text not in known:
            raise source.error(
                f"{name!r} must say whether each prediction is right, by 1 and 0, True and False, or yes and no, got "
                f"{text!r} in row {row}; to compare labels with predictions, give --prediction and --confidence"
            )
    return np.array([known[text] for text in texts], np.int64)


def _plain_number(text: str) -> str:
    """Return 3 for 3.0, as pandas may write it; other texts do not change."""
    if WHOLE.fullmatch(text) or not is_number(text) or not float(text).is_integer() or abs(float(text)) >= 2**53:
        return text
    return str(int(float(text)))
