"""The evidence of a monitor over time, for a page."""

import math
from typing import Any

from dualfocal.metrics import CalibrationMonitor
from dualfocal.report.curves import rounded
from dualfocal.report.names import shortened

LONGEST_TIME = 30  # characters of a label


def evidence_figure(monitor: CalibrationMonitor) -> dict[str, Any]:
    """Return the evidence against calibration after each period, and the gap of each period.

    Returns:
        Columns by period: ``time``, ``first`` and ``last`` (numbers of the periods, which are merged if there are very
        many), ``count``, ``evidence`` (its decimal logarithm), ``gap`` (mean confidence minus accuracy) and ``error``
        (two standard errors of the gap); ``limit``: the decimal logarithm at which the alarm is raised; ``alarm``: the
        number of the period and the evidence of the first alarm, or None; ``alpha``, ``tolerance``, ``positive`` and
        ``samples``.

    Raises:
        ValueError: the monitor has seen no samples.
    """
    history, alarm = monitor.history, monitor.alarm
    if not history:
        raise ValueError("the monitor has seen no samples: there is no evidence to show")
    ten = math.log(10)
    return {
        "time": [shortened(period.time, LONGEST_TIME) for period in history],
        "first": [period.first for period in history],
        "last": [period.last for period in history],
        "count": [period.num_samples for period in history],
        "evidence": rounded([period.log_evidence / ten for period in history]),
        "gap": rounded([period.gap for period in history]),
        "error": rounded([2 * period.standard_error for period in history]),
        "limit": -math.log10(monitor.alpha),
        "alpha": monitor.alpha,
        "tolerance": monitor.tolerance,
        "positive": monitor.binary == "positive",
        "samples": monitor.num_samples,
        "alarm": None
        if alarm is None
        else {
            "time": shortened(alarm.time, LONGEST_TIME),
            "period": alarm.num_periods - 1,
            "evidence": alarm.log_evidence / ten,
            "samples": alarm.num_samples,
        },
    }
