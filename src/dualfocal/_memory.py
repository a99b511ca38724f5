"""Limits of memory: how much is free, and errors for files that would need more."""

import math
import os
import re
from pathlib import Path

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
UNKNOWN = 8 * 10**9  # assumed to be free on systems that do not say
# Memory limit, memory in use and details of a control group, in versions 2 and 1.
CONTROL_GROUPS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


class MemoryLimitError(ValueError):
    """Something needs more memory than allowed.

    Args:
        needed: bytes that it needs, or more than which it needs.
        problem: need and limit, without a remedy: "needs 12.3 GB of memory, but the limit is 8.0 GB".
        remedy: how to allow it.
    """

    def __init__(self, what: object, needed: int, problem: str, remedy: str) -> None:
        super().__init__(f"{what}: {problem}: {remedy}")
        self.needed, self.problem = needed, problem


def parse_size(size: int | str) -> int:
    """Return a size in bytes; text may have a unit.

    >>> parse_size("8GB"), parse_size("1.5 GiB"), parse_size(4096)
    (8000000000, 1610612736, 4096)
    """
    match = re.fullmatch(r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)\s*", str(size))
    if match is None or match[2].upper() not in UNITS or float(match[1]) == 0:
        raise ValueError(
            f"--max-memory must be a positive number of bytes, or a size such as 500MB or 8GB, got {size!r}"
        )
    return int(float(match[1]) * UNITS[match[2].upper()])


def show_size(size: int) -> str:
    """Return a size as text with a decimal unit.

    >>> show_size(3_140_000_000), show_size(2_000)
    ('3.1 GB', '2,000 bytes')
    """
    for unit in ("TB", "GB", "MB"):
        if size >= UNITS[unit]:
            return f"{size / UNITS[unit]:,.1f} {unit}"
    return f"{size:,} bytes"


def free_memory() -> int:
    """Return the bytes of memory that this process can still use: of the machine, or less in a container."""
    return max(0, min(_free_of_machine(), *_free_of_control_groups(), UNITS["TB"] * 1000))


def memory_limit(max_memory: int | str | None) -> int:
    """Return the limit in bytes that a caller gave, or half of the free memory."""
    return free_memory() // 2 if max_memory is None else parse_size(max_memory)


def machine_memory() -> int | None:
    """Return the bytes of memory of this machine; None on systems that do not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows
        return None


def check_memory(what: object, needed: int, max_memory: int | str | None, *, at_least: bool = False) -> None:
    """Raise a MemoryLimitError if something needs more memory than allowed.

    Args:
        what: name for the message.
        needed: bytes that will be allocated.
        max_memory: the limit (None: half of the free memory).
        at_least: whether ``needed`` is a lower bound.
    """
    limit = memory_limit(max_memory)
    if needed > limit:
        share = " (half of the free memory)" if max_memory is None else ""
        size, remedy = show_size(needed), f"--max-memory {_rounded_up(needed)}"
        if at_least:
            size, remedy = f"more than {size}", "a larger --max-memory"
        problem = f"needs {size} of memory, but the limit is {show_size(limit)}{share}"
        raise MemoryLimitError(what, needed, problem, f"if you trust the file, give {remedy}")


def _rounded_up(size: int) -> str:
    unit = "GB" if size > UNITS["GB"] else "MB"
    return f"{math.ceil(size * 1.1 / UNITS[unit])}{unit}"


def _free_of_machine() -> int:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:  # not Linux
        return UNKNOWN
    match = re.search(r"^MemAvailable:\s*([0-9]+) kB", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else machine_memory() or UNKNOWN


def _free_of_control_groups() -> list[int]:
    """Return what is left of the limits of this process's control groups, which containers and schedulers set."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    free = []
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers in ("", "memory"):
            mount = Path("/sys/fs/cgroup", controllers)
            group = mount / name.lstrip("/")
            # In a container, the name may be that outside it, and only the mounted root exists.
            free += [_free_of(folder) for folder in (group, *group.parents) if folder.is_relative_to(mount)]
    return free


def _free_of(group: Path) -> int:
    for limit, used, cached in CONTROL_GROUPS:
        try:
            most, current = int((group / limit).read_text()), int((group / used).read_text())
            match = re.search(rf"^{cached} ([0-9]+)", (group / "memory.stat").read_text(), re.MULTILINE)
        except (OSError, ValueError):  # another version, or no limit ("max")
            continue
        return most - current + (int(match[1]) if match else 0)  # cached files are given up when memory is needed
    return UNITS["TB"] * 1000
