"""Evaluation of dense predictions image by image: all pixels, by class, and at boundaries against the interior."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dualfocal.checks import check_count
from dualfocal.metrics.result import Evaluation, finite
from dualfocal.metrics.several import named_errors
from dualfocal.metrics.sums import CalibrationSums
from dualfocal.metrics.verdict import p_text
from dualfocal.tables import Table, printable, quantity

MOST_SHOWN = 20  # classes in a table

Image = tuple[str, NDArray[Any], NDArray[Any]]  # name, (C, H, W) values, (H, W) labels


@dataclass(frozen=True)
class ImageGap:
    """Mean confidence and accuracy of the pixels of one image."""

    name: str
    num_samples: int
    confidence: float
    accuracy: float

    @property
    def overconfidence(self) -> float:
        """Mean confidence minus accuracy."""
        return self.confidence - self.accuracy


@dataclass(frozen=True)
class ClassCalibration:
    """Calibration of the probability of one class over all pixels."""

    index: int
    occurs: float  # share of pixels with this label
    probability: float  # mean probability of the class
    predicted: float  # share of pixels that are predicted as the class
    confidence: float  # mean confidence of these pixels; NaN if there are none
    right: float  # share of these pixels with this label
    ece: float  # of the probability of the class

    def to_dict(self) -> dict[str, Any]:
        """Return plain content for JSON."""
        content = {name: finite(value) for name, value in vars(self).items() if name != "index"}
        return {"class": self.index, **content}


@dataclass
class DenseEvaluation:
    """Sums of dense predictions, from which everything is evaluated.

    Args:
        parts: the pixels: ``{"all": ...}``, or ``{"boundary": ..., "interior": ...}``.
        images: mean confidence and accuracy of each image with labels.
        width: how close pixels at the boundary are to another predicted class; None: pixels are not divided.
    """

    parts: dict[str, CalibrationSums]
    images: list[ImageGap] = field(default_factory=list)
    width: int | None = None

    @property
    def total(self) -> CalibrationSums:
        """Sums of all pixels."""
        first, *others = self.parts.values()
        return sum(others, start=first)

    @property
    def worst_images(self) -> list[ImageGap]:
        """The images, the most over-confident first."""
        return sorted(self.images, key=lambda image: (-image.overconfidence, image.name))


def evaluate_images(
    images: Iterable[Image],
    *,
    input: str | None = None,
    num_bins: int = 15,
    ignore_index: int = -100,
    boundary: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> DenseEvaluation:
    """Sum up dense predictions image by image. Images may have different sizes; none is kept.

    Args:
        images: name, predictions ``(C, H, W)`` and labels ``(H, W)`` of each image; names must differ.
        input: ``"logits"`` (default) or ``"probs"``.
        num_bins: number of bins of the calibration errors.
        ignore_index: label of pixels to leave out.
        boundary: also divide the pixels: at the boundary are those with another predicted class at most this many
            rows and columns away. Boundaries are those of the prediction, because a test of calibration must not select
            pixels by their labels: next to a boundary of the labels, a calibrated model is over-confident, too.
        progress: called with the number of images that are done.

    Returns:
        The sums; ``result.total.evaluate()`` is the evaluation with images as clusters.

    Raises:
        ValueError: a shape or value is invalid; the error names the image.
        IndexError: a label is not a class index.
    """
    if boundary is not None:
        check_count("boundary", boundary)
    names = ("all",) if boundary is None else ("boundary", "interior")
    options = {"input": input, "num_bins": num_bins, "ignore_index": ignore_index}
    result = DenseEvaluation({}, width=boundary)
    seen: dict[str, int] = {}
    for done, (name, values, target) in enumerate(images, start=1):
        seen[name] = len(values)
        first = next(iter(seen))
        if seen[name] != seen[first]:
            classes = f"{seen[name]} classes, but {first} has {seen[first]}"
            raise ValueError(f"{name}: all images need the same numbers of classes: it has {classes}")
        with named_errors(name):
            _add(result, names, name, values, target, options)
        if progress is not None:
            progress(done)
    if not result.images:
        raise ValueError(
            f"no pixel has a label: {quantity(len(seen), 'image')} with only ignore_index = {ignore_index}"
        )
    return result


def _add(
    result: DenseEvaluation,
    parts: Sequence[str],
    name: str,
    values: NDArray[Any],
    target: NDArray[Any],
    options: dict[str, Any],
) -> None:
    """Add an image."""
    labels, ignored = np.asarray(target).astype(np.int64), options["ignore_index"]
    near = None if result.width is None else near_boundary(values.argmax(0), result.width)
    image = []
    for part in parts:
        own = labels if near is None else np.where(near == (part == "boundary"), labels, ignored)
        if (own != ignored).any():
            sums = CalibrationSums.from_predictions(values[None], own[None], clusters=name, **options)
            result.parts[part] = result.parts[part] + sums if part in result.parts else sums
            image.append([sums.num_samples, float(sums.top.confidence.sum()), float(sums.top.correct.sum())])
    if image:
        number, confidence, correct = np.sum(image, axis=0).tolist()
        result.images.append(ImageGap(name, int(number), confidence / number, correct / number))


def near_boundary(classes: NDArray[Any], width: int) -> NDArray[np.bool_]:
    """Return which pixels of ``(H, W)`` have another class at most ``width`` rows and columns away.

    >>> near_boundary(np.array([[0, 0, 0, 1, 1, 1, 1]]), 2)
    array([[False,  True,  True,  True,  True, False, False]])
    """
    from scipy import ndimage  # takes a while to import

    size = 2 * width + 1
    highest = ndimage.maximum_filter(classes, size, mode="nearest")
    lowest = ndimage.minimum_filter(classes, size, mode="nearest")
    differ: NDArray[np.bool_] = highest != lowest
    return differ


def class_calibration(sums: CalibrationSums) -> list[ClassCalibration]:
    """Return the calibration of each class that occurs or is predicted, the largest error first."""
    assert sums.classes is not None
    n, bins, top = sums.num_samples, sums.classes.sum(1), sums.classes[:, 1]
    errors, labels, mass = bins.ece(), bins.correct.sum(1), bins.confidence.sum(1)
    predicted, confidence, right = (values.sum(1) for values in (top.count, top.confidence, top.correct))
    classes = [
        ClassCalibration(
            index=c,
            occurs=float(labels[c]) / n,
            probability=float(mass[c]) / n,
            predicted=float(predicted[c]) / n,
            confidence=float(confidence[c] / predicted[c]) if predicted[c] else math.nan,
            right=float(right[c] / predicted[c]) if predicted[c] else math.nan,
            ece=float(errors[c]),
        )
        for c in range(sums.num_classes)
        if labels[c] or predicted[c]
    ]
    return sorted(classes, key=lambda calibration: -calibration.ece)


def class_table(classes: Sequence[ClassCalibration], names: Sequence[str] | None = None) -> Table:
    """Return a table of the worst classes, in percent."""
    headings = ["class", "ECE %", "occurs %", "mean probability %", "predicted %", "confidence there %", "right %"]
    shown = ("ece", "occurs", "probability", "predicted", "confidence", "right")
    rows = []
    for calibration in classes[:MOST_SHOWN]:
        values = [getattr(calibration, column) for column in shown]
        name = printable(names[calibration.index]) if names else str(calibration.index)
        rows.append([name, *("" if math.isnan(value) else f"{100 * value:.2f}" for value in values)])
    return Table(headings, rows, f"classes, worst first ({min(len(classes), MOST_SHOWN)} of {len(classes)})")


def part_table(parts: dict[str, Evaluation]) -> Table:
    """Return a table of boundary and interior, in percent."""
    headings = ["pixels", "N", "error %", "confidence - accuracy %", "ECE %", "ECE floor %", "adjusted p"]
    rows = []
    for name, result in parts.items():
        row = [name, f"{result.num_samples:,}", f"{100 * result.error:.2f}", f"{100 * result.overconfidence:+.2f}"]
        tests = ["", ""]
        if result.inference is not None:
            tests = [f"{100 * result.inference.floors['ece'].mean:.2f}", p_text(result.inference.joint_p_value)]
        rows.append([*row, f"{100 * result.ece:.2f}", *tests])
    return Table(headings, rows, "boundary and interior; p is adjusted for the tests of confidence and classes (Holm)")
