"""The interface of all prediction formats."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dualfocal._memory import MemoryLimitError, check_memory
from dualfocal.tables import printable

Array = NDArray[Any] | Tensor
Column = Array | list[str]

FLOATS = ("float16", "bfloat16", "float32", "float64")
LONGEST_MESSAGE = 2000
MOST_UNPACKED = 1000  # bytes of memory per byte of a file that is read in one pass; more is made to harm
SAMPLE_ROWS = 10_000  # that decide what unusual names mean, if a file is read in one pass
STREAMED = ".npy, .safetensors, .parquet, .csv and .tsv"  # formats that can be read in one pass
INTEGERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


class Content(NamedTuple):
    """The arrays or columns that were read from a file, by name."""

    values: dict[str, Array]
    others: dict[str, Column]  # labels and groups: arrays, or stripped texts
    missing: Mapping[str, NDArray[np.bool_]] = {}  # of columns with empty cells: their rows, which mean nothing here

    @property
    def num_rows(self) -> int:
        """Number of rows; 0 for a scalar."""
        first = next(iter([*self.values.values(), *self.others.values()]))
        return len(first) if isinstance(first, list) or first.ndim else 0


class Look(NamedTuple):
    """What an array or column looks like, without reading all of it."""

    kind: str  # "float", "integer", "text" or "other"
    ndim: int
    length: int | None = None


class PredictionsError(ValueError):
    """A predictions file cannot be used; the message names the file, the value and the rule."""


class TooLargeError(PredictionsError):
    """A predictions file needs more memory than may be allocated.

    Args:
        message: what it needs, and remedies.
        problem: the message without file and remedies.
        streamable: whether the file can be read in one pass, see :func:`~dualfocal.predictions.stream_predictions`.
    """

    def __init__(self, message: str, problem: str = "", *, streamable: bool = False) -> None:
        super().__init__(message)
        self.problem, self.streamable = problem, streamable


@contextmanager
def one_line_errors(
    path: Path, text: str = "cannot be read", kinds: tuple[type[Exception], ...] = (Exception,)
) -> Iterator[None]:
    """Turn exceptions into a PredictionsError with a one-line message; by default all: a damaged file can raise any."""
    try:
        yield
    except PredictionsError:
        raise
    except MemoryError as error:
        raise PredictionsError(f"{path}: {text}: there is not enough memory") from error
    except kinds as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise PredictionsError(f"{path}: {shortened(f'{text}: {reason}', LONGEST_MESSAGE)}") from error


class PredictionFile(ABC):
    """A file of predictions. Each format is a subclass that sets ``names`` and implements ``read``.

    Formats that can be read in one pass also implement ``chunks`` and ``bytes_per_row``.

    Args:
        path: the file.
        max_memory: limit of the memory that a read may allocate (None: half of the free memory).
    """

    noun = "array"
    is_table = False  # whether it has columns and one row per sample
    how_to_stream = ""  # for formats that cannot be read in one pass: how to convert them

    def __init__(self, path: Path, max_memory: int | str | None = None) -> None:
        self.path = path
        self.max_memory = max_memory
        self.names: list[str] = []
        self.kept: NDArray[np.intp] | None = None  # the rows in use, after others were dropped
        self.in_chunks = False  # whether the file is read in one pass, in chunks
        self.first_row = 0  # row of the file where the current chunk starts
        self.fraction = 0.0  # of the file that has been read in chunks

    @cached_property
    def name_set(self) -> frozenset[str]:
        """The names, for fast lookups."""
        return frozenset(self.names)

    @abstractmethod
    def read(self, values: list[str], others: list[str]) -> Content:
        """Read columns of values as numbers, and other columns as they are."""

    def chunks(self, values: list[str], others: list[str], num_rows: int) -> Iterator[Content]:
        """Read the same in one pass, ``num_rows`` rows at a time (the last time the rest); sets ``first_row``."""
        raise self.error(f"cannot be read in one pass: {self.how_to_stream}")

    def bytes_per_row(self, values: list[str], others: list[str]) -> int:
        """Return about how much memory a row of a chunk needs."""
        raise self.error(f"cannot be read in one pass: {self.how_to_stream}")

    def sample(self, values: list[str], others: list[str]) -> Content:
        """Read all rows, or the first ones of a file that is read in chunks."""
        if not self.in_chunks:
            return self.read(values, others)
        return next(self.chunks(values, others, SAMPLE_ROWS), None) or self.read(values, others)

    @abstractmethod
    def looks(self) -> dict[str, Look]:
        """Return what the arrays or columns look like; those that cannot be read are left out."""

    def class_names(self, num_classes: int) -> tuple[str, ...] | None:
        """Return the class names stored in the file, if there is one per class."""
        return None

    def describe(self, names: list[str]) -> list[str]:
        return [shortened(repr(name)) for name in names]

    def place(self, row: int) -> str:
        """Return where a row of those in use is, for a message."""
        return self.line(self.first_row + (row if self.kept is None else int(self.kept[row])))

    def line(self, row: int) -> str:
        return f"row {row}"

    def from_row(self) -> str:
        """Return where the current chunk starts, for a message."""
        return f" from row {self.first_row} on" if self.in_chunks else ""

    def error(self, text: str) -> PredictionsError:
        return PredictionsError(f"{self.path}: {shortened(text, LONGEST_MESSAGE)}")

    def holds(self) -> str:
        more = f" and {len(self.names) - 12} more" if len(self.names) > 12 else ""
        return f"(it holds: {', '.join(self.describe(self.names[:12]))}{more})"

    def check_memory(self, needed: int, *, at_least: bool = False) -> None:
        """Raise a TooLargeError if ``needed`` bytes are more than may be allocated."""
        try:
            check_memory(self.path, needed, self.max_memory, at_least=at_least)
        except MemoryLimitError as error:
            streamable = not self.how_to_stream and error.needed <= MOST_UNPACKED * self.path.stat().st_size
            remedy = f"; {self.how_to_stream}" if self.how_to_stream else ""
            raise TooLargeError(f"{error}{remedy}", error.problem, streamable=streamable) from None


class Table(PredictionFile):
    """A file with columns and one row per sample."""

    noun = "column"
    is_table = True

    @abstractmethod
    def carried(self, names: list[str]) -> dict[str, Any]:
        """Return columns unchanged, to be written again: lists of texts, or pyarrow columns."""


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # Python reads 1_0 as 10


def shortened(text: str, longest: int = 60) -> str:
    """Return text for a message: one line of at most this length, because names in a file can be anything."""
    text = printable(text)
    return text if len(text) <= longest else f"{text[: longest // 2]}...{text[-longest // 2 + 3 :]}"


def dtype_name(array: Array) -> str:
    return str(array.dtype).removeprefix("torch.")


def form(array: Array) -> str:
    return form_text(array.shape, dtype_name(array))


def form_text(shape: Sequence[int | str], dtype: str) -> str:
    return f"({' x '.join(map(str, shape)) or 'scalar'}, {dtype})"


def look_kind(dtype: str) -> str:
    """Return the kind of a dtype, for ``Look``."""
    if dtype in FLOATS:
        return "float"
    if dtype in INTEGERS:
        return "integer"
    return "text" if dtype.startswith(("<U", "str", "object")) else "other"


def check_values(what: str, values: Array) -> None:
    """Raise a PredictionsError if an array cannot hold logits or probabilities."""
    if dtype_name(values) not in FLOATS or values.ndim == 0 or 0 in values.shape:
        hint = "; for whole percent give --percent" if dtype_name(values) in INTEGERS and "probs" in what else ""
        raise PredictionsError(
            f"{what} must be {', '.join(FLOATS)} and have at least one row, got {form(values)}{hint}"
        )


def without_axis_of_one(values: Tensor) -> Tensor:
    """Squeeze one score per sample from (N, 1), the layout of Keras, to (N,)."""
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
