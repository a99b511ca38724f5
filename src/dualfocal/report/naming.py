"""Names that can be shown: of a readable length, each its own, and nothing in them that moves the text around."""

import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import chain, count
from pathlib import Path

LONGEST_NAME = 60  # characters
# These turn the direction of whatever stands around them: marks, embeddings, overrides, isolates.
BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def shortened(text: str, longest: int = LONGEST_NAME) -> str:
    """The text without control characters, cut where it is longer than anybody reads.

    >>> shortened("a long name", 6)
    'a lon…'
    >>> shortened("5\\u202e6\\x07\\n7")
    '56 7'
    """
    text = plain(text)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def plain(text: str) -> str:
    """The text without control characters; those that are white space become a space."""
    spaced = re.sub(r"[\t\n\v\f\r\x85]+", " ", text)
    return "".join(c for c in spaced if c not in BIDI and unicodedata.category(c) != "Cc")


def without_folders(text: str) -> str:
    """The text with the last part of every path in it: a page is sent to others.

    >>> without_folders("there is no '/home/me/data/cifar10'; see ../notes.txt")
    "there is no 'cifar10'; see notes.txt"
    """
    return re.sub(r"[^\s'\"(]*[/\\](?=[^\s/\\'\")])", "", text)


def distinct(names: Iterable[str]) -> tuple[str, ...]:
    """The names, where one is there already with a number.

    >>> distinct(["a", "b", "a", "a (2)"])
    ('a', 'b', 'a (2)', 'a (2) (2)')
    """
    unique: dict[str, None] = {}
    for name in names:
        numbered = (f"{name} ({number})" for number in count(2))
        unique[next(candidate for candidate in chain([name], numbered) if candidate not in unique)] = None
    return tuple(unique)


def input_names(paths: Sequence[Path]) -> tuple[str, ...]:
    """File names without their folders; where these are the same, with as many of the folders as tell them apart.

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
    # Cut in front: the end of a path tells more, and so does that of a file name ("…seed1.npz").
    return distinct(tail if len(tail) <= LONGEST_NAME else f"…{tail[1 - LONGEST_NAME :]}" for tail in tails)
