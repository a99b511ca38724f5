"""Open a prediction file in the format of its suffix, and read several files as one."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dualfocal._memory import memory_limit
from dualfocal.files import check_readable
from dualfocal.predictions._formats.arrays import NpyFile, NpzFile, SafetensorsFile
from dualfocal.predictions._formats.arrow import ParquetFile
from dualfocal.predictions._formats.arrow_files import ArrowFile
from dualfocal.predictions._formats.interface import Content, Look, PredictionFile, PredictionsError
from dualfocal.predictions._formats.json_lines import JsonLines
from dualfocal.predictions._formats.tables import TextTable
from dualfocal.predictions._formats.torch_files import TorchFile
from dualfocal.tables import quantity

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
        contents = [share.source.read(share.own(values), share.own(others)) for share in shares]
        return _joined(shares, contents)

    def chunks(self, values: list[str], others: list[str], num_rows: int) -> Iterator[Content]:
        shares = self._shares(values, others)
        readers = [share.source.chunks(share.own(values), share.own(others), num_rows) for share in shares]
        row = 0
        for contents in zip_longest(*readers):
            lengths = [0 if content is None else content.num_rows for content in contents]
            if min(lengths) < max(lengths):
                short, long = (shares[lengths.index(end(lengths))].source.path for end in (min, max))
                rows = quantity(row + min(lengths), "row")
                raise self.error(f"each row needs one label, but {short} has {rows}, and {long} has more")
            self.first_row, self.fraction = row, shares[0].source.fraction
            row += lengths[0]
            yield _joined(shares, list(contents))

    def bytes_per_row(self, values: list[str], others: list[str]) -> int:
        shares = self._shares(values, others)
        return sum(share.source.bytes_per_row(share.own(values), share.own(others)) for share in shares)

    def _shares(self, values: list[str], others: list[str]) -> "list[_Share]":
        """Return which of the names are in which file."""
        shares: dict[int, _Share] = {}
        for name in [*values, *others]:
            source, own_name = self.parts.get(name, (self.main, name))
            shares.setdefault(id(source), _Share(source, {})).names[name] = own_name
        return list(shares.values())

    def looks(self) -> dict[str, Look]:
        looks = {text: part.looks().get(name) for text, (part, name) in self.parts.items()}
        return self.main.looks() | {text: look for text, look in looks.items() if look is not None}

    def describe(self, names: list[str]) -> list[str]:
        return self.main.describe([name for name in names if name not in self.parts])

    def class_names(self, num_classes: int) -> tuple[str, ...] | None:
        return self.main.class_names(num_classes)


class _Share(NamedTuple):
    """The arrays or columns that one of several files has."""

    source: PredictionFile
    names: dict[str, str]  # a name, and the name in the file

    def own(self, names: list[str]) -> list[str]:
        """Return those of the names that are here, as the file has them."""
        return [self.names[name] for name in names if name in self.names]


def _joined(shares: list[_Share], contents: list[Content]) -> Content:
    """Return the content of several files as one."""
    missing: dict[str, NDArray[np.bool_]] = {}
    joined = Content({}, {}, missing)
    for share, content in zip(shares, contents, strict=True):
        for name, own_name in share.names.items():
            if own_name in content.values:
                joined.values[name] = content.values[own_name]
            if own_name in content.others:
                joined.others[name] = content.others[own_name]
            if own_name in content.missing:
                missing[name] = content.missing[own_name]
    return joined
