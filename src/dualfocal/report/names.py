"""Names and texts from data on a page: without control characters, short, and distinct."""

import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path

LONGEST_NAME = 60  # characters
# Characters that change the direction of the text around them: marks, embeddings, overrides, isolates.
BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def shortened(text: str, longest: int = LONGEST_NAME) -> str:
    """Remove control characters, and cut the text to a maximum length.

    >>> shortened("a long name", 6)
    'a lon…'
    >>> shortened("5\\u202e6\\x07\\n7")
    '56 7'
    """
    text = plain(text)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def plain(text: str) -> str:
    """Remove control characters; white space among them becomes a space."""
    spaced = re.sub(r"[\t\n\v\f\r\x85]+", " ", text)
    return "".join(c for c in spaced if c not in BIDI and unicodedata.category(c) != "Cc")


def without_folders(text: str) -> str:
    """Reduce every path in the text to its last part, since pages are sent to others.

    >>> without_folders("there is no '/home/me/data/cifar10'; see ../notes.txt")
    "there is no 'cifar10'; see notes.txt"
    """
    return re.sub(r"[^\s'\"(]*[/\\](?=[^\s/\\'\")])", "", text)


def distinct(names: Iterable[str]) -> tuple[str, ...]:
    """Make names unique by appending numbers.

    >>> distinct(["a", "b", "a", "a (2)"])
    ('a', 'b', 'a (2)', 'a (2) (2)')
    """
    unique: dict[str, None] = {}  # a set that keeps the order
    for name in names:
        candidate, numbers = name, count(2)
        while candidate in unique:
            candidate = f"{name} ({next(numbers)})"
        unique[candidate] = None
    return tuple(unique)


def input_names(paths: Sequence[Path]) -> tuple[str, ...]:
    """Return file names, with as many parent folders as are needed to make them different.

    >>> input_names([Path("/a/runs/1/x"), Path("/b/runs/1/x"), Path("/a/y")])
    ('a/runs/1/x', 'b/runs/1/x', 'y')
    """
    parts = [Path(os.path.abspath(path)).parts for path in paths]
    tails = []
    for own in parts:
        length = 1
        while length < len(own) and sum(other[-length:] == own[-length:] for other in parts) > 1:
            length += 1
        tails.append(plain("/".join(own[-length:])))
    # Cut at the front: the end of a path or a file name ("…seed1.npz") is more informative.
    return distinct(tail if len(tail) <= LONGEST_NAME else f"…{tail[1 - LONGEST_NAME :]}" for tail in tails)
