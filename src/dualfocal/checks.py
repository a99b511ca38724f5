"""Checks of arguments, also for packages built on this one. They do not import torch: the command line starts fast."""

import difflib
from collections.abc import Iterable, Sequence
from numbers import Integral

__all__ = [
    "check_choice",
    "check_count",
    "check_ignore_index",
    "check_known",
    "check_level",
    "did_you_mean",
    "listed",
]

# Largest values of options, in Python and on the command line: beyond them a command fills the memory or takes days.
AT_MOST = {
    "num_bins": 10_000,  # noise floors take 8 kB of memory per bin, the class-wise error 24 bytes per bin and class
    "draws": 1_000_000,
    "folds": 10_000,
    "repeats": 1_000,
}
MAX_SEED = 2**32 - 1  # of simulations


def check_choice(name: str, value: object, choices: tuple[str | None, ...]) -> None:
    """Raise a ValueError unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_known(name: str, value: str, known: Iterable[str]) -> None:
    """Raise a ValueError with a suggestion unless ``value`` is one of the ``known`` names."""
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}{did_you_mean(value, known)}")


def check_count(name: str, value: int, low: int = 1, high: int | None = None) -> None:
    """Raise an error unless ``value`` is an integer from ``low`` to ``high``, by default the one of :data:`AT_MOST`."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    high = AT_MOST.get(name) if high is None else high
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")
    if high is not None and value > high:
        raise ValueError(f"{name} must be at most {high:,}, got {value}")


def check_ignore_index(value: int) -> int:
    """Return ``value``, or raise an error unless it is an integer that a label can have."""
    if not isinstance(value, Integral):
        raise TypeError(f"ignore_index must be an integer, got {value!r}")
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"ignore_index must fit into 64 bits, from -2^63 to 2^63 - 1, got {value}")
    return value


def check_level(level: float) -> None:
    """Raise a ValueError unless ``level`` is a valid confidence level."""
    if not 0.5 <= level < 1:
        raise ValueError(f"level must be at least 0.5 and below 1, got {level!r}")


def listed(values: Sequence[object], most: int = 8) -> str:
    """Values for a message, on one line; at most the first eight.

    >>> listed(range(10))
    '0, 1, 2, 3, 4, 5, 6, 7, ...'
    """
    return ", ".join([*map(str, values[:most]), *(["..."] if len(values) > most else [])])


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """End of an error message that suggests the most similar known name; empty if none is similar."""
    near = difflib.get_close_matches(name.lower(), known, n=1)
    return f"; did you mean {near[0]}?" if near else ""
