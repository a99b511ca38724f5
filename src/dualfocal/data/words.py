"""Texts to numbers, and numbers to vectors: the tokenizer of the published pipeline, and GloVe's text files."""

import io
import itertools
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

_SEPARATORS = str.maketrans(dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n', " "))
_NOT_A_NUMBER = re.compile(rb"[^-+.0-9eE]").search
MAX_LINE = 100_000  # bytes of a line of vectors: a thousand times the usual


def tokens(text: str) -> list[str]:
    """Words in lower case, split at spaces and punctuation, but not at apostrophes.

    >>> tokens("Don't panic: e-mail (me)!")
    ["don't", 'panic', 'e', 'mail', 'me']
    """
    return [word for word in text.lower().translate(_SEPARATORS).split(" ") if word]


def vocabulary(texts: Iterable[Sequence[str]], num_words: int) -> tuple[str, ...]:
    """The commonest words, commonest first, of equals the one seen first; word i has the number i + 1.

    As the published pipeline counts, ``num_words`` includes the number 0 of padding.
    """
    counts = Counter(itertools.chain.from_iterable(texts))  # keeps the order in which words came
    return tuple(word for word, _ in sorted(counts.items(), key=lambda of: -of[1])[: num_words - 1])


def numbers(texts: Sequence[Sequence[str]], words: Sequence[str], length: int) -> Tensor:
    """Each text as the numbers of its words, int32 (N, length): the last ``length`` known words, padded on the left."""
    number_of = {word: i for i, word in enumerate(words, start=1)}
    rows = np.zeros((len(texts), length), dtype=np.int32)
    for row, text in zip(rows, texts, strict=True):
        known = [number_of[word] for word in text if word in number_of][-length:]
        if known:
            row[-len(known) :] = known
    return torch.from_numpy(rows)


def read_vectors(path: Path, words: Sequence[str], *, member: str | None = None) -> tuple[Tensor, int]:
    """Vectors of the words from a text file of lines ``word x1 x2 ...``, and how many of the words it has.

    Returns:
        float32 (1 + number of words, width): row 0, of padding, and words without a vector are 0. And the count.

    Args:
        path: text file, or a zip with one.
        words: word i goes to row i + 1.
        member: name of the file in the zip, if that has several.

    Raises:
        ValueError: a line is not as it should be; the message names it.
    """
    row_of = {word.encode(): i for i, word in enumerate(words, start=1)}
    lines = _lines(path, member)
    first = next(lines, b"")
    width = len(first.split()) - 1
    if width < 2:
        raise ValueError(f"{path}: line 1 must be a word and the numbers of its vector, got {first[:60]!r}")
    vectors = torch.zeros(len(words) + 1, width)
    found: set[int] = set()
    for count, line in enumerate(itertools.chain([first], lines), start=1):
        word, *_ = line.split(None, 1) or [b""]
        row = row_of.get(word)
        if row is None or row in found:
            continue
        fields = line.split()[1:]
        if any(map(_NOT_A_NUMBER, fields[: len(fields) - width])):  # the word has spaces, so it is none of ours
            continue
        try:
            values = np.array(fields, dtype=np.float64)
        except ValueError as error:
            raise ValueError(f"{path}: line {count} must be a word and {width} numbers: {error}") from error
        if len(values) != width or not (abs(values) < 1e30).all():
            raise ValueError(f"{path}: line {count} must be a word and {width} finite numbers, got {line[:60]!r}")
        vectors[row] = torch.from_numpy(values)
        found.add(row)
    return vectors, len(found)


def _lines(path: Path, member: str | None) -> Iterator[bytes]:
    with ExitStack() as stack:
        try:
            file: io.BufferedIOBase = stack.enter_context(path.open("rb"))
            if path.suffix == ".zip":
                archive = stack.enter_context(zipfile.ZipFile(path))
                names = archive.namelist()
                if len(names) > 1 and member not in names:
                    raise ValueError(f"{path}: there is no {member} in it, but {', '.join(names[:10])}")
                packed = cast(io.RawIOBase, archive.open(names[0] if len(names) == 1 else member or ""))
                file = stack.enter_context(io.BufferedReader(packed))  # which reads lines faster
            while line := file.readline(MAX_LINE):
                if len(line) == MAX_LINE:
                    raise ValueError(f"{path}: has a line of {MAX_LINE:,} bytes or more, this is no file of vectors")
                yield line
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, KeyError) as error:
            raise ValueError(f"{path}: is damaged: {error}") from error
