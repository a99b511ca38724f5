"""Shards: the share of a study that one of several machines trains."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class Shard:
    """One of several equal shares of the runs of a study, counted from 1.

    >>> Shard.parse("2/3").select("abcdefg")
    ['b', 'e']
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.index <= self.count:
            raise ValueError(f"a shard must be I/N with I from 1 to N, such as 2/8; got {self}")

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a shard from text such as ``"2/8"``.

        Raises:
            ValueError: the text has another form, or the first number is not between 1 and the second.
        """
        if not (match := re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)):
            raise ValueError(f"a shard must be I/N with I from 1 to N, such as 2/8; got {text!r}")
        return cls(int(match[1]), int(match[2]))

    def select(self, items: Sequence[Item]) -> list[Item]:
        """Return every N-th of the items, from the I-th on: each item belongs to exactly one shard."""
        return list(items[self.index - 1 :: self.count])
