"""The file formats of predictions: what a file holds, and the arrays or columns asked for. Never a pickle."""

import csv
import json
import re
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

Array = NDArray[Any] | Tensor
Column = Array | list[str]

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


class PredictionsError(ValueError):
    """A predictions file that cannot be used; the message names the file, the value and the rule."""


@contextmanager
def _reading(path: Path, what: str = "") -> Iterator[None]:
    try:
        yield
    except PredictionsError:
        raise
    except Exception as error:  # a damaged file makes the libraries raise nearly anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise PredictionsError(f"{path}: {what}cannot be read: {reason}") from error


class Source(ABC):
    """A file of predictions."""

    noun = "column"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: list[str] = []

    def class_names(self, num_classes: int) -> tuple[str, ...] | None:
        """The names of the classes where the file states them apart from its arrays or columns."""
        return None

    @abstractmethod
    def read(self, values: list[str], others: list[str]) -> tuple[Array, list[Column]]:
        """The values as one array, and the other columns."""

    def describe(self, name: str) -> str:
        return repr(name)

    def place(self, row: int) -> str:
        return f"row {row}"

    def error(self, text: str) -> PredictionsError:
        return PredictionsError(f"{self.path}: {text}")

    def holds(self) -> str:
        more = f" and {len(self.names) - 12} more" if len(self.names) > 12 else ""
        return f"(it holds: {', '.join(map(self.describe, self.names[:12]))}{more})"

    def given(self, name: str, split: str | None) -> str:
        """The array or column that an option names."""
        for candidate in [name] if split is None else [f"{split}_{name}", name]:
            if candidate in self.names:
                return candidate
        raise self.error(f"has no {self.noun} {name!r} {self.holds()}")


class ArrayFile(Source):
    noun = "array"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with _reading(path), self._open() as file:
            self.names = list(file.keys())

    @contextmanager
    def _open(self) -> Iterator[Any]:
        if self.path.suffix.lower() == ".safetensors":
            with safe_open(self.path, framework="pt") as file:  # torch: numpy has no bfloat16
                yield file
            return
        if not zipfile.is_zipfile(self.path):  # what np.load says then is how to unpickle it
            raise self.error("is not a .npz archive, or a damaged one")
        with self.path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            yield file

    def describe(self, name: str) -> str:
        try:
            return f"{name!r} {form(self._array(name))}"
        except PredictionsError:
            return f"{name!r} (unreadable)"

    def read(self, values: list[str], others: list[str]) -> tuple[Array, list[Column]]:
        return self._array(values[0]), [self._array(name) for name in others]

    def class_names(self, num_classes: int) -> tuple[str, ...] | None:
        with _reading(self.path, "class names "), self._open() as file:
            try:
                in_arrays = not hasattr(file, "metadata")
                stated = file["class_names"].tolist() if in_arrays else json.loads(file.metadata()["class_names"])
            except (KeyError, TypeError, ValueError):  # not there, or of another kind: a pickle, no json
                return None
        # A file may have names for something else, or for the two classes of one score per sample.
        fits = isinstance(stated, list) and len(stated) == num_classes and all(isinstance(text, str) for text in stated)
        return tuple(stated) if fits else None

    def _array(self, name: str) -> Array:
        with _reading(self.path, f"array {name!r} "), self._open() as file:
            array: Array = file.get_tensor(name) if hasattr(file, "get_tensor") else file[name]
            # torch reads the machine's own byte order only
            return array if isinstance(array, Tensor) else array.astype(array.dtype.newbyteorder("="), copy=False)


class CsvFile(Source):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with _reading(path), path.open(encoding="utf-8-sig", newline="") as file:
            line = file.readline()
            bare = re.sub('"[^"]*"', "", line)  # "prob_a;b;c" is one name
            self.delimiter = max(",;\t", key=bare.count)
            header = next(csv.reader([line], delimiter=self.delimiter), [])
        if not line:
            raise self.error("is empty")
        self.names = [name.strip() for name in header]
        if all(name == "" or is_number(name) for name in self.names):
            raise self.error(f"needs a header line with column names, got {line.strip()[:60]!r}")

    def place(self, row: int) -> str:
        return next(f"line {line}" for i, (line, _) in enumerate(self._rows()) if i == row)

    def read(self, values: list[str], others: list[str]) -> tuple[Array, list[Column]]:
        # Columns that nobody needs are read too, cut short: a row with a field too many must not shift the others.
        kinds = ["f8" if name in values else "O" if name in others else "U1" for name in self.names]
        with _reading(self.path), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there are no rows is an error of ours
            try:
                table = np.loadtxt(
                    str(self.path),  # a name, not an open file, which would be read line by line
                    dtype=[(f"f{i}", kind) for i, kind in enumerate(kinds)],
                    delimiter=self.delimiter,
                    quotechar='"',
                    comments=None,
                    skiprows=1,
                    ndmin=1,
                    encoding="utf-8-sig",
                )
            except ValueError:
                self._explain(values)
                raise
        column = {name: table[f"f{i}"] for i, name in enumerate(self.names)}
        return _side_by_side([column[name] for name in values]), [self._strings(name, column[name]) for name in others]

    def _strings(self, name: str, column: NDArray[Any]) -> list[str]:
        strings = [text.strip() for text in column.tolist()]
        if "" in strings:
            raise self.error(f"column {name!r} is empty in {self.place(strings.index(''))}")
        return strings

    def _explain(self, values: list[str]) -> None:
        """Read again, slowly, to name the line that the quick reader stumbled over."""
        for line, row in self._rows():
            if len(row) != len(self.names):
                raise self.error(f"line {line} has {len(row)} fields, the header {len(self.names)}")
            for name, text in zip(self.names, row, strict=True):
                if name in values and not text.strip():
                    raise self.error(f"column {name!r} is empty in line {line}")
                if name in values and not is_number(text):
                    raise self.error(f"column {name!r} must hold numbers, got {text!r} in line {line}")

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        with self.path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=self.delimiter)
            next(reader)
            yield from ((reader.line_num, row) for row in reader if row)


class ParquetFile(Source):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.arrow = import_pyarrow(path)
        with _reading(path):
            self.schema = self.arrow.parquet.read_schema(path)
        self.names = list(self.schema.names)

    def describe(self, name: str) -> str:
        return f"{name!r} ({self.schema.field(name).type})"

    def read(self, values: list[str], others: list[str]) -> tuple[Array, list[Column]]:
        with _reading(self.path):
            with self.arrow.parquet.ParquetFile(self.path) as file:
                table = file.read(columns=list(dict.fromkeys(values + others)))
            arrays = {name: self._array(name, table.column(name)) for name in table.column_names}
        # Strings come as objects. What else does (dates, decimals) is taken by its text.
        plain: list[Column] = [arrays[name] for name in others]
        for i, name in enumerate(others):
            if arrays[name].dtype == object:
                plain[i] = [str(item).strip() for item in arrays[name].tolist()]
        return _side_by_side([arrays[name] for name in values]), plain

    def _array(self, name: str, column: Any, width: int = 1) -> NDArray[Any]:
        """(N,), or (N, K) from lists of K."""
        if column.null_count:
            raise self.error(f"column {name!r} is empty in row {np.asarray(column.is_null()).argmax() // width}")
        if self.arrow.types.is_dictionary(column.type):  # categories
            column = column.cast(column.type.value_type)
        if not self.arrow.types.is_nested(column.type):
            return np.asarray(column)
        lengths = np.asarray(self.arrow.compute.list_value_length(column))
        if len(odd := np.flatnonzero(lengths != lengths[:1])):
            got = f"got {lengths[0]} in row 0 and {lengths[odd[0]]} in row {odd[0]}"
            raise self.error(f"the lists of column {name!r} must have one length, {got}")
        width = int(lengths[0]) if len(lengths) else 1
        return self._array(name, self.arrow.compute.list_flatten(column), width).reshape(len(lengths), width)


def import_pyarrow(path: Path) -> Any:
    """The module, for a file that needs it."""
    try:
        import pyarrow.compute  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise PredictionsError(f'{path}: needs pyarrow: pip install "dualfocal[parquet]"') from error
    return pyarrow


def open_source(path: Path) -> Source:
    if (path / "recipe.json").is_file() and not (path / "predictions.safetensors").exists():
        raise PredictionsError(f"{path}: this run is not finished, it has no predictions yet")
    path = path / "predictions.safetensors" if path.is_dir() else path
    readers: dict[str, Callable[[Path], Source]] = {
        ".npz": ArrayFile,
        ".safetensors": ArrayFile,
        ".csv": CsvFile,
        ".parquet": ParquetFile,
    }
    if not path.is_file():
        raise PredictionsError(f"{path}: there is no such file")
    if path.suffix.lower() not in readers:
        raise PredictionsError(f"{path}: must be {', '.join(readers)} or a run folder, got {path.suffix!r}")
    source = readers[path.suffix.lower()](path)
    if twice := [name for i, name in enumerate(source.names) if name in source.names[:i]]:
        raise source.error(f"has more than one {source.noun} {twice[0]!r}")
    return source


def _side_by_side(columns: list[NDArray[Any]]) -> NDArray[Any]:
    return columns[0].copy() if len(columns) == 1 else np.stack(columns, axis=1)


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # Python reads 1_0 as 10


def numbered_otherwise(classes: tuple[str, ...]) -> bool:
    """Whether a number is not to be trusted as the index of one of these: class_10 before class_2, grade1 the first."""
    ends = [re.search("[0-9]+$", text) for text in classes]
    return all(ends) and [int(end[0]) for end in ends if end] != list(range(len(ends)))


def dtype_name(array: Array) -> str:
    return str(array.dtype).removeprefix("torch.")


def form(array: Array) -> str:
    return f"({' x '.join(map(str, array.shape)) or 'scalar'}, {dtype_name(array)})"
