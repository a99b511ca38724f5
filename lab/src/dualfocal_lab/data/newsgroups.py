"""20 Newsgroups (Lang, 1995): the corpus of 19,997 texts with the published split, and the version sorted by date.

The tokenizer is that of the published pipeline; word vectors come from GloVe's text files.
"""

import io
import itertools
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from dualfocal.checks import check_count
from dualfocal_lab.data._cache import Samples, decoded
from dualfocal_lab.data._tree import read_files
from dualfocal_lab.data.dataset import DataSet, Size, as_count, random_split, shuffled, sizes, without_empty
from dualfocal_lab.data.paths import Root, find
from dualfocal_lab.data.transforms import Embed

LIMIT = 400_000_000  # bytes; the largest version has 50 MB
_SEPARATORS = str.maketrans(dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n', " "))
_NOT_A_NUMBER = re.compile(rb"[^-+.0-9eE]").search
MAX_LINE = 100_000  # bytes of a line of word vectors, much more than any real line


def newsgroups(
    root: Root = None,
    *,
    vectors: str | None = None,
    width: int = 100,
    val_size: Size = 900,
    val2_size: Size = 0,
    test_size: Size = 3_999,
    split_seed: int = 1,
    num_words: int = 20_000,
    length: int = 1_000,
) -> DataSet:
    """Load 20 Newsgroups: 19,997 texts in 20 classes, without headers, with fixed GloVe word vectors.

    The default splits are the published ones: texts in the order of their file names, shuffled with seed 1; the last
    3,999 are the test split, the 900 before them the validation split. As published, the vocabulary is made from all
    texts, including the test split.

    Args:
        root: see :func:`~dualfocal_lab.data.cifar.cifar10`.
        vectors: text file of word vectors of any width (None: ``glove.6B.100d.txt`` or ``glove.6B.zip`` in the root;
            ``"none"``: word numbers, for a model with its own embedding).
        width: width of the GloVe vectors: 50, 100, 200 or 300.
        val_size: size of the validation split.
        val2_size: size of a second validation split.
        test_size: size of the test split.
        split_seed: seed of the shuffle.
        num_words: size of the vocabulary, including padding.
        length: number of words per text; longer texts keep their last words.
    """
    path = find("20newsgroups", root)
    samples = _decoded("20newsgroups", root, [path], num_words, length)
    num = len(samples.target)
    num_test = as_count(test_size, num, "test_size")
    if not 0 < num_test < num:
        raise ValueError(f"test_size must be from 1 to {num - 1}, got {test_size}")
    val, val2 = sizes(num - num_test, val_size=val_size, val2_size=val2_size)
    order = shuffled(num, split_seed)
    train, second, first, test = order.tensor_split([num - num_test - val - val2, num - num_test - val, num - num_test])
    splits = without_empty(train=train, val=first, val2=second, test=test)
    return _data_set("20newsgroups", root, samples, splits, vectors, width)


def newsgroups_by_date(
    root: Root = None,
    *,
    vectors: str | None = None,
    width: int = 100,
    val_size: Size = 900,
    val2_size: Size = 0,
    split_seed: int = 1,
    num_words: int = 20_000,
    length: int = 1_000,
) -> DataSet:
    """Load 20 Newsgroups sorted by date: 11,314 texts for training, 7,532 later texts for testing.

    Args:
        root: see :func:`newsgroups`.
        vectors: see :func:`newsgroups`.
        width: see :func:`newsgroups`.
        val_size: size of the validation split, from the training texts.
        val2_size: see :func:`newsgroups`.
        split_seed: seed of the shuffle of the training texts.
        num_words: see :func:`newsgroups`.
        length: see :func:`newsgroups`.
    """
    name = "20newsgroups_bydate"
    path = find(name, root)
    paths = [path, path.with_name("20news-bydate-test")] if path.name == "20news-bydate-train" else [path]
    if not paths[-1].exists():
        raise ValueError(f"{paths[-1]}: there is no such folder; it must lie beside {paths[0].name}")
    samples = _decoded(name, root, paths, num_words, length)
    if not 0 < samples.num_train < len(samples.target):
        raise ValueError(f"{path}: there must be texts below 20news-bydate-train and 20news-bydate-test")
    splits = random_split(samples.num_train, val_size=val_size, val2_size=val2_size, seed=split_seed)
    splits["test"] = samples.test
    return _data_set(name, root, samples, splits, vectors, width)


def _data_set(
    name: str, root: Root, samples: Samples, splits: dict[str, torch.Tensor], vectors: str | None, width: int
) -> DataSet:
    encoder: nn.Module = nn.Identity()
    notes: tuple[str, ...] = ()
    if vectors != "none":
        member = f"glove.6B.{width}d.txt"
        file = Path(vectors).expanduser() if vectors is not None else find("glove", root, member, "glove.6B.zip")
        if not file.is_file():
            raise ValueError(f"vectors: there is no file {file}")
        matrix, count = read_vectors(file, samples.words, member=member)
        if not count:
            raise ValueError(f"{file}: has no vector for any of the {len(samples.words):,} words (in lower case)")
        if vectors is None and matrix.shape[1] != width:
            raise ValueError(f"{file}: vectors must have width {width}, got {matrix.shape[1]}")
        encoder = Embed(matrix)
        notes = (f"{count:,} of {len(samples.words):,} words have a vector in {file.name}, {matrix.shape[1]} wide",)
    return DataSet(
        name=name,
        class_names=samples.class_names,
        inputs=samples.inputs,
        target=samples.target,
        splits=splits,
        encoder=encoder,
        notes=notes,
    )


def _decoded(name: str, root: Root, paths: list[Path], num_words: int, length: int) -> Samples:
    check_count("num_words", num_words, low=2)
    check_count("length", length)
    options = {"num_words": num_words, "length": length}
    return decoded(name, root, paths, partial(_read, paths, **options), options=options)


def _read(paths: list[Path], num_words: int, length: int) -> Samples:
    """Read the texts ``.../GROUP/NUMBER``; those below a folder ``...-test`` are the test split."""
    texts: dict[tuple[bool, str, str], list[str]] = {}  # keys: is test, group, number
    for path in paths:
        for name, content in read_files(path, lambda name: name.split("/")[-1].isdigit(), limit=LIMIT):
            *above, group, number = name.split("/")
            if above:  # else the file is in no group
                texts[any(folder.endswith("-test") for folder in above), group, number] = tokens(body(content))
    if not texts:
        raise ValueError(f"{paths[0]}: holds no texts GROUP/NUMBER")
    order = sorted(texts)  # file names are sorted as text: 10 before 9
    groups = sorted({group for _, group, _ in order})
    in_order = [texts[key] for key in order]
    words = vocabulary(in_order, num_words)
    return Samples(
        inputs=numbers(in_order, words, length),
        target=torch.tensor([groups.index(group) for _, group, _ in order]),
        class_names=tuple(groups),
        num_train=sum(not is_test for is_test, _, _ in order),
        words=words,
    )


def body(content: bytes) -> str:
    """Return a message without its header, which ends at the first blank line."""
    text = content.decode("latin-1").replace("\r\n", "\n").replace("\r", "\n")
    end = text.find("\n\n")
    return text[end:] if end > 0 else text


def tokens(text: str) -> list[str]:
    """Split a text into words in lower case, at spaces and punctuation, but not at apostrophes.

    >>> tokens("Don't panic: e-mail (me)!")
    ["don't", 'panic', 'e', 'mail', 'me']
    """
    return [word for word in text.lower().translate(_SEPARATORS).split(" ") if word]


def vocabulary(texts: Iterable[Sequence[str]], num_words: int) -> tuple[str, ...]:
    """Return the most frequent words in descending order, ties in order of appearance; word i has the number i + 1.

    As in the published pipeline, ``num_words`` includes the number 0, which is padding.
    """
    counts = Counter(itertools.chain.from_iterable(texts))  # in order of appearance
    return tuple(word for word, _ in sorted(counts.items(), key=lambda item: -item[1])[: num_words - 1])


def numbers(texts: Sequence[Sequence[str]], words: Sequence[str], length: int) -> Tensor:
    """Convert texts to word numbers, int32 (N, length): the last ``length`` known words, padded on the left."""
    number_of = {word: i for i, word in enumerate(words, start=1)}
    rows = np.zeros((len(texts), length), dtype=np.int32)
    for row, text in zip(rows, texts, strict=True):
        known = [number_of[word] for word in text if word in number_of][-length:]
        row[length - len(known) :] = known
    return torch.from_numpy(rows)


def read_vectors(path: Path, words: Sequence[str], *, member: str | None = None) -> tuple[Tensor, int]:
    """Read the vectors of words from a text file with lines ``word x1 x2 ...``.

    Args:
        path: text file, or a zip with one.
        words: word i goes to row i + 1.
        member: name of the file in the zip, if it has several.

    Returns:
        The vectors, float32 (1 + number of words, width), and the number of words that have one. Row 0 (padding) and
        the rows of words without a vector are 0.

    Raises:
        ValueError: a line is invalid; the message names it.
    """
    row_of = {word.encode(): i for i, word in enumerate(words, start=1)}
    lines = _lines(path, member)
    first = next(lines, b"")
    width = len(first.split()) - 1
    if width < 2:
        raise ValueError(f"{path}: line 1 must be a word and the numbers of its vector, got {first[:60]!r}")
    vectors = torch.zeros(len(words) + 1, width)
    filled: set[int] = set()
    for count, line in enumerate(itertools.chain([first], lines), start=1):
        row = row_of.get((line.split(None, 1) or [b""])[0])
        if row is None or row in filled:
            continue
        fields = line.split()[1:]
        if any(map(_NOT_A_NUMBER, fields[: len(fields) - width])):  # a word with spaces, which no tokenized word has
            continue
        try:
            values = np.array(fields, dtype=np.float64)
        except ValueError as error:
            raise ValueError(f"{path}: line {count} must be a word and {width} numbers: {error}") from error
        if len(values) != width or not (abs(values) < 1e30).all():
            raise ValueError(f"{path}: line {count} must be a word and {width} finite numbers, got {line[:60]!r}")
        vectors[row] = torch.from_numpy(values)
        filled.add(row)
    return vectors, len(filled)


def _lines(path: Path, member: str | None) -> Iterator[bytes]:
    with ExitStack() as stack:
        try:
            file: io.BufferedIOBase = stack.enter_context(path.open("rb"))
            if path.suffix == ".zip":
                archive = stack.enter_context(zipfile.ZipFile(path))
                names = archive.namelist()
                if len(names) > 1 and member not in names:
                    raise ValueError(f"{path}: holds no {member}, but {', '.join(names[:10])}")
                packed = cast(io.RawIOBase, archive.open(names[0] if len(names) == 1 else member or ""))
                file = stack.enter_context(io.BufferedReader(packed))  # reads lines faster
            while line := file.readline(MAX_LINE):
                if len(line) == MAX_LINE:
                    raise ValueError(f"{path}: has a line of {MAX_LINE:,} bytes or more: not a file of word vectors")
                yield line
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, KeyError) as error:
            raise ValueError(f"{path}: is damaged: {error}") from error
