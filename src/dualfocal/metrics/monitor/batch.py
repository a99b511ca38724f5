"""The samples of a period, as a monitor needs them: whole numbers that workers add exactly."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from dualfocal.checks import check_count
from dualfocal.metrics.arrays import Array
from dualfocal.metrics.bins import SUMS, BinStats
from dualfocal.metrics.calibration import top_bins
from dualfocal.metrics.rows import as_rows
from dualfocal.metrics.scan import scan
from dualfocal.metrics.states.binned import BinnedPredictions
from dualfocal.metrics.units import ONE, equal_edges
from dualfocal.tables import quantity

SCHEMA = 1
PARTS = ("top", "classes")


@dataclass(frozen=True, eq=False)
class MonitorBatch:
    """Bins of some samples, to be added to a :class:`~dualfocal.metrics.CalibrationMonitor`.

    ``a + b`` merges the samples of two workers exactly, in any order. Make one with
    :meth:`CalibrationMonitor.collect <dualfocal.metrics.monitor.calibration_monitor.CalibrationMonitor.collect>`.

    Args:
        top: confidences of the predicted class, ``(B,)``.
        classes: probabilities of each class, ``(C, B)`` (None: the monitor is not class-wise).
        model_classes: number of classes of the model (None: unknown, such as for confidences alone).
    """

    top: BinStats
    classes: BinStats | None = None
    model_classes: int | None = None

    def __post_init__(self) -> None:
        if self.classes is not None:
            object.__setattr__(self, "model_classes", len(self.classes.count))

    @classmethod
    def from_predictions(
        cls,
        logits: Array,
        target: Array,
        *,
        input: str | None = None,
        num_bins: int = 15,
        classwise: bool = False,
        ignore_index: int = -100,
        binary: str | None = None,
        class_names: Sequence[str] | None = None,
    ) -> Self:
        """Bin predictions; the arguments are those of :meth:`CalibrationMonitor.update` and of its settings.

        Raises:
            TypeError: an argument is not an array.
            ValueError: a shape, dtype, probability or option is invalid, or no sample is left.
            IndexError: a target is not a class index.
        """
        confidence_only = input == "confidence"
        if confidence_only:  # calibrated like the probability of class 1, which is "the prediction is right"
            if classwise or binary == "positive":
                setting = "classwise=True" if classwise else 'binary="positive"'
                raise ValueError(f"{setting} needs the probabilities of all classes, not only the confidence")
            input, binary = "probs", "positive"
        rows = as_rows(logits, target, input=input, ignore_index=ignore_index, binary=binary, class_names=class_names)
        stats = scan(rows, num_bins=num_bins, classwise=classwise)
        top = top_bins(stats, rows, num_bins, None).to("cpu")
        classes = stats.classes.to("cpu") if classwise else None
        return cls(top, classes, None if confidence_only else rows.num_classes)

    @classmethod
    def from_binned(cls, state: BinnedPredictions, *, classwise: bool = False) -> Self:
        """Take the bins of predictions that were summed up, for example by a database."""
        return cls(state.bins, state.class_bins if classwise else None, state.num_classes)

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return int(self.top.count.sum())

    @property
    def num_classes(self) -> int:
        """Number of classes, 0 if the batch has no class-wise bins."""
        return 0 if self.classes is None else len(self.classes.count)

    @property
    def rows(self) -> BinStats:
        """The bins of the top label, then those of each class, ``(1 + C, B)``."""
        parts = [self.top] if self.classes is None else [self.top, self.classes]
        count, whole, units, correct = (
            torch.cat([getattr(part, name).view(-1, self.top.num_bins) for part in parts]) for name in SUMS
        )
        return BinStats(count, whole, units, correct, self.top.edges)

    def __add__(self, other: Self) -> Self:
        if not isinstance(other, MonitorBatch):
            return NotImplemented
        known = {number for number in (self.model_classes, other.model_classes) if number is not None}
        same_classes = self.num_classes == other.num_classes and len(known) < 2
        if self.top.num_bins != other.top.num_bins or not same_classes:
            raise ValueError(f"cannot merge {self!r} and {other!r}: they need the same numbers of bins and classes")
        both = None if self.classes is None or other.classes is None else self.classes + other.classes
        return type(self)(self.top + other.top, both, next(iter(known), None))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MonitorBatch):
            return NotImplemented
        return self.num_classes == other.num_classes and self.rows == other.rows

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        classes = "" if self.model_classes is None else f", {quantity(self.model_classes, 'class')}"
        samples, bins = quantity(self.num_samples, "sample"), quantity(self.top.num_bins, "bin")
        return f"MonitorBatch({samples}, {bins}{classes})"

    def to_dict(self) -> dict[str, Any]:
        """Return the sums for JSON, to be sent to the process that has the monitor."""
        content: dict[str, Any] = {"schema": SCHEMA}
        for name in PARTS:
            part = getattr(self, name)
            content[name] = None if part is None else {key: getattr(part, key).tolist() for key in SUMS}
        if self.classes is None and self.model_classes is not None:
            content["model_classes"] = self.model_classes
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read the output of :meth:`to_dict`.

        Raises:
            ValueError: the content has another schema, lacks an entry, or its sums contradict each other.
        """
        try:
            if content["schema"] != SCHEMA:
                raise ValueError(f"it has schema {content['schema']}, this version reads schema {SCHEMA}")
            top, classes = content["top"], content["classes"]
            return cls(_read_bins(top, 1), None if classes is None else _read_bins(classes, 2), known_classes(content))
        except (KeyError, TypeError, RuntimeError, OverflowError) as error:
            raise ValueError(f"this is not the content of a MonitorBatch: {error!r}") from error


def known_classes(content: Mapping[str, Any]) -> int | None:
    """Read the number of classes of a model from JSON; None if it is unknown."""
    number = content.get("model_classes")
    if number is not None:
        check_count("model_classes", number, 2)
    return number


def _read_bins(content: Mapping[str, Any], ndim: int) -> BinStats:
    sums = [torch.tensor(content[name]) for name in SUMS]
    count, whole, units, correct = sums
    if any(part.dtype != torch.int64 or part.shape != count.shape for part in sums) or count.ndim != ndim:
        raise ValueError(f"{', '.join(SUMS)} must be lists of whole numbers, equally long, with {ndim} dimension(s)")
    if not count.numel() or not bool(((count >= 0) & (correct >= 0) & (correct <= count)).all()):
        raise ValueError("a bin must have 0 <= correct <= count")
    largest = count + 1e-5 * count  # softmax in float32 can give 1.0000001
    if not bool(((units >= 0) & (units < ONE) & (whole >= 0) & (whole + units / ONE <= largest)).all()):
        raise ValueError("the confidences of a bin must sum to 0 to count")
    return BinStats(count, whole, units, correct, equal_edges(count.shape[-1]))
