"""The verdict of a monitor, in words."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dualfocal.metrics.monitor.history import Source
from dualfocal.tables import printable, quantity

if TYPE_CHECKING:
    from dualfocal.metrics.monitor.calibration_monitor import CalibrationMonitor

WRITTEN_OUT = 1e7  # larger numbers are written as powers of ten


def monitor_verdict(monitor: "CalibrationMonitor", class_names: Sequence[str] | None) -> str:
    """Say whether a model is still calibrated."""
    if not monitor.num_samples:
        return "No samples yet."
    alarm, limit = monitor.alarm, -math.log(monitor.alpha)
    beyond = f" beyond the tolerance of {monitor.tolerance:g}" if monitor.tolerance else ""
    if alarm is None:
        seen = f"{quantity(monitor.num_samples, 'sample')} in {quantity(monitor.num_periods, 'period')}"
        return (
            f"No alarm: no miscalibration detected{beyond} ({seen}). The evidence is "
            f"{evidence_text(monitor.log_evidence)}; an alarm needs {evidence_text(limit)}, which at most "
            f"{100 * monitor.alpha:g} % of calibrated models ever reach."
        )
    source = monitor.source if monitor.log_evidence >= limit else alarm.source
    seen = f"{quantity(alarm.num_samples, 'sample')} in {quantity(alarm.num_periods, 'period')}"
    return (
        f"Alarm: miscalibrated{beyond}, noticed at {printable(alarm.time)} after {seen}. "
        f"{describe(source, monitor.binary, class_names)} At most 1 of {evidence_text(monitor.log_peak)} calibrated "
        "models would ever show so much evidence."
    )


def describe(source: Source, binary: str | None = None, class_names: Sequence[str] | None = None) -> str:
    """Say which samples carry the evidence, in one sentence.

    >>> print(describe(Source("over", None, 0.8, 1.0, "day 7", 500, 0.93, 0.85)))  # doctest: +NORMALIZE_WHITESPACE
    Over-confident since about day 7: for confidences from 80 to 100 %, mean confidence 93.0 %, right 85.0 %
    (500 samples).
    """
    index = 1 if binary == "positive" and source.class_index is None else source.class_index
    high = source.direction == "over"
    if index is None:
        kind = "Over-confident" if high else "Under-confident"
        values, mean, truth = "confidences", "confidence", "right"
    else:
        name = printable(class_names[index]) if class_names and index < len(class_names) else str(index)
        kind = f"Probabilities of class {name} too {'high' if high else 'low'}"
        values, mean, truth = "probabilities", "probability", "occurs"
    since = f" since about {printable(source.since)}" if source.since else ""
    part = f"for {values} from {100 * source.low:.3g} to {100 * source.high:.3g} %, "
    within = "" if (source.low, source.high) == (0.0, 1.0) else part
    return (
        f"{kind}{since}: {within}mean {mean} {100 * source.confidence:.1f} %, {truth} {100 * source.accuracy:.1f} % "
        f"({quantity(source.num_samples, 'sample')})."
    )


def evidence_text(log_evidence: float) -> str:
    """Format evidence, given by its logarithm.

    >>> [evidence_text(x) for x in (-0.5, 3.0, 9.0, 1000.0)]
    ['0.61', '20', '8,103', '10^434']
    """
    if log_evidence >= math.log(WRITTEN_OUT):
        return f"10^{int(log_evidence / math.log(10))}"
    value = math.exp(log_evidence)
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
