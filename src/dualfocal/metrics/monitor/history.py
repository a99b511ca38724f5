"""What a monitor keeps of the past: its periods, the alarm, and where the evidence comes from."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from dualfocal.metrics.sums import CalibrationSums

MOST_PERIODS = 512  # of a history; beyond it, neighbours are merged


class _Record:
    """A dataclass of plain values, from and to JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain content for JSON."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read the output of :meth:`to_dict`.

        Raises:
            ValueError: a field is missing, unknown, or has a wrong type.
        """
        known = {field.name: field.type for field in fields(cls)}  # type: ignore[arg-type]
        if not isinstance(content, Mapping) or content.keys() != known.keys():
            got = ", ".join(map(str, content)) if isinstance(content, Mapping) else repr(content)
            raise ValueError(f"{cls.__name__} must have the fields {', '.join(known)}, got {got[:200]}")
        for name, kind in known.items():
            value = content[name]
            if kind is float:
                finite_number(name, value)
            elif kind is Source:
                continue
            elif isinstance(value, bool) or not isinstance(value, kind):  # type: ignore[arg-type]
                raise ValueError(f"{name} must be {getattr(kind, '__name__', kind)}, got {value!r}")
            elif isinstance(value, int) and not 0 <= value < 2**63:
                raise ValueError(f"{name} must be at least 0 and below 2**63, got {value!r}")
        return cls(**content)


@dataclass(frozen=True)
class Source(_Record):
    """The samples that carry most of the evidence.

    Attributes:
        direction: ``"over"`` (confidence above accuracy) or ``"under"``.
        class_index: The class whose probability is meant; None: the confidence of the predicted class.
        low: Lower end of the bin of the confidence; 0 for all samples.
        high: Upper end of the bin; 1 for all samples.
        since: Label of the period from which on these samples are counted.
        num_samples: Number of these samples.
        confidence: Their mean confidence; 0 if there are none.
        accuracy: Fraction of them that is right, or whose label is the class.
    """

    direction: str
    class_index: int | None
    low: float
    high: float
    since: str
    num_samples: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Alarm(_Record):
    """The first time that the evidence reached 1 / alpha.

    Attributes:
        time: Label of the period.
        num_periods: Number of periods until then.
        num_samples: Number of samples until then.
        log_evidence: Logarithm of the evidence.
        source: Where the evidence came from.
    """

    time: str
    num_periods: int
    num_samples: int
    log_evidence: float
    source: Source

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read the output of :meth:`to_dict`; raises a ValueError like that of the base class."""
        alarm = super().from_dict(content)
        return cls(**{**content, "source": Source.from_dict(alarm.source)})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Period(_Record):
    """The samples that were added at once, or several such periods after one another.

    Attributes:
        time: Label of the first period.
        first: Number of the first period, from 0.
        last: Number of the last period.
        num_samples: Number of samples.
        confidence: Sum of the confidences.
        correct: Number of right predictions.
        log_evidence: Logarithm of the evidence after the last period.
    """

    time: str
    first: int
    last: int
    num_samples: int
    confidence: float
    correct: int
    log_evidence: float

    def __post_init__(self) -> None:
        if not 0 < self.num_samples >= self.correct:
            raise ValueError(f"a period needs samples, with correct <= {self.num_samples}, got correct {self.correct}")

    @classmethod
    def from_sums(cls, time: str, number: int, sums: CalibrationSums, log_evidence: float) -> Self:
        """Return the period of some sums."""
        confidence, correct = float(sums.top.confidence.sum()), round(float(sums.top.correct.sum()))
        return cls(time, number, number, sums.num_samples, confidence, correct, log_evidence)

    @property
    def gap(self) -> float:
        """Mean confidence minus accuracy."""
        return (self.confidence - self.correct) / self.num_samples

    @property
    def standard_error(self) -> float:
        """Standard error of the accuracy, which is not 0 if all predictions are right."""
        rate = (self.correct + 0.5) / (self.num_samples + 1)
        return math.sqrt(rate * (1 - rate) / self.num_samples)

    def __add__(self, later: Self) -> Self:
        samples, confidence = self.num_samples + later.num_samples, self.confidence + later.confidence
        correct = self.correct + later.correct
        return type(self)(self.time, self.first, later.last, samples, confidence, correct, later.log_evidence)


def shortened(history: list[Period]) -> list[Period]:
    """Merge neighbours if there are more than ``MOST_PERIODS`` periods; the newest one stays alone.

    >>> days = [Period(f"day {i}", i, i, 10, 8.0, 7, 0.0) for i in range(MOST_PERIODS + 1)]
    >>> short = shortened(days)
    >>> len(short), short[0].num_samples, short[-1].time
    (257, 20, 'day 512')
    """
    if len(history) <= MOST_PERIODS:
        return history
    whole = history[:-1]
    pairs = [a + b for a, b in zip(whole[::2], whole[1::2], strict=False)]
    return [*pairs, *whole[2 * len(pairs) :], history[-1]]


def finite_number(name: str, value: Any) -> float:
    """Return a number as float, or raise a ValueError unless it is one, and finite."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    return float(value)
