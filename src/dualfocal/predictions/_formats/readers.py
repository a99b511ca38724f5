"""Open a prediction file in the format of its suffix, and read several files as one."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualfocal._files import check_readable
from dualfocal._memory import memory_limit
from dualfocal.predictions._formats.arrays import NpyFile, NpzFile, SafetensorsFile, TorchFile
from dualfocal.predictions._formats.arrow import ParquetFile
from dualfocal.predictions._formats.arrow_files import ArrowFile
from dualfocal.predictions._formats.interface import Array, Column, Content, Look, PredictionFile, PredictionsError
from dualfocal.predictions._formats.json_lines import JsonLines
from dualfocal.predictions._formats.tables import TextTable

READERS: dict[str, Callable[[Path, int | str | None], PredictionFile]] = {
    ".npz": NpzFile,
    ".npy": NpyFile,
    ".safetensors": SafetensorsFile,
    ".pt": TorchFile,
    ".pth": TorchFile,
    ".csv": TextTable,
    ".tsv": TextTable,
    ".csv.gz": TextTable,
    ".tsv.gz": TextTable,
    ".jsonl": JsonLines,
    ".jsonl.gz": JsonLines,
    ".parquet": ParquetFile,
    ".arrow": ArrowFile,
    ".feather": ArrowFile,
}
PICKLE = (
    "is a pickle, which can run any program and is never read. If you trust it, convert it once in Python, a dict of "
    "arrays: import pickle, numpy; numpy.savez('predictions.npz', **pickle.load(open({name!r}, 'rb'))), or a table: "
    "import pandas; pandas.read_pickle({name!r}).to_csv('predictions.csv')"
)
REMEDIES = dict.fromkeys((".pkl", ".pickle", ".joblib"), PICKLE)
REMEDIES[".json"] = "must have one object per line, and the suffix .jsonl"
REMEDIES |= dict.fromkeys((".xlsx", ".xls", ".ods"), "is a spreadsheet: save it as .csv")


def suffix_of(path: Path) -> str:
    """Return the suffix in lower case, with the one before ``.gz``."""
    return "".join(path.suffixes[-2:] if path.suffix.lower() == ".gz" else path.suffixes[-1:]).lower()


def open_prediction_file(path: Path, max_memory: int | str | None = None) -> PredictionFile:
    """Open a prediction file, in the format of its suffix; its readers allocate at most ``max_memory``."""
    try:
        check_readable(path)
    except ValueError as error:
        raise PredictionsError(str(error)) from None
    try:
        memory_limit(max_memory)
    except ValueError as error:
        raise PredictionsError(f"{path}: {error}") from None
    suffix = suffix_of(path)
    if suffix in REMEDIES:
        raise PredictionsError(f"{path}: {REMEDIES[suffix].format(name=path.name)}")
    if suffix not in READERS:
        raise PredictionsError(f"{path}: must be {', '.join(READERS)}, got {suffix!r}")
    source = READERS[suffix](path, max_memory)
    for name, count in Counter(source.names).items():
        if count > 1:
            raise source.error(f"has more than one {source.noun} {name!r}")
    return source


def is_prediction_file(text: str) -> bool:
    """Whether an option names an existing file of a known format."""
    if suffix_of(Path(text)) in {*READERS, *REMEDIES}:
        with suppress(OSError, ValueError):  # too long for a path, or with a null character
            return Path(text).is_file()
    return False


class Share(NamedTuple):
    """The arrays or columns that one of several files has."""

    source: PredictionFile
    names: dict[str, str]  # a name, and the name in the file

    def own(self, names: list[str]) -> list[str]:
        """Return those of the names that are here, as the file has them."""
        return [self.names[name] for name in names if name in self.names]


class JoinedFile(PredictionFile):
    """A file, and arrays or columns of other files, whose names are those of their files.

    Args:
        main: the file.
        parts: for each name, the file and its array or column.
    """

    def __init__(self, main: PredictionFile, parts: dict[str, tuple[PredictionFile, str]]) -> None:
        super().__init__(main.path, main.max_memory)
        self.main, self.parts = main, parts
        self.noun, self.is_table = main.noun, main.is_table
        self.names = [*main.names, *parts]

    def read(self, values: list[str], others: list[str]) -> Content:
        shares = self._shares(values, others)
        return _joined(
            shares, [share.source.read(share.own(values), share.own(others)) for share in shares], values, others
        )

    def chunks(self, values: list[str], others: list[str], num_rows: int) -> Iterator[Content]:
        shares = self._shares(values, others)
        readers = [share.source.chunks(share.own(values), share.own(others), num_rows) for share in shares]
        row = 0
        for contents in zip_longest(*readers):
            lengths = [0 if content is None else _length(content) for content in contents]
            if min(lengths) < max(lengths):
                short, long = (shares[lengths.index(end(lengths))].source.path for end in (min, max))
                raise self.error(
                    f"each row needs one label, but {short} has {row + min(lengths):,} rows, and {long} has more"
                )
            self.first_row, self.fraction = row, shares[0].source.fraction
            row += lengths[0]
            yield _joined(shares, list(contents), values, others)

    def bytes_per_row(self, values: list[str], others: list[str]) -> int:
        return sum(
            share.source.bytes_per_row(share.own(values), share.own(others)) for share in self._shares(values, others)
        )

    def _shares(self, values: list[str], others: list[str]) -> list["Share"]:
        """Return which of the names are in which file."""
        owners = {name: self.parts.get(name, (self.main, name)) for name in values + others}
        sources = {id(source): source for source, _ in owners.values()}.values()
        return [
            Share(source, {name: own for name, (owner, own) in owners.items() if owner is source}) for source in sources
        ]

    def looks(self) -> dict[str, Look]:
        looks = {text: part.looks().get(name) for text, (part, name) in self.parts.items()}
        return self.main.looks() | {text: look for text, look in looks.items() if look is not None}

    def describe(self, names: list[str]) -> list[str]:
        return self.main.describe([name for name in names if name not in self.parts])

    def class_names(self, num_classes: int) -> tuple[str, ...] | None:
        return self.main.class_names(num_classes)


def _joined(shares: list[Share], contents: list[Content], values: list[str], others: list[str]) -> Content:
    """Return the content of several files as one."""
    numbers: dict[str, Array] = {}
    columns: dict[str, Column] = {}
    missing: dict[str, NDArray[np.bool_]] = {}
    for share, content in zip(shares, contents, strict=True):
        mine, rest = ([name for name in names if name in share.names] for names in (values, others))
        numbers |= zip(mine, content.values, strict=True)
        columns |= zip(rest, content.others, strict=True)
        missing |= {name: content.missing[own] for name, own in share.names.items() if own in content.missing}
    return Content([numbers[name] for name in values], [columns[name] for name in others], missing)


def _length(content: Content) -> int:
    return len([*content.values, *content.others][0])
