"""Monitoring of calibration over time: look as often as you like, with at most 5 % false alarms over the whole stream.

:mod:`dualfocal.metrics.monitor._bets` derives the test. Its state does not grow with the number of samples.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from numbers import Real
from typing import Any, Self

from dualfocal.checks import check_choice, check_count
from dualfocal.metrics.arrays import Array
from dualfocal.metrics.inputs import BINARY
from dualfocal.metrics.monitor._gamblers import Gamblers
from dualfocal.metrics.monitor.history import Alarm, Period, Source, finite_number, shortened
from dualfocal.metrics.monitor.verdict import monitor_verdict
from dualfocal.metrics.sums import CalibrationSums
from dualfocal.tables import quantity

SCHEMA = 1
SETTINGS = ("num_bins", "classwise", "binary", "tolerance", "cluster_size", "alpha")
MOST_TIME = 200  # characters of a label


class CalibrationMonitor:
    """Watch the calibration of a model in use, with an alarm that is valid at any time.

    Feed it batch after batch with :meth:`update`. The *evidence* starts at 1 and stays small while the model is
    calibrated: the chance that it ever reaches 1 / alpha = 20 is at most alpha = 5 %, no matter how many batches come
    and how often anyone looks. If the model is not calibrated, or no longer, the evidence grows exponentially. The
    first time that it reaches 20 is the alarm, which stays until :meth:`reset`.

    What must hold: a sample's label does not influence which samples are fed or when, and samples of different clusters
    (see ``cluster_size``) are independent given the predictions and the past.

    Args:
        num_bins: number of bins of the confidence, which are monitored beside all samples together.
        classwise: whether to monitor the probability of each class, too. This finds errors that cancel out in the
            confidence of the predicted class, but needs a bit more evidence for those that do not.
        binary: for two classes only: ``"top_label"`` monitors the probability of the predicted class (as with more
            classes), ``"positive"`` that of class 1.
        tolerance: difference between probability and frequency that counts as calibrated, such as 0.01. No model is
            perfectly calibrated: with millions of samples, tolerance 0 raises an alarm for every model.
        cluster_size: the largest number of samples of a batch that depend on each other, such as pixels of an image.
            Samples of different batches must not depend on each other, given their predictions.
        alpha: bound of the probability of a false alarm, over the whole stream.

    Attributes:
        alarm: The :class:`~dualfocal.metrics.monitor.history.Alarm`, or None.
        history: The periods so far, a list of :class:`~dualfocal.metrics.monitor.history.Period`. If there are many,
            neighbours are merged.
        num_periods: Number of batches added so far.
        num_samples: Number of samples so far.
        log_peak: Natural logarithm of the largest evidence so far.

    Raises:
        TypeError: an option has the wrong type.
        ValueError: an option is out of range.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> monitor = CalibrationMonitor()
    >>> for day in range(60):
    ...     logits = 2 * torch.randn(500, 10, generator=generator)
    ...     sharpness = 1.0 if day < 30 else 0.8  # from day 30 on, the model is over-confident
    ...     target = torch.multinomial((sharpness * logits).softmax(1), 1, generator=generator)[:, 0]
    ...     monitor.update(logits, target, time=f"day {day}")
    >>> monitor.alarm.time, monitor.alarm.source.direction
    ('day 31', 'over')
    """

    def __init__(
        self,
        *,
        num_bins: int = 15,
        classwise: bool = False,
        binary: str | None = None,
        tolerance: float = 0.0,
        cluster_size: int = 1,
        alpha: float = 0.05,
    ) -> None:
        check_count("num_bins", num_bins)
        check_count("cluster_size", cluster_size)
        check_choice("binary", binary, BINARY)
        if not isinstance(classwise, bool):
            raise TypeError(f"classwise must be True or False, got {classwise!r}")
        for name, value in (("tolerance", tolerance), ("alpha", alpha)):
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(f"{name} must be a number, got {value!r}")
        if not 0 <= tolerance < 1:
            raise ValueError(f"tolerance must be at least 0 and below 1, a fraction, got {tolerance!r}")
        if not 0 < alpha < 1:
            raise ValueError(f"alpha must be between 0 and 1, got {alpha!r}")
        self.num_bins, self.classwise, self.binary = int(num_bins), classwise, binary
        self.tolerance, self.cluster_size, self.alpha = float(tolerance), int(cluster_size), float(alpha)
        self._num_classes = 0  # of a class-wise monitor, known from the first batch on
        self.reset()

    def reset(self) -> None:
        """Forget all samples, the alarm and the history, for example after the model was trained again.

        The bound on false alarms then starts anew: it holds from each reset to the next.
        """
        self.alarm: Alarm | None = None
        self.history: list[Period] = []
        self.num_periods = self.num_samples = 0
        self.log_peak = 0.0
        self._model_classes: int | None = None  # known from the first batch on that holds more than confidences
        self._gamblers = Gamblers(self._num_classes, self.num_bins)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of this monitor."""
        return {name: getattr(self, name) for name in SETTINGS}

    @property
    def log_evidence(self) -> float:
        """Natural logarithm of the present evidence."""
        return self._gamblers.log_evidence

    @property
    def p_value(self) -> float:
        """Bound of the probability that a calibrated model ever shows so much evidence: 1 / (largest evidence so far).

        It is valid at any time, and never rises.
        """
        return min(1.0, math.exp(-self.log_peak))

    @property
    def source(self) -> Source:
        """Which samples carry most of the evidence, in which direction, by how much and since when."""
        winner = self._gamblers.winner()
        periods = [period for period in self.history if period.last >= winner.since]
        return Source(
            direction="over" if winner.overconfident else "under",
            class_index=winner.row - 1 if winner.row else None,
            low=(winner.place - 1) / self.num_bins if winner.place else 0.0,
            high=winner.place / self.num_bins if winner.place else 1.0,
            since=periods[0].time if periods else "",
            num_samples=winner.count,
            confidence=winner.confidence / winner.count if winner.count else 0.0,
            accuracy=winner.correct / winner.count if winner.count else 0.0,
        )

    def collect(
        self,
        logits: Array,
        target: Array,
        *,
        input: str | None = None,
        ignore_index: int = -100,
        class_names: Sequence[str] | None = None,
    ) -> CalibrationSums:
        """Sum up predictions without adding them; for workers, whose batches are merged and added elsewhere.

        Args:
            logits: see :meth:`update`, also for the other arguments.
            target: class indices.
            input: what ``logits`` holds.
            ignore_index: target value of samples to leave out.
            class_names: names of the classes, if the labels are texts.

        Raises:
            TypeError: an argument is not an array.
            ValueError: a shape, dtype, probability or option is invalid, or no sample is left.
            IndexError: a target is not a class index.

        >>> monitor = CalibrationMonitor()
        >>> a = monitor.collect([[0.7, 0.3], [0.2, 0.8]], [0, 1], input="probs")  # in one process
        >>> b = monitor.collect([[0.9, 0.1]], [0], input="probs")  # in another one
        >>> monitor.add(a + b, time="Monday")
        >>> monitor.num_samples, monitor.num_periods
        (3, 1)
        """
        if input == "confidence" and (self.classwise or self.binary == "positive"):
            setting = "classwise=True" if self.classwise else 'binary="positive"'
            raise ValueError(f"{setting} needs the probabilities of all classes, not only the confidence")
        return CalibrationSums.from_predictions(
            logits,
            target,
            input=input,
            num_bins=self.num_bins,
            ignore_index=ignore_index,
            binary=None if input == "confidence" else self.binary,
            class_names=class_names,
        )

    def update(
        self,
        logits: Array,
        target: Array,
        *,
        input: str | None = None,
        ignore_index: int = -100,
        class_names: Sequence[str] | None = None,
        time: str | None = None,
    ) -> None:
        """Add the predictions of a period, such as a day or a batch; their order does not matter.

        Args:
            logits: ``(N, C)`` or ``(N, C, d1, ...)``; or ``(N,)``, the score of class 1, if ``binary`` was given.
            target: class indices, ``(N,)`` or ``(N, d1, ...)``.
            input: ``"logits"`` or ``"probs"``, whichever ``logits`` holds. None means logits, and raises an error if
                the values look like probabilities. ``"confidence"``: the confidences ``(N,)`` of the predicted classes;
                ``target`` is then 1 for a right prediction and 0 for a wrong one.
            ignore_index: target value of samples to leave out.
            class_names: names of the classes, in the order of the columns of ``logits``, if the labels are texts.
            time: label of the period in verdict and plot (None: the present time, UTC).

        Raises:
            TypeError: an argument is not an array.
            ValueError: a shape, dtype, probability or option is invalid, or no sample is left.
            IndexError: a target is not a class index.
        """
        self.add(
            self.collect(logits, target, input=input, ignore_index=ignore_index, class_names=class_names), time=time
        )

    def add(self, sums: CalibrationSums, *, time: str | None = None) -> None:
        """Add a period whose samples were summed up: the sum of the batches of all workers, of a file or a database.

        Args:
            sums: the samples of :meth:`collect`, or other sums, such as those of
                :func:`~dualfocal.predictions.sum_predictions`.
            time: label of the period (None: the present time, UTC).

        Raises:
            ValueError: there are no samples, or there is another number of bins or classes.
        """
        if sums.positive != (self.binary == "positive"):
            about = ["the confidence of the predicted class", "the probability of class 1"]
            raise ValueError(f"the sums are about {about[sums.positive]}, the monitor about {about[not sums.positive]}")
        if not sums.num_samples:
            raise ValueError("no samples: a period must hold at least one")
        if sums.num_bins != self.num_bins:
            raise ValueError(f"the sums have {quantity(sums.num_bins, 'bin')}, but the monitor has {self.num_bins}")
        if self.classwise and sums.classes is None:
            raise ValueError("classwise=True needs the probabilities of all classes, not only the confidence")
        if self.classwise and not self.num_periods:
            self._num_classes = sums.num_classes
            self._gamblers = Gamblers(self._num_classes, self.num_bins)
        known = self._num_classes or self._model_classes
        if known is not None and sums.num_classes not in (0, known):
            raise ValueError(
                f"the sums have {sums.num_classes} classes, but the monitor has {known}: for another model, use "
                "another monitor, or call reset() first"
            )
        self._add(sums, _label(time))

    def _add(self, sums: CalibrationSums, time: str) -> None:
        rows = [sums.top[None]]
        if self.classwise and sums.classes is not None:
            rows.append(sums.classes.sum(1))
        self._gamblers.play(rows, self.tolerance, self.cluster_size)
        self._model_classes = self._model_classes or sums.num_classes or None
        self.num_periods += 1
        self.num_samples += sums.num_samples
        log_evidence = self.log_evidence
        self.log_peak = max(self.log_peak, log_evidence)
        self.history.append(Period.from_sums(time, self.num_periods - 1, sums, log_evidence))
        if self.alarm is None and log_evidence >= -math.log(self.alpha):
            self.alarm = Alarm(time, self.num_periods, self.num_samples, log_evidence, self.source)
        self.history = shortened(self.history)

    def verdict(self, class_names: Sequence[str] | None = None) -> str:
        """Say in words whether the model is still calibrated, and if not, where, by how much and since when.

        Args:
            class_names: names of the classes; without them, a class is called by its index.
        """
        return monitor_verdict(self, class_names)

    def to_dict(self) -> dict[str, Any]:
        """Return the state for JSON, which :meth:`from_dict` reads."""
        return {
            "schema": SCHEMA,
            "settings": self.settings,
            "num_classes": self._num_classes,
            "num_periods": self.num_periods,
            "num_samples": self.num_samples,
            "log_peak": self.log_peak,
            "alarm": None if self.alarm is None else self.alarm.to_dict(),
            "history": [period.to_dict() for period in self.history],
            "cells": self._gamblers.to_dict(),
            **({} if self.classwise or self._model_classes is None else {"model_classes": self._model_classes}),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read the output of :meth:`to_dict`: ``from_dict(content).to_dict() == content``.

        Raises:
            ValueError: the content has another schema, lacks an entry, or an entry is invalid.
        """
        try:
            if content["schema"] != SCHEMA:
                raise ValueError(f"has schema {content['schema']!r}, this version of dualfocal reads schema {SCHEMA}")
            monitor = cls(**content["settings"])
            counts = {name: content[name] for name in ("num_classes", "num_periods", "num_samples")}
            for name, value in counts.items():
                check_count(name, value, low=0)
            monitor._num_classes, monitor.num_periods, monitor.num_samples = counts.values()
            monitor._model_classes = content.get("model_classes")
            if monitor._model_classes is not None:
                check_count("model_classes", monitor._model_classes, 2)
            monitor._gamblers = Gamblers.from_dict(
                content["cells"], monitor._num_classes, monitor.num_bins, monitor.num_periods
            )
            monitor.log_peak = finite_number("log_peak", content["log_peak"])
            if monitor.log_peak < 0:
                raise ValueError(f"log_peak must be at least 0, got {monitor.log_peak}")
            monitor.alarm = None if content["alarm"] is None else Alarm.from_dict(content["alarm"])
            monitor.history = [Period.from_dict(period) for period in content["history"]]
            last = monitor.history[-1].last + 1 if monitor.history else 0
            total = sum(period.num_samples for period in monitor.history)
            if (monitor.num_periods, monitor.num_samples) != (last, total):
                raise ValueError(f"num_periods and num_samples must be those of the history, {last} and {total}")
        except KeyError as error:
            raise ValueError(f"the state of a monitor lacks {error}") from error
        except (TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"the state of a monitor has a wrong entry: {error}") from error
        return monitor

    def __eq__(self, other: object) -> bool:
        return self.to_dict() == other.to_dict() if isinstance(other, CalibrationMonitor) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"CalibrationMonitor({', '.join(f'{name}={value!r}' for name, value in self.settings.items())})"


def _label(time: str | None) -> str:
    if time is None:
        return datetime.now(UTC).isoformat(timespec="seconds")
    if not isinstance(time, str):
        raise TypeError(f"time must be a text, such as '2026-01-31', got {time!r}")
    if len(time) > MOST_TIME:
        raise ValueError(f"time must have at most {MOST_TIME} characters, got {len(time)}")
    return time
