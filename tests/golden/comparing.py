"""When two recorded values are the same, and how far they are apart if not."""

import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MISSING = "not there"
SHOWN = 110  # characters of a value that are printed


@dataclass(frozen=True)
class Tolerance:
    """Largest difference of two floats that counts as none: relative to the larger one, or absolute.

    Integers, texts and shapes must always be equal. Without a tolerance, floats must be equal to the bit.
    """

    relative: float = 0.0
    absolute: float = 0.0

    def allows(self, old: float, new: float) -> bool:
        """Whether two floats count as the same; NaN equals NaN."""
        if repr(old) == repr(new):
            return True
        return math.isclose(old, new, rel_tol=self.relative, abs_tol=self.absolute) and self != Tolerance()


class Apart:
    """How far two recorded values are apart."""

    def __init__(self, old: Any, new: Any, tolerance: Tolerance) -> None:
        self.old, self.new, self.tolerance = old, new, tolerance
        self.relative = self.absolute = 0.0
        self.numbers = self.beyond = 0
        self.first = ""  # the first two floats that differ
        self.differ_in = ""  # dtype, shape, text, ..., if it is not only floats that differ
        self._compare(old, new, "value")

    @property
    def same(self) -> bool:
        """Whether the values count as the same."""
        return not self.differ_in and self.beyond == 0

    def __str__(self) -> str:
        lines = [f"    was {_short(self.old)}", f"    is  {_short(self.new)}"]
        if self.differ_in:
            lines.append(f"    the {self.differ_in} differs")
        if self.beyond:
            lines.append(
                f"    {self.beyond} of {self.numbers} numbers differ, by up to {self.relative:.3g} relative, "
                f"{self.absolute:.3g} absolute; the first: {self.first}"
            )
        return "\n".join(lines)

    def _compare(self, old: Any, new: Any, what: str) -> None:
        if isinstance(old, float) and isinstance(new, float):
            self._compare_floats(old, new)
        elif type(old) is not type(new):
            self.differ_in = self.differ_in or ("type" if MISSING not in (old, new) else "key")
        elif isinstance(old, dict):
            exact = set(old) | set(new)
            if "sum" in exact and self.tolerance != Tolerance():
                exact -= {"sha"}
            for name in sorted(exact):
                self._compare(old.get(name), new.get(name), name)
        elif isinstance(old, list) and len(old) == len(new):
            for a, b in zip(old, new, strict=True):
                self._compare(a, b, what)
        elif isinstance(old, list):
            self.differ_in = self.differ_in or "length"
        elif old != new:
            self.differ_in = self.differ_in or what

    def _compare_floats(self, old: float, new: float) -> None:
        self.numbers += 1
        if self.tolerance.allows(old, new):
            return
        self.beyond += 1
        self.first = self.first or f"{old!r} -> {new!r}"
        distance = abs(new - old)
        distance = math.inf if math.isnan(distance) else distance
        self.absolute = max(self.absolute, distance)
        self.relative = max(self.relative, distance / abs(old) if old and math.isfinite(distance) else math.inf)


def compare(old: dict[str, Any], new: dict[str, Any], tolerance: Tolerance) -> bool:
    """Print every key whose value differs, then counts by section; return whether none does."""
    different: Counter[str] = Counter()
    for key in dict.fromkeys((*old, *new)):
        apart = Apart(old.get(key, MISSING), new.get(key, MISSING), tolerance)
        if not apart.same:
            different[_section(key)] += 1
            print(f"{key}\n{apart}")
    counts = Counter(map(_section, dict.fromkeys((*old, *new))))
    _print_counts(counts, different)
    return not different


def _print_counts(counts: Counter[str], different: Counter[str]) -> None:
    width = max(map(len, (*counts, "total")))
    for section, count in counts.items():
        print(f"{section:{width}}  {different[section]:6} of {count:6} values differ")
    print(f"{'total':{width}}  {different.total():6} of {counts.total():6} values differ")


def _section(key: str) -> str:
    return key.partition("/")[0]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(_first_numbers(value))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _first_numbers(value: Any) -> Any:
    """Put the numbers of an array before its dtype and shape: only the beginning is printed."""
    if not isinstance(value, dict):
        return value
    numbers: Iterable[str] = [name for name in ("values", "sum") if name in value]
    return {name: value[name] for name in (*numbers, *(name for name in value if name not in numbers))}
