"""Checks of numbers, and the limits of settings. Imports no torch, so that the command line starts fast."""

import math
from numbers import Real

# Largest values of settings, in Python and on the command line: beyond them a training takes days or fills the memory.
AT_MOST = {"jobs": 1_000, "epochs": 1_000_000, "checkpoint_every": 1_000_000, "batch_size": 100_000_000}


def check_number(name: str, value: float, low: float = 0.0, high: float = math.inf) -> None:
    """Raise an error unless ``value`` is a finite number between ``low`` and ``high``."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not (math.isfinite(value) and low <= value <= high):
        rule = f"at least {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"
        raise ValueError(f"{name} must be finite and {rule}, got {value!r}")


def finite(value: float) -> float | None:
    """Return the value, or None if it is not finite, for JSON."""
    return value if math.isfinite(value) else None
